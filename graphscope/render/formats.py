"""The one table of formats that a graph can be written in.

A format is a function from ``GraphData`` and ``RenderOptions`` to text or bytes; the suffix of a file names it.
A new renderer is one more line in ``FORMATS``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from graphscope.errors import FormatError
from graphscope.model import GraphData
from graphscope.render.dot import Direction, DotOptions, to_dot
from graphscope.render.engine import DEFAULT_TIMEOUT, Engine
from graphscope.render.palette import Theme
from graphscope.render.picture import to_picture
from graphscope.render.terminal import TEXT_WIDTH, TerminalOptions
from graphscope.render.terminal import render as to_terminal
from graphscope.serialize import dumps
from graphscope.transforms import ViewOptions, view


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RenderOptions:
    """How a graph is drawn, whatever the format; a format passes over what it has no use for."""

    theme: Theme = Theme.LIGHT
    direction: Direction = Direction.DOWN
    show: frozenset[str] = frozenset()
    """What boxes and lines tell beyond the usual; see ``SHOWABLE``."""
    engine: Engine = Engine.AUTO
    timeout: float = DEFAULT_TIMEOUT
    """Seconds until a layout is given up."""
    view: ViewOptions = dataclasses.field(default_factory=ViewOptions)
    """What of the graph is drawn; JSON is always the whole graph."""


class Format(NamedTuple):
    """One way of writing a graph."""

    write: Callable[[GraphData, RenderOptions], str | bytes]
    meaning: str
    binary: bool = False
    """Nothing for a terminal."""


SHOWABLE = ("saved", "hooks", "versions", "accumulate", "source", "stubs")
"""Words of ``RenderOptions.show``."""


def render(data: GraphData, format: str, options: RenderOptions | None = None) -> str | bytes:
    """A graph in a format of the table: text, or bytes of an image.

    Args:
        data: the graph.
        format: a key of ``FORMATS``; a leading dot and upper case are accepted.
        options: how to draw.

    Raises:
        FormatError: for a format that is not in the table.
        EngineError: if drawing failed or took too long.
    """
    return FORMATS[to_format(format)].write(data, options or RenderOptions())


def save(data: GraphData, path: Path, options: RenderOptions | None = None) -> Path:
    """Write a graph to a file; the suffix picks the format. Returns the path.

    Raises:
        FormatError: if the suffix is not in the table.
        EngineError: if drawing failed or took too long; nothing is written then.
        OSError: if the file cannot be written.
    """
    written = render(data, format_of(path), options)
    path.write_bytes(written.encode("utf-8", "backslashreplace") if isinstance(written, str) else written)
    return path


def to_format(given: str) -> str:
    """The key of ``FORMATS`` that is meant.

    Raises:
        FormatError: if there is none; the message lists them.

    >>> to_format(".SVG")
    'svg'
    """
    key = given.lower().removeprefix(".")
    if key in FORMATS:
        return key
    raise FormatError(f"{given!r} is no format that graphscope writes. It writes {', '.join(FORMATS)}.")


def format_of(path: Path) -> str:
    """The format that a file's suffix names.

    Raises:
        FormatError: if it names none.
    """
    if path.suffix.lower().removeprefix(".") in FORMATS:
        return to_format(path.suffix)
    fault = f"has the suffix {path.suffix!r}" if path.suffix else "has no suffix"
    raise FormatError(f"{path.name!r} {fault}. The suffix picks the format: {', '.join(FORMATS)}.")


def _drawn(format: str) -> Callable[[GraphData, RenderOptions], bytes]:
    def write(data: GraphData, options: RenderOptions) -> bytes:
        drawn, chosen = view(data, options.view), _dot_options(options)
        return to_picture(drawn, format, chosen, engine=options.engine, timeout=options.timeout)

    return write


def _dot(data: GraphData, options: RenderOptions) -> str:
    return str(to_dot(view(data, options.view), _dot_options(options)).source)


def _dot_options(options: RenderOptions) -> DotOptions:
    return DotOptions(theme=options.theme, rankdir=options.direction, show=options.show)


def _text(data: GraphData, options: RenderOptions) -> str:
    drawn = view(data, options.view, flat_limit=None)
    return to_terminal(drawn, TerminalOptions(width=TEXT_WIDTH, limit=None, show=tuple(sorted(options.show))))


FORMATS: dict[str, Format] = {
    "svg": Format(_drawn("svg"), "picture for the web and for documents"),
    "png": Format(_drawn("png"), "picture in pixels", binary=True),
    "pdf": Format(_drawn("pdf"), "picture for print", binary=True),
    "dot": Format(_dot, "text for Graphviz"),
    "json": Format(lambda data, _: dumps(data), "the whole graph as data; graphscope reads it again"),
    "txt": Format(_text, "the tree as plain text"),
}
