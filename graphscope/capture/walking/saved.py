"""Saved tensors, read without unpacking.

``node._raw_saved_x`` is torch's ``SavedTensor``; its ``data`` and ``unpack_hook`` tell everything and run nothing.
``node._saved_x`` unpacks: it may run the user's hooks or a whole checkpointed forward. It is read
here only where no unpack hook is set, and only to learn whether torch would refuse the
tensor because it was written in place since it was saved. No ``SavedTensor`` is kept.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from graphscope.capture.walking.ids import numbered
from graphscope.capture.walking.tensors import (
    NOT_TOLD,
    PLAIN,
    byte_count,
    dtype_name,
    dtype_names_of,
    dtype_of,
    is_tensor,
    shape_of,
    shapes_of,
    sizes_of,
    storage_of,
    storage_with_memory,
    version_of,
    versions_of,
)
from graphscope.model import SavedTensor, State, Storage

CAN_LOOK = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""Whether this torch shows a saved tensor without unpacking it; 2.4 does not."""

_PREFIX = "_raw_saved_"

_new = tuple.__new__
"""Makes a record from a tuple of all its fields in order, at a third of the cost of a call by field."""

_data = operator.attrgetter("data")
_unpack_hook = operator.attrgetter("unpack_hook")
_key = operator.attrgetter("_cdata")

_byte_count = torch.UntypedStorage.nbytes

_NONE = type(None)

_UNPACK = "unpack"
"""How members of a list are asked, which are no attributes of the node."""


class Slot(NamedTuple):
    """One saved slot of a backward node type."""

    name: str
    """For people: ``mat1``."""
    raw: str
    """Attribute that looks: ``_raw_saved_mat1``."""
    unpacking: str
    """Attribute that unpacks: ``_saved_mat1``."""


class _Found(NamedTuple):
    """Slots of many nodes, in order, by column."""

    places: list[int]
    """Which node each is of."""
    labels: list[str]
    kept: list[Any]
    """torch's ``SavedTensor`` of each."""
    askers: list[tuple[Any, str]]
    """How to have torch check a tensor: the node and an attribute, or the member of a list and ``_UNPACK``."""


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

    def read(self, nodes: Sequence[Any], slots: Sequence[tuple[Slot, ...]]) -> list[tuple[SavedTensor, ...]]:
        """The saved tensors of each node, in the order of their slot names.

        Where all are dense, of no class of their own and not packed, as nearly always, they are read column by column.
        """
        if not CAN_LOOK:
            return [tuple(SavedTensor(slot.name, State.UNAVAILABLE) for slot in its_slots) for its_slots in slots]
        columns = self._read_columns(nodes, slots)
        return list(map(self._read_node, nodes, slots)) if columns is None else columns

    def _read_columns(
        self, nodes: Sequence[Any], slots: Sequence[tuple[Slot, ...]]
    ) -> list[tuple[SavedTensor, ...]] | None:
        try:
            places, labels, kept, askers = _find(nodes, slots)
        except RuntimeError:  # something was freed
            return None
        data = list(map(_data, kept))
        held = [one is not None for one in data]
        tensors: list[torch.Tensor] = list(itertools.compress(data, held))
        if not (PLAIN.issuperset(map(type, tensors)) and {_NONE}.issuperset(map(type, map(_unpack_hook, kept)))):
            return None
        try:
            columns = zip(
                itertools.compress(labels, held),
                itertools.repeat(State.LIVE),
                shapes_of(tensors),
                dtype_names_of(tensors),
                sizes_of(tensors),
                self._number(list(map(storage_with_memory, tensors))),
                _modified(tensors, itertools.compress(askers, held)),
                strict=False,
            )
            records = list(map(_new, itertools.repeat(SavedTensor), columns))
        except NOT_TOLD:
            return None
        read: list[tuple[SavedTensor, ...]] = [()] * len(nodes)
        counts = Counter(itertools.compress(places, held))
        following = iter(records)
        for place, count in counts.items():
            read[place] = tuple(itertools.islice(following, count))
        for place in set(places).difference(counts):
            read[place] = self._read_node(nodes[place], slots[place])
        return read

    def _number(self, storages: Sequence[torch.UntypedStorage]) -> list[str]:
        """The id of each storage."""
        keys = list(map(_key, storages))
        first = dict(zip(keys, storages, strict=True))
        self._ids = dict(zip(first, self._new_ids, strict=False))
        self._sizes = list(map(_byte_count, first.values()))
        return list(map(self._ids.__getitem__, keys))

    def _read_node(self, node: Any, slots: tuple[Slot, ...]) -> tuple[SavedTensor, ...]:
        found: list[SavedTensor] = []
        empty: list[Slot] = []
        for slot in slots:
            try:
                kept = getattr(node, slot.raw)
            except RuntimeError:  # a list, or a Python Function, whose tensors were freed
                found.append(SavedTensor(slot.name, State.FREED))
                continue
            if kept.__class__ is tuple:
                found += self._read_list(slot.name, kept)
            elif kept.unpack_hook is not None:
                found.append(self._packed(slot.name, kept.data))
            elif kept.data is None:
                empty.append(slot)
            else:
                found.append(self._live(slot.name, kept.data, _is_modified(kept.data, node, slot.unpacking)))
        if empty and not found:  # all slots of a node are freed together; beside a live one, empty means never set
            found += [SavedTensor(slot.name, State.FREED) for slot in empty if _is_refused(node, slot.unpacking)]
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
                found.append(self._live(label, data, _is_modified(data, member, _UNPACK)))
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
        self._sizes.append(_byte_count(storage))
        return identity

    def storages(self, parameters: set[int]) -> tuple[Storage, ...]:
        """Every storage met, given the keys of those that belong to parameters and buffers in sight."""
        met = zip(self._ids.items(), self._sizes, strict=True)
        return tuple([_new(Storage, (identity, size, key in parameters)) for (key, identity), size in met])


def _find(nodes: Sequence[Any], slots: Sequence[tuple[Slot, ...]]) -> _Found:
    """Every slot that there is.

    Raises:
        RuntimeError: if the tensors of a list, or of a Python Function, were freed.
    """
    places: list[int] = []
    labels: list[str] = []
    kept: list[Any] = []
    askers: list[tuple[Any, str]] = []
    for place, its_slots in enumerate(slots):
        for name, raw, unpacking in its_slots:
            node = nodes[place]
            one = getattr(node, raw)
            if one.__class__ is not tuple:
                places.append(place)
                labels.append(name)
                kept.append(one)
                askers.append((node, unpacking))
                continue
            members = [(f"{name}[{index}]", member) for index, member in enumerate(one) if member is not None]
            for label, member in members:
                places.append(place)
                labels.append(label)
                kept.append(member)
                askers.append((member, _UNPACK))
    return _Found(places, labels, kept, askers)


def _modified(tensors: Sequence[torch.Tensor], askers: Iterable[tuple[Any, str]]) -> list[bool | None]:
    return [version != 0 and _was_written(*asker) for version, asker in zip(versions_of(tensors), askers, strict=False)]


def _is_modified(data: torch.Tensor, owner: Any, attribute: str) -> bool | None:
    """Whether a tensor was written since it was saved; at version 0 nothing was ever written to it."""
    return version_of(data) != 0 and _was_written(owner, attribute)


def _was_written(owner: Any, attribute: str) -> bool | None:
    """Let torch check a tensor, which may have been written before it was saved. No hook is set.

    Unpacking a member of a list alone fails on a saved output, which tells nothing.
    """
    if attribute is not _UNPACK:
        return _is_refused(owner, attribute)
    try:
        owner.unpack()
    except RuntimeError as error:
        return True if "modified by an inplace operation" in str(error) else None
    return False


def _is_refused(node: Any, attribute: str) -> bool:
    """Whether torch refuses to hand a tensor out: freed, or written since it was saved. No hook is set."""
    try:
        getattr(node, attribute)
    except RuntimeError:
        return True
    return False
