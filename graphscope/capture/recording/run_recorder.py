"""A recorder that also counts: memory alive, dropout at work. Composite ops of ``inference_mode`` are taken apart.

Under ``inference_mode`` torch hands ops such as ``linear`` and ``dropout`` down whole, which autograd
otherwise takes apart on the way. Taking them apart here too makes runs comparable; what is computed is the same.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from graphscope.capture.recording.record import Recorder
from graphscope.capture.walking.tensors import is_tensor, storage_of

_COMPOSITE: Any = torch._C.DispatchKey.CompositeImplicitAutograd

_DROPPING_OPS = frozenset({"aten::bernoulli", "aten::bernoulli_", "aten::native_dropout", "aten::_fused_dropout"})
_DROPOUT_ARGUMENTS = frozenset({"dropout_p", "dropout"})
"""Of attention and recurrent ops: the probability with which they drop."""


class LiveMemory:
    """Bytes that results of ops take while they live, each storage once."""

    def __init__(self) -> None:
        """Begin with none."""
        self.bytes = 0
        self.peak = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def note(self, result: Any, args: tuple[Any, ...]) -> None:
        """Count the memory of what an op returned, unless it is that of an argument."""
        for tensor in _tensors(result):
            storage = storage_of(tensor)
            if storage is None or storage._cdata in self._alive:
                continue
            key = storage._cdata
            if any((known := storage_of(one)) is not None and known._cdata == key for one in _tensors(args)):
                continue
            size = storage.nbytes()
            self._alive[key] = weakref.ref(storage, functools.partial(self._forget, key, size))
            self.bytes += size
            self.peak = max(self.peak, self.bytes)

    def _forget(self, key: int, size: int, _: object) -> None:
        del self._alive[key]
        self.bytes -= size


class RunRecorder(Recorder):
    """The recorder of one run of a comparison."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        super().__init__()
        self.memory = LiveMemory()
        self.dropout_active = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take a composite op apart, or note it, run it, and count."""
        keywords = kwargs or {}
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with self:
                return func._op_dk(_COMPOSITE, *args, **keywords)
        self.dropout_active = self.dropout_active or _drops(func, args, keywords)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.memory.note(result, args)
        return result


@functools.cache
def _is_composite(func: Any) -> bool:
    """The very kernel is there that autograd would run; ``func.decompose()`` has another one for some ops."""
    return hasattr(func, "_op_dk") and bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


def _drops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The op sets random elements to zero, or does so among other things."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return False
    if schema.name in _DROPPING_OPS:
        return True
    names = [argument.name for argument in schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get("train") is False:
        return False
    return any(isinstance(given.get(name), float) and given[name] > 0 for name in _DROPOUT_ARGUMENTS)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if is_tensor(values):
        yield values
    elif isinstance(values, (list, tuple)):
        for member in values:
            yield from _tensors(member)
