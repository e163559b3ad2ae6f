"""Graph to graph: which part of it to look at, and how much of it at once.

Every function here takes a ``GraphData`` and returns another; none draws. What a view leaves out is counted in
``data.view``, and the ids of what stays are those of the whole graph.
"""

from __future__ import annotations

from graphscope.transforms.fold import fold, fold_auto, roll
from graphscope.transforms.parts import behind, behind_names, behind_roots, related, restrict
from graphscope.transforms.select import focus, hide, keep, path, truncate
from graphscope.transforms.view import FLAT_LIMIT, FoldedInsteadWarning, ViewOptions, view

__all__ = [
    "FLAT_LIMIT",
    "FoldedInsteadWarning",
    "ViewOptions",
    "behind",
    "behind_names",
    "behind_roots",
    "focus",
    "fold",
    "fold_auto",
    "hide",
    "keep",
    "path",
    "related",
    "restrict",
    "roll",
    "truncate",
    "view",
]
