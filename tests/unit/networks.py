"""A residual network made by hand, as a recording or a walk would find it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from graphscope.model import (
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
    reached_from,
)
from tests.unit.graphs import leaf, op, output, tensor

LINE = Location("train.py", 3, "return x + self.act(self.fc(x))", "forward")
LOSS_LINE = Location("train.py", 9, "loss = net(x).mean()", "train")


class _Maker:
    def __init__(self, *, recorded: bool) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self._recorded = recorded

    def add(self, node: Node, *sources: str | None, reason: Reason | None = None) -> str:
        named = node._replace(id=f"n{len(self.nodes)}")
        self.nodes.append(named)
        for slot, source in enumerate(sources):
            if source is not None:
                self.edges.append(Edge(source, 0, named.id, slot, self._carries(named, source, reason), reason))
        return named.id

    def _carries(self, node: Node, source: str, reason: Reason | None) -> bool:
        needed = self.nodes[int(source[1:])].outputs[0].requires_grad
        takes_part = node.backward is not None or node.kind is Kind.OUTPUT
        return reason is None and takes_part and bool(needed)

    def op(self, name: str, module: str, *sources: str | None, saved: tuple[SavedTensor, ...] = ()) -> str:
        inputs = [self.nodes[int(source[1:])] for source in sources if source is not None]
        tracked = any(node.outputs[0].requires_grad for node in inputs)
        made = op("", name, f"{name.title()}Backward0" if tracked else None, tensor((4, 4), requires_grad=tracked))
        if self._recorded:
            made = made._replace(module=module, location=LINE, mode="grad")
        elif any(node.kind is Kind.LEAF for node in inputs):
            made = made._replace(module=module)
        return self.add(made._replace(saved=saved), *sources)

    def weight(self, name: str, *, frozen: bool = False) -> str:
        return self.add(leaf("", name, (4, 4), role=Role.PARAMETER, requires_grad=not frozen, accumulate="A"))


def network(
    layers: int,
    *,
    frozen: Collection[int] = (),
    detached: Collection[int] = (),
    watched: Collection[int] = (),
    recorded: bool = True,
) -> GraphData:
    """``x + act(fc(x))`` for each layer, then a head and a mean.

    Args:
        layers: how many.
        frozen: numbers of the layers whose weight is frozen.
        detached: numbers of the layers in which a detach cuts the branch.
        watched: numbers of the layers whose result is also read by another output.
        recorded: as ``record`` finds it; else as ``walk`` does, without what autograd does not know.
    """
    maker = _Maker(recorded=recorded)
    x = maker.add(leaf("", "x", (4, 4), role=Role.INPUT))
    roots = []
    for number in range(layers):
        path = f"net.h.{number}"
        weight = maker.weight(f"{path}.fc.weight", frozen=number in frozen)
        if not recorded and number in frozen:
            maker.nodes.pop()
        saved = SavedTensor("mat1", State.LIVE, (4, 4), "float32", 64, f"s{number}")
        source = None if not recorded and number in frozen else weight
        hidden = maker.op("addmm", f"{path}.fc", x, source, saved=(saved,))
        if number in detached:
            made = op("", "detach", None, tensor((4, 4), requires_grad=False), module=path, location=LINE)
            hidden = maker.add(made, hidden, reason=Reason.DETACH)
        active = maker.op("relu", f"{path}.act", hidden)
        x = maker.op("add", path, x, active)
        if number in watched:
            roots.append(maker.add(output("", f"watched{number}", (4, 4)), x))
    head = maker.op("mm", "net.head", x, maker.weight("net.head.weight"))
    mean = op("", "mean", "MeanBackward0", tensor(()), location=LOSS_LINE if recorded else None)
    roots.append(maker.add(output("", "loss"), maker.add(mean, head)))
    return _finished(maker, roots, layers, recorded=recorded)


def _finished(maker: _Maker, roots: list[str], layers: int, *, recorded: bool) -> GraphData:
    blocks = [
        module
        for number in range(layers)
        for module in (
            Module(f"net.h.{number}", "Block", training=True),
            Module(f"net.h.{number}.fc", "Linear", training=True, parameters=16, trainable=16),
            Module(f"net.h.{number}.act", "ReLU", training=True),
        )
    ]
    if not recorded:
        maker.nodes.extend(_unread(maker, layers))
    data = GraphData(
        nodes=tuple(maker.nodes),
        edges=tuple(maker.edges),
        roots=tuple(roots),
        torch="2.13.0",
        recorded=recorded,
        storages=tuple(Storage(f"s{number}", 64) for number in range(layers)),
        modules=(
            Module("net", "Net", training=True),
            Module("net.h", "ModuleList", training=True),
            *blocks,
            Module("net.head", "Linear", training=True, parameters=16, trainable=16),
        ),
    )
    reached = reached_from(data, data.roots)
    nodes = tuple(
        node._replace(reached=node.id in reached, accumulate="AccumulateGrad" if node.id in reached else None)
        if node.kind is Kind.LEAF
        else node._replace(reached=node.id in reached)
        for node in data.nodes
    )
    return dataclasses.replace(data, nodes=nodes).check()


def _unread(maker: _Maker, layers: int) -> list[Node]:
    """A walk meets the frozen parameters of a module in sight, but nothing that reads them."""
    known = {name for node in maker.nodes for name in node.names}
    names = [f"net.h.{number}.fc.weight" for number in range(layers)]
    return [
        leaf(f"n{len(maker.nodes) + place}", name, (4, 4), role=Role.PARAMETER, requires_grad=False)
        for place, name in enumerate(name for name in names if name not in known)
    ]
