"""Which line switched gradients off: the right one, or none; never another.

The programs stand in ``tests/regions.txt``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import graphscope
from graphscope.model import Kind, Node


class Told(NamedTuple):
    """What is expected of the ops of a line."""

    mode: str
    entered: str = ""
    line: str | None = None
    region: str = ""
    also_grad: bool = False


class Program(NamedTuple):
    """A section of ``regions.txt``."""

    text: str
    expected: dict[str, Told]


def read_programs() -> dict[str, Program]:
    sections = (Path(__file__).parent.parent / "regions.txt").read_text(encoding="utf-8").split("=== ")[1:]
    found = {}
    for section in sections:
        head, _, text = section.partition("---\n")
        name, *told = head.splitlines()
        found[name] = Program(text, dict(read_expected(line) for line in told))
    return found


def read_expected(line: str) -> tuple[str, Told]:
    mark, _, rest = line.partition(": ")
    mode, *more = rest.split()
    if not more:
        return mark, Told(mode)
    entered, switch, *extras = more
    kinds = [extra.removeprefix("region:") for extra in extras if extra.startswith("region:")]
    return mark, Told(mode, entered, None if switch == "?" else switch, (*kinds, mode)[0], "also" in extras)


PROGRAMS = read_programs()


def run(text: str, folder: Path) -> graphscope.Graph:
    file = folder / "program.py"
    file.write_text(text, encoding="utf-8")
    variables = {"__name__": "program", "torch": torch, "x": torch.rand(3, requires_grad=True)}
    with graphscope.recording() as recording:
        exec(compile(text, str(file), "exec"), variables)  # noqa: S102  the program of the test
    assert torch.is_grad_enabled()
    assert recording._recorder.puzzles == []
    return recording.graph(names={}).check()


def marks(text: str) -> dict[str, int]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.search(r"  # (\w+)$", line)
        if mark:
            found[mark.group(1)] = number
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_line_that_switched(name: str, tmp_path: Path) -> None:
    text, expected = PROGRAMS[name]
    lines, graph = marks(text), run(text, tmp_path)
    regions = {region.id: region for region in graph.data.regions}
    for mark, told in expected.items():
        found = ops_at(graph, lines[mark])
        assert found, f"no op at {mark}"
        modes = {node.mode for node in found}
        assert modes == ({told.mode, "grad"} if told.also_grad else {told.mode})
        for node in found:
            if node.mode == "grad":
                assert node.region is None
                continue
            assert node.region is not None
            region = regions[node.region]
            line = region.location.line if region.location is not None else None
            assert (region.mode, region.entered) == (told.region, told.entered)
            assert line == (lines[told.line] if told.line else None)


def ops_at(graph: graphscope.Graph, line: int) -> list[Node]:
    return [
        node
        for node in graph.nodes
        if node.kind is Kind.OP and node.mode is not None and node.location is not None and node.location.line == line
    ]


def test_a_block_in_a_block_has_a_parent(tmp_path: Path) -> None:
    text = """
with torch.no_grad():
    a = x * 1
    with torch.no_grad():
        b = x * 2
    c = x * 3
"""
    graph = run(text, tmp_path)
    outer, inner = graph.data.regions
    assert (inner.parent, outer.parent) == (outer.id, None)
    by_line = {node.location.line: node.region for node in graph.nodes if node.op == "mul" and node.location}
    assert by_line == {3: outer.id, 5: inner.id, 6: outer.id}


def test_the_parent_may_stand_in_another_function_and_hold_no_op(tmp_path: Path) -> None:
    text = """
@torch.no_grad()
def f(v):
    return v * 2
def g(v):
    with torch.no_grad():
        return f(v)
g(x)
"""
    graph = run(text, tmp_path)
    by_id = {region.id: region for region in graph.data.regions}
    (node,) = [node for node in graph.nodes if node.op == "mul"]
    assert node.region is not None
    inner = by_id[node.region]
    assert inner.location is not None
    assert inner.location.line == 2
    assert inner.parent is not None
    outer = by_id[inner.parent].location
    assert outer is not None
    assert outer.line == 6


def test_a_file_that_cannot_be_read_gives_no_line() -> None:
    text = "with torch.no_grad():\n    y = x * 2\n"
    variables = {"torch": torch, "x": torch.rand(3, requires_grad=True)}
    with graphscope.recording() as recording:
        exec(compile(text, "<string>", "exec"), variables)  # noqa: S102
    graph = recording.graph(names={}).check()
    (region,) = graph.data.regions
    assert (region.mode, region.entered, region.location) == ("no_grad", "unknown", None)


def test_a_mode_that_is_left_on_is_told_of_its_region(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    text = "torch.set_grad_enabled(False)\ny = x * 2\n"
    file.write_text(text, encoding="utf-8")
    try:
        with graphscope.recording() as recording:
            exec(compile(text, str(file), "exec"), {"torch": torch, "x": torch.rand(3)})  # noqa: S102
    finally:
        torch.set_grad_enabled(True)
    (region,) = recording.graph(names={}).check().data.regions
    assert region.left_on


def test_a_recording_begun_inside_a_block_knows_the_block() -> None:
    x = torch.rand(3, requires_grad=True)
    with torch.no_grad():  # the block
        with graphscope.recording() as recording:
            y = x * 2
        graph = recording.graph(y).check()
    (region,) = graph.data.regions
    assert region.location is not None
    assert region.location.code.endswith("# the block")


def test_the_depth_of_the_stack_does_not_matter() -> None:
    x = torch.rand(3, requires_grad=True)

    def deep(levels: int) -> torch.Tensor:
        return deep(levels - 1) if levels else x * 2

    with graphscope.recording() as recording, torch.no_grad():
        y = deep(600)
    graph = recording.graph(y).check()
    (region,) = graph.data.regions
    assert region.location is not None
    assert "recording, torch.no_grad()" in region.location.code
