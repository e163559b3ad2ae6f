"""A large drawing before it is written: what stands in each box, how large it is, and where it stands.

Frames are left out: boxes stand in layers, by what they read, not by module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphscope.model import GraphData
from graphscope.render.dot import Direction, DotOptions, box_text, tooltip_of
from graphscope.render.layout import Placement, place
from graphscope.render.legend import UNMARKED
from graphscope.render.measure import Size, text_size
from graphscope.style import (
    FORMS,
    GLYPHS,
    EdgeLook,
    Look,
    edge_look,
    edge_words,
    is_alarming,
    look_of,
    stub_slots,
    stub_words,
)

MARGIN = Size(0.13 * 72, 0.06 * 72)
OUTER_LINE = 4.0
"""Points between the two lines of a double one (lib/common/const.h of Graphviz, GAP)."""
TITLE, DETAIL, CAPTION = 12.0, 10.0, 9.0
_SLACK = 4.0
"""Points to spare in a box: Graphviz rounds."""


class Box(NamedTuple):
    """One box."""

    id: str
    look: Look | None
    """``None`` of a stub: an input that the graph knows nothing else of."""
    title: str
    details: str
    tooltip: str
    size: Size


class Line(NamedTuple):
    """One edge."""

    name: str
    """``n0->n1``."""
    source: int
    """Number of a box."""
    target: int
    look: EdgeLook
    words: str
    alarming: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """All of a drawing but title and legend."""

    boxes: Sequence[Box]
    """First those of the nodes, in order, then stubs."""
    lines: Sequence[Line]
    """First those of the edges, in order."""
    placement: Placement


def to_scene(data: GraphData, options: DotOptions, *, timeout: float) -> Scene:
    """Measure and place everything.

    Raises:
        EngineError: if the layout fails or takes longer than ``timeout`` seconds.
    """
    boxes = list(_boxes(data, options.show))
    lines = list(_lines(data))
    if "stubs" in options.show:
        _add_stubs(data, boxes, lines)
    is_down = options.rankdir is Direction.DOWN
    ends = [(line.source, line.target) for line in lines]
    placement = place([box.size for box in boxes], ends, timeout=timeout, is_down=is_down)
    return Scene(boxes=boxes, lines=lines, placement=placement)


def _boxes(data: GraphData, show: frozenset[str]) -> Iterator[Box]:
    for node in data.nodes:
        look = look_of(node, data.view)
        title, details = box_text(node, data, show)
        above, below = text_size(marked(look, title), TITLE, bold=True), text_size(details, DETAIL)
        more = 2 * OUTER_LINE if FORMS[look].double else 0.0
        width = max(above.width, below.width) + 2 * MARGIN.width + _SLACK + more
        size = Size(width, above.height + below.height + 2 * MARGIN.height + more)
        yield Box(node.id, look, title, details, tooltip_of(node, title), size)


def marked(look: Look | None, title: str) -> str:
    """The title with the mark of its look; an op that autograd recorded needs none."""
    return title if look is None or look in UNMARKED else f"{GLYPHS[look]}  {title}"


def _lines(data: GraphData) -> Iterator[Line]:
    number = {node.id: place for place, node in enumerate(data.nodes)}
    for edge in data.edges:
        words = "\n".join(edge_words(edge, data))
        name = f"{edge.source}->{edge.target}"
        yield Line(
            name, number[edge.source], number[edge.target], edge_look(edge, data), words, is_alarming(edge, data)
        )


def _add_stubs(data: GraphData, boxes: list[Box], lines: list[Line]) -> None:
    for place_, node in enumerate(data.nodes):
        for slot in stub_slots(node, data):
            identity, text = f"{node.id} stub {slot}", stub_words(slot)
            size = text_size(text, CAPTION)
            room = Size(size.width + 2 * MARGIN.width + _SLACK, size.height + 2 * MARGIN.height)
            lines.append(Line(f"{identity}->{node.id}", len(boxes), place_, EdgeLook.CUT, "", alarming=False))
            boxes.append(Box(identity, None, "", text, f"input {slot}", room))
