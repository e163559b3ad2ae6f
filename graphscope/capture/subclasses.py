"""Let a program make a tensor subclass from a plain tensor while it is being recorded.

``Marked(tensor)`` and ``tensor.as_subclass(Marked)`` call ``aten.alias`` and put the new class on its result
(``THPVariable_as_subclass``, ``legacy_tensor_ctor`` in torch/csrc). Under any dispatch mode that result has passed through Python, already is a plain
``Tensor``, and torch refuses. It accepts an object that is of the class already; which class that is,
the calling expression tells.
"""

from __future__ import annotations

import ast
import builtins
from types import FrameType
from typing import Any

import torch

from graphscope.capture.names import frame_namespaces
from graphscope.capture.source import Line, Owner, expression_at, owner_of

ALIAS: Any = torch.ops.aten.alias.default


def as_wanted(result: Any, frame: FrameType | None) -> Any:
    """The result of ``aten.alias``, in the class that the code at or above ``frame`` is about to give it."""
    while frame is not None and owner_of(frame.f_code.co_filename) is Owner.PLUMBING:
        frame = frame.f_back
    wanted = _wanted_class(frame) if frame is not None and type(result) is torch.Tensor else None
    if wanted is None:
        return result
    return torch.Tensor._make_subclass(wanted, result)  # type: ignore[attr-defined]


def _wanted_class(frame: FrameType) -> type[torch.Tensor] | None:
    line = Line(frame.f_code, frame.f_lineno or 0, frame.f_lasti)
    try:
        call = ast.parse(expression_at(line), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call):
        return None
    candidates = [call.func, *call.args[:1], *(keyword.value for keyword in call.keywords)]
    namespaces = [*frame_namespaces(frame), vars(builtins)]
    for expression in candidates:
        found = _resolve(expression, namespaces)
        if isinstance(found, type) and issubclass(found, torch.Tensor) and found is not torch.Tensor:
            return found
    return None


def _resolve(expression: ast.expr, namespaces: list[dict[str, object]]) -> object:
    """The value of a dotted name, read from stored attributes only."""
    if isinstance(expression, ast.Name):
        return next((space[expression.id] for space in namespaces if expression.id in space), None)
    if isinstance(expression, ast.Attribute):
        owner = _resolve(expression.value, namespaces)
        return vars(owner).get(expression.attr) if hasattr(owner, "__dict__") else None
    return None
