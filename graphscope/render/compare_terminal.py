"""A comparison as text: the figures of every run, then its ops side by side, fitted to the width."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graphscope.bands import BAND_LIMIT, Band, fold_rows, hidden_rows
from graphscope.model import Node
from graphscope.render.compare_words import band_told, facts, lost_words
from graphscope.render.terminal_lines import ALARM_STYLE, LOOK_STYLES, MINIMUM_WIDTH, LineOptions
from graphscope.render.terminal_text import Line, Span, cells, elide_cells, fitted, pack, to_ansi, to_plain
from graphscope.runs import Compared, Run
from graphscope.style import GLYPHS, MEANINGS, MODE_WORDS, Look, look_of, short_backward, visible
from graphscope.units import to_count_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

_GAP = 2
_LABEL_MOST = 36
_COLUMN_LEAST = 12
"""Narrower columns are not read with pleasure; those that do not fit come in a second table."""
_COLUMN_MOST = 40
_ABSENT = "—"


def render(compared: Compared, options: LineOptions, *, color: bool = False) -> str:
    """Write the comparison as text with a final newline; no line is wider than ``options.width`` (40 at least)."""
    if not color:
        return to_plain(to_lines(compared, options))
    return to_ansi(renderable(compared, options), max(options.width, MINIMUM_WIDTH))


def renderable(compared: Compared, options: LineOptions) -> _Renderable:
    """Wrap the comparison for ``rich``; width, colours and encoding are the console's."""
    return _Renderable(compared, options)


class _Renderable:
    """Speaks rich's protocol; lines come ready-made, so that rich reads no markup in names."""

    def __init__(self, compared: Compared, options: LineOptions) -> None:
        self._compared = compared
        self._options = options

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment
        from rich.style import Style

        fitting = dataclasses.replace(self._options, width=options.max_width, encoding=options.encoding)
        for line in to_lines(self._compared, fitting):
            yield from (Segment(span.text, Style.parse(span.style)) for span in line)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(min(MINIMUM_WIDTH, options.max_width), options.max_width)


def to_lines(compared: Compared, options: LineOptions) -> Iterator[Line]:
    """Write figures, ops, what they ran inside, errors and the marks, with a blank line between them."""
    yield from _Writer(compared, options).lines()


class _Writer:
    """Writes the lines of one comparison."""

    def __init__(self, compared: Compared, options: LineOptions) -> None:
        self._compared = compared
        self._encoding = options.encoding
        self._width = max(options.width, MINIMUM_WIDTH)
        self._bands = fold_rows(compared.rows, None if options.limit is None else BAND_LIMIT, folded=BAND_LIMIT)
        self._facts = facts(compared)
        self._mark = fitted("…", options.encoding)
        self._dash = fitted("–", options.encoding)
        self._looks: set[Look] = set()
        self._legend = options.legend
        count = len(compared.runs)
        wanted = [_label_of(band) for band in self._bands] + [fact.label for fact in self._facts]
        most = max(min(_LABEL_MOST, self._width * 3 // 10), 14)
        self._label = min(max((cells(text) + 2 for text in wanted), default=0), most)
        self._beside = min(max((self._width - self._label) // (_COLUMN_LEAST + _GAP), 1), count)
        """Runs in one table."""
        self._column = min((self._width - self._label) // self._beside - _GAP, _COLUMN_MOST)

    def lines(self) -> Iterator[Line]:
        """All of them."""
        runs = range(len(self._compared.runs))
        for start in runs[:: self._beside]:
            if start:
                yield []
            yield from self._table(runs[start : start + self._beside])
        notes = [*self._notes()]
        if notes:
            yield []
        for note in notes:
            yield from self._wrapped(note)
        if self._legend and self._bands:
            yield []
            yield from self._marks()

    def _table(self, places: range) -> Iterator[Line]:
        names = [visible(self._compared.runs[place].mode) for place in places]
        yield from self._row(Span(""), [Span(self._head(name), "bold") for name in names])
        for fact in self._facts:
            texts = [fact.texts[place] for place in places]
            yield from self._row(Span(fact.label, "bold"), [Span(visible(text) if text else "") for text in texts])
        if self._bands:
            yield []
        for band in self._bands:
            sign = "≠ " if band.differs else "  "
            label = Span(sign + _label_of(band), "bold" if band.differs else "")
            yield from self._row(label, [self._cell(band, place) for place in places])

    def _head(self, name: str) -> str:
        """The name of a run with a space at each place where a narrow column breaks it: ``inference_ mode``."""
        if cells(name) <= self._column:
            return name
        lines = [""]
        for part in re.split(r"(?<=[+_])", name):
            if cells(lines[-1] + part) <= self._column:
                lines[-1] += part
            else:
                lines.append(part)
        return " ".join(filter(None, lines))

    def _cell(self, band: Band, place: int) -> Span:
        nodes = band.nodes(place)
        if not nodes:
            return Span(_ABSENT, "dim")
        if len(band.rows) > 1:
            self._looks.add(Look.GROUP)
            told = f"{GLYPHS[Look.GROUP]} {band_told(nodes)}"
            fits = cells(told) + len(" recorded") <= self._column
            return Span(f"{told} recorded" if fits else told, LOOK_STYLES[Look.GROUP])
        look = look_of(nodes[0])
        self._looks.add(look)
        return Span(f"{GLYPHS[look]} {self._recorded(nodes[0])}", LOOK_STYLES[look])

    def _recorded(self, node: Node) -> str:
        if node.backward is not None:
            name = visible(short_backward(node.backward))
            return name if cells(name) <= self._column - 2 else "recorded"
        lost = lost_words(node)
        if lost is not None:
            return lost
        name = "no backward node" if node.mode in {None, "grad"} else "not recorded"
        return name if cells(name) <= self._column - 2 else "unrecorded"

    def _row(self, label: Span, columns: Sequence[Span]) -> Iterator[Line]:
        """One row of the table, on as many lines as its longest cell needs."""
        title = elide_cells(fitted(label.text, self._encoding), self._label, self._mark)
        wrapped = [[title], *(self._pieces(span, self._column) for span in columns)]
        widths = [self._label, *(self._column for _ in columns)]
        for number in range(max(map(len, wrapped))):
            line: Line = []
            for pieces, width, span in zip(wrapped, widths, (label, *columns), strict=True):
                text = pieces[number] if number < len(pieces) else ""
                line.append(Span(text + " " * (width - cells(text) + _GAP), span.style))
            yield _stripped(line)

    def _pieces(self, span: Span, width: int) -> list[str]:
        """The text of a cell in lines; the mark before it stands on the first one alone."""
        text = fitted(span.text, self._encoding)
        if cells(text) <= width:
            return [text]
        pieces: list[str] = []
        for word in text.split(" "):
            if pieces and cells(pieces[-1]) + 1 + cells(word) <= width:
                pieces[-1] = f"{pieces[-1]} {word}"
            elif cells(word) > width and self._dash in word:  # figures without their middle would be others
                halves = re.split(rf"(?<={re.escape(self._dash)})", word)
                pieces += [elide_cells(half, width, self._mark) for half in halves]
            else:
                pieces.append(elide_cells(word, width, self._mark))
        return pieces

    def _notes(self) -> Iterator[list[Span]]:
        """Which lines switched the mode, what went wrong, what must be known."""
        for run in self._compared.runs:
            name = Span(f"{visible(run.mode)}:", "bold")
            yield from ([name, Span(text)] for text in _region_notes(run))
            if run.failure is not None:
                where = run.failure.location
                place = [Span(visible(f"{where.file}:{where.line}"), "dim")] if where is not None else []
                text = f"{run.failure.type}: {visible(run.failure.text)}"
                yield [name, Span(text, ALARM_STYLE), *place]
        notices = dict.fromkeys(notice for run in self._compared.runs for notice in run.data.notices)
        yield from ([Span(visible(notice), "dim")] for notice in notices)
        hidden = hidden_rows(self._bands)
        if hidden:
            yield [Span(f"{to_count_text(hidden, 'row')} folded; the text format (-o FILE.txt) shows all", "dim")]

    def _marks(self) -> Iterator[Line]:
        entries = [f"{GLYPHS[look]} {MEANINGS[look]}" for look in Look if look in self._looks]
        if any(row.differs for row in self._compared.rows):
            entries.append("≠ not the same in every run")
        if any(None in row.cells for row in self._compared.rows):
            entries.append(f"{_ABSENT} did not run")
        yield from self._wrapped([Span(entry, "dim") for entry in entries])

    def _wrapped(self, parts: Sequence[Span]) -> Iterator[Line]:
        safe = [Span(fitted(span.text, self._encoding), span.style) for span in parts]
        yield from pack([], [Span("  ")], safe, self._width, self._mark)


def _label_of(band: Band) -> str:
    """The op and where it stands: its module, else its lines."""
    if len(band.rows) > 1:
        count = to_count_text(len(band.rows), "op")
        return f"{count}  {visible(band.label)}" if band.label else count
    (row,) = band.rows
    nodes = [node for node in row.cells if node is not None]
    if nodes[0].module:
        return f"{visible(row.op)}  {visible(nodes[0].module)}"
    lines = dict.fromkeys(str(node.location.line) for node in nodes if node.location is not None)
    if not lines:
        return visible(row.op)
    return f"{visible(row.op)}  line{'s' if len(lines) > 1 else ''} {', '.join(lines)}"


def _region_notes(run: Run) -> Iterator[str]:
    counts = Counter(node.region for node in run.data.nodes if node.region is not None)
    for region in run.data.regions:
        if region.location is not None and counts[region.id]:
            words = MODE_WORDS.get(region.mode, visible(region.mode))
            place = visible(f"{region.location.file}:{region.location.line}")
            code = f": {visible(region.location.code)}" if region.location.code else ""
            yield f"{to_count_text(counts[region.id], 'operation')} under {words}, switched at {place}{code}"


def _stripped(line: Line) -> Line:
    while line and not line[-1].text.strip(" "):
        line.pop()
    if line:
        line[-1] = line[-1]._replace(text=line[-1].text.rstrip(" "))
    return line
