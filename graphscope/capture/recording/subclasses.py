"""Let a program make a tensor subclass from a plain tensor while it is being recorded.

``Marked(tensor)``, ``Marked([1.0])`` and ``super().__new__(cls, tensor)`` call one last op and put the new class on its
result (``base_tensor_ctor``, ``THPVariable_pynew`` in torch/csrc). Under any dispatch mode that result has passed
through Python, already is a plain ``Tensor``, and torch refuses. It accepts an object that is of the class already;
which class that is, the calling expression tells.
"""

from __future__ import annotations

import ast
import builtins
import functools
from types import FrameType
from typing import Any, TypeGuard

import torch

from graphscope.capture.code.lookup import resolve
from graphscope.capture.code.source import Codes, Owner, expression_at
from graphscope.capture.walking.names import frame_namespaces

MAKERS = frozenset({"aten::alias", "aten::empty", "aten::lift_fresh", "aten::_to_copy"})
"""The ops that a constructor may end with."""

_TABLE = "constructor calls"


def as_wanted(result: Any, frame: FrameType | None, codes: Codes) -> Any:
    """The result of one of ``MAKERS``, in the class that the code at ``frame`` is about to give it."""
    if type(result) is not torch.Tensor:
        return result
    known = None
    while frame is not None:
        known = codes.of(frame.f_code)
        if known.owner is not Owner.RECORDER:
            break
        frame = frame.f_back
    if frame is None or known is None:
        return result
    calls = known.findings.setdefault(_TABLE, {})
    if calls is None:
        return result
    instruction = frame.f_lasti
    if instruction not in calls:
        calls[instruction] = _constructor_call(expression_at(known.line_of(frame)))
    call = calls[instruction]
    wanted = _wanted_class(call, frame) if call is not None else None
    return result if wanted is None else torch.Tensor._make_subclass(wanted, result)


def _constructor_call(text: str) -> ast.Call | None:
    """The call behind an expression, unless it is plainly one of torch's own functions."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call):
        return None
    called = call.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name not in {"__new__", "__class__"} and (hasattr(torch.Tensor, name) or hasattr(torch, name)):
        return None
    return call


def _wanted_class(call: ast.Call, frame: FrameType) -> type[torch.Tensor] | None:
    """The tensor subclass that is called, or handed to ``__new__`` first; else the only one in the expression."""
    namespaces = [*frame_namespaces(frame), vars(builtins)]
    for expression in [call.func, *call.args[:1]]:
        found = resolve(expression, namespaces)
        while isinstance(found, functools.partial):
            found = found.func if _is_subclass(found.func) else next(iter(found.args), None) or found.func
        if _is_subclass(found):
            return found
    inside: set[type[torch.Tensor]] = set()
    for part in ast.walk(call):
        found = resolve(part, namespaces)
        if _is_subclass(found):
            inside.add(found)
    return inside.pop() if len(inside) == 1 else None


def _is_subclass(found: object) -> TypeGuard[type[torch.Tensor]]:
    return isinstance(found, type) and issubclass(found, torch.Tensor) and found is not torch.Tensor
