"""Many parameter names told as few: a module's path for all of its parameters, a range for equal neighbours."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

_NUMBERED = re.compile(r"(?P<stem>.*\.)(?P<number>\d+)(?P<tail>\..*)?$")


def collapse(names: Sequence[str], every: Collection[str]) -> tuple[str, ...]:
    """Names of parameters, put together where all parameters of a module are among them.

    Args:
        names: those to tell, in order.
        every: all parameters in sight.

    >>> every = ["m.a.weight", "m.a.bias", "m.b.0.w", "m.b.1.w", "m.b.2.w", "m.c.w"]
    >>> collapse(["m.a.weight", "m.a.bias", "m.b.0.w", "m.b.1.w"], every)
    ('m.a', 'm.b.0–1.w')
    >>> collapse(["m.c.w"], every), collapse(every, every)
    (('m.c.w',), ('m',))
    """
    wanted, all_of_them = Counter(_prefixes(names)), Counter(_prefixes(every))
    told: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        paths = (".".join(parts[:count]) for count in range(1, len(parts)))
        whole = next((path for path in paths if wanted[path] == all_of_them[path] and wanted[path] > 1), name)
        told[whole] = None
    return tuple(_ranges(list(told)))


def _prefixes(names: Collection[str]) -> list[str]:
    found = []
    for name in names:
        parts = name.split(".")
        found += [".".join(parts[:count]) for count in range(1, len(parts))]
    return found


def _ranges(names: list[str]) -> list[str]:
    """``h.0``, ``h.1``, ``h.2`` as ``h.0–2``; the same of ``h.0.bias``, ``h.1.bias`` as ``h.0–1.bias``."""
    runs: dict[tuple[str, str], list[tuple[int, int]]] = {}
    result: list[str | None] = list(names)
    for place, name in enumerate(names):
        match = _NUMBERED.match(name)
        if match is not None:
            key = (match["stem"], match["tail"] or "")
            runs.setdefault(key, []).append((int(match["number"]), place))
    for (stem, tail), members in runs.items():
        numbers = [number for number, _ in members]
        if len(members) > 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            result[members[0][1]] = f"{stem}{numbers[0]}–{numbers[-1]}{tail}"
            for _, place in members[1:]:
                result[place] = None
    return [name for name in result if name is not None]
