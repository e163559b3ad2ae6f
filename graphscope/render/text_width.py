"""How wide a text will be drawn: the letter widths of Helvetica, which Arimo has too."""

from __future__ import annotations

import unicodedata

_WIDTHS = (
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833,
    722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556,
    556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334,
    260, 334, 584,
)  # fmt: skip
"""Thousandths of the font size, from space to ``~``. Source: the Adobe Font Metrics file of Helvetica."""

_OTHER = 650
_WIDE = 1000
_BOLD = 1.08


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Points that a line takes at a font size; letters beyond ASCII are estimated, Chinese ones as squares.

    >>> text_width("add", 10), text_width("权重", 10)
    (16.68, 20.0)
    """
    total = sum(_width(character) for character in text)
    return round(total * size / 1000 * (_BOLD if bold else 1), 2)


def _width(character: str) -> int:
    place = ord(character) - ord(" ")
    if 0 <= place < len(_WIDTHS):
        return _WIDTHS[place]
    if unicodedata.combining(character):
        return 0
    return _WIDE if unicodedata.east_asian_width(character) in "WF" else _OTHER
