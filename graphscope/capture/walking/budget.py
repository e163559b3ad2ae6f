"""How many nodes a walk may touch.

A touched node is one that Python has seen; ``stack.py`` says why there can be too many. Where the stack has a
fixed size, those that earlier walks touched count too, for as long as they live: a program that walks a
growing graph again and again touches all of it in the end, though each walk stops in time.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from graphscope.capture.walking.stack import has_fixed_limit, reserve_depth, safe_depth

_touched: set[int] = set()
"""``id()`` of nodes that walks on a stack of fixed size touched. Some are gone; those of later objects do no harm."""

_followed: set[int] = set()
"""Those whose inputs are touched too."""


class Budget:
    """What one walk may touch."""

    def __init__(self) -> None:
        """Ask what the running thread can free."""
        self._fixed = has_fixed_limit()
        self._room = _share_of(safe_depth())
        self._exhausted = False
        """More stack is not to be had."""
        self._compared = 0
        self._seen_before = 0
        self.affordable = self._room - (len(_touched) if self._fixed else 0)
        """How many nodes there may be; ``allows`` finds out whether it can be more."""

    def allows(self, node: Any, found: Sequence[Any], count: int) -> bool:
        """Whether a walk that has found so many nodes may read the inputs of one, and have ``count`` of them then."""
        if count > self.affordable and not self._exhausted:
            self._room = _share_of(reserve_depth(4 * count))
            self._exhausted = self._room < _share_of(4 * count)
            if self._fixed:
                _forget_what_is_gone()
            else:
                self.affordable = self._room
        if count > self.affordable and self._fixed:
            if id(node) in _followed:
                return True
            self._seen_before += sum(id(other) in _touched for other in found[self._compared :])
            self._compared = len(found)
            self.affordable = self._room - len(_touched) + self._seen_before
        return count <= self.affordable

    def close(self, found: Sequence[Any], stopped: Sequence[int]) -> None:
        """Remember what was touched, and what of it was not followed."""
        if self._fixed:
            identities = list(map(id, found))
            _touched.update(identities)
            _followed.update(identities)
            _followed.difference_update(identities[position] for position in stopped)


def _forget_what_is_gone() -> None:
    """What is not there any more needs no stack. Nodes take no weak references, but the collector knows them."""
    _touched.intersection_update(map(id, gc.get_objects()))
    _followed.intersection_update(_touched)


def _share_of(depth: int) -> int:
    """Nodes to touch where ``depth`` can be freed; the rest is for what is in hand beside the graph."""
    return depth - depth // 8
