"""What a walk calls its roots; that it tells the same in every process; and what it can of a torch that tells less."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import graphscope
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.walk import to_root, walk_graph
from graphscope.errors import GraphscopeError
from graphscope.model import Kind, State
from tests.subjects import SUBJECTS, Marked, training_step


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (3,), requires_grad=True)


# Roots by name


@dataclass
class Result:
    loss: torch.Tensor
    extra: list[torch.Tensor]


def test_roots_are_named_by_variables_else_by_their_place() -> None:
    Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024
    y = leaf().exp()
    z = y * 2
    unnamed = [node.names for node in graphscope.walk([y * 1, Pair(y * 2, z)]).nodes if node.kind is Kind.OUTPUT]
    assert unnamed == [("output[0]",), ("output[1].left",), ("z",)]
    result = Result(y.sum() * 1, [y.mean() * 1])
    names = [node.names for node in graphscope.walk(result, names={}).nodes if node.kind is Kind.OUTPUT]
    assert names == [("loss",), ("extra[0]",)]


def test_the_class_of_a_module_is_told_from_a_module() -> None:
    with pytest.raises(GraphscopeError, match="Linear is a class and was given where a tensor was expected"):
        graphscope.walk(torch.nn.Linear)


def test_further_tensors_are_not_reached() -> None:
    x = leaf()
    loss, other = x.sum(), x.exp()
    known = Names()
    known.search({"x": x, "loss": loss, "other": other, "alone": torch.ones(1)})
    others = [to_root(name, tensor) for name, tensor in (("other", other), ("alone", torch.ones(1)))]
    data = walk_graph([to_root("loss", loss)], known, others=others).check()
    assert [(node.op, node.reached) for node in data.nodes if node.op] == [("sum", True), ("exp", False)]


# The same graph, the same data


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_is_sound_and_told_the_same_twice(subject: str) -> None:
    torch.manual_seed(0)
    try:
        variables = SUBJECTS[subject]()
        first, second = (graphscope.walk(variables["loss"], names=variables).check() for _ in range(2))
    finally:
        Marked.switched_on = False
    assert first.data == second.data
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())
    assert not first.data.notices
    assert {saved.state for node in first.nodes for saved in node.saved} <= set(State)


PROGRAM = """
import sys, torch
import graphscope
from tests.subjects import SUBJECTS, Marked
for name, make in SUBJECTS.items():
    torch.manual_seed(0)
    variables = make()
    graph = graphscope.walk(variables["loss"], names=variables)
    Marked.switched_on = False
    for kind in ("json", "dot", "txt"):
        print(name, kind, graph.to(kind))
"""


def test_two_processes_tell_the_same() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert len(told[0]) > 50_000


def test_no_address_is_told() -> None:
    variables = training_step()
    graph = graphscope.walk(variables["loss"], names=variables)
    assert "0x" not in json.dumps(graph.to_json())


# An older torch


def test_a_torch_that_tells_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.4 shows no saved tensor without unpacking it, and no metadata of results."""
    from graphscope.capture.walking import saved, walk

    class Blind:
        """A node without ``_input_metadata``."""

        def __init__(self, node: Any) -> None:
            self._node = node

        def __getattr__(self, name: str) -> Any:
            if name == "_input_metadata":
                raise AttributeError(name)
            return getattr(self._node, name)

    describe = walk._Builder._describe_outputs
    monkeypatch.setattr(walk._Builder, "_describe_outputs", lambda self, node: describe(self, Blind(node)))
    for module in (saved, walk):
        monkeypatch.setattr(module, "CAN_LOOK", False)
    parts = leaf(4).chunk(4)
    data = graphscope.walk([parts[2].exp() * parts[3], torch.autograd.graph.get_gradient_edge(parts[1])], names={}).data
    data.check()
    (split,) = [node for node in data.nodes if node.op == "split"]
    assert len(split.outputs) == 4
    assert {output.shape for output in split.outputs} == {None}
    states = {saved.state for node in data.nodes for saved in node.saved}
    assert states == {State.UNAVAILABLE}
    assert not data.storages
    assert len(data.notices) == 2
