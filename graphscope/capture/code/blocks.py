"""Whether a ``with`` block whose text does not tell switches gradients off: the objects themselves are looked at.

``with ctx:`` is asked what ``ctx`` is, ``with evaluating(model):`` what the function does around its ``yield``. Values
are read from the variables of the frame; nobody's code runs.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from graphscope.capture.code.lookup import resolve
from graphscope.capture.code.switches import GRAD, INFERENCE, NO_GRAD, Switch, scope_of, switches_in
from graphscope.capture.walking.names import frame_namespaces

_SWITCHES: tuple[tuple[Any, str], ...] = (
    (torch.no_grad, NO_GRAD),
    (torch.set_grad_enabled, NO_GRAD),
    (torch.inference_mode, INFERENCE),
    (torch.enable_grad, GRAD),
)
_CONTEXT_MANAGER = contextlib.contextmanager(lambda: iter(())).__code__
"""Of every function that ``contextlib.contextmanager`` has made."""

_OTHER = "other"
"""It does not switch at all."""


def mode_of_block(switch: Switch, frame: FrameType) -> str | None:
    """The mode that a block of this frame has switched to; ``other`` for none, ``None`` where that cannot be told."""
    if switch.expression is None:
        return None
    namespaces = [*frame_namespaces(frame), vars(builtins)]
    mode = _mode_of(switch.expression, namespaces)
    if mode is None and switch.target is not None:  # what is entered may return itself, as an exit stack does
        mode = _mode_of_object(resolve(switch.target, namespaces))
    return mode


def _mode_of(expression: ast.expr, namespaces: list[dict[str, object]]) -> str | None:
    if isinstance(expression, ast.IfExp):
        flag = resolve(expression.test, namespaces)
        if type(flag) not in {bool, int, str, type(None)}:
            return None
        return _mode_of(expression.body if flag else expression.orelse, namespaces)
    if isinstance(expression, ast.Call):
        return _mode_of_call(resolve(expression.func, namespaces))
    return _mode_of_object(resolve(expression, namespaces))


def _mode_of_object(value: Any) -> str | None:
    for kind, mode in _SWITCHES:
        if type(value) is kind:
            return GRAD if getattr(value, "mode", None) is True and mode == NO_GRAD else _inference(value, mode)
    if type(value) is contextlib.nullcontext:
        return _OTHER
    if type(value) is contextlib.ExitStack:
        modes = [_mode_of_object(getattr(leave, "__self__", None)) for _, leave in value._exit_callbacks]  # type: ignore[attr-defined]
        return next((mode for mode in reversed(modes) if mode not in {None, _OTHER}), None)
    if isinstance(value, contextlib._GeneratorContextManager):
        return _mode_around_yield(getattr(value.gen, "gi_code", None))
    return None


def _inference(value: Any, mode: str) -> str:
    return GRAD if mode == INFERENCE and getattr(value, "mode", None) is False else mode


def _mode_of_call(called: Any) -> str | None:
    """What calling a class or function makes."""
    for kind, mode in _SWITCHES:
        if called is kind:
            return mode
    if called is contextlib.nullcontext:
        return _OTHER
    if isinstance(called, FunctionType) and called.__code__ is _CONTEXT_MANAGER:
        return _mode_around_yield(getattr(getattr(called, "__wrapped__", None), "__code__", None))
    if isinstance(called, type):
        enter = vars(called).get("__enter__")
        return _mode_left_by(enter.__code__) if isinstance(enter, FunctionType) else None
    return None


def _mode_around_yield(code: CodeType | None) -> str | None:
    """The mode in force at the ``yield`` of a context manager written as a generator, if it is always the same."""
    scope = switches_in(code.co_filename).scopes.get(scope_of(code)) if code is not None else None
    if scope is None or not scope.yields:
        return None
    modes = {next((one.mode for one in scope.switches if one.covers(place)), _OTHER) for place in scope.yields}
    return modes.pop() if len(modes) == 1 else None


def _mode_left_by(code: CodeType) -> str | None:
    """The mode that a function leaves behind by a statement of its outermost suite."""
    scope = switches_in(code.co_filename).scopes.get(scope_of(code))
    found = [one for one in (scope.switches if scope is not None else ()) if not one.block and one.outermost]
    return found[0].mode if found else None
