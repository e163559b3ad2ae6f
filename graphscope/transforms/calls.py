"""Which calls of its module a box stands for that is drawn for several rounds."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from graphscope.transforms.partition import Partition
from graphscope.transforms.scopes import Block


class Calls(NamedTuple):
    """Some calls of one module."""

    times: int = 1
    """How many they are."""
    step: int = 1
    """How far each is from the one before; 0 if that differs."""


def find_calls(partition: Partition, blocks: Iterable[Block]) -> dict[Block, Calls]:
    """For blocks that are drawn: the calls of the same module in all rounds that each is drawn for.

    Rounds need not follow call by call: a round may call its module twice, and rounds may be modules of their own.
    """
    scopes, drawn_as = partition.scopes, partition.drawn_as
    calls = scopes.calls
    asked: dict[int, list[Block]] = {}
    for block in blocks:
        if block.scope is not None and calls.get(block.scope.place, 1) > 1:
            first = next(place for place in range(block.start, block.end) if not scopes.free[scopes.sequence[place]])
            asked.setdefault(scopes.sequence[first], []).append(block)
    found: dict[Block, list[int]] = {block: [] for alike in asked.values() for block in alike}
    for position, drawn in enumerate(drawn_as) if asked else ():
        for block in asked.get(drawn, ()):
            other = _block_at(scopes.whole, scopes.place[position], block.level)
            if other.scope is not None and block.scope is not None and other.scope.place == block.scope.place:
                found[block].append(other.call)
    return {block: _summary(sorted(set(numbers))) for block, numbers in found.items()}


def _block_at(block: Block, place: int, level: int) -> Block:
    """The block of a level, or the innermost one above, around a place of the sequence."""
    while block.level < level:
        number = bisect_right(block.blocks, place, key=attrgetter("start")) - 1
        if number < 0 or block.blocks[number].end <= place:
            break
        block = block.blocks[number]
    return block


def _summary(numbers: list[int]) -> Calls:
    steps = {later - earlier for earlier, later in itertools.pairwise(numbers)}
    return Calls(max(len(numbers), 1), next(iter(steps)) if len(steps) == 1 else int(not steps))
