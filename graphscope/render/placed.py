"""DOT with a place for everything: a large drawing that Graphviz's ``nop2`` only has to draw, as PNG or PDF."""

from __future__ import annotations

import re
from collections.abc import Iterator

import graphviz

from graphscope.model import GraphData
from graphscope.render.dot import DotOptions, default_lines, edge_lines, label_frame, node_line, stub_lines
from graphscope.render.escape import to_label
from graphscope.render.layout import Curve, Placement, Point
from graphscope.render.legend import legend_entries, to_caption
from graphscope.render.measure import text_size
from graphscope.render.palette import PALETTES, Palette
from graphscope.render.scene import CAPTION, Scene, to_scene
from graphscope.style import Look, visible

LAYOUT = "nop2"
"""What Graphviz calls a layout that places nothing."""

_ROW = 20.0
"""Points of a row of the legend, at most."""
_COLUMN = 330.0


def to_placed_dot(data: GraphData, options: DotOptions | None = None, *, timeout: float) -> graphviz.Digraph:
    """As ``dot.to_dot``, with positions, to be drawn with ``layout="nop2"``.

    Raises:
        EngineError: if the layout fails or takes longer than ``timeout`` seconds.
    """
    options = options or DotOptions()
    palette = PALETTES[options.theme]
    scene = to_scene(data, options, timeout=timeout)
    body = [
        *default_lines(data, options, palette),
        *_placed_lines(data, options, palette, scene),
        *_captions(data, options, palette, scene.placement),
    ]
    return graphviz.Digraph("graphscope", body=body)


def _placed_lines(data: GraphData, options: DotOptions, palette: Palette, scene: Scene) -> Iterator[str]:
    frames = {look: label_frame(look, palette) for look in Look}
    stubs = list(stub_lines(data, palette)) if "stubs" in options.show else []
    boxes = [*(node_line(node, data, options.show, frames, "") for node in data.nodes), *stubs[::2]]
    edges = [*edge_lines(data, palette), *stubs[1::2]]
    for text, point in zip(boxes, scene.placement.boxes, strict=True):
        yield _with(text, f"pos={_to_pos(point)}")
    for text, line, curve in zip(edges, scene.lines, scene.placement.curves, strict=True):
        yield _with(text, _to_curve(curve, line.words))


def _with(line: str, attribute: str) -> str:
    """A line of DOT with one more attribute."""
    if line.endswith("]\n"):
        return f"{line[:-2]} {attribute}]\n"
    return f"{line[:-1]} [{attribute}]\n"


def _to_curve(curve: Curve, words: str) -> str:
    points = " ".join(f"{point.x:.1f},{point.y:.1f}" for point in curve.points)
    pos = f'pos="e,{curve.tip.x:.1f},{curve.tip.y:.1f} {points}"'
    if not words:
        return pos
    beside = Point(curve.middle.x + text_size(words, CAPTION).width / 2 + 4, curve.middle.y)
    return f"{pos} lp={_to_pos(beside)}"


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
        yield f"\tlegend [{plain} fontsize={CAPTION:g} pos={_to_pos(place)} label=<{caption}>]\n"
