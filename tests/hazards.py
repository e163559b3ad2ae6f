"""What is told of small programs: kind, severity and line of their hazards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import graphscope
from graphscope.capture.program.choose import graph_of_value
from graphscope.capture.recording.record import Recorded, Recorder
from graphscope.findings import Hazard, Severity

E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE
Program = Callable[[], dict[str, Any]]


def hazards_of(program: Program) -> list[Hazard]:
    """What is told of a program and the variables that it ends with."""
    torch.manual_seed(0)
    before = torch.is_grad_enabled()
    recorder = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with recorder.active():
                variables = program()
        finally:
            torch.set_grad_enabled(before)
        graph = graph_of_value(variables, "program()", recorded=Recorded(recorder))
    return list(graphscope.Graph(graph).explain().hazards)


def told(program: Program) -> list[tuple[str, Severity]]:
    return [(hazard.kind, hazard.severity) for hazard in hazards_of(program)]


def only(program: Program, kind: str, severity: Severity, line: str) -> Hazard:
    """The one hazard of a program, at a line with these words."""
    (hazard,) = hazards_of(program)
    assert (hazard.kind, hazard.severity) == (kind, severity)
    assert hazard.location is not None
    assert line in hazard.location.code
    assert hazard.message.endswith((".", ")"))
    assert hazard.remedy
    return hazard
