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
from graphscope.render.picture import to_picture
from graphscope.render.terminal import TEXT_WIDTH, TerminalOptions, render
from graphscope.render.terminal_text import load_console

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
        load_console()().print(value)


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
        lambda timeout, prefix: to_picture(data, "svg", timeout=timeout, id_prefix=prefix),
        lambda width: render(data, TerminalOptions(width=width)),
        include=include,
        exclude=exclude,
    )


def bundle(
    picture: Callable[[float, str], bytes],
    text: Callable[[int], str],
    *,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
) -> dict[str, str]:
    """As ``mimebundle``, of whatever has a picture and a text.

    Args:
        picture: makes the SVG, within so many seconds, all ids beginning as given.
        text: makes the plain text, so many cells wide.
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
        digest = hashlib.sha256(text(TEXT_WIDTH).encode("utf-8", "backslashreplace")).hexdigest()[:8]
        try:
            found[SVG] = picture(TIME_LIMIT, f"g{digest}-{next(_numbers)}").decode()
        except (EngineError, OSError) as error:
            reason = f"No picture: {error}\n\n"
            wanted.add(PLAIN)
    if PLAIN in wanted:
        found[PLAIN] = reason + _to_plain(text)
    return found


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
