"""One choice of what to look at, made once for every format: terminal, picture, notebook."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Literal

from graphscope.model import GraphData
from graphscope.transforms.fold import AUTO_LIMIT, fold, fold_auto, roll
from graphscope.transforms.parts import related
from graphscope.transforms.select import focus, hide, path, truncate
from graphscope.units import to_count_text

FLAT_LIMIT = 5_000
"""Most boxes of a picture that is drawn without being folded, unless that is insisted on."""


class FoldedInsteadWarning(UserWarning):
    """A drawing that was asked for flat has too many boxes for that, and is folded."""


Depth = int | Literal["auto", "full"]
"""Levels of modules; as many as fit; or every op."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ViewOptions:
    """What of a graph to look at. Names may be those of tensors, modules or nodes."""

    depth: Depth = "auto"
    expand: tuple[str, ...] = ()
    """Modules that are drawn open, whatever the depth."""
    focus: str | None = None
    """Only what has to do with this."""
    path: tuple[str, str] | None = None
    """Only what lies between these two."""
    hide: tuple[str, ...] = ()
    """Roles, ops, modules or tensors to leave out."""
    roll: bool | None = None
    """Draw equal blocks in a row once; by default unless the depth is ``full``."""
    limit: int = AUTO_LIMIT
    """Most boxes of a drawing whose depth is ``auto``."""
    force: bool = False
    """Draw flat even what is too large for it."""


def view(data: GraphData, options: ViewOptions | None = None, *, flat_limit: int | None = FLAT_LIMIT) -> GraphData:
    """A graph as it is to be drawn. What is left out is counted, and told in ``data.view.notes``.

    Args:
        data: the whole graph.
        options: what to look at.
        flat_limit: boxes beyond which a drawing is folded although the depth says otherwise; ``None`` for text, which
            may be of any length.

    Raises:
        InputError: if a name in the options is not in the graph, or two things that are to be connected are not.

    Warns:
        FoldedInsteadWarning: if a drawing is folded although the depth says otherwise.
    """
    chosen = options or ViewOptions()
    data = _part(data, chosen)
    drawn = _folded(data, chosen)
    if flat_limit is not None and len(drawn.nodes) > flat_limit and not chosen.force:
        count = to_count_text(len(drawn.nodes), "box", "boxes")
        drawn = _folded(data, dataclasses.replace(chosen, depth="auto"))
        note = f"{count} are too many for one picture: folded instead (--force draws them all)"
        drawn = dataclasses.replace(drawn, view=drawn.view._replace(notes=(*drawn.view.notes, note)))
        warnings.warn(f"{note}.", FoldedInsteadWarning, stacklevel=2)
    return drawn


def _part(data: GraphData, options: ViewOptions) -> GraphData:
    if options.focus is None and options.path is None:
        data = related(data)
    if options.focus is not None:
        data = focus(data, options.focus)
    if options.path is not None:
        data = path(data, *options.path)
    return hide(data, options.hide) if options.hide else data


def _folded(data: GraphData, options: ViewOptions) -> GraphData:
    is_rolled = options.depth != "full" if options.roll is None else options.roll
    if options.depth == "auto":
        reveal = [*([options.focus] if options.focus else []), *(options.path or ())]
        folded = fold_auto(data, options.limit, expand=options.expand, roll=is_rolled, reveal=reveal)
        return truncate(folded, max(options.limit, 2 * AUTO_LIMIT) if options.expand else options.limit)
    if options.depth == "full":
        return roll(data) if is_rolled else data
    return fold(data, options.depth, expand=options.expand, roll=is_rolled)
