"""A recorder that keeps the local variables of functions which have some of given names: ``m`` and ``w`` of ``main()``.

When a function has returned its variables are gone, unless something holds its frame. Only frames of the
program's own code that have such a variable are held, of each function the last, as long as the recorder lives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from graphscope.capture.code.source import Owner, owner_of
from graphscope.capture.program.backward import Namespace
from graphscope.capture.recording.oprecords import Op, Signature
from graphscope.capture.recording.record import Recorder
from graphscope.capture.walking.names import frame_namespaces


class LocalNamesRecorder(Recorder):
    """Records, and holds frames with the variables that ``wanted`` begins with."""

    def __init__(self, wanted: Iterable[str]) -> None:
        """Take names of tensors, as in ``out.logits`` or ``parts[0]``."""
        super().__init__()
        self._wanted = {match[0] for name in wanted if (match := re.match(r"\w+", name))}
        self._has_some: dict[CodeType, bool] = {}
        self._frames: dict[CodeType, FrameType] = {}

    def _note(
        self,
        signature: Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        frame: FrameType,
        *,
        in_backward: bool,
    ) -> Op:
        around: FrameType | None = frame
        while around is not None:
            code = around.f_code
            has_some = self._has_some.get(code)
            if has_some is None:
                has_some = self._has_some[code] = self._is_watched(code)
            if has_some:
                self._frames[code] = around
            around = around.f_back
        return super()._note(signature, args, kwargs, frame, in_backward=in_backward)

    def _is_watched(self, code: CodeType) -> bool:
        own = {*code.co_varnames, *code.co_cellvars}
        return not own.isdisjoint(self._wanted) and owner_of(code.co_filename) is Owner.USER

    def places(self) -> list[tuple[str, Namespace]]:
        """The variables of each function, with what it is called; call it when the program has ended."""
        return [(f"{code.co_name}()", frame_namespaces(frame)[0]) for code, frame in self._frames.items()]
