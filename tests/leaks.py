"""Global state of the process and of torch that no test, and no call of graphscope, may leave changed."""

from __future__ import annotations

import gc
import os
import random
import resource
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

_SET_BY_TOOLS = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
"""Environment variables that pytest, and torch as soon as it looks at its compiler's settings, set for themselves."""


def global_state() -> dict[str, Any]:
    """All of it, by name. What belongs to torch is there only once torch is loaded."""
    torch = sys.modules.get("torch")
    return process_state() | (torch_state(torch) if torch else {})


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs, in words; names that only one side has were not measured on the other."""
    return [f"{name}: {_difference(before[name], after[name])}" for name in before if before[name] != after[name]]


def _difference(before: object, after: object) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in before | after if before.get(key) != after.get(key)]
        return ", ".join(f"{key}: {before.get(key)!r} → {after.get(key)!r}" for key in keys)
    return f"{before!r} → {after!r}"


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
        "environment": {name: value for name, value in os.environ.items() if name not in _SET_BY_TOOLS},
        "stack limit": resource.getrlimit(resource.RLIMIT_STACK),
        "thread stack size": threading.stack_size(),
        "garbage collection": gc.isenabled(),
        "gc.callbacks": [callback for callback in gc.callbacks if "hypothesis" not in callback.__module__],
    }


def torch_state(torch: ModuleType) -> dict[str, Any]:
    """What a test may change in torch and must put back."""
    module = torch.nn.modules.module
    top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)  # not in torch 2.4
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
        "saved tensor hooks": top_hooks(True) is None,  # noqa: FBT003
        "global module hooks": {name: len(getattr(module, name)) for name in hooks},
        "functions of torch": (torch.autograd._engine_run_backward, torch.autograd.graph._engine_run_backward),
    }


def random_states() -> dict[str, object]:
    """Where the random generators of Python, numpy and torch stand, as far as they are loaded."""
    states: dict[str, object] = {"random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = repr(sys.modules["numpy"].random.get_state())
    if "torch" in sys.modules:
        states["torch"] = bytes(sys.modules["torch"].get_rng_state().tolist())
    return states
