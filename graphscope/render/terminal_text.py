"""Lines of styled text that fit a terminal: widths in cells, wrapping, and what a stream cannot write."""

from __future__ import annotations

import random
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from graphscope.style import GLYPHS, Look

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

GAP = "  "
"""Between two facts on one line."""

_JOINERS = frozenset({0x200D, *range(0xFE00, 0xFE10)})
# What stands for a mark where only ASCII can be written; distinct among those that tell something apart.
_ASCII_LOOKS = {
    Look.TRAINABLE: "*",
    Look.UNREACHED: "?",
    Look.FROZEN: "#",
    Look.CONSTANT: "o",
    Look.TRACKED: "+",
    Look.DEAD: "!",
    Look.UNTRACKED: "-",
    Look.OUTPUT: ">",
    Look.GROUP: "=",
    Look.FROZEN_GROUP: "&",
    Look.CUT_GROUP: "%",
    Look.SILENT_GROUP: "_",
}
_ASCII = {
    **{GLYPHS[look]: mark for look, mark in _ASCII_LOOKS.items()},
    **dict(zip("─┈╌│├╰┊⋯↑↓×·—", "-.~||`:~^vx/.", strict=True)),
    "…": "...",
    "→": "->",
    "–": "-",
    "µ": "u",
}


class Span(NamedTuple):
    """A piece of a line in one style of rich; the empty style is the terminal's own."""

    text: str
    style: str = ""


Line = list[Span]


def load_console() -> type[Console]:
    """rich's ``Console``, without the random number that the first import of rich draws (rich/style.py)."""
    state = None if "rich.style" in sys.modules else random.getstate()
    try:
        from rich.console import Console
    finally:
        if state is not None:
            random.setstate(state)
    return Console


def to_ansi(shown: RenderableType, width: int) -> str:
    """What rich writes in colour into a terminal so many cells wide."""
    from io import StringIO

    stream = StringIO()
    console = load_console()(file=stream, force_terminal=True, color_system="256", no_color=False, width=width)
    console.print(shown, end="")
    return stream.getvalue()


def fitted(text: str, encoding: str) -> str:
    r"""Text that ``encoding`` can write: marks become ASCII, other letters are written as Python escapes them.

    >>> fitted("权重 4×2", "ascii"), fitted("4×2", "latin-1"), fitted("权重", "utf-8")
    ('\\u6743\\u91cd 4x2', '4×2', '权重')
    """
    if text.isascii() or encoding.lower().startswith("utf"):
        return text
    return "".join(_fitted_character(character, encoding) for character in text)


@lru_cache(maxsize=4096)
def _fitted_character(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return _ASCII.get(character, ascii(character)[1:-1])
    except LookupError:  # a stream may name a codec that this Python lacks
        return _fitted_character(character, "ascii")
    return character


def cells(text: str) -> int:
    """Cells that a terminal needs for the text: two for a Chinese character, none for a combining one."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def elide_cells(text: str, width: int, mark: str = "…") -> str:
    """Text of at most ``width`` cells: a longer one loses its middle.

    >>> elide_cells("encoder.layers.0.weight", 12), elide_cells("权重权重权重", 7), elide_cells("short", 7)
    ('encoder…ight', '权重…重', 'short')
    """
    if cells(text) <= width:
        return text
    room = max(width - cells(mark), 0)
    tail = _last_cells(text, room * 2 // 5)
    return _first_cells(text, room - cells(tail)) + mark + tail


def _first_cells(text: str, width: int) -> str:
    length = bisect_right(range(len(text) + 1), width, key=lambda length: cells(text[:length])) - 1
    return text[:length].rstrip("\u200d")


def _last_cells(text: str, width: int) -> str:
    length = bisect_right(range(len(text) + 1), width, key=lambda length: cells(text[len(text) - length :])) - 1
    tail = text[len(text) - length :]
    # What would join itself to the mark before it belongs to a character that is gone.
    while tail and (cells(tail[0]) == 0 or ord(tail[0]) in _JOINERS):
        tail = tail[1:]
    return tail


def fit_rail(rail: str, width: int) -> str:
    """The lines left of a mark, at most ``width`` cells: the nearest ones stay."""
    return rail if len(rail) <= width else "⋯" + rail[len(rail) - width + 1 :]


def pack(
    first: Sequence[Span], further: Sequence[Span], parts: Iterable[Span], width: int, mark: str = "…"
) -> Iterator[Line]:
    """Put parts side by side, on as many lines as they need.

    ``first`` and ``further`` stand at the left of the first and of every further line. A part stays in one
    piece if a line can hold it; else it breaks between words, and a longer word has ``mark`` in place of its middle.
    """
    line = list(first)
    start = used = sum(cells(span.text) for span in first)
    indent = sum(cells(span.text) for span in further)
    for part in parts:
        for piece in _pieces(part.text, width - max(start, indent), mark):
            if used == start and len(line) == len(first):
                gap = ""
            elif used + len(GAP) + cells(piece) <= width:
                gap = GAP
            else:
                yield _stripped(line)
                line = list(further)
                start = used = indent
                gap = ""
            line.append(Span(gap + piece, part.style))
            used += len(gap) + cells(piece)
    yield _stripped(line)


def _pieces(text: str, room: int, mark: str) -> list[str]:
    """The text itself, or its words put together to lines of at most ``room`` cells."""
    if cells(text) <= room:
        return [text]
    pieces = [""]
    for word in text.split(" "):
        joined = f"{pieces[-1]} {word}" if pieces[-1] else word
        if cells(joined) <= room:
            pieces[-1] = joined
        else:
            pieces.append(elide_cells(word, room, mark))
    return [piece for piece in pieces if piece]


def _stripped(line: Line) -> Line:
    """The line without blanks at its end."""
    while line and not line[-1].text.strip(" "):
        line.pop()
    if line:
        line[-1] = line[-1]._replace(text=line[-1].text.rstrip(" "))
    return line


def to_plain(lines: Iterable[Line]) -> str:
    """The lines as text with a final newline."""
    return "".join("".join(span.text for span in line) + "\n" for line in lines)
