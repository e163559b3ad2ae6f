"""Functions that switch gradients off by themselves, known by name: of torch, and of a comparison of modes."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

import torch

from graphscope.capture.code.switches import INFERENCE, NO_GRAD
from graphscope.capture.recording.oprecords import Entry

CUSTOM = "custom_function"
CHECKPOINT = "checkpoint"

IN_FUNCTION = Entry(CUSTOM, "library", None, "autograd.Function")
"""The forward of a custom Function."""

_apply: Any = torch.autograd.Function.apply
FUNCTION_APPLY: CodeType | None = getattr(getattr(_apply, "__func__", None), "__code__", None)
"""Stands around the forward of every custom Function, until torch 2.13; later no Python stands between."""

_COMPARED = {
    "call_in_no_grad": NO_GRAD,
    "call_in_set_grad_enabled": NO_GRAD,
    "call_in_inference_mode": INFERENCE,
}
"""Functions of ``modes.py`` that run a whole computation in a mode."""


def is_known(code: CodeType) -> bool:
    """A function of a library that is known to switch: its source need not be read."""
    return (
        code is FUNCTION_APPLY
        or (code.co_name in _COMPARED and _file_of(code).endswith("graphscope/capture/comparing/modes.py"))
        or (code.co_name == "forward" and is_torch(code, "torch/utils/checkpoint.py"))
        or (code.co_name == "_use_grad" and is_torch(code, "torch/optim/optimizer.py"))
        or is_torch(code, "torch/nn/init.py")
    )


def known_entry(code: CodeType, mode: str) -> Entry | None:
    """What a function that ``is_known`` says to a mode; the line is that of whoever called it."""
    if code.co_name in _COMPARED:
        return Entry(mode, "library", None, "graphscope.compare") if _COMPARED[code.co_name] == mode else None
    if is_torch(code, "torch/nn/init.py"):
        return Entry(mode, "library", None, "torch.nn.init")
    if mode != NO_GRAD:
        return None
    if code is FUNCTION_APPLY:
        return IN_FUNCTION
    if code.co_name == "forward":
        return Entry(CHECKPOINT, "library", None, "checkpoint(use_reentrant=True)")
    return Entry(NO_GRAD, "library", None, "optimizer step")


def is_command_line(code: CodeType) -> bool:
    """What runs the program; the blocks that it stands in are not the program's."""
    return "/graphscope_cli/" in _file_of(code)


def is_torch(code: CodeType, ending: str = "") -> bool:
    """Code of torch, in a file whose path ends so."""
    file = _file_of(code)
    return "/torch/" in file and file.endswith(ending)


def is_custom_forward(code: CodeType) -> bool:
    """The forward of a custom Function, where nothing of Python's calls it that would tell."""
    if code.co_name != "forward" or FUNCTION_APPLY is not None:
        return False
    waiting: list[type] = [torch.autograd.Function]
    while waiting:
        kind = waiting.pop()
        forward: Any = vars(kind).get("forward")
        if getattr(inspect.unwrap(getattr(forward, "__func__", forward)), "__code__", None) is code:
            return True
        waiting += type.__subclasses__(kind)
    return False


def _file_of(code: CodeType) -> str:
    return code.co_filename.replace("\\", "/")
