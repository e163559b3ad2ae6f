"""The facts of one tensor.

They are read through ``torch._C.TensorBase`` rather than from the tensor, past any property, ``__getattr__`` or
``__getattribute__`` of a subclass; ``torch._C.DisableTorchFunction`` (``walk.quiet_look``) keeps ``__torch_function__``
from running. What torch itself cannot tell of some tensor (no storage, no single shape) is ``None``.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from graphscope.model import TensorInfo

BASE: Any = torch._C.TensorBase

_shape = BASE.shape.__get__
_nbytes = BASE.nbytes.__get__
device_of = BASE.device.__get__
_layout = BASE.layout.__get__
_dictionary = torch.Tensor.__dict__["__dict__"].__get__

dtype_of = BASE.dtype.__get__
version_of = BASE._version.__get__
requires_grad = BASE.requires_grad.__get__
_is_leaf = BASE.is_leaf.__get__
grad_fn = BASE.grad_fn.__get__
output_number = BASE.output_nr.__get__
gradient = BASE.grad.__get__
_base = BASE._base.__get__
retains_grad = BASE.retains_grad.__get__

_hooks = BASE._backward_hooks.__get__
_hooks_after_accumulation = BASE._post_accumulate_grad_hooks.__get__

NOT_TOLD = (RuntimeError, TypeError)
"""What torch raises where a tensor has no storage, no single shape, or sizes that are symbols."""

storage_with_memory = BASE.untyped_storage
"""The memory behind a dense tensor; raises of others."""

_storage_key = operator.attrgetter("_cdata")

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class _Told(dict[Any, Any]):
    """What is told of each of a few values, made at the first use."""

    def __init__(self, tell: Callable[[Any], Any]) -> None:
        super().__init__()
        self._tell = tell

    def __missing__(self, value: Any) -> Any:
        told = self[value] = self._tell(value)
        return told


_dtype_names = _Told(lambda dtype: str(dtype).removeprefix("torch."))
_device_names = _Told(str)
_layout_names = _Told(lambda layout: None if layout is torch.strided else str(layout).removeprefix("torch."))

_new = tuple.__new__
"""Makes a record from a tuple of all its fields in order, at a third of the cost of a call by field."""


def is_tensor(value: object) -> bool:
    """``isinstance`` would go on to ask the ``__class__`` of a value that is none, which may be user code."""
    return issubclass(type(value), BASE)


def is_parameter(tensor: torch.Tensor) -> bool:
    """As ``isinstance(tensor, nn.Parameter)``, which would ask a subclass for an attribute."""
    kind = type(tensor)
    if kind in PLAIN:
        return kind is torch.nn.Parameter
    return issubclass(kind, torch.nn.Parameter) or bool(_dictionary(tensor).get("_is_param", False))


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """What the user has set on a tensor, past any property of a subclass."""
    stored: dict[str, Any] = _dictionary(tensor)
    return stored


def tensor_info(tensor: torch.Tensor, names: tuple[str, ...]) -> TensorInfo:
    """Everything that a graph tells of a tensor in hand."""
    inference = BASE.is_inference(tensor)
    return TensorInfo(
        shape_of(tensor),
        dtype_name(dtype_of(tensor)),
        device_name(device_of(tensor)),
        names,
        requires_grad(tensor),
        is_leaf(tensor),
        inference,
        BASE._is_view(tensor),
        None if inference else version_of(tensor),
        _layout_names[_layout(tensor)],
        None if type(tensor) in PLAIN else type(tensor).__name__,
    )


def tensor_infos(given: Sequence[torch.Tensor], names: Iterable[tuple[str, ...]]) -> list[TensorInfo]:
    """``tensor_info`` of each; where nothing is out of the ordinary column by column, in half the time."""
    if not PLAIN.issuperset(map(type, given)):
        return list(map(tensor_info, given, names))
    try:
        columns = zip(
            shapes_of(given),
            dtype_names_of(given),
            map(_device_names.__getitem__, map(operator.attrgetter("device"), given)),
            names,
            map(operator.attrgetter("requires_grad"), given),
            map(operator.attrgetter("is_leaf"), given),
            itertools.repeat(False),  # noqa: FBT003  no inference tensor, or its version would be refused
            map(BASE._is_view, given),
            versions_of(given),
            map(_layout_names.__getitem__, map(operator.attrgetter("layout"), given)),
            itertools.repeat(None),
            strict=False,
        )
        return list(map(_new, itertools.repeat(TensorInfo), columns))
    except NOT_TOLD:
        return list(map(tensor_info, given, names))


def shapes_of(given: Sequence[torch.Tensor]) -> Iterable[tuple[int, ...]]:
    """Sizes of each tensor of a plain type, which has no symbols. Raises of strided nested tensors."""
    return map(tuple, map(operator.attrgetter("shape"), given))


def sizes_of(given: Sequence[torch.Tensor]) -> Iterable[int]:
    """Bytes of the elements of each tensor of a plain type. Raises of sparse tensors."""
    return map(operator.attrgetter("nbytes"), given)


def versions_of(given: Sequence[torch.Tensor]) -> Iterable[int]:
    """The version counter of each tensor of a plain type. Raises of inference tensors."""
    return map(operator.attrgetter("_version"), given)


def dtype_names_of(given: Sequence[torch.Tensor]) -> Iterable[str]:
    """``dtype_name`` of each tensor of a plain type."""
    return map(_dtype_names.__getitem__, map(operator.attrgetter("dtype"), given))


def metadata_info(metadata: Any) -> TensorInfo:
    """One output of a forward op as its backward node knows it. It requires grad, or the node would not have it."""
    shape = _sizes(metadata.shape) if not metadata.is_cpp_nested_tensor else None
    return TensorInfo(shape, dtype_name(metadata.dtype), device_name(metadata.device), (), True, False)


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(_dtype_names[dtype])


def device_name(device: torch.device) -> str:
    """``cuda:0`` for ``torch.device("cuda", 0)``."""
    return str(_device_names[device])


def shape_of(tensor: torch.Tensor) -> tuple[int | str, ...] | None:
    """Sizes as plain numbers, a symbolic size as its text; ``None`` where there is no single shape."""
    try:
        return _sizes(_shape(tensor))
    except NOT_TOLD:  # strided nested tensors
        return None


def _sizes(shape: Any) -> tuple[int | str, ...]:
    for size in shape:
        if type(size) is not int:
            return tuple(size if type(size) is int else str(size) for size in shape)
    return tuple(shape)


def byte_count(tensor: torch.Tensor) -> int | None:
    """Bytes of the elements; ``None`` of sparse tensors."""
    try:
        return int(_nbytes(tensor))
    except NOT_TOLD:
        return None


def element_count(tensor: torch.Tensor) -> int:
    """Number of elements; 0 where it is no plain number."""
    try:
        return int(BASE.numel(tensor))
    except NOT_TOLD:
        return 0


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory behind a tensor; ``None`` of sparse tensors and of some wrapped ones."""
    try:
        storage: torch.UntypedStorage = BASE.untyped_storage(tensor)
    except NOT_TOLD:
        return None
    return storage


def storage_key(tensor: torch.Tensor) -> int | None:
    """A key that two tensors share exactly when they share memory, while both live."""
    storage = storage_of(tensor)
    return None if storage is None else int(storage._cdata)


def storage_keys(given: Sequence[torch.Tensor]) -> set[int]:
    """The keys of many tensors, as far as they have one."""
    try:
        return set(map(_storage_key, map(storage_with_memory, given)))
    except NOT_TOLD:
        return {key for key in map(storage_key, given) if key is not None}


def memory_place(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """A key that two tensors share exactly when they are the same elements of the same memory, while both live."""
    try:
        key = storage_key(tensor)
        place = (key, BASE.storage_offset(tensor), tuple(_shape(tensor)), tuple(BASE.stride(tensor)))
    except NOT_TOLD:
        return None
    return None if key is None else place


def gradients(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """``.grad`` of each; not asked of what is no leaf any more, where torch would warn."""
    try:
        if all(map(_is_leaf, leaves)):
            return list(map(gradient, leaves))
    except NOT_TOLD:
        pass
    return [gradient(leaf) if is_leaf(leaf) else None for leaf in leaves]


def hook_counts(given: Sequence[torch.Tensor]) -> Iterable[int]:
    """``hook_count`` of each."""
    without = not any(map(_hooks, given)) and not any(map(_hooks_after_accumulation, given))
    return itertools.repeat(0, len(given)) if without else map(hook_count, given)


def hook_count(tensor: torch.Tensor) -> int:
    """Hooks that a backward runs when it comes to this tensor: ``register_hook`` and its post-accumulate sibling."""
    return len(_hooks(tensor) or ()) + len(_hooks_after_accumulation(tensor) or ())


def is_leaf(tensor: torch.Tensor) -> bool:
    """``is_leaf``; false also of a view of which torch refuses to tell, see ``history_of``."""
    try:
        return bool(_is_leaf(tensor))
    except RuntimeError:
        return False


def non_leaves(given: Collection[torch.Tensor]) -> list[torch.Tensor]:
    """Those of many tensors that are no leaves."""
    try:
        return list(itertools.compress(given, map(operator.not_, map(_is_leaf, given))))
    except RuntimeError:
        return [tensor for tensor in given if not is_leaf(tensor)]


def history_of(tensor: torch.Tensor) -> Any:
    """``grad_fn``; ``None`` also where torch refuses to tell.

    It does of a view that was made by a custom Function or under ``no_grad``, once its base was written in place.
    """
    try:
        return grad_fn(tensor)
    except RuntimeError:
        return None


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a tensor is a view of."""
    base: torch.Tensor | None = _base(tensor) if BASE._is_view(tensor) else None
    return base
