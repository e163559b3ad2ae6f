"""How a graph shows itself in a notebook.

Jupyter asks an object for its MIME types and takes the richest it can show. A picture costs a run of
Graphviz, so it is drawn only where it will be looked at: not in the terminal of IPython, not for a
frontend that asks for text alone.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

from graphscope.errors import EngineError
from graphscope.model import GraphData
from graphscope.render.dot import to_dot
from graphscope.render.engine import draw
from graphscope.render.terminal import TEXT_WIDTH, TerminalOptions, render

SVG, PLAIN = "image/svg+xml", "text/plain"

TIME_LIMIT = 30.0
"""Seconds that a cell waits for its picture before it gets the text alone."""

_numbers = itertools.count(1)


def display(value: object) -> None:
    """Show a value that shows itself, in the middle of a cell or a program.

    Args:
        value: has ``__rich__`` and ``_repr_mimebundle_``.
    """
    if SVG in _shell_types() and _shell() is not None:
        from IPython.display import display as display_in_cell

        display_in_cell(value)  # type: ignore[no-untyped-call]
    else:
        from rich.console import Console

        Console().print(value)


def mimebundle(
    data: GraphData, *, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
) -> dict[str, str]:
    """The graph as ``image/svg+xml`` and ``text/plain``, as far as they are wanted.

    Args:
        data: the graph.
        include: MIME types that are wanted; by default what the running shell shows.
        exclude: MIME types that are not.

    Returns:
        Texts by MIME type. Where a picture was wanted and could not be drawn, the text, beginning with the reason.
        The ids inside a picture occur in no other picture of the process, so that several fit on one page.
    """
    return bundle(
        lambda: str(to_dot(data).source),
        lambda width: render(data, TerminalOptions(width=width)),
        include=include,
        exclude=exclude,
    )


def bundle(
    source: Callable[[], str],
    text: Callable[[int], str],
    *,
    layout: str = "dot",
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
) -> dict[str, str]:
    """As ``mimebundle``, of whatever has a picture and a text.

    Args:
        source: makes the DOT text.
        text: makes the plain text, so many cells wide.
        layout: Graphviz's name of the layout.
        include: as in ``mimebundle``.
        exclude: as in ``mimebundle``.
    """
    wanted = {SVG, PLAIN} & _shell_types()
    if include is not None:
        wanted = {SVG, PLAIN} & set(include)
    wanted -= set(exclude or ())
    found: dict[str, str] = {}
    reason = ""
    if SVG in wanted:
        try:
            found[SVG] = _to_svg(source(), layout)
        except (EngineError, OSError) as error:
            reason = f"No picture: {error}\n\n"
            wanted.add(PLAIN)
    if PLAIN in wanted:
        found[PLAIN] = reason + _to_plain(text)
    return found


def _to_svg(source: str, layout: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    prefix = f"g{digest}-{next(_numbers)}"
    return draw(source, "svg", timeout=TIME_LIMIT, layout=layout, id_prefix=prefix).decode()


def _to_plain(text: Callable[[int], str]) -> str:
    """The text for people, in a terminal as wide as that."""
    width = TEXT_WIDTH if SVG in _shell_types() else shutil.get_terminal_size().columns
    return text(width).rstrip("\n")


def _shell_types() -> set[str]:
    """MIME types that the running IPython shows; a shell that does not say shows all."""
    active = getattr(getattr(_shell(), "display_formatter", None), "active_types", None)
    return {SVG, PLAIN} if active is None else set(active)


def _shell() -> Any:
    """The running IPython. Looked up, not imported: where it is not loaded, nobody waits for it."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
