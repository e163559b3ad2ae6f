"""Which nodes lead to which: discovery of a graph, and its topological order.

Reading ``next_functions`` of a deep chain makes torch free that chain by recursion later (see ``stack.py``),
so discovery asks what the running thread can afford, and stops at a safe depth where it must.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from graphscope.capture.walking.budget import Budget
from graphscope.capture.walking.optypes import NodeType, NodeTypes, input_count
from graphscope.capture.walking.order import topological_order

_UNNUMBERED = 2**64 - 1
"""``_sequence_nr()`` of every ``AccumulateGrad``, and of nodes that torch made for an error alone."""

Input = tuple[int, int]
"""Position of the node that an input comes from, and which of its outputs it is."""


class Trace:
    """The nodes found, in the order found, with what each leads to."""

    def __init__(self) -> None:
        """Start without nodes."""
        self.nodes: list[Any] = []
        self.kinds: list[NodeType] = []
        self.numbers: list[int] = []
        """``_sequence_nr()`` of each node."""
        self.inputs: list[Sequence[Input | None]] = []
        """``next_functions`` of each node; ``None`` where an input needs no gradient; empty where the walk stopped."""
        self.index: dict[Any, int] = {}
        """Position of each node in ``nodes``."""
        self.reached = 0
        """So many of the first were found from the roots, the others only from further tensors."""
        self.stopped: list[int] = []
        """Positions of nodes that were not followed: too deep to be freed safely."""
        self._first_reads: dict[int, float] = {}
        """Of a leaf: shortly before the number of the first op that reads it, by slot."""
        self._in_order = True
        """No node reads one that was made after it."""
        self._budget = Budget()
        self._types = NodeTypes()

    def order(self) -> list[int]:
        """Positions, inputs first; free choices go by order of creation.

        Nodes are numbered as they are made, so sorting by number is nearly always topological already. Not so where
        a second thread, which counts from its own start, or the history of a view, which is made anew, comes in.
        """
        keys = list(map(float, self.numbers))
        for place, key in self._first_reads.items():
            keys[place] = key
        if self._in_order:
            return sorted(range(len(keys)), key=keys.__getitem__)
        return topological_order(keys, [[entry[0] for entry in row if entry is not None] for row in self.inputs])

    def follow(self, starts: Iterable[Any]) -> None:
        """Add every node behind ``starts`` that is not there yet; ``None`` among them is skipped.

        Breadth first, so that a walk that has to stop has seen what is nearest to the roots. The hot loop of discovery.
        """
        nodes, kinds, numbers, inputs, index = self.nodes, self.kinds, self.numbers, self.inputs, self.index
        known, look_up = self._types.known, self._types.look_up
        budget, affordable = self._budget, self._budget.affordable
        first = len(nodes)
        for node in starts:
            if node is not None and node not in index:
                index[node] = len(nodes)
                nodes.append(node)
                numbers.append(node._sequence_nr())
        count = len(nodes)
        for position, node in enumerate(itertools.islice(nodes, first, None), first):  # goes on into what is appended
            kind = known.get(type(node)) or look_up(node)
            kinds.append(kind)
            row: list[Input | None] = []
            inputs.append(row)
            if kind.accumulate:
                continue
            if count > affordable or kind.takes_list:
                if not budget.allows(node, nodes, count + (input_count(node, kind) if kind.takes_list else 0)):
                    self.stopped.append(position)
                    continue
                affordable = budget.affordable
            number = numbers[position]
            for source, output in node.next_functions:
                if source is None:
                    row.append(None)
                    continue
                place = index.setdefault(source, count)
                if place == count:
                    count += 1
                    nodes.append(source)
                    numbers.append(source._sequence_nr())
                if numbers[place] >= number:
                    self._read_by(number, len(row), place)
                row.append((place, output))
            if number == _UNNUMBERED:  # and yet no leaf
                self._in_order = False
        budget.close(nodes, self.stopped)

    def _read_by(self, number: int, slot: int, place: int) -> None:
        """Take note that an op reads a node whose number is not below its own."""
        if self.numbers[place] == _UNNUMBERED:
            key = number - 1 / (slot + 2)
            self._first_reads[place] = min(key, self._first_reads.get(place, key))
        else:
            self._in_order = False


def discover(roots: Sequence[Any], others: Sequence[Any]) -> Trace:
    """Every node behind ``roots``, then every further node behind ``others``.

    How deep freeing will recurse cannot be known before the nodes are touched, so their number is the bound.
    """
    trace = Trace()
    trace.follow(roots)
    trace.reached = len(trace.nodes)
    trace.follow(others)
    return trace
