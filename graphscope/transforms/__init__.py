"""Graph to graph: which part of it to look at, and how much of it at once.

Every function here takes a ``GraphData`` and returns another; none draws. What a view leaves out is counted in
``data.view``, and the ids of what stays are those of the whole graph.
"""

from __future__ import annotations

from graphscope.transforms.parts import behind, behind_names, behind_roots, related, restrict

__all__ = ["behind", "behind_names", "behind_roots", "related", "restrict"]
