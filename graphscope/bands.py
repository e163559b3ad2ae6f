"""Rows of a comparison put together, so that a long one can be looked at.

They are put together by line or module, and if possible only those that ran in the same runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from graphscope.model import Node
from graphscope.runs import Row

BAND_LIMIT = 40
"""Most rows that are shown as they are."""

FOLDED_LIMIT = 24
"""Most bands of a comparison that is folded: once something is hidden, an overview says more."""

_FEW = 4
"""So few bands of a long comparison say less than its first rows."""


Choice = Callable[[Row], tuple[object, ...]]
"""What rows that are put together have in common."""


class Band(NamedTuple):
    """One row, or several that follow one another."""

    rows: tuple[Row, ...]
    label: str | None = None
    """Of several rows: what they have in common, ``encoder.layers.0``."""

    def nodes(self, run: int) -> tuple[Node, ...]:
        """The nodes of one run."""
        return tuple(node for row in self.rows if (node := row.cells[run]) is not None)

    @property
    def differs(self) -> bool:
        """Some row in it does."""
        return any(row.differs for row in self.rows)


def fold_rows(rows: Sequence[Row], limit: int | None = BAND_LIMIT, *, folded: int = FOLDED_LIMIT) -> list[Band]:
    """Bands in order, with every row in one of them.

    Up to ``limit`` rows (``None``: any number) are left as they are. More are put together by source line or by module,
    as high up in the tree of modules as it takes, until there are at most ``folded`` bands.
    """
    if limit is None or len(rows) <= limit:
        return [Band((row,)) for row in rows]
    depth = max(len(_module(row)) for row in rows)
    for choice in (_by_line, *map(_by_module, range(depth, -1, -1))):
        for kind in (_with_presence(choice), choice):
            bands = _grouped(rows, kind)
            if len(bands) <= folded:
                return bands if len(bands) > min(_FEW, folded) else _first_and_rest(rows, limit)
    return _first_and_rest(rows, limit)


def _first_and_rest(rows: Sequence[Row], limit: int) -> list[Band]:
    head = [Band((row,)) for row in rows[: limit - 1]]
    return [*head, Band(tuple(rows[limit - 1 :]), "all further operations")]


def hidden_rows(bands: Sequence[Band]) -> int:
    """Rows that have no box of their own."""
    return sum(len(band.rows) for band in bands if len(band.rows) > 1)


def _grouped(rows: Sequence[Row], choice: Choice) -> list[Band]:
    bands = []
    for _, found in itertools.groupby(rows, choice):
        together = tuple(found)
        bands.append(Band(together, _label(together) if len(together) > 1 else None))
    return bands


def _with_presence(choice: Choice) -> Choice:
    """The same, and only rows together that ran in the same runs."""
    return lambda row: (*choice(row), *(cell is None for cell in row.cells))


def _by_line(row: Row) -> tuple[object, ...]:
    location = _first(row).location
    return (_module(row), (location.file, location.line) if location is not None else None)


def _by_module(level: int) -> Choice:
    return lambda row: (_module(row)[:level],)


def _label(rows: Sequence[Row]) -> str | None:
    """The module that all rows are in, else the line that all stand on."""
    common = _module(rows[0])
    for row in rows:
        parts = _module(row)
        while common != parts[: len(common)]:
            common = common[:-1]
    if common:
        return ".".join(common)
    lines = {(location.line, location.code) for row in rows if (location := _first(row).location) is not None}
    if len(lines) == 1:
        ((number, code),) = lines
        return f"line {number}: {code}" if code else f"line {number}"
    return None


def _module(row: Row) -> tuple[str, ...]:
    path = _first(row).module
    return tuple(path.split(".")) if path else ()


def _first(row: Row) -> Node:
    return next(node for node in row.cells if node is not None)
