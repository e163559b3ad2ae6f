"""The facts of one tensor.

They are read through ``torch._C.TensorBase`` rather than from the tensor, past any property, ``__getattr__`` or
``__getattribute__`` of a subclass; ``torch._C.DisableTorchFunction`` (``walk.quiet_look``) keeps ``__torch_function__``
from running. What torch itself cannot tell of some tensor (no storage, no single shape) is ``None``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
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

_usual_facts = operator.attrgetter("shape", "dtype", "device", "requires_grad", "is_leaf", "_version", "layout")
"""In one call, of tensors that are no inference tensors and have a single shape."""

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})

DTYPE_NAMES: dict[torch.dtype, str] = {}
_DEVICE_NAMES: dict[torch.device, str] = {}

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
    if type(tensor) in PLAIN:
        try:
            shape, dtype, device, tracked, leaf, version, layout = _usual_facts(tensor)
            record = (
                _sizes(shape), DTYPE_NAMES[dtype], _DEVICE_NAMES[device], names, tracked, leaf, False,
                tensor._is_view(), version, None if layout is torch.strided else _layout_name(layout), None,
            )  # fmt: skip
            return _new(TensorInfo, record)
        except (KeyError, *NOT_TOLD):
            pass
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
        _layout_name(_layout(tensor)),
        None if type(tensor) in PLAIN else type(tensor).__name__,
    )


def metadata_info(metadata: Any) -> TensorInfo:
    """One output of a forward op as its backward node knows it. It requires grad, or the node would not have it."""
    shape = _sizes(metadata.shape) if not metadata.is_cpp_nested_tensor else None
    return TensorInfo(shape, dtype_name(metadata.dtype), device_name(metadata.device), (), True, False)


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    name = DTYPE_NAMES.get(dtype)
    if name is None:
        name = DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


def _layout_name(layout: torch.layout) -> str | None:
    return None if layout is torch.strided else str(layout).removeprefix("torch.")


def device_name(device: torch.device) -> str:
    """``cuda:0`` for ``torch.device("cuda", 0)``."""
    name = _DEVICE_NAMES.get(device)
    if name is None:
        name = _DEVICE_NAMES[device] = str(device)
    return name


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
        return {BASE.untyped_storage(tensor)._cdata for tensor in given}
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


def hook_count(tensor: torch.Tensor) -> int:
    """Hooks that a backward runs when it comes to this tensor: ``register_hook`` and its post-accumulate sibling."""
    return len(_hooks(tensor) or ()) + len(_hooks_after_accumulation(tensor) or ())


def is_leaf(tensor: torch.Tensor) -> bool:
    """``is_leaf``; false also of a view of which torch refuses to tell, see ``history_of``."""
    try:
        return bool(_is_leaf(tensor))
    except RuntimeError:
        return False


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
