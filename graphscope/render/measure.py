"""How large a box will be: widths of letters, so that room can be left before anything is drawn.

Arimo, which draws, is as wide as Helvetica. Widths in thousandths of the size: Adobe's font metrics for Helvetica and
Helvetica-Bold (AFM), which every PostScript interpreter carries.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

_FIRST = 0x20
_REGULAR = (
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833,
    722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556,
    556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334,
    260, 334, 584,
)  # fmt: skip
_BOLD = (
    278, 333, 474, 556, 556, 889, 722, 238, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 556, 333, 333, 584, 584, 584, 611, 975, 722, 722, 722, 722, 667, 611, 778, 722, 278, 556, 722, 611, 833,
    722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 333, 278, 333, 584, 556, 333, 556, 611, 556, 611,
    556, 333, 611, 611, 278, 278, 556, 278, 889, 611, 611, 611, 611, 389, 556, 333, 611, 556, 778, 556, 556, 500, 389,
    280, 389, 584,
)  # fmt: skip
_WIDE = 1000
_OTHER = 620
"""Of what is not ASCII and not wide: marks, Greek, accented letters; rather too much than too little."""
LINE = 1.16
"""Height of a line, as a multiple of the size."""


class Size(NamedTuple):
    """Points of 1/72 inch."""

    width: float
    height: float


def _width_of(letter: str, *, bold: bool) -> int:
    place = ord(letter) - _FIRST
    table = _BOLD if bold else _REGULAR
    if 0 <= place < len(table):
        return table[place]
    if unicodedata.combining(letter):
        return 0
    return _WIDE if unicodedata.east_asian_width(letter) in "WF" else _OTHER


def text_size(text: str, size: float, *, bold: bool = False) -> Size:
    r"""Room that lines of text take.

    >>> text_size("add", 12, bold=True)
    Size(width=21.336, height=13.92)
    >>> text_size("one\ntwo", 10).height
    23.2
    """
    lines = text.split("\n")
    width = max([_line_width(line, bold=bold) for line in lines])
    return Size(width * size / 1000, round(len(lines) * size * LINE, 2))


@lru_cache(maxsize=4096)
def _line_width(line: str, *, bold: bool) -> int:
    return sum([_width_of(letter, bold=bold) for letter in line])
