"""A large drawing as SVG, written straight from its scene: nothing is left that Graphviz would have to find out.

It looks as what Graphviz draws of ``placed.to_placed_dot`` and ``svg.finish_svg`` finishes: the same words, colours,
classes and ids. Lengths are points; heights count from above, as SVG wants it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from graphscope.garbage import collection_paused
from graphscope.model import GraphData
from graphscope.render.dot import DotOptions, page_title
from graphscope.render.escape import to_markup
from graphscope.render.layout import Curve, Point
from graphscope.render.legend import EDGE_SAMPLES, UNMARKED, column_count, sentences, used_looks
from graphscope.render.measure import LINE, Size, text_size
from graphscope.render.palette import PALETTES, Palette
from graphscope.render.scene import CAPTION, DETAIL, OUTER_LINE, TITLE, Box, Line, Scene, to_scene
from graphscope.render.svg import open_svg
from graphscope.style import EDGE_LINES, EDGE_MEANINGS, FORMS, GLYPHS, MEANINGS, EdgeLook, Look, describe, visible

_PAD = 14.4
"""Points around everything."""
_HEAD = 15.0
"""Size of the letters of the title."""
_SAMPLE = Size(26.0, 17.0)
"""A box in the legend."""
_SAMPLE_GAP = 2.5
"""Between its two lines, if it has two."""
_ROW, _COLUMN = 21.0, 36.0
"""Height of a row of the legend; where its words begin."""
_BESIDE = 7.0
"""Points from a line to its words."""
_BASELINE = 0.93
"""How far below its upper edge a line of text stands, as a multiple of its size."""
_ROUNDING = 12.0
_WING = 0.42
"""Half the width of an arrow's head, as a share of its length."""
_DASHES = {"solid": "", "dashed": ' stroke-dasharray="5,2"', "dotted": ' stroke-dasharray="1,5"'}
_PREFIX = "\0"
"""Stands for the beginning of ids until everything is written; XML knows no such letter, and no text has it."""


@collection_paused()
def to_svg(
    data: GraphData, options: DotOptions | None = None, *, timeout: float, id_prefix: str | None = None
) -> bytes:
    """A graph as SVG, placed by fast-sugiyama and drawn without Graphviz. The same graph gives the same bytes.

    Args:
        data: the graph, or a view of it.
        options: how to draw.
        timeout: seconds for the layout.
        id_prefix: begins every id; made of the content by default.

    Raises:
        EngineError: if the layout fails or takes longer than ``timeout`` seconds.
    """
    options = options or DotOptions()
    scene = to_scene(data, options, timeout=timeout)
    brush = _Brush(PALETTES[options.theme])
    middle, height = scene.placement.size.width / 2, scene.placement.size.height
    caption, room = _caption(data, options, brush)
    reach = max(scene.placement.size.width, room.width) / 2
    title = "" if options.title is None else visible(options.title)
    if title:
        reach = max(reach, text_size(title, _HEAD, bold=True).width / 2)
    top = -_PAD - (2.4 * _HEAD if title else 0.0)
    corner = Point(middle - reach - _PAD, top)
    page = Size(2 * (reach + _PAD), height + room.height + _PAD - top)
    body = [
        f'<g id="{_PREFIX}-graph0" class="graph">\n{_ground(corner, page, brush.palette)}\n',
        *_drawn(scene, brush),
        _text(Point(middle, -1.2 * _HEAD), title, brush.heading) if title else "",
        f'<g class="legend" transform="translate({middle - room.width / 2:.1f} {height + _PAD:.1f})">\n{caption}</g>\n',
        "</g>\n</svg>\n",
    ]
    spoken = page_title(options), describe(data)
    return _finished("".join(body), _facts(corner, page, brush), spoken, id_prefix)


def _facts(corner: Point, page: Size, brush: _Brush) -> dict[str, str]:
    return {
        "width": f"{page.width:.0f}pt",
        "height": f"{page.height:.0f}pt",
        "viewBox": f"{corner.x:.2f} {corner.y:.2f} {page.width:.2f} {page.height:.2f}",
        "font-size": f"{DETAIL:g}",
        "fill": brush.usual,
        "text-anchor": "middle",
        "xml:space": "preserve",
    }


def _finished(body: str, facts: dict[str, str], spoken: tuple[str, str], prefix: str | None) -> bytes:
    prefix = prefix or f"g{hashlib.sha256(body.encode('utf-8', 'backslashreplace')).hexdigest()[:10]}"
    text = open_svg(facts, prefix, *spoken) + body.replace(_PREFIX, prefix)
    return text.encode("utf-8", "backslashreplace")


def _ground(corner: Point, page: Size, palette: Palette) -> str:
    place = f'x="{corner.x:.2f}" y="{corner.y:.2f}" width="{page.width:.2f}" height="{page.height:.2f}"'
    return f'<rect fill="{palette.background}" {place}/>'


def _drawn(scene: Scene, brush: _Brush) -> Iterator[str]:
    """Boxes, then lines: words beside a line may reach over a box."""
    height = scene.placement.size.height
    for number, (box, point) in enumerate(zip(scene.boxes, scene.placement.boxes, strict=True), 1):
        opening = f'<g id="{_PREFIX}-node{number}" class="node {box.look or "stub"}" data-id="{to_markup(box.id)}">'
        title = f"<title>{to_markup(box.tooltip or box.id)}</title>"
        yield f"{opening}\n{title}\n{_box(box, Point(point.x, height - point.y), brush)}</g>\n"
    for number, (line, curve) in enumerate(zip(scene.lines, scene.placement.curves, strict=True), 1):
        opening = f'<g id="{_PREFIX}-edge{number}" class="{brush.classes[line.look]}" data-id="{to_markup(line.name)}">'
        yield f"{opening}\n{_curve(line, curve, height, brush)}</g>\n"


# ---------------------------------------------------------------------------------------------------- boxes


class _Pen(NamedTuple):
    """How the boxes of one look are drawn."""

    box: str
    """Attributes of the filled box."""
    outer: str
    """Attributes of the line around it; empty if there is none."""
    is_rounded: bool
    title: str
    """Attributes of the title."""
    details: str
    """Attributes of the further lines."""


class _Brush:
    """All that a theme decides, written once."""

    def __init__(self, palette: Palette) -> None:
        self.palette = palette
        self.usual = palette.looks[Look.TRACKED].muted
        self.heading = f' font-size="{_HEAD:g}" font-weight="bold" fill="{palette.text}"'
        self.pens: dict[Look | None, _Pen] = {look: self._pen(look) for look in Look}
        stub = f' fill="none" stroke="{palette.edges[EdgeLook.CUT]}" stroke-width="0.8"{_DASHES["dashed"]}'
        self.pens[None] = _Pen(stub, "", is_rounded=False, title="", details=f' font-size="{CAPTION:g}"')
        self.classes = {look: "edge" if look is EdgeLook.FLOWS else f"edge {look}" for look in EdgeLook}
        self.lines = {
            look: f' fill="none" stroke="{palette.edges[look]}" stroke-width="1.1"{_DASHES[EDGE_LINES[look]]}'
            for look in EdgeLook
        }

    def _pen(self, look: Look) -> _Pen:
        form, colours = FORMS[look], self.palette.looks[look]
        line = f' stroke="{colours.line}" stroke-width="{form.width:g}"{_DASHES[form.line]}'
        return _Pen(
            f' fill="{colours.fill}"{line}',
            f' fill="none"{line}' if form.double else "",
            form.rounded,
            f' font-size="{TITLE:g}" font-weight="bold" fill="{colours.text}"',
            "" if colours.muted == self.usual else f' fill="{colours.muted}"',
        )


def _box(box: Box, middle: Point, brush: _Brush) -> str:
    """Its lines, and its texts one below the other."""
    pen = brush.pens[box.look]
    lines = box.details.split("\n") if box.details else []
    size = DETAIL if box.look else CAPTION
    top = middle.y - LINE * (len(lines) * size + (TITLE if box.look else 0.0)) / 2
    texts = []
    if box.look:
        mark = "" if box.look in UNMARKED else f'<tspan font-weight="normal">{GLYPHS[box.look]}\u00a0\u00a0</tspan>'
        texts.append(_text(Point(middle.x, top + _BASELINE * TITLE), box.title, pen.title, mark))
        top += LINE * TITLE
    for place, line in enumerate(lines):
        texts.append(_text(Point(middle.x, top + (LINE * place + _BASELINE) * size), line, pen.details))
    return f"{_frame(middle, box.size, pen)}{''.join(texts)}"


def _frame(middle: Point, size: Size, pen: _Pen, gap: float = OUTER_LINE) -> str:
    if not pen.outer:
        return _rectangle(middle, size, pen.box, is_rounded=pen.is_rounded)
    inner = Size(size.width - 2 * gap, size.height - 2 * gap)
    return _rectangle(middle, inner, pen.box, is_rounded=pen.is_rounded) + _rectangle(
        middle, size, pen.outer, is_rounded=pen.is_rounded
    )


def _rectangle(middle: Point, size: Size, attributes: str, *, is_rounded: bool) -> str:
    place = f'x="{middle.x - size.width / 2:.1f}" y="{middle.y - size.height / 2:.1f}"'
    rounding = f' rx="{min(_ROUNDING, size.height / 3):.1f}"' if is_rounded else ""
    return f'<rect{attributes} {place} width="{size.width:.1f}" height="{size.height:.1f}"{rounding}/>\n'


def _text(place: Point, words: str, attributes: str, mark: str = "") -> str:
    return f'<text x="{place.x:.1f}" y="{place.y:.1f}"{attributes}>{mark}{to_markup(words)}</text>\n'


# ---------------------------------------------------------------------------------------------------- lines


def _curve(line: Line, curve: Curve, height: float, brush: _Brush) -> str:
    """A line, the head of its arrow, and words beside it."""
    first, *others = [f"{point.x:.1f},{height - point.y:.1f}" for point in curve.points]
    end, tip = curve.points[-1], curve.tip
    across, along = _WING * (end.y - tip.y), _WING * (end.x - tip.x)
    corners = (tip, Point(end.x + across, end.y - along), Point(end.x - across, end.y + along))
    head = "L".join(f"{corner.x:.1f},{height - corner.y:.1f}" for corner in corners)
    drawn = f'<path{brush.lines[line.look]} d="M{first}C{" ".join(others)}"/>\n'
    drawn += f'<path fill="{brush.palette.edges[line.look]}" d="M{head}z"/>\n'
    if not line.words:
        return drawn
    lines = line.words.split("\n")
    colour = brush.palette.alarm if line.alarming else brush.palette.muted
    x, top = curve.middle.x + _BESIDE, height - curve.middle.y - LINE * CAPTION * len(lines) / 2
    room = text_size(line.words, CAPTION)
    middle = Point(x + room.width / 2, height - curve.middle.y)
    drawn += _rectangle(middle, room, f' fill="{brush.palette.background}"', is_rounded=False)
    for place, words in enumerate(lines):
        drawn += _left_text(Point(x, top + (LINE * place + _BASELINE) * CAPTION), words, colour)
    return drawn


# --------------------------------------------------------------------------------------------------- legend


def _caption(data: GraphData, options: DotOptions, brush: _Brush) -> tuple[str, Size]:
    """What stands below: the marks that are used, in columns to be read downwards, and what must be known."""
    looks, edge_looks = used_looks(data, stubs="stubs" in options.show) if options.legend else (set(), set())
    entries = [(_sample(look, brush), MEANINGS[look]) for look in Look if look in looks]
    entries += [(_arrow_sample(look, brush), EDGE_MEANINGS[look]) for look in EdgeLook if look in edge_looks]
    high = -(-len(entries) // column_count(len(entries), wide=True))
    drawn, left, top = [], 0.0, high * _ROW
    for start in range(0, len(entries), high or 1):
        column = entries[start : start + high]
        for row, (sample, meaning) in enumerate(column):
            words = _left_text(Point(_COLUMN, 4.0), meaning, brush.palette.text)
            drawn.append(f'<g transform="translate({left:.1f} {(row + 0.5) * _ROW:.1f})">\n{sample}{words}</g>\n')
        left += _COLUMN + max(text_size(meaning, CAPTION).width for _, meaning in column) + _PAD
    for line in [line for told in sentences(data) for line in told.split("\n")]:
        top += 1.2 * CAPTION
        drawn.append(_left_text(Point(0.0, top), line, brush.palette.muted))
        left = max(left, text_size(line, CAPTION).width)
    return "".join(drawn), Size(left, top + _PAD)


def _sample(look: Look, brush: _Brush) -> str:
    middle = Point(_COLUMN / 2, 0.0)
    frame = _frame(middle, _SAMPLE, brush.pens[look], _SAMPLE_GAP)
    if look in UNMARKED:
        return frame
    attributes = f' font-size="{CAPTION:g}" fill="{brush.palette.looks[look].text}"'
    return frame + _text(Point(middle.x, 4.0), GLYPHS[look], attributes)


def _arrow_sample(look: EdgeLook, brush: _Brush) -> str:
    attributes = f' font-size="{CAPTION:g}" fill="{brush.palette.edges[look]}"'
    return _text(Point(_COLUMN / 2, 4.0), EDGE_SAMPLES[look], attributes)


def _left_text(place: Point, words: str, colour: str) -> str:
    return _text(place, words, f' text-anchor="start" font-size="{CAPTION:g}" fill="{colour}"')
