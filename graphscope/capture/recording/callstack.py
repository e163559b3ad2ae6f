"""What stands on the Python stack above an op: the user's line, the modules that are running.

Module hooks would tell, too, but they are seen: ``torch.compile`` compiles anew for them and warns. So the stack is
read, and only once: whatever stands outside of a running frame stays as it is until that frame ends, so what was
found there is kept with the frame. Where a frame carries things of ours, in ``f_trace``, Python looks only for a
debugger; with one at work nothing is kept. When the recording ends, the frames that are left are wiped.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import nn

from graphscope.capture.code.source import Codes, Line, Owner
from graphscope.capture.recording.oprecords import DIRECT, EVALUATING, OUTER, TRAINING
from graphscope.capture.walking.search import module_dictionary

MODULE_CALL: CodeType = nn.Module._wrapped_call_impl.__code__
"""Every call of a module is a frame of this."""

_USER, _RECORDER, _PLUMBING = Owner.USER, Owner.RECORDER, Owner.PLUMBING

_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Frames that go on later, perhaps below others."""


class ModuleCall(NamedTuple):
    """A call of a module that is running."""

    number: int
    """Place in ``CallStack.calls``."""
    circumstances: int
    """Its ``training`` flag and that of the outermost module, as an op notes them."""


Site = tuple[Line | None, Line | None, int, ModuleCall | None]
"""Where an op was called: the user's line; the innermost line of anybody but the plumbing; ``DIRECT`` if the user's own
line called the op, else 0; the innermost module that is running."""


class Outside:
    """What stands outside of a frame."""

    __slots__ = ("call", "findings", "inner", "line", "stack")

    def __init__(self, stack: CallStack, line: Line | None, inner: Line | None, call: ModuleCall | None) -> None:
        self.stack = stack
        self.line, self.inner = line, inner
        self.call = call
        """The innermost module that is running, this frame included."""
        self.findings: dict[str, Any] = {}
        """What ``regions.py`` found there about each grad mode."""

    def __call__(self, *_: object) -> None:
        """Do nothing, should somebody begin to trace while the frame runs."""


class CallStack:
    """Reads the stack for one recorder."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.codes = Codes()
        self.modules: list[tuple[str, weakref.ref[nn.Module]]] = []
        """Type and module by the order in which they were met."""
        self._module_numbers: dict[int, int] = {}
        self.calls: list[tuple[int, int]] = []
        """Of each call of a module in which something was met: the module's place, and that of the call around it, -1
        if there is none."""
        self._traced: dict[int, ModuleCall] = {}
        """Calls by the ``id()`` of their frame, where frames cannot keep what was found; two may pass for one there."""

    def site(self, frame: FrameType | None) -> Site:
        """What stands at and above ``frame``. Runs once per op."""
        codes = self.codes
        inner: Line | None = None
        direct = DIRECT
        while frame is not None:
            code = frame.f_code
            known = codes.get(id(code)) or codes.of(code)
            owner = known.owner
            if owner is _USER:
                line = known.lines.get(frame.f_lasti) or known.line_of(frame)
                outside = frame.f_trace
                if type(outside) is not Outside or outside.stack is not self:
                    outside = self.outside(frame)
                return line, inner or line, direct, outside.call
            if owner is not _RECORDER:
                direct = 0
                if code is MODULE_CALL:
                    outside = self.outside(frame)
                    return outside.line, inner or outside.inner, 0, outside.call
                if owner is not _PLUMBING and inner is None:
                    inner = known.line_of(frame)
            elif _is_command_line(frame):
                break
            frame = frame.f_back
        return None, inner, 0, None

    def outside(self, frame: FrameType) -> Outside:
        """What stands outside of a frame of the user's or of a module's call."""
        kept = frame.f_trace
        if type(kept) is Outside and kept.stack is self:
            return kept
        return self._look_outside(frame, None) or self._look_far_outside(frame)

    def _look_far_outside(self, frame: FrameType) -> Outside:
        """As ``outside``, from the outermost frame inwards; without recursion, however deep the stack."""
        unknown: list[FrameType] = []
        place: FrameType | None = frame
        while place is not None and not self._is_known(place):
            if place.f_code is MODULE_CALL or self.codes.of(place.f_code).owner is _USER:
                unknown.append(place)
            place = place.f_back
        result: Outside | None = None
        for one in reversed(unknown):
            result = self._look_outside(one, result)
        assert result is not None  # noqa: S101  the frame itself is among the unknown
        return result

    def _is_known(self, frame: FrameType) -> bool:
        kept = frame.f_trace
        return type(kept) is Outside and kept.stack is self

    def _look_outside(self, frame: FrameType, next_known: Outside | None) -> Outside | None:
        """Put together what stands right outside of a frame, up to the next one of which all is known.

        Returns ``None`` if that is not known; ``next_known`` tells where the frame itself cannot.
        """
        inner: Line | None = None
        line: Line | None = None
        call: ModuleCall | None = None
        place = frame.f_back
        while place is not None:
            known = self.codes.of(place.f_code)
            owner = known.owner
            if owner is _USER or place.f_code is MODULE_CALL:
                kept = place.f_trace
                outside = kept if type(kept) is Outside and kept.stack is self else next_known
                if outside is None:
                    return None
                line = known.line_of(place) if owner is _USER else outside.line
                inner = inner or (line if owner is _USER else outside.inner)
                call = outside.call
                break
            if owner is Owner.LIBRARY and inner is None:
                inner = known.line_of(place)
            if owner is _RECORDER and _is_command_line(place):
                break
            place = place.f_back
        if frame.f_code is MODULE_CALL:
            call = self._call_of(frame, call)
        result = Outside(self, line, inner, call)
        if frame.f_trace is None and not frame.f_code.co_flags & _RESUMED and sys.gettrace() is None:
            frame.f_trace = result
        return result

    def _call_of(self, frame: FrameType, outer: ModuleCall | None) -> ModuleCall:
        module: nn.Module = frame.f_locals["self"]
        number = self._module_numbers.get(id(module))
        if number is None or self.modules[number][1]() is not module:
            number = self._module_numbers[id(module)] = len(self.modules)
            self.modules.append((type(module).__name__, weakref.ref(module)))
        training = module_dictionary(module).get("training")
        flag = 0 if training is None else TRAINING if training else EVALUATING
        outermost = flag << OUTER if outer is None else outer.circumstances & (TRAINING | EVALUATING) << OUTER
        key = (number, -1 if outer is None else outer.number)
        known = self._traced.get(id(frame)) if sys.gettrace() is not None else None
        if known is not None and self.calls[known.number] == key:
            return known
        self.calls.append(key)
        call = ModuleCall(len(self.calls) - 1, flag | outermost)
        if sys.gettrace() is not None:
            self._traced[id(frame)] = call
        return call

    def note_all(self, frame: FrameType | None) -> None:
        """Note the functions that stand on the stack."""
        while frame is not None:
            self.codes.of(frame.f_code)
            frame = frame.f_back

    def wipe(self, frame: FrameType | None) -> None:
        """Take back what the frames on the stack carry."""
        while frame is not None:
            kept = frame.f_trace
            if type(kept) is Outside and kept.stack is self:
                frame.f_trace = None
            frame = frame.f_back


def _is_command_line(frame: FrameType) -> bool:
    """Above it there is only whoever started graphscope."""
    return frame.f_globals.get("__package__") == "graphscope_cli"
