"""Which op of one run is which op of another: global alignment of two sequences.

Ops are told apart by a few features: ``(op, module, line)``. Two ops can stand in one row only if their first feature
is equal; of the alignments that keep the order of both sides the one with the highest score is wanted. The exact
method (Needleman and Wunsch, 1970) takes time by the product of the lengths, so it is kept for stretches where that is
small. Before it, what surely belongs together is taken out: equal beginnings and ends, then ops that occur once on
either side (patience diff), then a longest common subsequence (Myers, 1986) as long as the sides differ little.
Runs of one program differ in few places, so 10,000 ops take well under a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

Key = tuple[Hashable, ...]
"""Features of one op; the first must agree for two ops to be one row, the others make it likelier."""

Pair = tuple[int, int]

_EXACT_CELLS = 40_000
"""Product of two lengths up to which the exact method is used."""

_EDITS = 1_500
"""Most differences between two sides that the longest common subsequence is looked for with."""


class _Block(NamedTuple):
    """Stretches of both sides that are still to be aligned, by so many of the features."""

    a_first: int
    a_last: int
    b_first: int
    b_last: int
    features: int


def align(first: Sequence[Key], second: Sequence[Key]) -> list[Pair]:
    """Positions that belong together, rising on both sides.

    All keys have the same number of features.

    >>> align([("t", 1), ("mul", 2), ("add", 3)], [("t", 1), ("add", 3)])
    [(0, 0), (2, 1)]
    """
    pairs: list[Pair] = []
    width = len(first[0]) if first else 0
    waiting = [_Block(0, len(first), 0, len(second), width)]
    while waiting:
        block = _trim(first, second, waiting.pop(), pairs)
        rows, columns = block.a_last - block.a_first, block.b_last - block.b_first
        if not rows or not columns:
            continue
        if rows * columns <= _EXACT_CELLS:
            pairs += _exact(first, second, block)
            continue
        anchors = _anchors(first, second, block)
        if anchors:
            pairs += anchors
            waiting += _between(block, anchors, block.features)
            continue
        anchors = _longest_common(first, second, block)
        if not anchors and block.features == 1:
            anchors = _by_occurrence(first, second, block)
        pairs += anchors
        if block.features > 1:
            waiting += _between(block, anchors, block.features - 1)
    return sorted(pairs)


def _trim(first: Sequence[Key], second: Sequence[Key], block: _Block, pairs: list[Pair]) -> _Block:
    """Take off what is equal in all features at both ends."""
    a_first, a_last, b_first, b_last, features = block
    while a_first < a_last and b_first < b_last and first[a_first] == second[b_first]:
        pairs.append((a_first, b_first))
        a_first, b_first = a_first + 1, b_first + 1
    while a_first < a_last and b_first < b_last and first[a_last - 1] == second[b_last - 1]:
        a_last, b_last = a_last - 1, b_last - 1
        pairs.append((a_last, b_last))
    return _Block(a_first, a_last, b_first, b_last, features)


def _between(block: _Block, anchors: Sequence[Pair], features: int) -> list[_Block]:
    """What is left before, between and after the anchors."""
    starts = [(block.a_first, block.b_first), *((a + 1, b + 1) for a, b in anchors)]
    ends = [*anchors, (block.a_last, block.b_last)]
    return [
        _Block(a_first, a_last, b_first, b_last, features)
        for (a_first, b_first), (a_last, b_last) in zip(starts, ends, strict=True)
        if a_first < a_last and b_first < b_last
    ]


def _score(one: Key, other: Key) -> int:
    """0 if the two cannot be one row; else more, the more of the features agree, the earlier ones counting more."""
    if one[0] != other[0]:
        return 0
    weight = score = 1 << len(one)
    for mine, theirs in zip(one[1:], other[1:], strict=True):
        weight >>= 1
        score += weight if mine == theirs else 0
    return score


def _exact(first: Sequence[Key], second: Sequence[Key], block: _Block) -> list[Pair]:
    """Needleman and Wunsch: the best score of all pairs, from the ends back; of equal ones the earliest pairs."""
    a_first, a_last, b_first, b_last, _ = block
    columns = b_last - b_first
    scores = [[0] * (columns + 1)]
    for a in range(a_last - 1, a_first - 1, -1):
        below, key = scores[-1], first[a]
        row = [0] * (columns + 1)
        for column in range(columns - 1, -1, -1):
            other = second[b_first + column]
            best = max(below[column], row[column + 1])
            if key[0] == other[0]:
                best = max(best, below[column + 1] + _score(key, other))
            row[column] = best
        scores.append(row)
    scores.reverse()
    pairs, a, b = [], a_first, b_first
    while a < a_last and b < b_last:
        here = scores[a - a_first][b - b_first]
        gain = _score(first[a], second[b])
        if gain and here == scores[a - a_first + 1][b - b_first + 1] + gain:
            pairs.append((a, b))
            a, b = a + 1, b + 1
        elif here == scores[a - a_first + 1][b - b_first]:
            a += 1
        else:
            b += 1
    return pairs


def _anchors(first: Sequence[Key], second: Sequence[Key], block: _Block) -> list[Pair]:
    """Ops that occur exactly once on either side, as many as keep the order."""
    a_first, a_last, b_first, b_last, features = block
    mine = [key[:features] for key in first[a_first:a_last]]
    theirs = [key[:features] for key in second[b_first:b_last]]
    mine_count, theirs_count = Counter(mine), Counter(theirs)
    place = {key: b_first + offset for offset, key in enumerate(theirs) if theirs_count[key] == 1}
    pairs = [(a_first + offset, place[key]) for offset, key in enumerate(mine) if mine_count[key] == 1 and key in place]
    return _rising(pairs)


def _by_occurrence(first: Sequence[Key], second: Sequence[Key], block: _Block) -> list[Pair]:
    """The last resort for long and very different stretches: the third ``add`` is the third ``add``."""
    a_first, a_last, b_first, b_last, _ = block
    seen: Counter[Hashable] = Counter()
    place: dict[tuple[Hashable, int], int] = {}
    for b in range(b_first, b_last):
        seen[second[b][0]] += 1
        place[second[b][0], seen[second[b][0]]] = b
    seen.clear()
    pairs = []
    for a in range(a_first, a_last):
        seen[first[a][0]] += 1
        found = place.get((first[a][0], seen[first[a][0]]))
        if found is not None:
            pairs.append((a, found))
    return _rising(pairs)


def _rising(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest choice of pairs that rises on the second side too; they rise on the first."""
    ends: list[int] = []
    """For each length the smallest second position that a chain of it ends at."""
    chains: list[int] = []
    before: list[int] = []
    for number, (_, b) in enumerate(pairs):
        length = bisect_left(ends, b)
        before.append(chains[length - 1] if length else -1)
        if length == len(ends):
            ends.append(b)
            chains.append(number)
        else:
            ends[length], chains[length] = b, number
    chosen = []
    number = chains[-1] if chains else -1
    while number >= 0:
        chosen.append(pairs[number])
        number = before[number]
    return chosen[::-1]


def _longest_common(first: Sequence[Key], second: Sequence[Key], block: _Block) -> list[Pair]:
    """A longest common subsequence by the features of the block; nothing if the sides differ too much."""
    a_first, a_last, b_first, b_last, features = block
    mine = [(a, first[a][:features]) for a in range(a_first, a_last)]
    theirs = [(b, second[b][:features]) for b in range(b_first, b_last)]
    common = {key for _, key in mine} & {key for _, key in theirs}  # others only cost time
    mine = [found for found in mine if found[1] in common]
    theirs = [found for found in theirs if found[1] in common]
    pairs = _shortest_edits([key for _, key in mine], [key for _, key in theirs])
    return [(mine[a][0], theirs[b][0]) for a, b in pairs]


def _shortest_edits(mine: Sequence[Key], theirs: Sequence[Key]) -> list[Pair]:
    """Myers: the pairs on the way with the fewest edits, if those are few enough."""
    furthest = {1: 0}
    """How far in ``mine`` the best way on each diagonal has come."""
    history: list[dict[int, int]] = []
    for edits in range(min(_EDITS, len(mine) + len(theirs)) + 1):
        history.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            down = _goes_down(furthest, edits, diagonal)
            a = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            while a < len(mine) and a - diagonal < len(theirs) and mine[a] == theirs[a - diagonal]:
                a += 1
            furthest[diagonal] = a
            if a >= len(mine) and a - diagonal >= len(theirs):
                return _backtrack(history, len(mine), len(theirs))
    return []


def _goes_down(furthest: dict[int, int], edits: int, diagonal: int) -> bool:
    """The best way to a diagonal leaves out one of ``theirs``, not one of ``mine``."""
    return diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])


def _backtrack(history: list[dict[int, int]], a: int, b: int) -> list[Pair]:
    pairs: list[Pair] = []
    for edits in range(len(history) - 1, -1, -1):
        furthest, diagonal = history[edits], a - b
        down = _goes_down(furthest, edits, diagonal)
        a_before = furthest[diagonal + 1] if down else furthest[diagonal - 1]
        b_before = a_before - (diagonal + 1 if down else diagonal - 1)
        start = a_before if down else a_before + 1
        while a > max(start, 0) and b > 0:
            a, b = a - 1, b - 1
            pairs.append((a, b))
        a, b = a_before, b_before
    return pairs[::-1]
