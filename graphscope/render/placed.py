"""DOT with a place for everything: a large drawing that Graphviz's ``nop2`` only has to draw.

Frames are left out: boxes stand in layers, by what they read, not by module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import graphviz

from graphscope.model import GraphData
from graphscope.render.dot import (
    Direction,
    DotOptions,
    box_text,
    default_lines,
    edge_lines,
    label_frame,
    node_line,
    stub_lines,
)
from graphscope.render.escape import to_label
from graphscope.render.layout import Curve, Placement, Point, place
from graphscope.render.legend import legend_entries, to_caption
from graphscope.render.measure import Size, text_size
from graphscope.render.palette import PALETTES, Palette
from graphscope.style import FORMS, GLYPHS, Look, look_of, stub_slots, visible

LAYOUT = "nop2"
"""What Graphviz calls a layout that places nothing."""

_MARGIN = Size(0.13 * 72, 0.06 * 72)
_SLACK = 4.0
"""Points to spare in a box: Graphviz rounds."""
_OUTER_LINE = 4.0
"""Points between the two lines of a double one (lib/common/const.h, GAP)."""
_TITLE, _DETAIL, _CAPTION = 12.0, 10.0, 9.0
_STUB = Size(160.0, 22.0)
_ROW = 20.0
"""Points of a row of the legend, at most."""
_COLUMN = 330.0


class _Box(NamedTuple):
    line: str
    size: Size


class _Line(NamedTuple):
    line: str
    ends: tuple[int, int]


def to_placed_dot(data: GraphData, options: DotOptions | None = None, *, timeout: float) -> graphviz.Digraph:
    """As ``dot.to_dot``, with positions, to be drawn with ``layout="nop2"``.

    Raises:
        EngineError: if the layout fails or takes longer than ``timeout`` seconds.
    """
    options = options or DotOptions()
    palette = PALETTES[options.theme]
    boxes = list(_boxes(data, options, palette))
    lines = list(_lines(data, palette))
    if "stubs" in options.show:
        _add_stubs(data, palette, boxes, lines)
    is_down = options.rankdir is Direction.DOWN
    placement = place([box.size for box in boxes], [line.ends for line in lines], timeout=timeout, is_down=is_down)
    body = [
        *default_lines(data, options, palette),
        *(_with_pos(box.line, _to_pos(point)) for box, point in zip(boxes, placement.boxes, strict=True)),
        *(_with_curve(line.line, curve) for line, curve in zip(lines, placement.curves, strict=True)),
        *_captions(data, options, palette, placement),
    ]
    return graphviz.Digraph("graphscope", body=body)


def _boxes(data: GraphData, options: DotOptions, palette: Palette) -> Iterator[_Box]:
    frames = {look: label_frame(look, palette) for look in Look}
    for node in data.nodes:
        look = look_of(node, data.view)
        title, details = box_text(node, data, options.show)
        mark = "" if look is Look.TRACKED else f"{GLYPHS[look]}  "
        above, below = text_size(mark + title, _TITLE, bold=True), text_size(details, _DETAIL)
        more = 2 * _OUTER_LINE if FORMS[look].double else 0.0
        width = max(above.width, below.width) + 2 * _MARGIN.width + _SLACK + more
        size = Size(width, above.height + below.height + 2 * _MARGIN.height + more)
        yield _Box(node_line(node, data, options.show, frames, ""), size)


def _lines(data: GraphData, palette: Palette) -> Iterator[_Line]:
    number = {node.id: place for place, node in enumerate(data.nodes)}
    for edge, line in zip(data.edges, edge_lines(data, palette), strict=True):
        yield _Line(line, (number[edge.source], number[edge.target]))


def _add_stubs(data: GraphData, palette: Palette, boxes: list[_Box], lines: list[_Line]) -> None:
    """A stub is a box and an edge from it; the edge's line ends in the id of a node."""
    number = {node.id: place for place, node in enumerate(data.nodes)}
    found = list(stub_lines(data, palette))
    for node, (box, edge) in zip(_stubbed(data), zip(found[::2], found[1::2], strict=True), strict=True):
        lines.append(_Line(edge, (len(boxes), number[node])))
        boxes.append(_Box(box, _STUB))


def _stubbed(data: GraphData) -> Iterator[str]:
    for node in data.nodes:
        yield from [node.id] * len(stub_slots(node, data))


def _with_pos(line: str, pos: str) -> str:
    """A line of DOT with one more attribute."""
    if line.endswith("]\n"):
        return f"{line[:-2]} pos={pos}]\n"
    return f"{line[:-1]} [pos={pos}]\n"


def _with_curve(line: str, curve: Curve) -> str:
    points = " ".join(f"{point.x:.1f},{point.y:.1f}" for point in curve.points)
    placed = _with_pos(line, f'"e,{curve.tip.x:.1f},{curve.tip.y:.1f} {points}"')
    words = _words(line)
    if not words:
        return placed
    room = text_size(words, _CAPTION)
    beside = Point(curve.middle.x + room.width / 2 + 4, curve.middle.y)
    return placed.replace("]\n", f" lp={_to_pos(beside)}]\n")


def _words(line: str) -> str:
    """The words of an edge, about as they are: a letter that is written as an entity counts as one."""
    label = line.partition("label=<")[2].rpartition(">")[0]
    return re.sub(r"&[#\w]+;", "n", label).replace("<br/>", "\n")


def _to_pos(point: Point) -> str:
    return f'"{point.x:.1f},{point.y:.1f}"'


def _captions(data: GraphData, options: DotOptions, palette: Palette, placement: Placement) -> Iterator[str]:
    """Title and legend as boxes above and below everything."""
    plain = f'shape=plain peripheries=0 style="" fontcolor="{palette.text}"'
    if options.title is not None:
        place = Point(placement.size.width / 2, placement.size.height + 24)
        yield f"\ttitle [{plain} fontsize=15 pos={_to_pos(place)} label=<<b>{to_label(visible(options.title))}</b>>]\n"
    stubs = "stubs" in options.show
    entries = legend_entries(data, palette, stubs=stubs) if options.legend else []
    caption = to_caption(data, palette, entries, wide=True)
    if caption:
        rows = caption.count("<tr>") + caption.count("<br")
        columns = len(re.findall('<td width="10">', caption)) // max(len(entries), 1) + 2
        place = Point(max(placement.size.width, _COLUMN * columns) / 2, -rows * _ROW / 2 - 16)
        yield f"\tlegend [{plain} fontsize={_CAPTION:g} pos={_to_pos(place)} label=<{caption}>]\n"
