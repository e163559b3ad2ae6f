"""Hypothesis strategies for graphs as programs leave them: modules, functions, loops, and rounds that differ."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from hypothesis import strategies as st

from graphscope.model import (
    Call,
    Edge,
    GraphData,
    Kind,
    Location,
    Module,
    Node,
    Reason,
    Role,
    SavedTensor,
    State,
    Storage,
    TensorInfo,
    reached_from,
)

PATHS = ("model", "model.a", "model.a.0", "model.a.1", "model.a.1.in", "model.b", "other")
MODULES = tuple(Module(path, "ModuleList" if path == "model.a" else path.title(), training=True) for path in PATHS)
TENSOR = TensorInfo((2, 3), "float32", "cpu", requires_grad=True, is_leaf=False)


class Step(NamedTuple):
    """One op of a round: what it is, where it runs, and how far back its inputs lie."""

    op: str
    module: str | None
    line: int
    back: tuple[int, ...]
    """Ops before it; 0 is a leaf of its own, negative is one of the leaves that all share."""
    cut: bool


STEPS = st.builds(
    Step,
    op=st.sampled_from(("mul", "add", "relu")),
    module=st.sampled_from((*PATHS, None, None, "Unheld")),
    line=st.integers(1, 3),
    back=st.lists(st.integers(-2, 5), max_size=3).map(tuple),
    cut=st.sampled_from((False, False, False, True)),
)


class _Maker:
    """Makes nodes one after the other."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self._ops: list[str] = []
        self._shared: dict[int, str] = {}

    def leaf(self, name: str, role: Role) -> str:
        info = TensorInfo((3,), "float32", "cpu", (name,) if name else (), requires_grad=role is Role.PARAMETER)
        node = Node(f"n{len(self.nodes)}", Kind.LEAF, (info,), role=role, accumulate="AccumulateGrad")
        self.nodes.append(node)
        return node.id

    def step(self, step: Step, number: int) -> None:
        """One op, with the leaves that it reads first."""
        sources = [self._source(back, step, number) for back in step.back]
        place = Location("train.py", step.line, "", "run") if step.line > 1 else None
        saved = (SavedTensor("self", State.LIVE, (2, 3), "float32", 24, "s0"),) if step.op == "mul" else ()
        node = Node(
            f"n{len(self.nodes)}",
            Kind.OP,
            (TENSOR,),
            op=step.op,
            backward=None if step.cut else f"{step.op.title()}Backward0",
            module=step.module,
            location=place,
            saved=saved,
        )
        self.nodes.append(node)
        for slot, source in enumerate(sources):
            gradient = not step.cut
            self.edges.append(Edge(source, 0, node.id, slot, gradient, None if gradient else Reason.NO_GRAD))
        self._ops.append(node.id)

    def _source(self, back: int, step: Step, number: int) -> str:
        if back > 0 and len(self._ops) >= back:
            return self._ops[-back]
        if back < 0:
            if back not in self._shared:
                self._shared[back] = self.leaf(f"model.b.w{-back}", Role.PARAMETER)
            return self._shared[back]
        name = f"{step.module}.w{number}" if step.module else ("" if step.line == 1 else f"x{number}")
        return self.leaf(name, Role.PARAMETER if step.module else Role.INPUT)

    def output(self, source: str) -> str:
        node = Node(f"n{len(self.nodes)}", Kind.OUTPUT, (TENSOR,), reached=True)
        self.nodes.append(node)
        self.edges.append(Edge(source, 0, node.id, 0, gradient=True))
        return node.id


@st.composite
def programs(draw: st.DrawFn) -> GraphData:
    """A few loops one after the other, some rounds of which may differ."""
    maker = _Maker()
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(STEPS, min_size=1, max_size=4))
        inner = draw(st.lists(STEPS, max_size=2)) * draw(st.integers(1, 5))
        odd = draw(st.integers(0, 8))
        for number in range(draw(st.integers(1, 5))):
            for place, step in enumerate([*steps, *inner]):
                is_odd = number == odd and place == 0
                maker.step(step._replace(op="odd", cut=not step.cut) if is_odd else step, number)
    if draw(st.booleans()):
        maker.leaf("model.b.unread", Role.PARAMETER)
    read = [node.id for node in maker.nodes if node.kind is not Kind.OUTPUT]
    roots = [maker.output(source) for source in draw(st.lists(st.sampled_from(read[-4:]), max_size=2))]
    data = GraphData(
        nodes=tuple(maker.nodes),
        edges=tuple(maker.edges),
        roots=tuple(roots),
        torch="2.13.0",
        recorded=draw(st.booleans()),
        storages=(Storage("s0", 24),),
        modules=draw(st.sampled_from((MODULES, ()))),
    )
    if data.recorded and draw(st.booleans()):
        data = dataclasses.replace(data, calls=_calls(data.nodes, draw(st.integers(1, 4))))
    reached = reached_from(data, data.roots)
    nodes = tuple(node._replace(reached=node.id in reached) for node in data.nodes)
    return dataclasses.replace(data, nodes=nodes).check()


def _calls(nodes: tuple[Node, ...], most: int) -> tuple[Call, ...]:
    """Each op in a call of its module, at most so many in one; modules call those whose path begins with theirs."""
    calls: list[Call] = []
    running: list[int] = []
    for node in nodes:
        if node.kind is not Kind.OP:
            continue
        while running and not f"{node.module}.".startswith(f"{calls[running[-1]].module}."):
            running.pop()
        if node.module is None:
            continue
        if not running or calls[running[-1]].module != node.module or len(calls[running[-1]].nodes) >= most:
            while running and calls[running[-1]].module == node.module:
                running.pop()
            calls.append(Call(node.module, running[-1] if running else None))
            running.append(len(calls) - 1)
        last = calls[running[-1]]
        calls[running[-1]] = last._replace(nodes=(*last.nodes, node.id))
    return tuple(calls)
