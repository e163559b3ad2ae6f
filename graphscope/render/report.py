"""Reports as lines: written as plain text, with colours, or by a rich console."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from graphscope.render.terminal_lines import MINIMUM_WIDTH, LineOptions
from graphscope.render.terminal_text import Line, to_ansi, to_plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

Writer = Callable[[LineOptions], Iterable[Line]]
"""Makes the lines of a report for a width and an encoding."""


def write(lines: Writer, options: LineOptions, *, color: bool = False) -> str:
    """The report as text with a final newline; no line is wider than ``options.width`` (40 at least)."""
    if not color:
        return to_plain(lines(options))
    return to_ansi(Renderable(lines, options), max(options.width, MINIMUM_WIDTH))


class Renderable:
    """Speaks rich's protocol; lines come ready-made, so that rich neither wraps nor reads markup in names."""

    def __init__(self, lines: Writer, options: LineOptions) -> None:
        self._lines = lines
        self._options = options

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment
        from rich.style import Style

        fitting = dataclasses.replace(self._options, width=options.max_width, encoding=options.encoding)
        for line in self._lines(fitting):
            yield from (Segment(span.text, Style.parse(span.style)) for span in line)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(min(MINIMUM_WIDTH, options.max_width), options.max_width)
