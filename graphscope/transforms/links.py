"""Edges by position: plain numbers, so that a graph of millions of nodes can be gone over quickly."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from graphscope.model import GraphData


class Links:
    """The edges of a graph as numbers, sorted by target, and in order for one target.

    The inputs of the node at ``position`` are ``start[position]:start[position + 1]`` of ``source``, ``output``
    and ``number``.
    """

    def __init__(self, data: GraphData) -> None:
        """Number the nodes of ``data`` and read its edges."""
        self.index = {node.id: position for position, node in enumerate(data.nodes)}
        self._count = len(data.nodes)
        index = self.index
        sources = [index[edge.source] for edge in data.edges]
        targets = [index[edge.target] for edge in data.edges]
        self.start, self.number = _sorted_by(targets, self._count)
        self.source = array("q", map(sources.__getitem__, self.number))
        """Position of what is read."""
        self.output = array("q", (data.edges[edge].output for edge in self.number))
        self.target = array("q", map(targets.__getitem__, self.number))

    @cached_property
    def readers(self) -> tuple[array[int], array[int]]:
        """Starts, and the positions of the readers of each node, once for each edge."""
        start, order = _sorted_by(self.source, self._count)
        return start, array("q", map(self.target.__getitem__, order))

    def readers_of(self, position: int) -> array[int]:
        """Positions of what reads a node, once for each edge."""
        start, readers = self.readers
        return readers[start[position] : start[position + 1]]

    def sources_of(self, position: int) -> array[int]:
        """Positions of what a node reads, once for each edge."""
        return self.source[self.start[position] : self.start[position + 1]]


def _sorted_by(keys: Sequence[int], count: int) -> tuple[array[int], array[int]]:
    """Where each key starts in the order, and the order: a stable counting sort."""
    amounts = [0] * count
    for key in keys:
        amounts[key] += 1
    start = array("q", accumulate(amounts, initial=0))
    order = array("q", bytes(8 * len(keys)))
    free = start[:]
    for number, key in enumerate(keys):
        order[free[key]] = number
        free[key] += 1
    return start, order
