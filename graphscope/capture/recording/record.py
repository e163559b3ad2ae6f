"""Run code and note every op, tracked or not.

The recorder is a ``TorchDispatchMode``: it sits below autograd, so it sees each op with the user's grad mode still
in force, and it changes nothing about what runs. Nothing else is installed: the line and the module of an op are read
from the Python stack.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from graphscope.capture.code.source import Lines, Owner
from graphscope.capture.recording.callstack import CallStack
from graphscope.capture.recording.interpreter import can_leave_alone, leave_to_interpreter
from graphscope.capture.recording.oplog import OpLog
from graphscope.capture.recording.oprecords import (
    AUTOCAST,
    IN_BACKWARD,
    Op,
    Run,
    Signature,
    Source,
    known_signatures,
    signature_of,
)
from graphscope.capture.recording.regions import GRAD, INFERENCE, NO_GRAD, Entry, Regions, current_mode
from graphscope.capture.recording.subclasses import as_wanted
from graphscope.capture.walking.tensors import is_tensor
from graphscope.tracebacks import forget_recorder

_next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
_backward_task: Callable[[], int] = torch._C._current_graph_task_id
_into_autocast, _out_of_autocast = torch.autocast_increment_nesting, torch.autocast_decrement_nesting
"""How deep in ``autocast`` blocks, told on the way in and out. Whether a block is enabled, torch hides from here."""

_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_inference_on, _grad_on = torch.is_inference_mode_enabled, torch.is_grad_enabled
_signatures, _new_op, _frame_at = known_signatures, tuple.__new__, sys._getframe

_MAKES_GRADIENTS: CodeType = torch.autograd._make_grads.__code__
_BACKWARD_CALLS: dict[CodeType, str] = {
    torch.autograd.backward.__code__: "tensors",
    torch.autograd.grad.__code__: "outputs",
}
"""What ends in torch's engine, and the argument that says where a backward starts."""

_DETACH = torch.ops.aten.detach.default
_MAKES_PARAMETER: CodeType = torch.nn.Parameter.__new__.__code__
"""By a ``detach`` torch makes a parameter of a tensor subclass, a fake tensor say; of others without any op."""

_WRAPPERS_DEEP = 6
"""Frames of torch's own between an op and who asked for it."""

_active: weakref.WeakSet[Recorder] = weakref.WeakSet()
"""Recorders whose block is running."""


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

    supports_higher_order_operators = True
    """Without this, torch raises an error for ``cond``, ``flex_attention`` and the like."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = OpLog()
        self.backwards: list[Backward] = []
        self.grad_mode_before = current_mode()
        self.left_on: Entry | None = None
        """What switched gradients off and was not undone when the recording ended."""
        self.backward_ops = 0
        """Ops of the engine, which are not the program's."""
        self.puzzles: list[str] = []
        """Errors of the recorder's own; each stands for an op that is missing."""
        self.is_active = False
        self._resting = False
        self._tasks: set[int] = set()
        self._stack = CallStack()
        self.modules = self._stack.modules
        """Type and module by the order in which they were met."""
        self.calls = self._stack.calls
        self._regions = Regions(self._stack)
        self._run: Run | None = None
        self._last_number = _next_number()
        self._thread = threading.get_ident()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep Dynamo away from the methods of subclasses, too."""
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        _leave_alone(cls)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo compile as ever; a mode without this makes compiled modules run eagerly for good."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare the wrappers by which torch keeps Dynamo away: they import the compiler, and hold an op's arguments."""
        return not can_leave_alone

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note one op and run it."""
        if self._resting:
            return func(*args, **kwargs) if kwargs else func(*args)
        signature = _signatures.get(id(func)) or signature_of(func)
        task = _backward_task()
        if (
            signature.query
            or (task != -1 and self._is_engines(task))
            or (signature.first_gradient and self._makes_gradients(_frame_at(1)))
            or (func is _DETACH and _frame_at(1).f_code is _MAKES_PARAMETER)
        ):
            return func(*args, **kwargs) if kwargs else func(*args)
        quiet = types or self.log.odd or _function_modes()
        try:
            if quiet:
                with torch._C.DisableTorchFunction():
                    op = self._note(signature, args, kwargs, _frame_at(1), in_backward=task != -1)
            else:
                op = self._note(signature, args, kwargs, _frame_at(1), in_backward=task != -1)
        except Exception as error:  # noqa: BLE001  whatever it is, the program has nothing to do with it
            self._puzzled(signature, error)
            return func(*args, **kwargs) if kwargs else func(*args)
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException as error:
            self.log.failed(op)
            _forget_arguments(error)
            raise
        try:
            if signature.makes:
                result = as_wanted(result, _frame_at(1), self._stack.codes)
            if quiet:
                with torch._C.DisableTorchFunction():
                    self.log.finish(op, signature, args, kwargs, result)
            else:
                self.log.finish(op, signature, args, kwargs, result)
        except Exception as error:  # noqa: BLE001  as above
            self._puzzled(signature, error)
        return result

    def _note(
        self,
        signature: Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        frame: FrameType,
        *,
        in_backward: bool,
    ) -> Op:
        """Everything about an op that is known before it runs."""
        log, run = self.log, None
        number = _next_number()  # first: to look at a view whose base was written makes it a new node
        mode = INFERENCE if _inference_on() else GRAD if _grad_on() else NO_GRAD
        log.tracking = False
        if mode is GRAD:
            self._run = None
            if in_backward and threading.get_ident() != self._thread:
                number = -1  # a device's own thread counts its nodes by itself
            else:
                log.tracking = number > self._last_number
                self._last_number = number
        else:
            number = -1
            run = self._run_under(frame, mode)
        inputs = log.begin(signature, args, kwargs)
        line, inner, circumstances, call = self._stack.site(frame)
        if _into_autocast() > 1:
            circumstances |= AUTOCAST
        _out_of_autocast()
        if in_backward:
            circumstances |= IN_BACKWARD
        module = -1
        if call is not None:
            module = call.number
            circumstances |= call.circumstances
        op: Op = _new_op(Op, (signature.func, mode, number, tuple(inputs), line, inner, run, module, circumstances))
        return op

    def _run_under(self, frame: FrameType, mode: str) -> Run:
        """The run of ops that this op belongs to; coming back to a line later begins a new one."""
        entry = self._regions.find(frame, mode)
        run = self._run
        if run is None or run.entry != entry:
            run = self._run = Run(entry, self._regions.outside(frame, entry))
        return run

    @property
    def files(self) -> list[str]:
        """Source files of the user's that ran, in order."""
        return list(self._stack.codes.files)

    @property
    def scopes(self) -> dict[CodeType, None]:
        """Functions of the program that ran, as far as they made an op or a module was called below them."""
        return {known.code: None for known in self._stack.codes.values() if known.owner is Owner.USER}

    def find_entry(self, frame: FrameType | None, mode: str) -> Entry:
        """What switched to a grad mode that is not ``grad``, seen from ``frame``."""
        return self._regions.find(frame, mode)

    def _is_engines(self, task: int) -> bool:
        """An op of torch's engine, not of the program: no gradient is tracked."""
        if task not in self._tasks:
            self._tasks.add(task)
            self._note_backward(_frame_at(2))
        if _grad_on():
            return False
        self.backward_ops += 1
        return True

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
        self._stack.note_all(frame)
        arguments = frame.f_locals
        roots: tuple[Source, ...] = ()
        started = arguments.get(_BACKWARD_CALLS[frame.f_code])
        if isinstance(started, torch.Tensor):
            started = (started,)
        if isinstance(started, (list, tuple)):
            roots = tuple(self.log.source_of(tensor) for tensor in started if is_tensor(tensor))
        creates = bool(arguments.get("create_graph"))
        retains = creates if arguments.get("retain_graph") is None else bool(arguments["retain_graph"])
        line, inner, direct, _ = self._stack.site(frame.f_back)
        noted = Backward(len(self.log.ops), Lines(line, inner, bool(direct)), roots, retains, creates)
        if not self.backwards or noted != self.backwards[-1]:
            self.backwards.append(noted)

    def rest(self) -> None:
        """Note nothing from here on; what was noted stays."""
        self._resting = True

    def _puzzled(self, signature: Signature, error: Exception) -> None:
        self.puzzles.append(f"{signature.name}: {type(error).__name__}")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record the block; everything is undone afterwards, an exception included."""
        self.log.first_number = self._last_number = _next_number()
        _active.add(self)
        self.is_active = True
        try:
            with self:
                yield
        except BaseException as error:
            forget_recorder(error)
            raise
        finally:
            _active.discard(self)
            self.is_active = False
            self.left_on = self._left_on(sys._getframe(1))
            self._stack.wipe(sys._getframe(1))
            self.log.settle()
            self.log.tracking = True

    def _left_on(self, frame: FrameType | None) -> Entry | None:
        mode = current_mode()
        if mode in {GRAD, self.grad_mode_before}:
            return None
        entry = self.find_entry(frame, mode)
        last = self._run.entry if self._run is not None else None
        if entry.entered == "unknown" and last is not None and (last.mode, last.entered) == (mode, "statement"):
            return last  # its function has ended, and nothing has switched gradients on since
        return entry


class Recorded(NamedTuple):
    """A recording of the program, and the folder that its files are told from."""

    recorder: Recorder
    base: Path | None = None


def _forget_arguments(error: BaseException) -> None:
    """Let the traceback of an op's error hold no tensor: without a recorder it ends at the program's own line."""
    deepest = error.__traceback__.tb_next if error.__traceback__ is not None else None
    if deepest is not None and deepest.tb_next is None and deepest.tb_frame.f_code is _op_call:
        error.__traceback__.tb_next = None  # type: ignore[union-attr]


_op_call = torch._ops.OpOverload.__call__.__code__


def _leave_alone(cls: type) -> None:
    for name, value in vars(cls).items():
        code = getattr(value, "__code__", None)
        if code is not None and name != "__init_subclass__":
            leave_to_interpreter(code)


def _sleep_in_child() -> None:
    """A forked child, a worker of a ``DataLoader`` say, has a copy of the recorder that nobody will read."""
    for recorder in _active:
        recorder.rest()


def active_recorder() -> Recorder | None:
    """The recorder that is at work in this thread, if one is."""
    modes = reversed(_get_current_dispatch_mode_stack())
    return next((mode for mode in modes if isinstance(mode, Recorder)), None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sleep_in_child)
_leave_alone(Recorder)
