"""What a call of a function gets to see: where to look for the tensors and modules that it works on."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeGuard

from torch import nn


def in_sight(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
    """What a call of ``function`` gets to see: itself, its arguments, its closure, the globals that its code names."""
    found: dict[str, object] = {}
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    function = inspect.unwrap(function) if not _is_module(function) else function
    owner = getattr(function, "__self__", None)
    for value in (function, owner):
        if _is_module(value):
            found[type(value).__name__] = value
    if owner is not None and not _is_module(owner):
        found["self"] = owner
    code = getattr(function, "__code__", None)
    if isinstance(code, types.CodeType):
        cells = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False)
        for name, cell in cells:
            with suppress(ValueError):  # a cell that is still empty
                found[name] = cell.cell_contents
        known = getattr(function, "__globals__", {})
        found |= {name: known[name] for name in sorted(_names_in(code)) if name in known and name not in found}
    found |= {f"args[{place}]": value for place, value in enumerate(args)}
    return found | {name: value for name, value in kwargs.items() if name not in found}


def _is_module(value: object) -> TypeGuard[nn.Module]:
    """``isinstance`` would go on to ask the ``__class__`` of a value that is none, which may be user code."""
    return issubclass(type(value), nn.Module)


def _names_in(code: types.CodeType) -> set[str]:
    """Global names that a function and those defined inside it read."""
    names: set[str] = set()
    waiting = [code]
    while waiting:
        current = waiting.pop()
        names.update(current.co_names)
        waiting += [constant for constant in current.co_consts if isinstance(constant, types.CodeType)]
    return names
