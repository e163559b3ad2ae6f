"""Saved tensors, read without unpacking.

``node._raw_saved_x`` is torch's ``SavedTensor``; its ``data`` and ``unpack_hook`` tell everything and run nothing.
``node._saved_x`` unpacks: it may run the user's hooks or a whole checkpointed forward. It is read
here only where no unpack hook is set, and only to learn whether torch would refuse the
tensor because it was written in place since it was saved. No ``SavedTensor`` is kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from graphscope.capture.ids import numbered
from graphscope.capture.tensors import (
    DTYPE_NAMES,
    NOT_TOLD,
    PLAIN,
    byte_count,
    dtype_name,
    dtype_of,
    is_tensor,
    shape_of,
    storage_of,
    version_of,
)
from graphscope.model import SavedTensor, State, Storage

_PREFIX = "_raw_saved_"
_LIVE = State.LIVE  # an enum member costs a look-up each time it is named, which the hot path feels
_new = tuple.__new__
"""Makes a record from a tuple of all its fields in order, at a third of the cost of a call by field."""


class Slot(NamedTuple):
    """One saved slot of a backward node type."""

    name: str
    """For people: ``mat1``."""
    raw: str
    """Attribute that looks: ``_raw_saved_mat1``."""
    unpacking: str
    """Attribute that unpacks: ``_saved_mat1``."""


def slots_of(node_type: type) -> tuple[Slot, ...]:
    """The slots of a node type; looked up on the type, since ``dir()`` over a node may run user code."""
    names = (attribute.removeprefix(_PREFIX) for attribute in dir(node_type) if attribute.startswith(_PREFIX))
    return tuple(Slot(name, _PREFIX + name, "_saved_" + name) for name in names)


class SavedReader:
    """Reads the saved tensors of one graph and numbers their storages ``s0, s1, …`` in order of appearance."""

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}
        self._new_ids = numbered("s")
        self._sizes: list[int] = []

    def read(self, node: Any, slots: tuple[Slot, ...]) -> tuple[SavedTensor, ...]:
        """The saved tensors of one node, in the order of their slot names."""
        found: list[SavedTensor] = []
        empty: list[Slot] = []
        storages = self._ids
        for slot in slots:
            name, raw, unpacking = slot
            try:
                kept = getattr(node, raw)
            except RuntimeError:  # a list, or a Python Function, whose tensors were freed
                found.append(SavedTensor(name, State.FREED))
                continue
            if kept.__class__ is tuple:
                found += self._read_list(name, kept)
                continue
            data, hook = kept.data, kept.unpack_hook
            if hook is not None:
                found.append(self._packed(name, data))
                continue
            if data is None:
                empty.append(slot)
                continue
            if type(data) in PLAIN:
                try:  # as ``_live``, for what nearly all are: dense, and of no class of its own
                    storage = data.untyped_storage()
                    record = (
                        name, _LIVE, tuple(data.shape), DTYPE_NAMES[data.dtype], data.nbytes,
                        storages.get(storage._cdata) or self._add_storage(storage),
                        data._version != 0 and _raises(node, unpacking),
                    )  # fmt: skip
                    found.append(_new(SavedTensor, record))
                    continue
                except (KeyError, *NOT_TOLD):
                    pass
            found.append(self._live(name, data, version_of(data) != 0 and _raises(node, unpacking)))
        if empty and not found:  # all slots of a node are freed together; beside a live one, empty means never set
            found += [SavedTensor(slot.name, State.FREED) for slot in empty if _raises(node, slot.unpacking)]
        return tuple(found)

    def _read_list(self, name: str, slot: tuple[Any, ...]) -> list[SavedTensor]:
        found = []
        for index, member in enumerate(slot):
            if member is None:  # an absent index
                continue
            label, data = f"{name}[{index}]", member.data
            if member.unpack_hook is not None:
                found.append(self._packed(label, data))
            elif data is not None:  # save_for_backward(None)
                found.append(self._live(label, data, _member_modified(member, data)))
        return found

    def _packed(self, name: str, data: Any) -> SavedTensor:
        """What a pack hook returned; a placeholder of ``torch.utils.checkpoint`` is told apart by its type."""
        kind = type(data)
        if kind.__name__ == "_Holder" and kind.__module__ == "torch.utils.checkpoint":
            return SavedTensor(name, State.CHECKPOINTED)
        if is_tensor(data):
            return self._live(name, data, None)._replace(state=State.PACKED)
        return SavedTensor(name, State.PACKED)

    def _live(self, name: str, data: torch.Tensor, modified: bool | None) -> SavedTensor:  # noqa: FBT001
        storage = storage_of(data)
        storage_id = None if storage is None else self._ids.get(storage._cdata) or self._add_storage(storage)
        told = shape_of(data), dtype_name(dtype_of(data)), byte_count(data)
        return SavedTensor(name, State.LIVE, *told, storage_id, modified)

    def _add_storage(self, storage: torch.UntypedStorage) -> str:
        identity = self._ids[storage._cdata] = next(self._new_ids)
        self._sizes.append(int(storage.nbytes()))
        return identity

    def storages(self, parameters: set[int]) -> tuple[Storage, ...]:
        """Every storage met, given the keys of those that belong to parameters and buffers in sight."""
        met = zip(self._ids.items(), self._sizes, strict=True)
        return tuple([_new(Storage, (identity, size, key in parameters)) for (key, identity), size in met])


def _raises(node: Any, attribute: str) -> bool:
    """Whether torch refuses to hand the tensor out: freed, or written since it was saved. No hook is set.

    Of a tensor at version 0, to which nothing was ever written, it need not be asked.
    """
    try:
        getattr(node, attribute)
    except RuntimeError:
        return True
    return False


def _member_modified(member: Any, data: torch.Tensor) -> bool | None:
    """As for single slots; but unpacking a list member alone fails on a saved output, which tells nothing."""
    if version_of(data) == 0:
        return False
    try:
        member.unpack()
    except RuntimeError as error:
        return True if "modified by an inplace operation" in str(error) else None
    return False
