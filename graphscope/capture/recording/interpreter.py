"""Keep ``torch.compile`` from compiling functions of graphscope that happen to run below it."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

_compiler: Any = torch._C._dynamo.eval_frame

can_leave_alone = all(
    hasattr(_compiler, name) for name in ("set_code_exec_strategy", "_FrameAction", "_FrameExecStrategy")
)
"""Whether this torch can be told so by code object, without importing the compiler."""


def leave_to_interpreter(code: CodeType) -> None:
    """Let the compiler pass over a function, and over all that it calls, as ``torch.compiler.disable`` does."""
    if can_leave_alone:
        skip = _compiler._FrameAction.SKIP
        _compiler.set_code_exec_strategy(code, _compiler._FrameExecStrategy(skip, skip))
