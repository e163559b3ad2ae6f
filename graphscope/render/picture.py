"""A graph to a picture: small ones are laid out by Graphviz's ``dot``, large ones by fast-sugiyama.

Large SVG is written here; for pixels and pages Graphviz draws what has been placed.
"""

from __future__ import annotations

import importlib.util
import time

from graphscope.model import GraphData
from graphscope.render.dot import DotOptions, to_dot
from graphscope.render.engine import DEFAULT_TIMEOUT, Engine, Format, draw
from graphscope.render.placed import LAYOUT, to_placed_dot
from graphscope.render.scene_svg import to_svg

LARGE = 800
"""Boxes from which on ``dot`` takes seconds: 850 take one, 1,700 six, 3,300 thirty-four."""


def to_picture(
    data: GraphData,
    format: str,
    options: DotOptions | None = None,
    *,
    engine: Engine = Engine.AUTO,
    timeout: float = DEFAULT_TIMEOUT,
    id_prefix: str | None = None,
) -> bytes:
    """A graph as SVG, PNG or PDF. All nodes are drawn; what is to be drawn is a matter of ``transforms``.

    Args:
        data: the graph, or a view of it.
        format: ``svg``, ``png`` or ``pdf``.
        options: how to draw.
        engine: who lays out and draws; a large SVG is drawn without Graphviz unless one is named.
        timeout: seconds for all of it.
        id_prefix: begins the ids in an SVG; made of its content by default.

    Raises:
        FormatError: for another format.
        EngineError: if something needed is missing, fails, or takes longer than ``timeout``.
    """
    if not _is_placed_first(data, engine):
        return draw(str(to_dot(data, options).source), format, engine=engine, timeout=timeout, id_prefix=id_prefix)
    if format == Format.SVG and engine in {Engine.AUTO, Engine.FAST}:
        return to_svg(data, options, timeout=timeout, id_prefix=id_prefix)
    begin = time.monotonic()
    source = str(to_placed_dot(data, options, timeout=timeout).source)
    left = max(timeout - (time.monotonic() - begin), 1.0)
    return draw(source, format, engine=engine, timeout=left, layout=LAYOUT, id_prefix=id_prefix)


def _is_placed_first(data: GraphData, engine: Engine) -> bool:
    if engine is Engine.FAST:
        return True
    if engine is Engine.DOT or len(data.nodes) < LARGE:
        return False
    return importlib.util.find_spec("fast_sugiyama") is not None
