"""Random programs with random cuts: torch's ``.grad`` decides who is reached, the program's own text which line cut.

A program is a list of stages. Each has a linear layer, reads the result of an earlier stage and hands its own on in
one of several ways, one line each; some results are dropped before the loss. What each line does is known from how it
was written, so the truth about every parameter is worked out beside torch and beside graphscope.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphscope.analyze.explain import explain
from graphscope.analyze.failures import explain_failure
from graphscope.analyze.mark import mark
from graphscope.analyze.memory import measure_memory
from graphscope.capture.program.choose import graph_of_value
from graphscope.capture.recording.record import Recorded, Recorder
from graphscope.findings import Cause, Explained, Raised, Severity
from graphscope.model import GraphData
from graphscope.render.explain_terminal import render as render_explained
from graphscope.render.memory_terminal import render as render_kept
from graphscope.render.terminal_lines import LineOptions
from graphscope.render.terminal_text import cells
from tests.strategies import graphs

EXPLAIN, MEMORY = (
    jsonschema.Draft202012Validator(
        json.loads(files("graphscope").joinpath(f"schema/{name}-1.json").read_text("utf-8"))
    )
    for name in ("explain", "memory")
)

WAYS: dict[str, tuple[str, Cause | None]] = {
    "keep": ("h{n} = m.l{n}({x}).tanh()", None),
    "scale": ("h{n} = m.l{n}({x}) * 0.5 + 1", None),
    "in_place": ("h{n} = m.l{n}({x}).add_(1)", None),
    "residual": ("h{n} = {x} + m.l{n}({x})", None),
    "straight_through": ("h{n} = m.l{n}({x}); h{n} = h{n} + (h{n}.round() - h{n}).detach()", None),
    "detach": ("h{n} = m.l{n}({x}).detach()", Cause.DETACH),
    "data": ("h{n} = m.l{n}({x}).data", Cause.DATA),
    "no_grad": ("with torch.no_grad(): h{n} = m.l{n}({x})", Cause.NO_GRAD),
    "argmax": ("h{n} = F.one_hot(m.l{n}({x}).argmax(1), 3).float()", Cause.INTEGER_DTYPE),
    "compare": ("h{n} = (m.l{n}({x}) > 0).float()", Cause.INTEGER_DTYPE),
    "integer": ("h{n} = m.l{n}({x}).long() / 2", Cause.INTEGER_DTYPE),
    "numpy": ("h{n} = torch.from_numpy(np.tanh(m.l{n}({x}).detach().numpy()))", Cause.LEFT_PYTORCH),
    "list": ("h{n} = torch.tensor(m.l{n}({x}).tolist())", Cause.LEFT_PYTORCH),
    "item": ("h{n} = torch.ones(2, 3) * m.l{n}({x}).sum().item()", Cause.LEFT_PYTORCH),
}
"""How a stage hands its result on, and the cause if that cuts."""

LEAVE = {"numpy", "list", "item"}
"""After these nothing in the program tells that a number came from here."""


_WITHOUT_GRADIENT = {"loss_without_history", "everything_frozen"}
"""What may be wrong with a program whose loss does not require grad."""


class Stage(NamedTuple):
    reads: int
    """Number of the stage that it reads; -1 for the input."""
    way: str
    frozen: bool


class Program(NamedTuple):
    stages: tuple[Stage, ...]
    ends: tuple[int, ...]
    """Stages whose results make the loss."""

    @property
    def text(self) -> str:
        lines = ["import numpy as np", "import torch", "import torch.nn.functional as F", "from torch import nn", ""]
        lines += ["", "def build():", "    m = nn.Module()"]
        lines += [f"    m.l{n} = nn.Linear(3, 3)" for n in range(len(self.stages))]
        lines += [f"    m.l{n}.requires_grad_(False)" for n, stage in enumerate(self.stages) if stage.frozen]
        lines.append("    x = torch.rand(2, 3)")
        for n, stage in enumerate(self.stages):
            source = "x" if stage.reads < 0 else f"h{stage.reads}"
            lines.append("    " + WAYS[stage.way][0].format(n=n, x=source))
        lines += [
            f"    loss = ({' + '.join(f'h{n}' for n in self.ends)}).sum()",
            '    return {"loss": loss, "model": m}',
        ]
        return "\n".join(lines) + "\n"

    def line_of(self, number: int) -> int:
        frozen = sum(stage.frozen for stage in self.stages)
        return 8 + len(self.stages) + frozen + 2 + number

    def readers(self, number: int) -> list[int]:
        return [n for n, stage in enumerate(self.stages) if stage.reads == number]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    count = draw(st.integers(1, 6))
    stages = [
        Stage(draw(st.integers(-1, n - 1)), draw(st.sampled_from(sorted(WAYS))), draw(st.integers(0, 5)) == 0)
        for n in range(count)
    ]
    ends = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True))
    return Program(tuple(stages), tuple(sorted(ends)))


class Truth(NamedTuple):
    """What the text of a program says of the layer of one stage."""

    used: bool
    """A value that came of it goes into the loss."""
    nearest: frozenset[tuple[Cause, int]]
    """On each way to the loss, the cut that is nearest to the loss."""
    every: frozenset[tuple[Cause, int]]


def truth_of(program: Program, number: int) -> Truth:
    ways = list(_ways(program, number))
    cuts = [list(_cuts_on(program, way)) for way in ways]
    return Truth(
        bool(ways),
        frozenset(cut[-1] for cut in cuts if cut),
        frozenset(one for cut in cuts for one in cut) | frozenset(_beside(program, ways)),
    )


def _beside(program: Program, ways: list[list[int]]) -> Iterator[tuple[Cause, int]]:
    """The ``detach()`` of a straight-through stage, which is on one of the two ways through it."""
    for n in {n for way in ways for n in way}:
        if program.stages[n].way == "straight_through":
            yield Cause.DETACH, program.line_of(n)


def _cuts_on(program: Program, way: list[int]) -> Iterator[tuple[Cause, int]]:
    """Where a gradient that could come back along a way is taken from it, farthest from the loss first."""
    for before, n in zip([None, *way], way, strict=False):
        cause = cut_at(program, n)
        at_entry = program.stages[n].way == "no_grad"  # what comes in without a history loses none here
        if cause is not None and not (at_entry and before is not None and not hands_on_gradient(program, before)):
            yield cause, program.line_of(n)


def hands_on_gradient(program: Program, number: int) -> bool:
    """The result of a stage requires grad."""
    return cut_at(program, number) is None and wants_gradient(program, number)


def wants_gradient(program: Program, number: int) -> bool:
    """The layer of a stage is trainable, or what it reads requires grad."""
    stage = program.stages[number]
    if not stage.frozen:
        return True
    return stage.reads >= 0 and hands_on_gradient(program, stage.reads)


def cut_at(program: Program, number: int) -> Cause | None:
    """How a stage takes a gradient from what wants one."""
    return WAYS[program.stages[number].way][1] if wants_gradient(program, number) else None


def _ways(program: Program, number: int) -> Iterator[list[int]]:
    """Each way from a stage to the loss as the stages on it, itself first."""
    if number in program.ends:
        yield [number]
    for reader in program.readers(number):
        for way in _ways(program, reader):
            yield [number, *way]


def run(program: Program, folder: Path) -> tuple[Explained, dict[str, Any]]:
    path = folder / "program.py"
    path.write_text(program.text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recorder = Recorder()
    with recorder.active():
        variables = module.build()
    data = graph_of_value(variables, "build()", recorded=Recorded(recorder, folder)).check()
    return explain(data), variables


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_verdict_and_line_of_every_parameter(program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        explained, variables = run(program, Path(folder))
    model, loss = variables["model"], variables["loss"]
    if loss.requires_grad:
        loss.backward()
    rows = {row.name: row for row in explained.tensors}
    for name, parameter in model.named_parameters():
        row = rows[f"model.{name}"]
        assert row.receives_grad == (parameter.grad is not None), (name, program.text)
        number = int(name[1 : name.index(".")])
        if row.receives_grad:
            assert row.cause is None
            continue
        if program.stages[number].frozen:
            assert row.cause is Cause.FROZEN
            continue
        truth = truth_of(program, number)
        told = {
            (cause, place.line)
            for cause, place in [(row.cause, row.location), *((one.cause, one.location) for one in row.also)]
            if place
        }
        if not truth.used:
            assert row.cause in {Cause.UNUSED, Cause.LEFT_PYTORCH}, (name, program.text)
        elif _is_followed(program, number):
            assert row.location is not None, (name, program.text)
            assert (row.cause, row.location.line) in truth.nearest, (name, told, truth, program.text)
            assert told <= truth.every, (name, told, truth, program.text)
        else:
            lines = {line for _, line in truth.every}
            assert row.location is not None, (name, program.text)
            assert row.location.line in lines | _dropped(program, number), (name, told, truth, program.text)
    assert all(
        hazard.severity is not Severity.ERROR or hazard.kind in _WITHOUT_GRADIENT for hazard in explained.hazards
    )


def _is_followed(program: Program, number: int) -> bool:
    """Values do not leave torch on any way from here: each way can be followed to its end."""
    seen, waiting = {number}, [number]
    while waiting:
        current = waiting.pop()
        if program.stages[current].way in LEAVE:
            return False
        for reader in program.readers(current):
            if reader not in seen:
                seen.add(reader)
                waiting.append(reader)
    return True


def _dropped(program: Program, number: int) -> set[int]:
    """Lines of everything that came of a stage."""
    lines = {program.line_of(number)}
    for reader in program.readers(number):
        lines |= _dropped(program, reader)
    return lines


def test_lines_are_counted_right() -> None:
    program = Program((Stage(-1, "keep", frozen=True), Stage(0, "detach", frozen=False)), (1,))
    assert "h1 = m.l1(h0).detach()" in program.text.splitlines()[program.line_of(1) - 1]


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graphs(), st.integers(40, 120))
def test_any_sound_graph_can_be_explained(data: GraphData, width: int) -> None:
    explained = explain(data)
    EXPLAIN.validate(explained.to_json())
    kept = measure_memory(data)
    MEMORY.validate(kept.to_json())
    mark(data, explained).check()
    for details in (False, True):
        options = LineOptions(width=width)
        texts = [render_explained(explained, options, details=details), render_kept(kept, options, details=details)]
        assert max(cells(line) for text in texts for line in text.splitlines()) <= width


@given(graphs(), st.text(max_size=40), st.booleans())
def test_any_error_in_any_graph_has_a_story_or_none(data: GraphData, text: str, in_backward: bool) -> None:  # noqa: FBT001
    for message in (text, *TEXTS):
        explained = explain_failure(data, Raised("RuntimeError", message, (), in_backward))
        assert explained.error is not None
        assert explained.error.text == message
        EXPLAIN.validate(explained.to_json())


TEXTS = (
    "one of the variables needed for gradient computation has been modified by an inplace operation",
    "Trying to backward through the graph a second time",
    "element 0 of tensors does not require grad and does not have a grad_fn",
    "Output 0 of BackwardHookFunction is a view and is being modified inplace",
    "Output 1 of UnbindBackward0 is a view, one of the multiple views",
    "Inference tensors cannot be saved for backward",
    "grad can be implicitly created only for scalar outputs",
    "Only Tensors created explicitly by the user support the deepcopy protocol at the moment",
    "derivative for aten::_x_backward is not implemented",
    "Function 'MulBackward0' returned nan values in its 0th output.",
    "The differentiated Tensor at index 0 appears to not have been used in the graph",
)
