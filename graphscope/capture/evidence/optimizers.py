"""The optimizers that a program has in its variables."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer

_DEPTH = 3
"""Containers and objects that a name may lead through: ``trainer.state.optimizer``."""

_LOOKED_AT = 20_000
_MEMBERS = 1_000


def find_optimizers(namespaces: Iterable[Mapping[str, object]]) -> Iterator[tuple[str, Optimizer]]:
    """Each optimizer with the shortest name that leads to it; only what is stored is read."""
    seen: set[int] = set()
    waiting: deque[tuple[str, Any, int]] = deque(
        (name, value, 0) for namespace in namespaces for name, value in namespace.items()
    )
    looked_at = 0
    while waiting and looked_at < _LOOKED_AT:
        name, value, depth = waiting.popleft()
        looked_at += 1
        if id(value) in seen:
            continue
        if issubclass(type(value), Optimizer):
            seen.add(id(value))
            yield name, value
        elif depth < _DEPTH:
            members = list(_members(name, value))
            if members:
                seen.add(id(value))
            waiting.extend((path, member, depth + 1) for path, member in members[:_MEMBERS])


def _members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, (str, bytes, int, float, type, ModuleType, nn.Module)):
        return
    if issubclass(kind, dict):
        yield from ((f"{name}.{key}", member) for key, member in dict.items(value))
    elif issubclass(kind, (list, tuple)):
        iterate = list.__iter__ if issubclass(kind, list) else tuple.__iter__
        yield from ((f"{name}[{place}]", member) for place, member in enumerate(iterate(value)))
    elif kind.__module__.partition(".")[0] not in {"builtins", "torch", "numpy"}:
        try:
            stored = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        if type(stored) is dict:
            yield from ((f"{name}.{key}", member) for key, member in stored.items())
