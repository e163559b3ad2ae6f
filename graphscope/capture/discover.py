"""Which nodes lead to which: discovery of a graph, and its topological order.

Reading ``next_functions`` of a deep chain makes torch free that chain by recursion later (see ``stack.py``),
so discovery asks what the running thread can afford, and stops at a safe depth where it must.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from graphscope.capture.optypes import NodeType, NodeTypes, input_count
from graphscope.capture.stack import reserve_depth, safe_depth

_UNNUMBERED = 2**64 - 1
"""``_sequence_nr()`` of every ``AccumulateGrad``, and of nodes that torch made for an error alone."""

Input = tuple[int, int]
"""Position of the node that an input comes from, and which of its outputs it is."""


class Trace(NamedTuple):
    """The nodes found, in the order found, with what each leads to."""

    nodes: list[Any]
    kinds: list[NodeType]
    numbers: list[int]
    """``_sequence_nr()`` of each node."""
    inputs: list[Sequence[Input | None]]
    """``next_functions`` of each node; ``None`` where an input needs no gradient; empty where the walk stopped."""
    index: dict[Any, int]
    """Position of each node in ``nodes``."""
    reached: int
    """So many of the first were found from the roots, the others only from further tensors."""
    stopped: frozenset[int]
    """Positions of nodes that were not followed: too deep to be freed safely."""


def discover(roots: Sequence[Any], others: Sequence[Any]) -> Trace:
    """Every node behind ``roots``, then every further node behind ``others``; ``None`` among them is skipped.

    Breadth first, so that a walk that has to stop has seen what is nearest to the roots. How deep freeing will recurse
    cannot be known before the nodes are touched, so their number is the bound.
    """
    nodes: list[Any] = []
    kinds: list[NodeType] = []
    numbers: list[int] = []
    inputs: list[Sequence[Input | None]] = []
    index: dict[Any, int] = {}
    stopped: list[int] = []
    reached = 0
    types = NodeTypes()
    known, look_up = types.known, types.look_up
    affordable = _share_of(safe_depth())
    for starts in (roots, others):
        first = len(nodes)
        for node in starts:
            if node is not None and node not in index:
                index[node] = len(nodes)
                nodes.append(node)
        count = len(nodes)
        for node in itertools.islice(nodes, first, None):  # goes on into what is appended below
            kind = known.get(type(node)) or look_up(node)
            kinds.append(kind)
            numbers.append(node._sequence_nr())
            if kind.takes_list or count > affordable:
                expected = count + (input_count(node, kind) if kind.takes_list else 0)
                if expected > affordable and not stopped:
                    affordable = _share_of(reserve_depth(4 * expected))
                if expected > affordable:
                    stopped.append(len(inputs))
                    inputs.append(())
                    continue
            row: list[Input | None] = []
            for source, output in node.next_functions:
                if source is None:
                    row.append(None)
                    continue
                place = index.setdefault(source, count)
                if place == count:
                    nodes.append(source)
                    count += 1
                row.append((place, output))
            inputs.append(row)
        if starts is roots:
            reached = count
    return Trace(nodes, kinds, numbers, inputs, index, reached, frozenset(stopped))


def _share_of(depth: int) -> int:
    """Nodes to touch where ``depth`` can be freed; the rest is for what is in hand beside the graph."""
    return depth - depth // 8


def topological_order(trace: Trace) -> list[int]:
    """Positions, inputs first; free choices go by order of creation, and a leaf stands right before its first reader.

    Nodes are numbered as they are made, so sorting by number is nearly always topological already. Where it is
    not (a second thread counts from its own start; a view's history is made anew), a heap does the same
    with the edges respected.
    """
    numbers, inputs = trace.numbers, trace.inputs
    placed = bytearray(len(numbers))
    order: list[int] = []
    for position in sorted(range(len(numbers)), key=numbers.__getitem__):
        for entry in inputs[position]:
            if entry is not None and not placed[entry[0]]:
                source = entry[0]
                if numbers[source] != _UNNUMBERED or inputs[source]:
                    return _order_by_edges(trace)
                placed[source] = True
                order.append(source)
        if not placed[position]:
            placed[position] = True
            order.append(position)
    return order


def _order_by_edges(trace: Trace) -> list[int]:
    """Kahn's algorithm; of the nodes whose inputs are all placed, the one made first comes next."""
    keys = _creation_keys(trace)
    readers: list[list[int]] = [[] for _ in keys]
    missing = [0] * len(keys)
    for position, inputs in enumerate(trace.inputs):
        sources = {entry[0] for entry in inputs if entry is not None}
        missing[position] = len(sources)
        for source in sources:
            readers[source].append(position)
    ready = [(keys[position], position) for position, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, (keys[reader], reader))
    return order


def _creation_keys(trace: Trace) -> list[tuple[int, int]]:
    """Sort keys: an op's own number; what has none comes right before the first op that reads it, by slot."""
    keys = [(number, len(inputs)) for number, inputs in zip(trace.numbers, trace.inputs, strict=True)]
    for position, inputs in enumerate(trace.inputs):
        for slot, entry in enumerate(inputs):
            if entry is not None and trace.numbers[entry[0]] == _UNNUMBERED:
                keys[entry[0]] = min(keys[entry[0]], (trace.numbers[position], slot))
    return keys
