"""Run code and note every op, tracked or not.

The recorder is a ``TorchDispatchMode``: it sits below autograd, so it sees each op with the user's grad mode still
in force, and it changes nothing about what runs. Global module hooks, unlike those of a single module, leave fused
paths alone, and tell which module an op belongs to.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from graphscope.capture.oplog import Op, OpLog
from graphscope.capture.regions import GRAD, Entry, current_mode, find_entry
from graphscope.capture.source import current_lines
from graphscope.capture.subclasses import ALIAS, as_wanted
from graphscope.tracebacks import forget_recorder

_next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]
_backward_running: Callable[[], int] = torch._C._current_graph_task_id
_autocast_on: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)


class Recorder(TorchDispatchMode):
    """Notes ops into an ``OpLog`` while it is active in its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.log = OpLog()
        self.modules: list[tuple[str, weakref.ref[nn.Module]]] = []
        """Type and module by the order they were first entered."""
        self.files: dict[str, None] = {}
        """Source files of the user's that ran, in order."""
        self.backward_ops = 0
        """Ops of the engine, which are not the program's."""
        self._module_numbers: dict[int, int] = {}
        self._module_stack: list[int] = []
        self._last_number = _next_number()
        self._thread = threading.get_ident()
        self._resting = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo compile as ever; a mode without this makes compiled modules run eagerly for good."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note one op and run it."""
        keywords = kwargs or {}
        if self._resting:
            return func(*args, **keywords)
        in_backward = _backward_running() != -1
        if in_backward and not torch.is_grad_enabled():
            self.backward_ops += 1
            return func(*args, **keywords)
        op = self._note(func, args, keywords)
        op.in_backward = in_backward
        try:
            result = func(*args, **keywords)
        except BaseException:
            op.raised = True
            self.log.ops.append(op)
            raise
        if func is ALIAS:
            result = as_wanted(result, sys._getframe(1))
        self.log.finish(op, result)
        return result

    def _note(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Op:
        mode = current_mode()
        number = _next_number()
        numbers = range(self._last_number, number) if mode == GRAD else range(0)
        self._last_number = number
        op = self.log.begin(func, args, keywords, mode, numbers)
        frame = sys._getframe(2)
        op.lines = current_lines(frame)
        if op.lines.user is not None:
            self.files[op.lines.user.code.co_filename] = None
        if mode != GRAD:
            op.entry = self._entry(frame, mode)
        if self._module_stack:
            op.module = self._module_stack[-1]
        op.autocast = _autocast_on()
        return op

    def _entry(self, frame: Any, mode: str) -> Entry:
        return find_entry(frame, mode, self.files)

    def enter_module(self, module: nn.Module) -> None:
        """A module's forward begins."""
        if threading.get_ident() == self._thread:
            number = self._module_numbers.get(id(module))
            if number is None or self.modules[number][1]() is not module:
                number = self._module_numbers[id(module)] = len(self.modules)
                self.modules.append((type(module).__name__, weakref.ref(module)))
            self._module_stack.append(number)

    def leave_module(self) -> None:
        """A module's forward ends."""
        if threading.get_ident() == self._thread and self._module_stack:
            self._module_stack.pop()

    def rest(self) -> None:
        """Note nothing from here on; what was noted stays."""
        self._resting = True

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record the block; everything is undone afterwards, an exception included."""

        def before(module: nn.Module, _: object) -> None:
            if not torch.compiler.is_compiling():  # Dynamo reads hooks too, and must find nothing to do in them
                self.enter_module(module)

        def after(_: nn.Module, __: object, ___: object) -> None:
            if not torch.compiler.is_compiling():
                self.leave_module()

        entering = module_hooks.register_module_forward_pre_hook(before)
        leaving = module_hooks.register_module_forward_hook(after, always_call=True)
        try:
            with self:
                yield
        except BaseException as error:
            forget_recorder(error)
            raise
        finally:
            entering.remove()
            leaving.remove()
            self.log.settle()
