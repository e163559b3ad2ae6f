"""The records that a recorder makes: ops, the leaves they read, and where each tensor came from."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from graphscope.capture.code.source import Line, Lines
from graphscope.capture.recording.subclasses import MAKERS
from graphscope.capture.walking.optypes import NodeType, base_name
from graphscope.model import TensorInfo

OP, LEAF, NODE = "op", "leaf", "node"


class Source(NamedTuple):
    """Where a tensor came from: output ``output`` of something that the log knows."""

    kind: str
    """``op``, ``leaf`` or ``node`` (a backward node that was made unseen)."""
    index: int  # type: ignore[assignment]  # hides the method of tuples, which nobody calls here
    output: int = 0


class Input(NamedTuple):
    """One tensor argument."""

    source: Source
    requires_grad: bool
    place: int
    """Among the schema's arguments, see ``ArgumentNames``."""


NEEDS_GRAD, IS_LEAF, INFERENCE_TENSOR, VIEW = 1, 2, 4, 8
UNTOLD = -1
"""Flags of a tensor that died before they could be read."""

AUTOCAST, IN_BACKWARD, RAISED, DIRECT = 1, 2, 4, 8
"""Circumstances of an op; ``DIRECT``: the user's own line called it, no function of torch or of a package."""

TRAINING, EVALUATING, OUTER = 16, 32, 2
"""Further ones: the flag of the module that it ran in, and ``OUTER`` bits higher that of the outermost module."""

_QUERIES = frozenset(
    [
        "aten::dim",
        "aten::is_contiguous",
        "aten::is_non_overlapping_and_dense",
        "aten::is_strides_like_format",
        "aten::numel",
        "aten::size",
        "aten::storage_offset",
        "aten::stride",
        "aten::sym_is_contiguous",
        "aten::sym_numel",
        "aten::sym_size",
        "aten::sym_storage_offset",
        "aten::sym_stride",
    ]
)
"""By these, and by all of ``prim::``, torch asks a tensor subclass for facts, also in the middle of an op."""

_FRESH = frozenset({"aten::lift_fresh", "aten::lift", "aten::lift_fresh_copy"})
"""Ops that only hand a constant over to the program."""

FIRST = frozenset({0})
"""Writes of an op that writes into its first argument alone; this very object."""

CARRIES_GRADIENT = ("float", "bfloat", "complex")
"""What names of dtypes that can require grad begin with."""

IN_LIST = 8
"""Bits of an argument's place; those above count the members of a list from 1."""


class Entry(NamedTuple):
    """What switched the mode."""

    mode: str
    """What torch says: ``no_grad`` or ``inference_mode``; or the kind of block that switched it off by itself:
    ``custom_function``, ``checkpoint``."""
    entered: str
    """``with``, ``decorator``, ``statement``, ``generator``, ``library`` or ``unknown``."""
    line: Line | None
    word: str
    """The call as it is written: ``no_grad``, ``set_grad_enabled(False)``."""


class Run(NamedTuple):
    """Consecutive ops under one switch of the grad mode."""

    entry: Entry
    outside: tuple[Entry, ...]
    """Further switches in force around it, innermost first."""


class Op(NamedTuple):
    """One op that ran."""

    func: Any
    mode: str
    number: int
    """What torch would number its next backward node by when the op began; -1 where it could not make one."""
    inputs: tuple[Input, ...]
    line: Line | None
    """The user's."""
    inner: Line | None
    """The innermost line that is not plumbing."""
    run: Run | None
    """The ops under one switch that it belongs to; ``None`` where gradients are on."""
    module: int
    """Place in the recorder's list of module calls; -1 outside of all modules."""
    circumstances: int

    @property
    def entry(self) -> Entry | None:
        """What switched gradients off."""
        return None if self.run is None else self.run.entry

    @property
    def lines(self) -> Lines:
        """Where it was called."""
        return Lines(self.line, self.inner, bool(self.circumstances & DIRECT))

    @property
    def training(self) -> tuple[bool | None, bool | None] | None:
        """The flag of the module that it ran in, and of the outermost one; ``None`` outside of all modules."""
        if self.module < 0:
            return None
        return _flag(self.circumstances), _flag(self.circumstances >> OUTER)

    @property
    def raised(self) -> bool:
        """It ended with an error."""
        return bool(self.circumstances & RAISED)

    @property
    def in_backward(self) -> bool:
        """It ran while torch's engine did: a checkpoint computed again, a derivative that is tracked itself."""
        return bool(self.circumstances & IN_BACKWARD)


def _flag(circumstances: int) -> bool | None:
    if not circumstances & (TRAINING | EVALUATING):
        return None
    return bool(circumstances & TRAINING)


class Leaf(NamedTuple):
    """A tensor that no recorded op made."""

    tensor: weakref.ref[torch.Tensor]
    info: TensorInfo
    parameter: bool
    alias: Source | None
    """What shares its memory, or the very tensor before it was made a leaf by ``requires_grad_()``."""
    maker: Op | None
    """The factory that made it, or its memory, during the recording, such as ``torch.zeros``."""


class StorageWrite(NamedTuple):
    """A write in place into some memory."""

    op: int
    """Place of the op that wrote."""
    version: int | None
    """Version counter of the tensor before it; ``None`` of inference tensors."""
    layout: tuple[int, Sequence[int], Sequence[int]]
    """Offset, sizes and strides of the tensor."""

    @property
    def extent(self) -> tuple[Any, ...]:
        """Which elements: offset, then size and stride of each dimension, the widest step first."""
        offset, sizes, strides = self.layout
        dimensions = [pair for pair in zip(sizes, strides, strict=True) if pair[0] != 1]
        return (offset, *sorted(dimensions, key=lambda pair: -pair[1]))


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


class Known:
    """A living tensor."""

    __slots__ = ("memory", "source", "tensor", "time", "tracked")

    def __init__(self, tensor: torch.Tensor, source: Source, time: int) -> None:
        self.tensor = weakref.ref(tensor)
        self.source = source
        self.time = time
        """Count of ops when it got this source."""
        self.tracked: bool | None = None
        """If ``requires_grad`` is still this, and the memory the same, the source holds without looking further;
        ``None``: look."""
        self.memory: int | None = None
        """Of a leaf: the ``_cdata`` of its storage."""


class ArgumentNames(dict[int, str | None]):
    """``mat2``, or ``tensors[1]`` for a member of a list, by the place of an ``Input``."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, place: int) -> str | None:
        member, argument = (place >> IN_LIST) - 1, place & ((1 << IN_LIST) - 1)
        name = self._names[argument] if argument < len(self._names) else None
        told = self[place] = name if name is None or member < 0 else f"{name}[{member}]"
        return told


class Signature:
    """What an op's schema says."""

    __slots__ = (
        "argument_names",
        "each",
        "first_gradient",
        "fresh",
        "func",
        "makes",
        "name",
        "names",
        "places",
        "query",
        "writes",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        schema = getattr(func, "_schema", None)  # higher-order ops have none
        arguments = schema.arguments if schema is not None else ()
        qualified = schema.name if schema is not None else str(func)
        self.name = base_name(qualified)
        self.names = tuple(argument.name for argument in arguments)
        self.argument_names = ArgumentNames(self.names)
        self.places = {name: place for place, name in enumerate(self.names)}
        writes = frozenset(
            place
            for place, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        self.writes = FIRST if writes == FIRST else writes
        """Places of the arguments that are written in place."""
        self.each = qualified.startswith("aten::_foreach_")
        """It does something to each tensor of a list."""
        self.query = qualified in _QUERIES or qualified.startswith("prim::")
        self.fresh = qualified in _FRESH
        self.makes = qualified in MAKERS
        """A constructor of a tensor subclass may end with it."""
        self.first_gradient = qualified == "aten::ones_like"
        """torch may make the first gradient of a backward by it."""


known_signatures: dict[int, Signature] = {}
"""By ``id``: ops hash themselves in Python, which takes as long as all the rest. A signature holds its op."""


def signature_of(func: Any) -> Signature:
    """What an op's schema says, looked up once."""
    known = known_signatures.get(id(func))
    if known is None:
        known = known_signatures[id(func)] = Signature(func)
    return known
