"""Topological order with a say in the free choices."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def topological_order(keys: Sequence[float], sources: Sequence[Sequence[int]]) -> list[int]:
    """Positions, sources first; of those that could come next, the one with the smallest key.

    Keys are times of creation, so sorting by key is nearly always the answer already; where it is not, a heap gives
    the order that respects the edges, and the same one where both are possible.
    """
    order = sorted(range(len(keys)), key=keys.__getitem__)
    place = [0] * len(order)
    for rank, position in enumerate(order):
        place[position] = rank
    if all(place[source] < place[position] for position, found in enumerate(sources) for source in found):
        return order
    return _order_by_edges(keys, sources)


def _order_by_edges(keys: Sequence[float], sources: Sequence[Sequence[int]]) -> list[int]:
    """Kahn's algorithm."""
    readers: list[list[int]] = [[] for _ in keys]
    missing = [0] * len(keys)
    for position, found in enumerate(sources):
        distinct = set(found)
        missing[position] = len(distinct)
        for source in distinct:
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
