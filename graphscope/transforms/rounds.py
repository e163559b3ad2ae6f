"""Whether the rounds of a would-be run are connected alike: each to the one before it, and to what is around."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from graphscope.transforms.links import Links


class Rounds:
    """Compares each round with the one before it. That the ops themselves are equal was seen before."""

    def __init__(
        self,
        links: Links,
        sequence: Sequence[int],
        place: array[int],
        keys: array[int],
        key_of: Callable[[int], int],
    ) -> None:
        """Hold the tables: positions by place, places by position, keys by place and by position."""
        self._links, self._sequence, self._place = links, sequence, place
        self._keys, self._key_of = keys, key_of
        self._start = self._length = 0
        self._strides: dict[tuple[int, int], int] = {}
        self._pairs: list[dict[int, int]] = []

    def begin(self, start: int, length: int) -> None:
        """Set the first round: ``length`` places from ``start`` on."""
        self._start, self._length = start, length
        self._strides.clear()
        self._pairs = [{}]

    def goes_on(self, number: int) -> bool:
        """Round ``number`` continues the run of those before it; it is the last one until the next is asked for."""
        return self._reads_alike(number) and (number == 1 or self._is_read_alike(number - 1))

    def leaves(self, count: int) -> list[dict[int, int]]:
        """For each round its own leaves that stand in no other place, by those that stand there in the first."""
        found: list[dict[int, int]] = [{leaf: leaf for leaf in self._pairs[1].values()}] if count > 1 else [{}]
        for pairs in self._pairs[1:count]:
            here = {before: leaf for leaf, before in pairs.items()}
            found.append({first: here[before] for first, before in found[-1].items()})
        return found

    def _reads_alike(self, number: int) -> bool:
        """Each input comes from the same thing as in the round before, or from what stands in its place."""
        links, sequence, place, length = self._links, self._sequence, self._place, self._length
        starts, sources, outputs = links.start, links.source, links.output
        pairs: dict[int, int] = {}
        self._pairs[number:] = [pairs]
        begin = self._start + number * length
        for offset in range(length):
            first, other = starts[sequence[begin + offset]], starts[sequence[begin + offset - length]]
            for slot in range(starts[sequence[begin + offset] + 1] - first):
                here, before = sources[first + slot], sources[other + slot]
                moved = place[here] - length == place[before] and place[before] >= 0
                if moved and outputs[first + slot] == outputs[other + slot]:
                    continue
                if not self._stands_for(here, before, number, (offset, slot), pairs):
                    return False
        return len(set(pairs.values())) == len(pairs) and all(
            self._is_own(leaf, number) and self._is_own(before, number - 1) for leaf, before in pairs.items()
        )

    def _stands_for(self, here: int, before: int, number: int, at: tuple[int, int], pairs: dict[int, int]) -> bool:
        """An input from outside the round is the same one each time, or moves on by the same step each time."""
        start, place, before_place = self._start, self._place[here], self._place[before]
        if here == before:
            return place < start
        if number == 1 and start <= place < start + self._length and before_place < start:
            return True  # the first round gets from outside what the later ones hand on
        if place < 0 and before_place < 0:
            return self._key_of(here) == self._key_of(before) and pairs.setdefault(here, before) == before
        if 0 <= place < start and 0 <= before_place < start and self._keys[place] == self._keys[before_place]:
            return self._strides.setdefault(at, place - before_place) == place - before_place
        return False

    def _is_own(self, leaf: int, number: int) -> bool:
        begin = self._start + number * self._length
        return all(begin <= self._place[reader] < begin + self._length for reader in self._links.readers_of(leaf))

    def _is_read_alike(self, number: int) -> bool:
        """Each result is read as in the round before."""
        sequence, place, length, keys = self._sequence, self._place, self._length, self._keys
        start, readers = self._links.readers
        begin = self._start + number * length
        for offset in range(length):
            position, earlier = sequence[begin + offset], sequence[begin + offset - length]
            first, other = start[position], start[earlier]
            count = start[position + 1] - first
            if count != start[earlier + 1] - other:
                return False
            for reader in range(count):
                here, before = readers[first + reader], readers[other + reader]
                if place[here] - length == place[before] or here == before:
                    continue
                if place[here] < 0 or place[before] < 0:
                    if place[here] != place[before]:
                        return False
                elif keys[place[here]] != keys[place[before]]:
                    return False
        return True
