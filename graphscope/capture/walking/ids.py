"""Ids ``n0, n1, …``: the same in every graph, so that graphs share the strings of the first ones."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

_SHARED = 10_000


def numbered(prefix: str) -> Iterator[str]:
    """Ids without end.

    >>> ids = numbered("s")
    >>> next(ids), next(ids)
    ('s0', 's1')
    """
    return itertools.chain(_shared(prefix), (f"{prefix}{number}" for number in itertools.count(_SHARED)))


@functools.cache
def _shared(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{number}" for number in range(_SHARED))
