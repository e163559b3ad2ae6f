"""The graph as text: a tree from the outputs back to the leaves, a legend, and a table of totals.

``terminal_tree`` decides which line shows which node, ``terminal_lines`` writes the lines. Here they become
text: plain, or in colour by rich. Every part a node plays has its own mark, so that nothing is lost without
colour; a stream that cannot write the marks gets ASCII in their place.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from graphscope.model import GraphData
from graphscope.render.terminal_lines import ALARM_STYLE, LOOK_STYLES, MINIMUM_WIDTH, LineOptions, to_lines
from graphscope.render.terminal_text import to_ansi, to_plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

TEXT_WIDTH = 100
"""Width of the text format, the same on every machine."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TerminalOptions(LineOptions):
    """How the text looks. A rich console decides by itself about width, encoding and colour."""

    color: bool = False
    """Write ANSI colours."""


def render(data: GraphData, options: TerminalOptions) -> str:
    """Write the graph as text with a final newline.

    No line has more cells than ``options.width`` (40 at least). Control characters in names are shown
    escaped. The same graph gives the same text in every process.
    """
    if not options.color:
        return to_plain(to_lines(data, options))
    return to_ansi(_Renderable(data, options), max(options.width, MINIMUM_WIDTH))


def to_text(data: GraphData) -> str:
    """Write the text format of a file: the whole graph without colour, 100 cells wide on every machine."""
    return render(data, TerminalOptions(width=TEXT_WIDTH, limit=None))


def renderable(data: GraphData, options: TerminalOptions) -> _Renderable:
    """Wrap the graph for ``rich``: ``console.print(renderable(data, options))``.

    Width, colours and encoding are the console's; ``NO_COLOR``, a pipe and a dumb terminal are its business.
    """
    return _Renderable(data, options)


class _Renderable:
    """Speaks rich's protocol; lines come ready-made, so that rich neither wraps nor reads markup in names."""

    def __init__(self, data: GraphData, options: TerminalOptions) -> None:
        self._data = data
        self._options = options

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment
        from rich.style import Style

        styles = {name: Style.parse(name) for name in ("", "dim", "bold", ALARM_STYLE, *LOOK_STYLES.values())}
        fitting = dataclasses.replace(self._options, width=options.max_width, encoding=options.encoding)
        for line in to_lines(self._data, fitting):
            yield from (Segment(span.text, styles[span.style]) for span in line)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(min(MINIMUM_WIDTH, options.max_width), options.max_width)
