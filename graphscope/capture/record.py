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
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from graphscope.capture.oplog import Op, OpLog, Source
from graphscope.capture.regions import GRAD, Entry, current_mode, find_entry
from graphscope.capture.search import module_dictionary
from graphscope.capture.source import Lines, Owner, current_lines, owner_of
from graphscope.capture.subclasses import ALIAS, as_wanted
from graphscope.capture.tensors import is_tensor
from graphscope.tracebacks import forget_recorder

_next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]
_ONES_LIKE = torch.ops.aten.ones_like.default
_MAKES_GRADIENTS: CodeType = torch.autograd._make_grads.__code__
_BACKWARD_CALLS: dict[CodeType, str] = {
    torch.autograd.backward.__code__: "tensors",
    torch.autograd.grad.__code__: "outputs",
}
"""What ends in torch's engine, and the argument that says where a backward starts."""

_backward_running: Callable[[], int] = torch._C._current_graph_task_id
_WRAPPERS_DEEP = 6
"""Frames of torch's own between an op and who asked for it."""

_autocast_on: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)


class Backward(NamedTuple):
    """A ``backward()`` or ``autograd.grad()`` of the program."""

    time: int
    """Count of ops when it began."""
    lines: Lines
    roots: tuple[Source, ...]
    retains: bool
    """It was asked to keep the graph, by ``retain_graph`` or ``create_graph``."""
    creates: bool
    """It was asked for a graph of itself."""


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
        self.backwards: list[Backward] = []
        self.grad_mode_before = current_mode()
        self.left_on: Entry | None = None
        """What switched gradients off and was not undone when the recording ended."""
        self.scopes: dict[CodeType, None] = {}
        """Functions of the program that ran, as far as they made an op or a module was called below them."""
        self.is_active = False
        self._training_stack: list[tuple[bool | None, bool | None]] = []
        self._tasks: set[int] = set()

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
        task = _backward_running()
        in_backward = task != -1
        if in_backward and task not in self._tasks:
            self._tasks.add(task)
            self._note_backward(sys._getframe(1))
        elif func is _ONES_LIKE and self._makes_gradients(sys._getframe(1)):
            return func(*args, **keywords)
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
            self.scopes[op.lines.user.code] = None
        if mode != GRAD:
            op.entry = self._entry(frame, mode)
        if self._module_stack:
            op.module = self._module_stack[-1]
            op.training = self._training_stack[-1]
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
            flag = module_dictionary(module).get("training")
            self._training_stack.append((flag, self._training_stack[0][0] if self._training_stack else flag))
            if len(self._module_stack) == 1:
                self._note_scopes(sys._getframe(1))

    def leave_module(self) -> None:
        """A module's forward ends."""
        if threading.get_ident() == self._thread and self._module_stack:
            self._module_stack.pop()
            self._training_stack.pop()

    def _note_scopes(self, frame: FrameType | None) -> None:
        """Note the program's functions that stand on the stack, as far as they are not known."""
        while frame is not None:
            if owner_of(frame.f_code.co_filename) is Owner.USER:
                self.scopes[frame.f_code] = None
            frame = frame.f_back

    def _makes_gradients(self, frame: FrameType | None) -> bool:
        """torch makes the first gradient of a backward, in the thread that asked for it."""
        for _ in range(_WRAPPERS_DEEP):
            if frame is None:
                return False
            if frame.f_code is _MAKES_GRADIENTS:
                self._note_backward(frame)
                return True
            frame = frame.f_back
        return False

    def _note_backward(self, frame: FrameType | None) -> None:
        """Note which call of the program a backward belongs to; one that is seen twice is noted once."""
        while frame is not None and frame.f_code not in _BACKWARD_CALLS:
            frame = frame.f_back
        if frame is None:
            return
        self._note_scopes(frame)
        arguments = frame.f_locals
        roots: tuple[Source, ...] = ()
        started = arguments.get(_BACKWARD_CALLS[frame.f_code])
        if isinstance(started, torch.Tensor):
            started = (started,)
        if isinstance(started, (list, tuple)):
            roots = tuple(self.log.source_of(tensor) for tensor in started if is_tensor(tensor))
        creates = bool(arguments.get("create_graph"))
        retains = creates if arguments.get("retain_graph") is None else bool(arguments["retain_graph"])
        noted = Backward(len(self.log.ops), current_lines(frame.f_back), roots, retains, creates)
        if not self.backwards or noted != self.backwards[-1]:
            self.backwards.append(noted)

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
        self.is_active = True
        try:
            with self:
                yield
        except BaseException as error:
            forget_recorder(error)
            raise
        finally:
            self.is_active = False
            self.left_on = self._left_on(sys._getframe(1))
            entering.remove()
            leaving.remove()
            self.log.settle()

    def _left_on(self, frame: FrameType | None) -> Entry | None:
        mode = current_mode()
        if mode in {GRAD, self.grad_mode_before}:
            return None
        return find_entry(frame, mode, self.files)
