"""What every test gets: a check that it left no trace in the process, and one Hypothesis profile."""

from __future__ import annotations

import gc
import os
import random
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def leak() -> Iterator[None]:
    """Fail a test after which global state of the process or of torch is not what it was before."""
    torch = sys.modules.get("torch")
    before = process_state() | (torch_state(torch) if torch else {})
    yield
    after = process_state() | (torch_state(torch) if torch else {})
    changed = [f"{name}: {before[name]!r} → {after[name]!r}" for name in before if before[name] != after[name]]
    assert not changed, f"the test left global state behind: {'; '.join(changed)}"


@pytest.fixture
def random_state_untouched() -> Iterator[None]:
    """For tests of calls that must not draw random numbers: fail if a generator of Python, numpy or torch moved."""
    before = _random_states()
    yield
    moved = [name for name, state in _random_states().items() if name in before and state != before[name]]
    assert not moved, f"random numbers were drawn from {', '.join(moved)}"


def process_state() -> dict[str, Any]:
    """What a test may change in the interpreter and must put back."""
    return {
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "threading.settrace": threading.gettrace(),
        "threading.setprofile": threading.getprofile(),
        "sys.recursionlimit": sys.getrecursionlimit(),
        "sys.argv": list(sys.argv),
        "sys.path": list(sys.path),
        "sys.excepthook": sys.excepthook,
        "__main__": id(sys.modules.get("__main__")),
        "working directory": Path.cwd(),
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "stack limit": resource.getrlimit(resource.RLIMIT_STACK),
        "thread stack size": threading.stack_size(),
        "garbage collection": gc.isenabled(),
        "gc.callbacks": [callback for callback in gc.callbacks if "hypothesis" not in callback.__module__],
    }


def torch_state(torch: ModuleType) -> dict[str, Any]:
    """What a test may change in torch and must put back."""
    module = torch.nn.modules.module
    hooks = [name for name in vars(module) if name.startswith("_global_") and hasattr(getattr(module, name), "__len__")]
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "threads": torch.get_num_threads(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "saved tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True) is None,  # noqa: FBT003
        "global module hooks": {name: len(getattr(module, name)) for name in hooks},
        "functions of torch": (torch.autograd._engine_run_backward, torch.autograd.graph._engine_run_backward),
    }


def _random_states() -> dict[str, object]:
    states: dict[str, object] = {"random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = repr(sys.modules["numpy"].random.get_state())
    if "torch" in sys.modules:
        states["torch"] = bytes(sys.modules["torch"].get_rng_state().tolist())
    return states
