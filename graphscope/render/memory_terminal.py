"""What backward keeps, as text: the sum, then bars by op, module, line and storage."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphscope.findings import Kept, KeptStorage, Share
from graphscope.render.report import Renderable
from graphscope.render.report import write as write_report
from graphscope.render.terminal_lines import MINIMUM_WIDTH, LineOptions
from graphscope.render.terminal_text import Line, Span, cells, elide_cells, fitted
from graphscope.style import visible
from graphscope.units import to_bytes_text, to_count_text, to_shape_text

_ROWS = 8
_BLOCKS = " ▏▎▍▌▋▊▉█"
_BAR_MOST = 40
_STATE_WORDS = {
    "freed": "freed by a backward",
    "packed": "packed by a hook",
    "checkpointed": "checkpointed: computed again in backward",
    "unavailable": "cannot be looked at in this torch",
}


class _Row(NamedTuple):
    label: str
    bytes: int
    words: str


def render(kept: Kept, options: LineOptions, *, color: bool = False, details: bool = False) -> str:
    """Write the report as text with a final newline."""
    return write_report(functools.partial(to_lines, kept, details=details), options, color=color)


def renderable(kept: Kept, options: LineOptions, *, details: bool = False) -> Renderable:
    """Wrap the report for ``rich``; width, colours and encoding are the console's."""
    return Renderable(functools.partial(to_lines, kept, details=details), options)


def to_lines(kept: Kept, options: LineOptions, *, details: bool = False) -> Iterator[Line]:
    """Write the sum, the tables and what would keep less."""
    yield from _Writer(kept, options, None if details else _ROWS).lines()


class _Writer:
    """Writes the lines of one report."""

    def __init__(self, kept: Kept, options: LineOptions, most: int | None) -> None:
        self._kept = kept
        self._encoding = options.encoding
        self._width = max(options.width, MINIMUM_WIDTH)
        self._most = most
        self._mark = fitted("…", options.encoding)

    def lines(self) -> Iterator[Line]:
        kept = self._kept
        own = [storage for storage in kept.storages if not storage.parameter]
        roots = " and ".join(visible(name) for name in kept.roots[:3]) or "the result"
        size, count = to_bytes_text(kept.bytes), to_count_text(len(own), "storage")
        yield self._line(f"{size} in {count} kept for a backward from {roots}.", "bold")
        if kept.parameter_bytes:
            text = f"{to_bytes_text(kept.parameter_bytes)} more belong to parameters and buffers, which exist anyway."
            yield self._line(text, "dim")
        for state, words in _STATE_WORDS.items():
            if kept.states.get(state):
                yield self._line(f"{to_count_text(kept.states[state], 'saved tensor')} {words}.", "dim")
        if kept.bytes:
            yield from self._tables(own)
            yield from self._savings()

    def _tables(self, own: Sequence[KeptStorage]) -> Iterator[Line]:
        kept = self._kept
        yield from self._table("by operation", [_share_row(share) for share in kept.by_op])
        modules = [share for share in kept.by_module if share.name]
        if modules:
            ordered = sorted(modules, key=lambda share: (-share.bytes, share.name))
            yield from self._table("by module, with all that is inside", [_share_row(share) for share in ordered])
        if kept.by_line:
            yield from self._table("by line", [_line_row(share) for share in kept.by_line])
        yield from self._table("by storage", [_storage_row(storage) for storage in own])

    def _table(self, title: str, rows: Sequence[_Row]) -> Iterator[Line]:
        shown = rows[: self._most]
        yield []
        yield self._line(title, "bold")
        largest = max((row.bytes for row in rows), default=1) or 1
        label = min(max((cells(self._text(row.label)) for row in shown), default=0), self._width * 2 // 5)
        size = max((len(to_bytes_text(row.bytes)) for row in shown), default=0)
        words = min(max((cells(self._text(row.words)) for row in shown), default=0), self._width // 3)
        bar = min(self._width - label - size - words - 6, _BAR_MOST)
        words = min(words, self._width - label - size - 4)
        for row in shown:
            name = elide_cells(self._text(row.label), label, self._mark)
            head = f"{name}{' ' * (label - cells(name))}  {to_bytes_text(row.bytes):>{size}}  "
            drawn = self._bar(row.bytes / largest, bar) if bar >= 4 else ""  # noqa: PLR2004  shorter says nothing
            tail = elide_cells(self._text(row.words), words, self._mark)
            yield [Span(head), Span(drawn + "  " * bool(drawn), "cyan"), Span(tail, "dim")]
        if len(rows) > len(shown):
            rest = sum(row.bytes for row in rows[len(shown) :])
            of = "" if "inside" in title else f": {to_bytes_text(rest)}"
            yield self._line(f"… and {len(rows) - len(shown)} more{of}", "dim")

    def _bar(self, share: float, width: int) -> str:
        """A bar in eighths of a cell; where only ASCII can be written, of whole ones."""
        if fitted("█", self._encoding) != "█":
            return ("#" * max(round(share * width), 1 if share else 0)).ljust(width)
        eighths = max(round(share * width * 8), 1 if share else 0)
        full, rest = divmod(eighths, 8)
        return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)

    def _savings(self) -> Iterator[Line]:
        yield []
        yield self._line("what would keep less", "bold")
        size = to_bytes_text(self._kept.bytes)
        yield self._line(f"torch.no_grad() around all of it: {size} less, and no backward", "")
        for share in self._kept.checkpoint_saves[: 3 if self._most else None]:
            text = f"checkpoint around {visible(share.name)}: {to_bytes_text(share.bytes)} less until its backward"
            yield self._line(text + ", for running it twice", "")

    def _line(self, text: str, style: str) -> Line:
        return [Span(elide_cells(self._text(text), self._width, self._mark), style)]

    def _text(self, text: str) -> str:
        return fitted(text, self._encoding)


def _share_row(share: Share) -> _Row:
    words = f"{to_count_text(share.tensors, 'tensor')} of {to_count_text(share.operations, 'op')}"
    return _Row(visible(share.name), share.bytes, words)


def _line_row(share: Share) -> _Row:
    place = share.location
    return _Row(visible(share.name), share.bytes, visible(place.code) if place is not None and place.code else "")


def _storage_row(storage: KeptStorage) -> _Row:
    op, slot, place = storage.savers[0]
    more = f" and {len(storage.savers) - 1} more" if len(storage.savers) > 1 else ""
    where = f" at {place.file}:{place.line}" if place is not None else ""
    shape = to_shape_text(storage.shape) if storage.shape is not None else "shape unknown"
    return _Row(visible(f"{storage.id} {shape}"), storage.bytes, visible(f"{op} {slot}{more}{where}"))
