"""The leak fixture is worth nothing if it sees nothing: each kind of leak is made, seen, and undone."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.leaks import changes, global_state, random_states


@contextlib.contextmanager
def changed(change: Callable[[], object], restore: Callable[[], object]) -> Iterator[None]:
    change()
    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def hooked(register: Callable[[Callable[..., None]], Any]) -> Iterator[None]:
    handle = register(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def patched(owner: Any, name: str) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(owner, name, original)


def shorter_stack() -> contextlib.AbstractContextManager[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    less = (8 << 20) - 4096 if soft == resource.RLIM_INFINITY else soft - 4096
    return changed(
        lambda: resource.setrlimit(resource.RLIMIT_STACK, (less, hard)),
        lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard)),
    )


here = Path.cwd()
nn_module = torch.nn.modules.module
LEAKS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "sys.settrace": lambda: changed(lambda: sys.settrace(lambda *_: None), lambda: sys.settrace(None)),
    "sys.setprofile": lambda: changed(lambda: sys.setprofile(lambda *_: None), lambda: sys.setprofile(None)),
    "threading.setprofile": lambda: changed(
        lambda: threading.setprofile(lambda *_: None), lambda: threading.setprofile(None)
    ),
    "sys.argv": lambda: changed(lambda: sys.argv.append("x"), sys.argv.pop),
    "sys.path": lambda: changed(lambda: sys.path.append("x"), sys.path.pop),
    "working directory": lambda: contextlib.chdir("/"),
    "environment": lambda: changed(lambda: os.environ.update(LEAK="1"), lambda: os.environ.pop("LEAK")),
    "stack limit": shorter_stack,
    "thread stack size": lambda: changed(lambda: threading.stack_size(1 << 20), lambda: threading.stack_size(0)),
    "garbage collection": lambda: changed(gc.disable, gc.enable),
    "gc.callbacks": lambda: changed(lambda: gc.callbacks.append(print), gc.callbacks.pop),
    "grad mode": torch.no_grad,
    "inference mode": torch.inference_mode,
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(mode=True, check_nan=False),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default dtype": lambda: changed(
        lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)
    ),
    "default device": lambda: torch.device("meta"),
    "deterministic algorithms": lambda: changed(
        lambda: torch.use_deterministic_algorithms(mode=True), lambda: torch.use_deterministic_algorithms(mode=False)
    ),
    "dispatch modes": TorchDispatchMode,
    "function modes": BaseTorchFunctionMode,
    "saved tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "global module hooks": lambda: hooked(nn_module.register_module_forward_hook),
    "functions of torch": lambda: patched(torch.autograd.graph, "_engine_run_backward"),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_seen(name: str) -> None:
    before = global_state()
    with LEAKS[name]():
        during = global_state()
    assert name in [change.split(":")[0] for change in changes(before, during)]
    assert changes(before, global_state()) == []


def test_drawing_random_numbers_is_seen() -> None:
    before = random_states()
    random.random()  # noqa: S311 - nothing secret
    torch.rand(1)
    after = random_states()
    assert {"random", "torch"} <= {name for name, state in before.items() if state != after[name]}
