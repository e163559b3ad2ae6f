"""Which line of the terminal tree shows which node: the layout, without words, colours or widths.

A graph is no tree: a value may be read many times and a chain may be 20,000 ops long. Both must come
out as lines that a person can follow. Three choices do it:

* an op stands under the reader that is furthest from the output (the longest way a gradient takes), so that a
  residual network is one straight line; its other readers refer to it. A leaf stands where it first occurs;
* a chain goes straight down. Only a fork indents, and small side inputs (a bias, a transposed weight) hang
  beside the line without bending it;
* where forks are nested too deeply for that, the largest branch goes straight on and only the smaller ones
  indent, which bounds the indentation by the logarithm of the number of nodes.

All passes are loops over nodes and edges, linear in their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from graphscope.model import Edge, GraphData, Kind, Node
from graphscope.style import EdgeLook, edge_look

FORK_LIMIT = 8
"""Deepest nesting of forks that is drawn as a tree with every branch indented."""
SIDE_SIZE = 2
"""Most ops in an input that hangs beside the line: ``t`` of a weight, ``expand`` of ``view`` of a bias."""

CONNECTORS: dict[EdgeLook, str] = {EdgeLook.FLOWS: "─", EdgeLook.DEAD: "┈", EdgeLook.CUT: "╌"}
"""The stroke between a node and an input that hangs beside it."""


class Row(NamedTuple):
    """One line of the tree: a node, or a reference to a node that another line shows."""

    node: Node
    uses: tuple[Edge, ...]
    """The parallel edges to the line's reader; empty at the top of a tree."""
    rail: str
    """What other lines leave at the left."""
    branch: str
    """The stroke from the reader to the mark, where it hangs."""
    below: str
    """What stands left of further lines of the same node."""
    reference: bool


class Tree(NamedTuple):
    """All rows, from the outputs back to the leaves."""

    rows: list[Row]
    aside: int
    """Number of the first row that no root depends on."""


class _Step(NamedTuple):
    node: str
    uses: tuple[Edge, ...] = ()
    rail: str = ""
    branch: str = ""
    inner: str = ""
    own: bool = True


class _Layout(NamedTuple):
    tops: list[str]
    """Roots, then every node that nothing else leads to."""
    parents: Mapping[str, str]
    """The reader that an op stands under."""
    trunks: Mapping[str, str]
    """The input that goes straight on below an op."""


def plan(data: GraphData) -> Tree:
    """Lay the graph out as lines. Every node has exactly one row that is no reference."""
    tops, parents = _parents(data)
    layout = _Layout(tops, parents, _trunks(data, parents))
    rows: list[Row] = []
    drawn: set[str] = set()
    roots = len(dict.fromkeys(data.roots))
    rows.extend(_rows(data, layout, layout.tops[:roots], drawn))
    aside = len(rows)
    rows.extend(_rows(data, layout, layout.tops[roots:], drawn))
    return Tree(rows, aside)


def _parents(data: GraphData) -> tuple[list[str], dict[str, str]]:
    """The tops, and for every other node the reader furthest from them.

    The ways of the gradient are laid first, then what else the roots depend on, then the rest: neither a
    detached copy nor a result that was only logged pulls the loss to its side.
    """
    depth = dict.fromkeys(data.roots, 0)
    parents: dict[str, str] = {}
    others: list[str] = []

    def lay(settled: AbstractSet[str], *, gradient: bool = False, tops: bool = False) -> None:
        for node in reversed(data.nodes):
            if node.id not in depth:
                if not tops:
                    continue
                depth[node.id] = 0
                others.append(node.id)
            further = depth[node.id] + 1
            for edge in data.incoming[node.id]:
                source = edge.source
                if source not in settled and (edge.gradient or not gradient) and further > depth.get(source, 0):
                    depth[source] = further
                    parents[source] = node.id

    lay(frozenset(), gradient=True)
    lay(frozenset(depth))
    lay(frozenset(depth), tops=True)
    return [*dict.fromkeys(data.roots), *reversed(others)], parents


def _trunks(data: GraphData, parents: Mapping[str, str]) -> dict[str, str]:
    branches: dict[str, list[str]] = {node.id: [] for node in data.nodes}
    size = dict.fromkeys(branches, 1)
    for node in data.nodes:
        if node.kind is not Kind.LEAF and node.id in parents:
            branches[parents[node.id]].append(node.id)
            size[parents[node.id]] += size[node.id]
    forked = _trunks_with(data, branches, size, forks=True)
    if _height(data, branches, forked) <= FORK_LIMIT:
        return forked
    return _trunks_with(data, branches, size, forks=False)


def _trunks_with(
    data: GraphData, branches: Mapping[str, list[str]], size: Mapping[str, int], *, forks: bool
) -> dict[str, str]:
    """The input that goes straight on below each op: the only one, or the one that dwarfs its neighbours."""
    trunks = {}
    for node, ops in branches.items():
        if not ops:
            continue
        *lesser, largest = sorted(ops, key=size.__getitem__)
        single = len({edge.source for edge in data.incoming[node]}) == 1
        bends = forks and bool(lesser) and size[lesser[-1]] > SIDE_SIZE
        if single or (size[largest] > SIDE_SIZE and not bends):
            trunks[node] = largest
    return trunks


def _height(data: GraphData, branches: Mapping[str, list[str]], trunks: Mapping[str, str]) -> int:
    """The deepest indentation that these trunks lead to."""
    height = dict.fromkeys(branches, 0)
    for node in data.nodes:  # inputs come before their readers
        trunk = trunks.get(node.id)
        height[node.id] = max((height[op] + (op != trunk) for op in branches[node.id]), default=0)
    return max(height.values(), default=0)


def _rows(data: GraphData, layout: _Layout, tops: list[str], drawn: set[str]) -> Iterator[Row]:
    stack = [_Step(top) for top in reversed(tops)]
    while stack:
        step = stack.pop()
        node = data.by_id[step.node]
        if not step.uses and node.id in drawn:
            continue
        reference = not step.own or node.id in drawn
        steps: list[_Step] = []
        if not reference:
            drawn.add(node.id)
            steps = _steps(data, layout, step)
        below = step.inner + ("│ " if steps else "  ")
        yield Row(node, step.uses, step.rail, step.branch, below, reference)
        stack.extend(reversed(steps))


def _steps(data: GraphData, layout: _Layout, reader: _Step) -> list[_Step]:
    """What follows a node: its inputs by slot, the one that goes straight on last."""
    trunk = layout.trunks.get(reader.node)
    hanging: list[tuple[tuple[Edge, ...], bool]] = []
    last: list[_Step] = []
    placed: set[str] = set()
    for uses in inputs_of(reader.node, data):
        source = data.by_id[uses[0].source]
        own = source.kind is Kind.LEAF or layout.parents.get(source.id) == reader.node
        own = own and source.id not in placed
        placed.add(source.id)
        if own and source.id == trunk:
            last = [_Step(source.id, uses, reader.inner, "", reader.inner)]
        else:
            hanging.append((uses, own))
    steps = []
    for number, (uses, own) in enumerate(hanging, 1):
        ends = number == len(hanging) and not last
        branch = ("╰" if ends else "├") + CONNECTORS[edge_look(uses[0], data)]
        inner = reader.inner + ("  " if ends else "│ ")
        steps.append(_Step(uses[0].source, uses, reader.inner, branch, inner, own))
    return steps + last


def inputs_of(node: str, data: GraphData) -> list[tuple[Edge, ...]]:
    """The edges into a node by slot, those that read the same tensor in the same way together."""
    grouped: dict[tuple[str, int, bool, str | None], list[Edge]] = {}
    for edge in data.incoming[node]:
        grouped.setdefault((edge.source, edge.output, edge.gradient, edge.reason), []).append(edge)
    return [tuple(edges) for edges in grouped.values()]
