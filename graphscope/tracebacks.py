"""Tracebacks as they would be without graphscope."""

from __future__ import annotations

from types import CodeType

_WRAPPERS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py")
"""What torch puts between a program and a dispatch mode."""


def forget_recorder(error: BaseException) -> None:
    """Cut the traceback of an op's error where the recorder stood between the program and the op.

    Below that point there is nothing but the recorder and torch's wrappers of it; an unrecorded run ends there.
    """
    program = None
    place = error.__traceback__
    while place is not None:
        code = place.tb_frame.f_code
        if _is_recorder(code):
            if program is not None:
                program.tb_next = None
            return
        if not code.co_filename.replace("\\", "/").endswith(_WRAPPERS):
            program = place
        place = place.tb_next


def _is_recorder(code: CodeType) -> bool:
    file = code.co_filename.replace("\\", "/")
    return code.co_name == "__torch_dispatch__" and file.endswith("graphscope/capture/recording/record.py")
