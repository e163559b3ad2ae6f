"""Which memory belongs to whom while a program is recorded: what made it, what wrote to it, who shares it.

Addresses are read without touching: ``data_ptr()`` would copy a storage that is copied on write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from graphscope.capture.recording.oprecords import Known, Source, StorageWrite
from graphscope.capture.walking.tensors import BASE, storage_key, version_of

storage_address: Callable[[torch.Tensor], int] = torch._C._storage_address  # type: ignore[attr-defined]
data_address: Callable[[torch.Tensor], int] = torch._C._data_address  # type: ignore[attr-defined]

_NO_STORAGE = (RuntimeError, NotImplementedError)
"""What torch raises for tensors without memory of their own."""


_new = tuple.__new__


class Memory:
    """The memory of the tensors of one recording. It keeps none of it alive."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.writes: dict[int, list[StorageWrite]] = {}
        """Writes in place by the ``_cdata`` of the storage they went to, in the order of the ops."""
        self.makers: dict[int, tuple[int, Source]] = {}
        """What made each storage, by its ``_cdata``, and its address, lest another storage took its place unseen."""
        self._by_address: dict[int, Known] = {}
        self._unlisted: list[Known] = []
        """Tensors that ``_by_address`` does not list yet: most die before anybody asks."""
        self.list_later = self._unlisted.append

    def note_maker(self, tensor: torch.Tensor, source: Source) -> None:
        """Remember what made some memory, also beyond the tensor's life: ``parameter.data = a * b``."""
        try:  # noqa: SIM105  a block of its own takes six times as long
            self.makers[storage_address(tensor)] = (data_address(tensor), source)
        except _NO_STORAGE:
            pass

    def maker(self, tensor: torch.Tensor) -> Source | None:
        """What made the memory of a tensor."""
        address, maker = self.makers.get(storage_key(tensor) or 0, (0, None))
        with contextlib.suppress(*_NO_STORAGE):
            return maker if maker is not None and address == data_address(tensor) else None
        return None

    def note_write(self, tensor: torch.Tensor, index: int) -> None:
        """Note that an op wrote to a tensor in place."""
        try:
            writes = self.writes.setdefault(storage_address(tensor), [])
            if not writes or writes[-1].op != index:
                version = None if BASE.is_inference(tensor) else version_of(tensor)
                layout = (BASE.storage_offset(tensor), BASE.size(tensor), BASE.stride(tensor))
                writes.append(_new(StorageWrite, (index, version, layout)))
        except _NO_STORAGE:
            pass

    def neighbour(self, tensor: torch.Tensor) -> Source | None:
        """A living tensor that shares memory with one met for the first time: an alias made without autograd."""
        for known in self._unlisted:
            held = known.tensor()
            if held is not None:
                self._by_address[_address(held)] = known
        self._unlisted.clear()
        address = _address(tensor)
        found = self._by_address.get(address) if address else None
        return found.source if found is not None and found.tensor() is not None else None


def extent_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Which elements of its storage a dense tensor covers: offset, then size and stride of each dimension."""
    return StorageWrite(0, None, (BASE.storage_offset(tensor), BASE.size(tensor), BASE.stride(tensor))).extent


def _address(tensor: torch.Tensor) -> int:
    """Where the storage lies, which survives a round trip through numpy; 0 for tensors without memory."""
    try:
        address = data_address(tensor)
        return address - BASE.storage_offset(tensor) * BASE.element_size(tensor) if address else 0
    except _NO_STORAGE:
        return 0
