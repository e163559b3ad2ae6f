"""From the value of a name to tensors: call what has to be called.

A function is called without arguments, a module with the tensors of ``--input``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard

from graphscope.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from graphscope_cli.request import InputSpec
    from graphscope_cli.targets import Runner

_USUAL_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool", "complex64")


def call_function(value: object, name: str, run: Runner) -> object:
    """The value itself, or what it returns if it is a function.

    Raises:
        InputError: if it is a class, needs arguments, or does not return at once.
    """
    if is_module(value) or not callable(value):
        return value
    if inspect.isclass(value):
        raise InputError(f"{name} is a class. Name an instance of it, or a function that makes and returns one.")
    _refuse_arguments(value, name)
    result = run(value)
    if inspect.iscoroutine(result):
        result.close()
        raise InputError(f"{name} is an async function. Name a plain function that returns tensors.")
    if inspect.isgenerator(result):
        raise InputError(f"{name} is a generator. Name a plain function that returns tensors.")
    return result


def is_module(value: object) -> TypeGuard[nn.Module]:
    """A module of torch."""
    from torch import nn

    return isinstance(value, nn.Module)


def _refuse_arguments(function: Callable[..., object], name: str) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a builtin that does not tell
        return
    try:
        signature.bind()
    except TypeError:
        needed = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        ]
        message = (
            f"{name}() cannot be called without {', '.join(needed)}, and graphscope calls it without arguments. "
            "Give defaults, or name a small function that calls it."
        )
        raise InputError(message) from None


def make_inputs(module: nn.Module, name: str, specs: Sequence[InputSpec]) -> list[torch.Tensor]:
    """Tensors to call a module with: numbers in [0, 1), zeros where the dtype is an integer one.

    They are on the device of the module's first parameter, and made without the global random state.

    Raises:
        InputError: if there is no such dtype.
    """
    import torch

    if not specs:
        raise InputError(f"{name} is a module. Say what to call it with: --input 1,3,224,224 (once for each argument).")
    first = next(iter(module.parameters()), None)
    device = torch.device("cpu") if first is None else first.device
    generator = torch.Generator().manual_seed(0)
    return [_make_tensor(spec, generator).to(device) for spec in specs]


def _make_tensor(spec: InputSpec, generator: torch.Generator) -> torch.Tensor:
    import torch

    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        close = difflib.get_close_matches(spec.dtype, _USUAL_DTYPES, n=2) or _USUAL_DTYPES
        raise InputError(f"torch has no dtype {spec.dtype!r}. Did you mean {' or '.join(close)}?")
    if dtype.is_floating_point or dtype.is_complex:
        wide = dtype if dtype.is_complex else torch.float32
        return torch.rand(spec.shape, dtype=wide, generator=generator).to(dtype)
    return torch.zeros(spec.shape, dtype=dtype)
