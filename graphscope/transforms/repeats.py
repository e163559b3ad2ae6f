"""Equal blocks in a row: the layers of a network, the rounds of a loop.

Two blocks are equal if their ops, shapes, source lines, ``requires_grad`` patterns, saved tensors, edges and cut
reasons are. They are in a row if they follow one another in the order they ran and are connected to one another and to
the rest in the same way each time; only the first may get its inputs, and only the last may hand its results,
elsewhere. A block that differs in anything stands alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from graphscope.model import GraphData
from graphscope.transforms.keys import KeyMaker
from graphscope.transforms.links import Links
from graphscope.transforms.rounds import Rounds
from graphscope.transforms.scopes import Block, Scopes, is_inner

_CANDIDATES = 16
"""Lengths of a round that are tried from one place on, shortest first."""
_LOOK_AHEAD = 4096
"""Items compared to choose between lengths; the chosen one is followed as far as it goes."""
_FEWEST_PLAIN_ROUNDS = 3
_FEWEST_NODES_SPARED = 6
"""Of a loop in plain code; a module that repeats is worth it from the second time on."""

Item = Block | int
"""What a block consists of: an inner block, or the place of an op in the sequence."""


class Run(NamedTuple):
    """Equal rounds in a row."""

    first: int
    """Number of the item, in its block, that the first round begins with."""
    period: int
    """Items of a round."""
    rounds: int
    start: int
    """Place in the sequence where the first round begins."""
    length: int
    """Places of a round."""
    leaves: list[dict[int, int]]
    """Leaves that several ops of one round read, for each round: by the one that stands there in the first."""

    @property
    def end(self) -> int:
        """Place in the sequence after the last round."""
        return self.start + self.length * self.rounds


class Repeats:
    """Finds the runs in the blocks of one graph; what was found once is remembered."""

    def __init__(self, data: GraphData, links: Links, scopes: Scopes) -> None:
        """Read what makes each op what it is."""
        self._nodes, self._scopes, self._links = data.nodes, scopes, links
        self._maker = KeyMaker(data, links)
        self._types = {module.path: module.type for module in data.modules}
        self._lines = [
            -1 if (location := data.nodes[position].location) is None else location.line for position in scopes.sequence
        ]
        self._place = scopes.place
        self._keys = array("q", map(self._maker.key_of, scopes.sequence))
        self._block_keys: dict[object, int] = {}
        self._runs: dict[Block, list[Run]] = {}

    def runs_in(self, block: Block, apart: frozenset[Block] = frozenset()) -> list[Run]:
        """The runs among the items of a block, in order; none overlap.

        Args:
            block: where to look.
            apart: blocks to be taken as equal only to one another.
        """
        items = list(block.items())
        if not apart.isdisjoint(block.blocks):
            return self._find(items, apart)
        if block not in self._runs:
            self._runs[block] = self._find(items, frozenset())
        return self._runs[block]

    def _find(self, items: list[Item], apart: frozenset[Block]) -> list[Run]:
        search = _Search(items, [self._item_key(item, apart) for item in items])
        runs: list[Run] = []
        first = 0
        while first < len(items):
            run = next(filter(None, (self._follow(search, first, period) for period in search.periods_at(first))), None)
            if run is None:
                first += 1
            else:
                runs.append(run)
                first = run.first + run.period * run.rounds
        return runs

    def _item_key(self, item: Item, apart: frozenset[Block]) -> int:
        if isinstance(item, int):
            return self._keys[item]
        kind = None if item.scope is None else self._types.get(item.scope.name, item.scope.name)
        key = item in apart, kind, self._keys[item.start : item.end].tobytes(), self._wiring(item).tobytes()
        return -1 - self._block_keys.setdefault(key, len(self._block_keys))

    def _wiring(self, block: Block) -> array[int]:
        """Where each input comes from: a place within the block, or a number for each thing outside."""
        outside: dict[int, int] = {}
        wiring = array("q")
        start, links, sequence = block.start, self._links, self._scopes.sequence
        for place in range(start, block.end):
            position = sequence[place]
            for link in range(links.start[position], links.start[position + 1]):
                source = links.source[link]
                source_place = self._place[source]
                if source_place >= start:
                    wiring.extend((source_place - start, links.output[link]))
                else:
                    leaf = self._maker.key_of(source) if source_place < 0 and is_inner(self._nodes[source]) else -1
                    wiring.extend((-1 - outside.setdefault(source, len(outside)), leaf))
        return wiring

    def _follow(self, search: _Search, first: int, period: int) -> Run | None:
        """The run of rounds of ``period`` items that begins at ``first``, or at a better place in its first round."""
        if period > 1:
            first = self._best_start(search, first, period)
        start = search.starts[first]
        length = search.starts[first + period] - start
        rounds = Rounds(self._links, self._scopes.sequence, self._place, self._keys, self._maker.key_of)
        rounds.begin(start, length)
        if period > 1 and self._hides_a_difference(search.items, first, period):
            return None
        count = 1
        while search.is_same_as_before(first + count * period, period) and rounds.goes_on(count):
            count += 1
        has_block = any(not isinstance(item, int) for item in search.items[first : first + period])
        fewest = 1 if has_block else _FEWEST_NODES_SPARED
        if count < (2 if has_block else _FEWEST_PLAIN_ROUNDS) or (count - 1) * length < fewest:
            return None
        return Run(first, period, count, start, length, rounds.leaves(count))

    def _hides_a_difference(self, items: list[Item], first: int, period: int) -> bool:
        """A round of several blocks of one kind, other ones each time: a layer that differs a little from its likes."""
        here, following = (
            [item for item in items[start : start + period] if not isinstance(item, int)]
            for start in (first, first + period)
        )
        if all(_name(one) == _name(other) for one, other in zip(here, following, strict=False)):
            return False
        kinds = [self._types.get(block.scope.name) for block in here if block.scope is not None]
        return len(set(kinds)) < len(kinds)

    def _best_start(self, search: _Search, first: int, period: int) -> int:
        """Where a round begins: where the fewest values go from one to the next.

        Of several such places the one at the loop's first line is taken, or one where something else begins.
        """
        room = search.matching(first, period, 2 * period) - period
        if room <= 0:
            return first
        begin = search.starts[first]
        crossing = self._crossing(begin, search.starts[first + period] - begin)

        def score(item: int) -> tuple[int, bool, bool]:
            place = search.starts[item]
            goes_on = place > 0 and self._scopes.sequence[place - 1] in self._links.sources_of(
                self._scopes.sequence[place]
            )
            return crossing[place - begin], place == 0 or self._lines[place] >= self._lines[place - 1], goes_on

        return min(range(first, first + min(room, period - 1) + 1), key=score)

    def _crossing(self, begin: int, length: int) -> list[int]:
        """How many values are handed on over each boundary of a round, by its distance from the beginning."""
        crossing = [0] * length
        sequence, place_of = self._scopes.sequence, self._place
        for place in range(begin, begin + length):
            readers = (place_of[reader] for reader in self._links.readers_of(sequence[place]))
            last = max((reader for reader in readers if reader < begin + 2 * length), default=place)
            for boundary in range(place + 1, last + 1):
                crossing[(boundary - begin) % length] += 1
        return crossing


def _name(block: Block) -> str:
    return "" if block.scope is None else block.scope.name


class _Search:
    """Where equal stretches of items follow one another."""

    def __init__(self, items: list[Item], keys: Sequence[int]) -> None:
        self.items = items
        self.starts = [item if isinstance(item, int) else item.start for item in items]
        last = items[-1] if items else 0
        self.starts.append(last + 1 if isinstance(last, int) else last.end)
        self._text = array("q", keys).tobytes()
        self._count = len(items)
        following: dict[int, int] = {}
        self._next = array("q", [-1]) * len(keys)
        for number in range(len(keys) - 1, -1, -1):
            self._next[number] = following.get(keys[number], -1)
            following[keys[number]] = number

    def is_same_as_before(self, first: int, period: int) -> bool:
        """The ``period`` items from ``first`` on are equal to those before them, each to each."""
        if first + period > self._count:
            return False
        middle = 8 * first
        width = 8 * period
        return self._text[middle - width : middle] == self._text[middle : middle + width]

    def periods_at(self, first: int) -> list[int]:
        """Lengths that a round from ``first`` on may have: those that explain most come first, then the shortest."""
        covered: dict[int, int] = {}
        number = self._next[first]
        for _ in range(_CANDIDATES):
            period = number - first
            if number < 0 or first + 2 * period > self._count:
                break
            whole = any(period % known == 0 and length == _LOOK_AHEAD for known, length in covered.items())
            if not whole and self.is_same_as_before(number, period):
                covered[period] = min(period + self.matching(first, period, max(_LOOK_AHEAD, period)), _LOOK_AHEAD)
            number = self._next[number]
        return sorted(covered, key=lambda period: (-(covered[period] // period * period), period))

    def matching(self, first: int, period: int, most: int) -> int:
        """How many items from ``first`` on are equal to the item ``period`` further on, ``most`` at most."""
        most = min(most, self._count - first - period)
        found, step = 0, 8
        while found < most and step:
            step = min(step, most - found)
            one, other = 8 * (first + found), 8 * (first + period + found)
            if self._text[one : one + 8 * step] == self._text[other : other + 8 * step]:
                found += step
                step *= 2
            else:
                step //= 2
        return found
