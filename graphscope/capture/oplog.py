"""What a recorder notes while the program runs: ops, where their inputs came from, what they returned.

Tensors are followed by identity for as long as they live, through weak references: no activation lives a moment
longer for being recorded. What torch sets only after an op has returned (``requires_grad``, ``is_leaf``) is read
when the next op begins.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from graphscope.capture.optypes import NodeType, NodeTypes
from graphscope.capture.regions import GRAD, Entry
from graphscope.capture.source import Lines
from graphscope.capture.tensors import (
    BASE,
    NOT_TOLD,
    base_of,
    device_of,
    dtype_of,
    grad_fn,
    is_leaf,
    is_parameter,
    is_tensor,
    output_number,
    requires_grad,
    storage_of,
    tensor_info,
    version_of,
)
from graphscope.model import TensorInfo

_FRESH = frozenset({"aten::lift_fresh", "aten::lift", "aten::lift_fresh_copy"})
"""Ops that only hand a constant over to the program."""


class Source(NamedTuple):
    """Where a tensor came from: output ``output`` of something that the log knows."""

    kind: str
    """``op``, ``leaf`` or ``node`` (a backward node that was made unseen)."""
    index: int
    output: int = 0


class Input(NamedTuple):
    """One tensor argument."""

    source: Source
    requires_grad: bool
    argument: str


class Leaf(NamedTuple):
    """A tensor that no recorded op made."""

    tensor: weakref.ref[torch.Tensor]
    info: TensorInfo
    parameter: bool
    constant: bool
    """Made by a factory such as ``torch.zeros`` during the recording."""
    lines: Lines
    alias: Source | None
    """What shares its memory, or the very tensor before it was made a leaf by ``requires_grad_()``."""


class StorageWrite(NamedTuple):
    """A write in place into some memory."""

    op: int
    """Place of the op that wrote."""
    version: int | None
    """Version counter of the tensor before it; ``None`` of inference tensors."""
    extent: tuple[Any, ...]
    """Which elements: offset, sizes, strides."""


class Reassigned(NamedTuple):
    """A leaf that was given other memory: ``parameter.data = …``."""

    leaf: int
    origin: Source
    """What made the memory that it has now."""


class Unseen(NamedTuple):
    """A backward node that some tensor turned out to have though no recorded op made it."""

    number: int
    """Its ``_sequence_nr()``."""
    kind: NodeType
    info: TensorInfo
    before: Source | None
    """What the tensor was known as until then: the last op inside a custom Function's forward."""


class Op:
    """One op that ran. Mutable until the next one begins."""

    __slots__ = (
        "autocast",
        "entry",
        "func",
        "in_backward",
        "inputs",
        "lines",
        "mode",
        "module",
        "numbers",
        "outputs",
        "raised",
        "training",
        "writes",
    )

    def __init__(self, func: Any, mode: str, numbers: range) -> None:
        self.func = func
        self.inputs: tuple[Input, ...] = ()
        self.mode = mode
        self.numbers = numbers
        """Sequence numbers of the backward nodes made since the op before; its own is probably the last."""
        self.outputs: tuple[TensorInfo, ...] = ()
        self.writes: tuple[Source, ...] = ()
        self.entry: Entry | None = None
        self.lines = Lines(None, None)
        self.module = -1
        self.autocast = False
        self.in_backward = False
        self.raised = False
        self.training: tuple[bool | None, bool | None] | None = None
        """The flag of the module that it ran in, and of the outermost one."""


class Known(NamedTuple):
    """A living tensor."""

    tensor: weakref.ref[torch.Tensor]
    source: Source
    time: int
    """Count of ops when it got this source."""
    memory: int | None = None
    """Address of its memory then."""


class Signature(NamedTuple):
    """What an op's schema says."""

    names: tuple[str, ...]
    written: frozenset[str]
    fresh: bool


class OpLog:
    """Ops in the order they ran, and every tensor that is still alive."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.leaves: list[Leaf] = []
        self.unseen: list[Unseen] = []
        self.reassigned: list[Reassigned] = []
        self.storage_writes: dict[int, list[StorageWrite]] = {}
        """Writes in place by the storage they went to, in the order of the ops."""
        self._known: dict[int, Known] = {}
        self._memory: dict[int, Known] = {}
        self._write_times: dict[int, int] = {}
        self._arguments: list[tuple[str, torch.Tensor]] = []
        """Of the op that is running: held by its caller too."""
        self._unsettled: list[tuple[Source, weakref.ref[torch.Tensor]]] = []
        self._unsettled_writes: list[tuple[Source, weakref.ref[torch.Tensor], Source]] = []
        self._unsettled_leaves: list[int] = []
        """Results of factories: ``requires_grad=True`` is set only after the op has returned."""
        self._infos: dict[tuple[Any, ...], TensorInfo] = {}

    def begin(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], mode: str, numbers: range) -> Op:
        """Note an op and its inputs, before it runs."""
        self.settle()
        signature = _signature(func)
        self._arguments = [] if signature.fresh else list(_tensor_arguments(signature.names, args, kwargs))
        op = Op(func, mode, numbers)
        op.inputs = tuple(
            [Input(self.source_of(tensor), requires_grad(tensor), name) for name, tensor in self._arguments]
        )
        return op

    def finish(self, op: Op, result: Any) -> None:
        """Note what an op returned and wrote. A factory's result is a leaf, not the output of an op."""
        arguments, self._arguments = self._arguments, []
        written_names = _signature(op.func).written
        returned = [result] if is_tensor(result) else list(_tensors_in(result))
        if not op.inputs and not written_names:
            for tensor in returned:
                source = self._add_leaf(tensor, op.lines, constant=True, alias=self._neighbour(tensor))
                self._unsettled_leaves.append(source.index)
                self._remember(tensor, source)
            return
        index = len(self.ops)
        self.ops.append(op)
        written: list[torch.Tensor] = []
        if written_names:
            written = [tensor for name, tensor in arguments if name.partition("[")[0] in written_names]
            written += [base for tensor in written if (base := base_of(tensor)) is not None]
            returned += [tensor for tensor in written if not any(tensor is other for other in returned)]
        op.outputs = tuple([self._info_of(tensor, settled=False) for tensor in returned])
        changed = {id(tensor) for tensor in written}
        for tensor in written:
            self._note_write(tensor, index)
        for number, tensor in enumerate(returned):
            place = Source("op", index, number)
            reference = weakref.ref(tensor)
            self._unsettled.append((place, reference))
            if id(tensor) in changed:
                self._write_times[id(tensor)] = len(self.ops)
                self._unsettled_writes.append((place, reference, self.source_of(tensor)))
            else:
                self._remember(tensor, place)

    def settle(self) -> None:
        """Read what torch has set since the last op returned, and whether what was written in place is still a leaf."""
        for (_, index, number), reference in self._unsettled:
            tensor = reference()
            if tensor is not None:
                op = self.ops[index]
                info = self._info_of(tensor, settled=True)
                if op.mode != GRAD and info.is_leaf is False:  # a custom Function has put its own history on it
                    info = info._replace(requires_grad=False, is_leaf=True)
                op.outputs = (*op.outputs[:number], info, *op.outputs[number + 1 :])
        self._unsettled.clear()
        for index in self._unsettled_leaves:
            made = self.leaves[index].tensor()
            if made is not None:
                self.leaves[index] = self.leaves[index]._replace(info=self._info_of(made, settled=True))
        self._unsettled_leaves.clear()
        for place, reference, before in self._unsettled_writes:
            op, tensor = self.ops[place.index], reference()
            op.writes = (*op.writes, before)
            if tensor is not None and not (before.kind == "leaf" and is_leaf(tensor)):
                self._remember(tensor, place)
        self._unsettled_writes.clear()

    def source_of(self, tensor: torch.Tensor) -> Source:
        """Where a tensor came from; one never met before becomes a leaf."""
        known = self._known.get(id(tensor))
        if known is None or known.tensor() is not tensor:
            return self._meet(tensor)
        source = known.source
        if not requires_grad(tensor):
            return self._after_base_write(tensor, known) if BASE._is_view(tensor) else source
        if source.kind == "leaf":
            self.notice_other_memory(tensor, known)
            return source if is_leaf(tensor) else self._meet_unseen(tensor, source)
        if is_leaf(tensor):  # requires_grad_() on the result of an untracked op
            return self._made_leaf(tensor, source)
        stale = BASE._is_view(tensor) and self._write_times.get(id(base_of(tensor)), -1) > known.time
        if stale or (source.kind == "op" and self._is_untracked(source)):
            return self._meet_unseen(tensor, source)
        return source

    def _is_untracked(self, source: Source) -> bool:
        op = self.ops[source.index]
        return op.mode != GRAD or op.outputs[source.output].requires_grad is False

    def known_source(self, tensor: torch.Tensor) -> Source | None:
        """As ``source_of``, but ``None`` for a tensor that was never met."""
        known = self._known.get(id(tensor))
        return self.source_of(tensor) if known is not None and known.tensor() is tensor else None

    def ends(self) -> list[torch.Tensor]:
        """Living results of ops that no op has read."""
        read = {
            (one.source.index, one.source.output) for op in self.ops for one in op.inputs if one.source.kind == "op"
        }
        found = []
        for known in self._known.values():
            tensor = known.tensor()
            if (
                tensor is not None
                and known.source.kind == "op"
                and (known.source.index, known.source.output) not in read
            ):
                found.append(tensor)
        return found

    def notice_other_memory(self, tensor: torch.Tensor, known: Known | None = None) -> None:
        """Note a leaf whose memory is no longer that which it was met with, if an op is known that made it."""
        known = known or self._known.get(id(tensor))
        if known is None or known.tensor() is not tensor or known.source.kind != "leaf":
            return
        memory = _memory_key(tensor)
        if memory == known.memory or memory is None:
            return
        maker = self._memory.get(memory)
        if maker is not None and maker.source.kind == "op":
            self.reassigned.append(Reassigned(known.source.index, maker.source))
        self._known[id(tensor)] = known._replace(memory=memory)

    def _note_write(self, tensor: torch.Tensor, index: int) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        writes = self.storage_writes.setdefault(storage._cdata, [])
        if not writes or writes[-1].op != index:
            version = None if BASE.is_inference(tensor) else version_of(tensor)
            writes.append(StorageWrite(index, version, extent_of(tensor)))

    def _after_base_write(self, tensor: torch.Tensor, known: Known) -> Source:
        base = base_of(tensor)
        if base is None or self._write_times.get(id(base), -1) <= known.time:
            return known.source
        return self.source_of(base)

    def _made_leaf(self, tensor: torch.Tensor, source: Source) -> Source:
        if (
            source.kind == "op"
            and BASE._is_view(tensor)
            and self.ops[source.index].outputs[source.output].requires_grad
        ):
            return source  # a view of a leaf made under no_grad says it is a leaf that requires grad
        return self._remember(tensor, self._add_leaf(tensor, Lines(None, None), alias=source))

    def _meet(self, tensor: torch.Tensor) -> Source:
        if requires_grad(tensor) and not is_leaf(tensor):
            return self._meet_unseen(tensor, None)
        return self._remember(tensor, self._add_leaf(tensor, self._origin(tensor), alias=self._neighbour(tensor)))

    def _origin(self, tensor: torch.Tensor) -> Lines:
        """Where the memory of a tensor met for the first time was made, as in ``nn.Parameter(torch.empty(3))``."""
        key = _memory_key(tensor)
        known = self._memory.get(key) if key is not None else None
        if known is None or known.source.kind != "leaf":
            return Lines(None, None)
        return self.leaves[known.source.index].lines

    def _neighbour(self, tensor: torch.Tensor) -> Source | None:
        """A living tensor that shares memory with one met for the first time: an alias made without autograd."""
        key = _memory_key(tensor)
        known = self._memory.get(key) if key is not None else None
        return known.source if known is not None and known.tensor() is not None else None

    def _meet_unseen(self, tensor: torch.Tensor, before: Source | None) -> Source:
        node = grad_fn(tensor)
        if node is None:
            return before or self._add_leaf(tensor, Lines(None, None))
        info = self._info_of(tensor, settled=True)
        self.unseen.append(Unseen(node._sequence_nr(), NodeTypes().look_up(node), info, before))
        return self._remember(tensor, Source("node", len(self.unseen) - 1, output_number(tensor)))

    def _add_leaf(
        self, tensor: torch.Tensor, lines: Lines, *, constant: bool = False, alias: Source | None = None
    ) -> Source:
        parameter = is_parameter(tensor)
        info = self._info_of(tensor, settled=True)
        self.leaves.append(Leaf(weakref.ref(tensor), info, parameter, constant, lines, alias))
        return Source("leaf", len(self.leaves) - 1)

    def _remember(self, tensor: torch.Tensor, source: Source) -> Source:
        key = _memory_key(tensor)
        known = Known(weakref.ref(tensor), source, len(self.ops), key)
        self._known[id(tensor)] = known
        if key is not None:
            self._memory[key] = known
        return source

    def _info_of(self, tensor: torch.Tensor, *, settled: bool) -> TensorInfo:
        """One record for equal facts, however many tensors have them."""
        flags = (
            (requires_grad(tensor), is_leaf(tensor), BASE.is_inference(tensor), BASE._is_view(tensor))
            if settled
            else ()
        )
        try:
            key = (*BASE.size(tensor), dtype_of(tensor), device_of(tensor), type(tensor), *flags)
            known = self._infos.get(key)
        except NOT_TOLD:  # no single shape, or one with symbols
            return _plain_info(tensor, settled=settled)
        if known is None:
            known = self._infos[key] = _plain_info(tensor, settled=settled)
        return known


def _plain_info(tensor: torch.Tensor, *, settled: bool) -> TensorInfo:
    info = tensor_info(tensor, ())._replace(version=None)
    return info if settled else info._replace(requires_grad=None, is_leaf=None, is_inference=None, is_view=None)


def extent_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Which elements of its storage a dense tensor covers: offset, then size and stride of each dimension."""
    dimensions = zip(BASE.size(tensor), BASE.stride(tensor), strict=True)
    return (
        BASE.storage_offset(tensor),
        *sorted((pair for pair in dimensions if pair[0] != 1), key=lambda pair: -pair[1]),
    )


def _memory_key(tensor: torch.Tensor) -> int | None:
    """Address of the storage, which survives a round trip through numpy; not for tensors without memory."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None


@functools.cache
def _signature(func: Any) -> Signature:
    arguments = func._schema.arguments
    written = (a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    return Signature(tuple(a.name for a in arguments), frozenset(written), func._schema.name in _FRESH)


def _tensor_arguments(
    names: tuple[str, ...], args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in zip(names, args, strict=False):
        if is_tensor(value):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}[{place}]", member) for place, member in enumerate(value) if is_tensor(member))
    if kwargs:
        yield from _tensor_arguments(tuple(kwargs), tuple(kwargs.values()), {})


def _tensors_in(result: Any) -> Iterator[torch.Tensor]:
    if is_tensor(result):
        yield result
    elif isinstance(result, (list, tuple)):
        for member in result:
            yield from _tensors_in(member)
