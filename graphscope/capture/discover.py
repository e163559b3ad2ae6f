"""Which nodes lead to which: discovery of a graph, and its topological order.

Reading ``next_functions`` of a deep chain makes torch free that chain by recursion later (see ``stack.py``),
so discovery asks what the running thread can afford, and stops at a safe depth where it must.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from graphscope.capture.stack import reserve_depth, safe_depth

_LEAF_NUMBER = 2**64 - 1
"""``_sequence_nr()`` of every ``AccumulateGrad``: leaves are not numbered."""

_ROW_BITS = 20
"""Room for the slot in a sort key: a leaf sorts right before the first op that reads it."""

_OP_IN_ROW = (1 << _ROW_BITS) - 1


class Trace(NamedTuple):
    """The nodes found, in the order found, with what each leads to."""

    nodes: list[Any]
    following: list[Sequence[tuple[Any, int]]]
    """``next_functions`` of each node; empty where the walk stopped."""
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
    following: list[Sequence[tuple[Any, int]]] = []
    index: dict[Any, int] = {}
    stopped: list[int] = []
    reached = 0
    affordable = _share_of(safe_depth())
    for starts in (roots, others):
        first = len(nodes)
        for node in starts:
            if node is not None and node not in index:
                index[node] = len(nodes)
                nodes.append(node)
        for node in itertools.islice(nodes, first, None):  # goes on into what is appended below
            if len(nodes) > affordable:
                if not stopped:
                    affordable = _share_of(reserve_depth(4 * len(nodes)))
                if len(nodes) > affordable:
                    stopped.append(len(following))
                    following.append(())
                    continue
            inputs = node.next_functions
            following.append(inputs)
            for source, _ in inputs:
                if source is not None and source not in index:
                    index[source] = len(nodes)
                    nodes.append(source)
        if starts is roots:
            reached = len(nodes)
    return Trace(nodes, following, index, reached, frozenset(stopped))


def _share_of(depth: int) -> int:
    """Nodes to touch where ``depth`` can be freed: the last one may have many inputs at once."""
    return depth - depth // 8


def topological_order(trace: Trace) -> list[int]:
    """Positions, inputs first; free choices go by order of creation.

    Nodes are numbered as they are made, so sorting by number is nearly always topological already. Where it is
    not (a second thread counts from its own start; a view's history is made anew), a heap does the same
    with the edges respected, and gives the same order where both are possible.
    """
    keys = _creation_keys(trace)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    place = [0] * len(order)
    for rank, position in enumerate(order):
        place[position] = rank
    index = trace.index
    for position, inputs in enumerate(trace.following):
        for node, _ in inputs:
            if node is not None and place[index[node]] > place[position]:
                return _order_by_edges(trace, keys)
    return order


def _creation_keys(trace: Trace) -> list[int]:
    numbers = [node._sequence_nr() for node in trace.nodes]
    keys = [(number << _ROW_BITS) | _OP_IN_ROW for number in numbers]
    leaves = {node: position for position, node in enumerate(trace.nodes) if numbers[position] == _LEAF_NUMBER}
    for position, inputs in enumerate(trace.following):
        for slot, (node, _) in enumerate(inputs):
            if node in leaves:
                leaf = leaves[node]
                keys[leaf] = min(keys[leaf], numbers[position] << _ROW_BITS | min(slot, _OP_IN_ROW - 1))
    return keys


def _order_by_edges(trace: Trace, keys: list[int]) -> list[int]:
    """Kahn's algorithm; of the nodes whose inputs are all placed, the one made first comes next."""
    index = trace.index
    readers: list[list[int]] = [[] for _ in trace.nodes]
    missing = [0] * len(trace.nodes)
    for position, inputs in enumerate(trace.following):
        sources = {index[node] for node, _ in inputs if node is not None}
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
