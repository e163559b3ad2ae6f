"""Notice when a program runs backward, before torch frees the graph.

``Tensor.backward()``, ``torch.autograd.backward()`` and ``torch.autograd.grad()`` enter torch's engine through one
Python function, ``torch.autograd.graph._engine_run_backward``, which ``torch/autograd/__init__.py`` imports by
name. For as long as a ``watch_backward`` block runs, both places hold a wrapper that tells first and calls then.
It is the one thing of torch that graphscope ever replaces; ``torch.compiler`` does it in the same way.

Not every entry is the program's own. Left alone are: what a backward itself starts (reentrant checkpoints, a
custom ``Function`` that differentiates in its backward), what a compiler starts to trace a backward graph, and
whatever a forked child does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
import torch.autograd.graph

from graphscope.capture.walking.names import frame_namespaces

Namespace = dict[str, object]

_ENTRY = "_engine_run_backward"

_compiler: Any = torch._C._dynamo.eval_frame

_TRACERS = (
    "torch._dynamo.",
    "torch._functorch._aot_autograd.",
    "torch._functorch.aot_autograd",
    "torch._higher_order_ops.",
    "torch._inductor.",
    "torch.fx.",
    "torch.export.",
)
"""Modules that differentiate to build a graph of their own, not because the program asked for a gradient."""

_STANDARD_LIBRARY = str(Path(os.__file__).parent) + os.sep


class BackwardCall(NamedTuple):
    """One entry into the engine. It refers to live tensors and frames: use it at once, keep nothing of it."""

    number: int
    """1 for the first."""
    outputs: tuple[Any, ...]
    """The tensors or graph edges that backward starts from."""
    frames: tuple[FrameType, ...]
    """``program_frames`` of those that led here, innermost first."""


@contextlib.contextmanager
def watch_backward(tell: Callable[[BackwardCall], None], *, transforms: bool = True) -> Iterator[None]:
    """Call ``tell`` whenever the program is about to run backward; what it raises reaches the program.

    ``torch.func.grad`` and its kin differentiate too, on stand-ins of the program's tensors, and fill no ``.grad``;
    without ``transforms`` they are left alone.

    >>> import torch
    >>> from graphscope.capture.program.backward import watch_backward
    >>> numbers = []
    >>> with watch_backward(lambda call: numbers.append(call.number)):
    ...     torch.ones(1, requires_grad=True).sum().backward()
    >>> numbers
    [1]
    """
    original = getattr(torch.autograd.graph, _ENTRY)
    counter = itertools.count(1)
    process = os.getpid()
    watching = True

    def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if watching and os.getpid() == process:
            with _uncompiled():
                announce(outputs, sys._getframe(1))
        return original(outputs, *args, **kwargs)

    def announce(outputs: Sequence[Any], frame: FrameType) -> None:
        callers = [] if _inside_backward() else list(_callers(frame))
        if callers and not _is_traced(callers) and (transforms or not _is_transformed(callers)):
            tell(BackwardCall(next(counter), tuple(outputs), program_frames(callers)))

    _leave_to_interpreter(run_backward.__code__)
    homes = [home for home in (torch.autograd.graph, torch.autograd) if getattr(home, _ENTRY, None) is original]
    for home in homes:
        setattr(home, _ENTRY, run_backward)
    try:
        yield
    finally:
        watching = False  # for whoever took hold of the wrapper in the meantime
        for home in homes:
            if getattr(home, _ENTRY) is run_backward:
                setattr(home, _ENTRY, original)


def program_frames(frames: Iterable[FrameType]) -> tuple[FrameType, ...]:
    """Frames of the program and of installed packages, in the order given; those of torch and Python are left out."""
    return tuple(frame for frame in frames if _is_program(frame))


def variables_of(frames: Sequence[FrameType]) -> list[tuple[str, Namespace]]:
    """The variables of every frame with the place they live in: the program's own frames, then those of packages.

    A training library's inner variables must not name what the program itself names, so they come last, and its
    globals not at all.
    """
    found: list[tuple[str, Namespace]] = []
    seen: set[int] = set()
    for frame in sorted(frames, key=_is_installed):  # a stable sort
        namespaces = frame_namespaces(frame)
        found += [(f"{frame.f_code.co_name}()", namespace) for namespace in namespaces[:-1]]
        if not _is_installed(frame) and id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            found.append(("globals()", namespaces[-1]))
    return found


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """Run a block as plain Python even where ``torch.compile`` is at work around it."""
    prior = _compiler.set_eval_frame(None)
    try:
        yield
    finally:
        _compiler.set_eval_frame(prior)


def _leave_to_interpreter(code: CodeType) -> None:
    """Keep ``torch.compile`` from compiling one function's frame, as it does for torch's own.

    ``torch._dynamo.skip_code`` (torch/_dynamo/eval_frame.py) does this; the C calls beneath it spare the import.
    """
    if hasattr(_compiler, "set_code_exec_strategy"):
        action = _compiler._FrameAction
        _compiler.set_code_exec_strategy(code, _compiler._FrameExecStrategy(action.SKIP, action.DEFAULT))
    else:
        _compiler.skip_code(code)  # until torch 2.6


def _inside_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None and _top_module(frame) != "graphscope_cli":
        yield frame
        frame = frame.f_back


def _is_traced(callers: Iterable[FrameType]) -> bool:
    """Torch itself asked for this backward, to build a graph of its own."""
    for frame in callers:
        if str(frame.f_globals.get("__name__")).startswith(_TRACERS):
            return True
        if _is_program(frame):
            return False
    return False


def _is_transformed(callers: Iterable[FrameType]) -> bool:
    """A transform of ``torch.func`` asked for this backward."""
    torchs = itertools.takewhile(lambda frame: not _is_program(frame), callers)
    return any(frame.f_globals.get("__name__") == "torch._functorch.eager_transforms" for frame in torchs)


def _is_program(frame: FrameType) -> bool:
    if _top_module(frame) in {"torch", "graphscope", "graphscope_cli"}:
        return False
    file = frame.f_code.co_filename
    return _is_installed(frame) or not file.startswith((_STANDARD_LIBRARY, "<frozen "))


def _top_module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _is_installed(frame: FrameType) -> bool:
    file = frame.f_code.co_filename.replace("\\", "/")
    return "/site-packages/" in file or "/dist-packages/" in file
