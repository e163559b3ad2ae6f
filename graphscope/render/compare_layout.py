"""Where everything of a side-by-side picture stands: columns for runs, level rows for ops.

Graphviz has no layout that keeps rows level across columns and boxes around parts of a column, so positions are worked
out here, in points from the upper left corner; Graphviz only draws them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphscope.bands import Band
from graphscope.model import GraphData, Node, Region
from graphscope.render.clusters import place_of
from graphscope.render.compare_words import (
    band_lines,
    band_words,
    cell_lines,
    cell_title,
    failure_lines,
    leaves_read,
    output_lines,
    run_lines,
    values_words,
)
from graphscope.render.legend import wrap
from graphscope.render.text_width import text_width
from graphscope.runs import Compared
from graphscope.style import GLYPHS, MODE_WORDS, EdgeLook, Look, edge_look, elide, look_of, title_of, visible
from graphscope.units import to_count_text

TITLE_SIZE, TEXT_SIZE, SIGN_SIZE = 12, 10, 15

_LINE_STEP = 12.0
_ROW_GAP = 20.0
_COLUMN_GAP = 64.0
_REGION_MARGIN = 9.0
_ARC = 40.0
"""Room to the right of a column for edges that pass rows by."""
_STRENGTH = (EdgeLook.FLOWS, EdgeLook.DEAD, EdgeLook.CUT)
_LEAST_WIDTH, _MOST_WIDTH = 130.0, 290.0
_SIGN_WIDTH = 26.0
_WORDS_WIDTH = 190.0
_OUTPUTS_SHOWN = 3


class Box(NamedTuple):
    """Something with a text. The position is that of its middle."""

    id: str
    title: str
    lines: tuple[str, ...]
    look: Look | None
    """``None`` for text without a box."""
    x: float
    y: float
    width: float
    height: float
    tooltip: str = ""
    alarm: bool = False
    left: bool = False
    """Lines begin at the left edge."""
    double: bool = False
    """Several ops in one box."""


class Frame(NamedTuple):
    """A box around several: a region of one run."""

    id: str
    lines: tuple[str, ...]
    left: float
    top: float
    right: float
    bottom: float
    boxes: tuple[str, ...]


class Arrow(NamedTuple):
    """Data that flows from one box of a column to another."""

    source: str
    target: str
    look: EdgeLook
    points: tuple[tuple[float, float], ...]
    """Start, two controls, the end of the line; then the tip."""


class Picture(NamedTuple):
    """Everything placed."""

    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    arrows: tuple[Arrow, ...]
    looks: frozenset[Look]
    """Of the ops, and of the leaves that boxes name."""
    width: float
    height: float


class _Cell(NamedTuple):
    """What stands in one column of one row, not yet placed."""

    title: str
    lines: tuple[str, ...]
    look: Look | None
    nodes: tuple[Node, ...] = ()
    alarm: bool = False
    double: bool = False

    @property
    def height(self) -> float:
        return _LINE_STEP * len(self.lines) + (22.0 if self.title else 10.0)

    @property
    def width(self) -> float:
        wanted = max((text_width(line, TEXT_SIZE) for line in self.lines), default=0.0)
        return max(wanted, text_width(self.title, TITLE_SIZE, bold=True)) + 22.0


def lay_out(compared: Compared, bands: Sequence[Band]) -> Picture:
    """Place heads, bands, results, frames and arrows."""
    return _Layout(compared, bands).picture()


class _Layout:
    """One layout; its attributes are what the steps share."""

    def __init__(self, compared: Compared, bands: Sequence[Band]) -> None:
        self._compared = compared
        self._bands = bands
        self._columns = range(len(compared.runs))
        self._rows = [[_band_cell(band, run.data, place) for place, run in enumerate(compared.runs)] for band in bands]
        heads = [_head(compared, place) for place in self._columns]
        ends = [_end(compared, place) for place in self._columns]
        cells = [*heads, *ends, *(cell for row in self._rows for cell in row)]
        regions = [_region_lines(region) for run in compared.runs for region in run.data.regions]
        needed = [cell.width for cell in cells]
        needed += [max(text_width(line, TEXT_SIZE, bold=True) for line in lines) for lines in regions if lines]
        self._width = min(max(_LEAST_WIDTH, *needed), _MOST_WIDTH)
        self._links = [self._links_of(place) for place in self._columns]
        self._reaches = [self._reach(place) for place in self._columns]
        self._boxes: list[Box] = []
        self._frames: list[Frame] = []
        self._placed: list[list[Box | None]] = [[] for _ in self._columns]
        """By column and row."""
        self._open: list[tuple[str, float, list[str]] | None] = [None for _ in self._columns]
        """The region that is going on in each column, where it began and its boxes."""
        self._regions = [{region.id: region for region in run.data.regions} for run in compared.runs]
        self._y = 0.0
        self._place_row("head", heads)
        for number, row in enumerate(self._rows):
            self._place_band(number, row)
        self._close_regions([None for _ in self._columns])
        self._y += _ROW_GAP
        self._place_row("end", ends)

    def picture(self) -> Picture:
        last = self._x(len(self._columns) - 1) + self._width / 2
        words = max(box.x + box.width / 2 for box in self._boxes)
        arrows = [
            self._arrow(place, *link, look) for place in self._columns for link, look in self._links[place].items()
        ]
        right = max(words, last + _REGION_MARGIN)
        return Picture(tuple(self._boxes), tuple(self._frames), tuple(arrows), self._looks(), right, self._y)

    def _looks(self) -> frozenset[Look]:
        looks: set[Look] = set()
        for row in self._rows:
            for cell, run in zip(row, self._compared.runs, strict=True):
                if cell.look is not None:
                    looks.add(Look.GROUP if cell.double else cell.look)
                if len(cell.nodes) == 1:
                    looks.update(map(look_of, leaves_read(cell.nodes[0], run.data)))
        return frozenset(looks)

    def _x(self, place: int) -> float:
        """Middle of a column."""
        return _SIGN_WIDTH + _REGION_MARGIN + self._width / 2 + place * (self._width + _COLUMN_GAP)

    def _place_row(self, name: str, cells: Sequence[_Cell]) -> None:
        """Heads and ends stand level too, and as high as the highest."""
        height = max(cell.height for cell in cells)
        for place, cell in enumerate(cells):
            self._add(f"{name} {place}", cell, self._x(place), self._y + height / 2, height)
        self._y += height

    def _place_band(self, number: int, row: Sequence[_Cell]) -> None:
        wanted = [self._region_of(place, cell) for place, cell in enumerate(row)]
        self._close_regions(wanted)
        begins = [region for place, region in enumerate(wanted) if region is not None and not self._open[place]]
        self._y += _ROW_GAP
        if begins:
            self._y += max(len(_region_lines(region)) for region in begins) * _LINE_STEP + _REGION_MARGIN
        height = max(cell.height for cell in row)
        middle = self._y + height / 2
        for place, cell in enumerate(row):
            box = self._add(f"row {number} {place}", cell, self._x(place), middle, cell.height)
            self._placed[place].append(box if cell.nodes else None)
            self._enter_region(place, wanted[place], box)
        self._add_words(number, middle)
        self._y += height

    def _region_of(self, place: int, cell: _Cell) -> Region | None:
        """The region of a band; a row that did not run goes on with the one around it."""
        if not cell.nodes:
            going_on = self._open[place]
            return self._regions[place][going_on[0]] if going_on is not None else None
        regions = {node.region for node in cell.nodes}
        only = regions.pop() if len(regions) == 1 else None
        return self._regions[place].get(only) if only is not None else None

    def _enter_region(self, place: int, region: Region | None, box: Box) -> None:
        if region is None:
            return
        if self._open[place] is None:
            top = box.y - box.height / 2 - len(_region_lines(region)) * _LINE_STEP - _REGION_MARGIN
            self._open[place] = (region.id, top, [])
        going_on = self._open[place]
        assert going_on is not None  # noqa: S101  set above
        going_on[2].append(box.id)

    def _close_regions(self, wanted: Sequence[Region | None]) -> None:
        closed = False
        for place in self._columns:
            going_on, next_region = self._open[place], wanted[place]
            if going_on is None or (next_region is not None and next_region.id == going_on[0]):
                continue
            identity, top, boxes = going_on
            left, right = self._x(place) - self._width / 2, self._x(place) + self._width / 2
            region = self._regions[place][identity]
            self._frames.append(
                Frame(
                    f"{place} {identity} {len(self._frames)}",
                    tuple(_region_lines(region)),
                    left - _REGION_MARGIN,
                    top,
                    right + max(_REGION_MARGIN, self._reaches[place] + 5.0),
                    self._y + _REGION_MARGIN,
                    tuple(boxes),
                )
            )
            self._open[place] = None
            closed = True
        if closed:
            self._y += _REGION_MARGIN

    def _add(self, identity: str, cell: _Cell, x: float, y: float, height: float) -> Box:
        nodes = cell.nodes
        tooltip = place_of(nodes[0].location) if len(nodes) == 1 and nodes[0].location is not None else ""
        lines = tuple(_fit(line, self._width - 16.0, TEXT_SIZE) for line in cell.lines)
        title = _fit(cell.title, self._width - 16.0, TITLE_SIZE, bold=True)
        width = self._width if cell.look is not None else cell.width - 14.0
        box = Box(identity, title, lines, cell.look, x, y, width, height, tooltip, cell.alarm, double=cell.double)
        self._boxes.append(box)
        return box

    def _add_words(self, number: int, y: float) -> None:
        """The sign left of a row and the words right of it."""
        band = self._bands[number]
        sign = "≠" if band.differs else "="
        self._boxes.append(Box(f"sign {number}", sign, (), None, _SIGN_WIDTH / 2 - 4, y, _SIGN_WIDTH, 18.0))
        words = band_words(band, [run.mode for run in self._compared.runs]) if band.differs else ""
        if words:
            lines = tuple(_wrapped(words, _WORDS_WIDTH))
            width = max(text_width(line, TEXT_SIZE) for line in lines) + 8.0
            left = self._x(len(self._columns) - 1) + self._width / 2 + max(self._reaches[-1], _REGION_MARGIN) + 12.0
            height = _LINE_STEP * len(lines) + 4.0
            self._boxes.append(
                Box(f"words {number}", "", lines, None, left + width / 2, y, width, height, alarm=True, left=True)
            )

    def _links_of(self, place: int) -> dict[tuple[int, int], EdgeLook]:
        """Which rows of a column data flows between, and the strongest look of the edges; results are one row more."""
        data = self._compared.runs[place].data
        row_of: dict[str, int] = {}
        for number, row in enumerate(self._rows):
            row_of |= {node.id: number for node in row[place].nodes}
        row_of |= dict.fromkeys(data.roots, len(self._rows))
        looks: dict[tuple[int, int], EdgeLook] = {}
        for edge in data.edges:
            source, target = row_of.get(edge.source), row_of.get(edge.target)
            if source is not None and target is not None and source < target:
                look = edge_look(edge, data)
                looks[source, target] = min(looks.get((source, target), look), look, key=_STRENGTH.index)
        return dict(sorted(looks.items()))

    def _passed(self, place: int, source: int, target: int) -> int:
        """Boxes that stand between two rows of a column."""
        return sum(1 for row in self._rows[source + 1 : target] if row[place].nodes)

    def _reach(self, place: int) -> float:
        """How far the arrows of a column reach out to the right of it."""
        passed = [self._passed(place, *link) for link in self._links[place]]
        return max((_bulge(count) for count in passed if count), default=0.0)

    def _arrow(self, place: int, source: int, target: int, look: EdgeLook) -> Arrow:
        upper = self._placed[place][source]
        assert upper is not None  # noqa: S101  it holds the nodes that the edge comes from
        lower = self._box_at(place, target)
        passed = self._passed(place, source, target)
        if not passed:
            start, end = (upper.x, upper.y + upper.height / 2), (lower.x, lower.y - lower.height / 2)
            stop = (end[0], max(end[1] - 7.0, start[1]))
            third = (stop[1] - start[1]) / 3
            return Arrow(
                upper.id, lower.id, look, (start, (start[0], start[1] + third), (stop[0], stop[1] - third), stop, end)
            )
        right = upper.x + self._width / 2
        control = right + _bulge(passed) / 0.75  # where a cubic curve reaches out three quarters of the way
        start, end = (right, upper.y + 4.0), (right, lower.y - 4.0)
        return Arrow(
            upper.id, lower.id, look, (start, (control, start[1]), (control, end[1]), (end[0] + 6.5, end[1]), end)
        )

    def _box_at(self, place: int, row: int) -> Box:
        found = self._placed[place][row] if row < len(self._rows) else None
        return found or next(box for box in self._boxes if box.id == f"end {place}")


def _bulge(passed: int) -> float:
    """How far an arrow reaches out that passes so many boxes."""
    return min(10.0 + 4.0 * passed, _ARC)


def _band_cell(band: Band, data: GraphData, place: int) -> _Cell:
    nodes = band.nodes(place)
    if not nodes:
        return _Cell("", ("– does not run",), None)
    if len(band.rows) == 1:
        (node,) = nodes
        lines = tuple(line for text in cell_lines(node, data) for line in wrap(text).split("\n"))
        return _Cell(cell_title(node), lines, look_of(node), nodes)
    title = f"{GLYPHS[Look.GROUP]} {to_count_text(len(nodes), 'operation')}"
    label = [elide(visible(band.label))] if band.label else []
    recorded = {node.backward is not None for node in nodes}
    look = Look.GROUP if len(recorded) > 1 else Look.TRACKED if True in recorded else Look.UNTRACKED
    return _Cell(title, (*label, *band_lines(nodes)), look, nodes, double=True)


def _head(compared: Compared, place: int) -> _Cell:
    run = compared.runs[place]
    return _Cell(elide(visible(run.mode)), tuple(run_lines(place, compared)), Look.CONSTANT)


def _end(compared: Compared, place: int) -> _Cell:
    """What a run returned, or the error that ended it."""
    run, figures = compared.runs[place], compared.figures[place]
    if run.failure is not None:
        lines = tuple(line for text in failure_lines(run.failure) for line in wrap(text).split("\n"))
        return _Cell(f"× {run.failure.type}", lines, Look.UNREACHED, alarm=True)
    told: list[str] = []
    for output in figures.outputs[:_OUTPUTS_SHOWN]:
        if len(figures.outputs) > 1:
            told.append(f"{elide(visible(output.tensor.names[0] if output.tensor.names else 'output'))}:")
        told += output_lines(output.tensor, output.grad_fn)
    if len(figures.outputs) > _OUTPUTS_SHOWN:
        told.append(f"and {to_count_text(len(figures.outputs) - _OUTPUTS_SHOWN, 'more output')}")
    values = values_words(run, compared)
    told += [f"values {values}"] if values else []
    roots = [run.data.by_id[root] for root in run.data.roots]
    title = title_of(roots[0]) if len(roots) == 1 else to_count_text(len(roots), "output")
    return _Cell(f"{GLYPHS[Look.OUTPUT]} {elide(title)}", tuple(told), Look.OUTPUT)


def _region_lines(region: Region) -> list[str]:
    words = MODE_WORDS.get(region.mode, visible(region.mode))
    place, _, code = place_of(region.location).partition("\n") if region.location is not None else ("", "", "")
    return [f"{words}  {elide(place)}".rstrip(), *([elide(code)] if code else [])]


def _fit(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """The text itself, or without its middle, so that it is drawn no wider than that."""
    limit = len(text)
    while limit > 1 and text_width(elide(text, limit), size, bold=bold) > width:
        limit -= 1
    return elide(text, limit)


def _wrapped(text: str, width: float) -> Iterator[str]:
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}".lstrip()
        if line and text_width(longer, TEXT_SIZE) > width:
            yield line
            longer = word
        line = longer
    yield line
