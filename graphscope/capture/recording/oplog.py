"""What a recorder notes while the program runs: ops, where their inputs came from, what they returned.

What torch sets only after an op has returned (``requires_grad``, ``is_leaf``) is read when the next op begins. All this
runs once per op, so it notes plain tuples and leaves the rest to ``merge.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from graphscope.capture.code.switches import GRAD
from graphscope.capture.recording.memory import data_address, storage_address
from graphscope.capture.recording.oprecords import (
    CARRIES_GRADIENT,
    FIRST,
    IN_LIST,
    INFERENCE_TENSOR,
    IS_LEAF,
    LEAF,
    NEEDS_GRAD,
    OP,
    RAISED,
    UNTOLD,
    VIEW,
    Input,
    Known,
    Op,
    Signature,
    Source,
    signature_of,
)
from graphscope.capture.recording.origins import Origins
from graphscope.capture.walking.tensors import (
    BASE,
    NOT_TOLD,
    PLAIN,
    base_of,
    history_of,
    is_leaf,
    is_tensor,
    output_number,
    requires_grad,
    tensor_info,
)
from graphscope.model import TensorInfo

_new = tuple.__new__
"""Makes a record from a tuple of all its fields in order, at a third of the cost of a call by field."""

_PATIENCE = 16
"""So many ops of another mode may come between an op and the flags of its result."""

_layout_of = BASE.layout.__get__
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_reference = weakref.ref


class OpLog(Origins):
    """Ops in the order they ran, what they returned and wrote."""

    def __init__(self) -> None:
        """Begin with nothing noted."""
        super().__init__()
        self._makers = self.memory.makers
        self.first_number = 0
        """What torch would have numbered its next backward node by when the recording began."""
        self.outputs: list[tuple[TensorInfo, ...]] = []
        """What each op returned, then what it wrote without returning it; names, flags and version left out."""
        self.numbers: dict[int, list[int]] = {}
        """Of ops with several outputs: which output of a backward node each is, -1 for none."""
        self.writes: dict[int, tuple[Source, ...]] = {}
        """What each op that writes in place wrote into, as it was before."""
        self._last: Known | None = None
        """The only output of the op before, if it is new and plain; its flags are still to be read."""
        self._last_write: tuple[Known, Source] | None = None
        """What the op before wrote into, and what that was, if it wrote into one plain tensor and returned it."""
        self._last_outputs: list[Known] = []
        """The outputs of the op before, if there are several, or they are not plain."""
        self._last_written: list[tuple[Known, Source]] = []
        """What the op before wrote in place, and what that was."""
        self._new_leaves: list[int] = []
        """Results of factories: ``requires_grad=True`` is set only after the op has returned."""
        self._doubtful: list[tuple[Known, int]] = []
        """Outputs that do not require grad, though their op probably made a backward node, and how often to look again:
        where another mode runs ops of its own before torch is done with this one, the flag comes later."""
        self._infos: dict[tuple[Any, ...], tuple[TensorInfo]] = {}
        self.odd = False
        """A tensor of some subclass has come: from then on everything is read past its ``__torch_function__``."""

    def begin(self, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[Input]:
        """Where the tensor arguments of an op come from, before it runs."""
        self.settle()
        inputs: list[Input] = []
        if signature.fresh:
            return inputs
        known_tensors = self._known
        for place, value in enumerate(args):
            kind = type(value)
            if kind is _Tensor or kind is _Parameter:
                tracked = value.requires_grad
                known = known_tensors.get(id(value))
                if (
                    known is not None
                    and known.tracked is tracked
                    and (known.memory is None or known.memory == storage_address(value))
                    and known.tensor() is value
                ):
                    inputs.append(_new(Input, (known.source, tracked, place)))
                else:
                    inputs.append(_new(Input, (self.source_of(value), tracked, place)))
            elif kind not in _NEVER_TENSORS:
                self._read_argument(value, place, inputs)
        if kwargs:
            for name, value in kwargs.items():
                if type(value) not in _NEVER_TENSORS:
                    self._read_argument(value, signature.places.get(name, len(signature.names)), inputs)
        return inputs

    def _read_argument(self, value: Any, place: int, inputs: list[Input]) -> None:
        """Add a tensor of any class, or the tensors in a list."""
        if is_tensor(value):
            if type(value) not in PLAIN:
                self.odd = True
            with torch._C.DisableTorchFunction():
                inputs.append(Input(self.source_of(value), requires_grad(value), place))
        elif isinstance(value, (list, tuple)):
            for number, member in enumerate(value):
                if is_tensor(member):
                    self._read_argument(member, place | (number + 1) << IN_LIST, inputs)

    def finish(
        self, op: Op, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any] | None, result: Any
    ) -> None:
        """Note what an op returned and wrote. A factory's result is a leaf, not the output of an op."""
        if type(result) is _Tensor and op.inputs:
            writes = signature.writes
            if not writes:
                self._finish_one(op, result)
                return
            if writes is FIRST and result is args[0] and not result._is_view():
                self._finish_write(op, result)
                return
        returned = list(_tensors_in(result))
        if not self.odd and any(type(tensor) not in PLAIN for tensor in returned):
            self.odd = True
            with torch._C.DisableTorchFunction():
                self.finish(op, signature, args, kwargs, result)
            return
        if op.inputs or signature.writes:
            written = _written(signature, args, kwargs)
            if signature.each and not returned and len(written) > 1:
                for each, tensor in zip(_split(op, len(written)), written, strict=True):
                    self._finish_several(each, [], [tensor])
            else:
                self._finish_several(op, returned, written)
            return
        for tensor in returned:
            alias = self.memory.neighbour(tensor) if signature.fresh else None
            source = self._remember(tensor, self._add_leaf(tensor, alias=alias, maker=op))
            self._new_leaves.append(source.index)
            self.memory.note_maker(tensor, source)

    def _finish_one(self, op: Op, tensor: torch.Tensor) -> None:
        """An op that returned one new tensor, as most do."""
        index = len(self.ops)
        self.ops.append(op)
        source = _new(Source, (OP, index, 0))
        try:
            self._makers[storage_address(tensor)] = (data_address(tensor), source)
            infos = self._infos[tensor.shape, tensor.dtype, tensor.device]
        except (KeyError, *NOT_TOLD):
            infos = self._infos_of(tensor)
        self.outputs.append(infos)
        self.flags.append(UNTOLD)
        known = self._last = self._known[id(tensor)] = Known(tensor, source, index + 1)
        self._list_later(known)

    def _finish_write(self, op: Op, tensor: torch.Tensor) -> None:
        """An op such as ``add_`` that wrote into one tensor, no view, and returned it."""
        index = len(self.ops)
        self.ops.append(op)
        self.outputs.append(self._infos_of(tensor))
        self.flags.append(UNTOLD)
        self._write_times[id(tensor)] = index + 1
        self.memory.note_write(tensor, index)
        self._last_write = (Known(tensor, _new(Source, (OP, index, 0)), index + 1), op.inputs[0].source)

    def _finish_several(self, op: Op, returned: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """An op of several outputs, of an unusual one, or one that writes: into views also what they view."""
        index = len(self.ops)
        self.ops.append(op)
        written += [base for tensor in written if (base := base_of(tensor)) is not None]
        changed = {id(tensor): self.source_of(tensor) for tensor in written}
        returned += [tensor for tensor in written if not any(tensor is other for other in returned)]
        self.outputs.append(tuple([self._infos_of(tensor)[0] for tensor in returned]))
        self.flags.append([UNTOLD] * len(returned))
        for number, tensor in enumerate(returned):
            known = Known(tensor, Source(OP, index, number), index + 1)
            self._last_outputs.append(known)
            if id(tensor) in changed:
                self._write_times[id(tensor)] = index + 1
                self.memory.note_write(tensor, index)
                self._last_written.append((known, changed[id(tensor)]))
            else:
                self._known[id(tensor)] = known
                self._list_later(known)
                self.memory.note_maker(tensor, known.source)

    def failed(self, op: Op) -> None:
        """Note an op that raised an error."""
        self.ops.append(op._replace(circumstances=op.circumstances | RAISED))
        self.outputs.append(())
        self.flags.append([])

    def settle(self) -> None:
        """Read what torch has set since the last op returned, and whether what was written in place is still a leaf."""
        known = self._last
        if known is not None:
            self._last = None
            tensor = known.tensor()
            if tensor is not None:
                index = known.source.index
                self.flags[index] = self._flags_of(tensor, known, self.ops[index])
        elif self._last_write is not None:
            self._settle_write(*self._last_write)
        if self._last_outputs:
            self._settle_several()
        if self._new_leaves:
            self._settle_leaves()
        if self._doubtful:
            self._settle_doubtful()

    def _settle_leaves(self) -> None:
        for index in self._new_leaves:
            tensor = self.leaves[index].tensor()
            if tensor is not None:
                self.leaves[index] = self.leaves[index]._replace(info=tensor_info(tensor, ())._replace(version=None))
        self._new_leaves.clear()

    def _settle_write(self, known: Known, before: Source) -> None:
        self._last_write = None
        index = known.source.index
        self.writes[index] = (before,)
        tensor = known.tensor()
        if tensor is not None:
            told = self.flags[index] = self._flags_of(tensor, known, self.ops[index], written=True)
            if before.kind != LEAF or not told & IS_LEAF:
                self._known[id(tensor)] = known
                self._list_later(known)

    def _settle_doubtful(self) -> None:
        """Look again whether what was to require grad does by now; for a while only, and not once it was written."""
        waiting = []
        for known, patience in self._doubtful:
            tensor = known.tensor()
            if tensor is None or self._known.get(id(tensor)) is not known:
                continue
            base = base_of(tensor)
            if base is not None and self._write_times.get(id(base), -1) > known.time:
                continue
            if is_leaf(tensor) is requires_grad(tensor):
                continue
            _, index, output = known.source
            if requires_grad(tensor):
                flags = self.flags[index]
                if isinstance(flags, int):
                    self.flags[index] = flags & ~IS_LEAF | NEEDS_GRAD | (0 if base is None else VIEW)
                else:
                    flags[output] = flags[output] & ~IS_LEAF | NEEDS_GRAD | (0 if base is None else VIEW)
                    self.numbers[index][output] = output_number(tensor)
                known.tracked = True if base is None else None
            elif patience:
                waiting.append((known, patience - 1))
        self._doubtful = waiting

    def _is_doubtful(self, op: Op, index: int, output: int) -> bool:
        """An op that does not say so, yet should have made a backward node, as torch's counter tells."""
        if op.mode != GRAD or not _reads_tracked(op):
            return False
        if not str(self.outputs[index][output].dtype).startswith(CARRIES_GRADIENT):
            return False
        for earlier in range(index - 1, -1, -1):
            number = self.ops[earlier].number
            if number >= 0 and (op.number > number or self.may_carry(earlier)):
                return op.number > number
        return True

    def may_carry(self, index: int) -> bool:
        """An op has a result of a dtype that can require grad; one without (a size, asked on the way) made no node."""
        return any(str(info.dtype).startswith(CARRIES_GRADIENT) for info in self.outputs[index])

    def _settle_several(self) -> None:
        written = {known.source for known, _ in self._last_written}
        for known in self._last_outputs:
            _, index, output = known.source
            flags = self.flags[index]
            numbers = self.numbers.setdefault(index, [-1] * len(self.outputs[index]))
            tensor = known.tensor()
            if tensor is not None and not isinstance(flags, int):
                told = self._flags_of(tensor, known, self.ops[index], written=known.source in written)
                flags[output] = told
                numbers[output] = output_number(tensor) if told & NEEDS_GRAD and not told & IS_LEAF else -1
        self._last_outputs.clear()
        for known, before in self._last_written:
            index = known.source.index
            self.writes[index] = (*self.writes.get(index, ()), before)
            tensor = known.tensor()
            if tensor is not None and not (before.kind == LEAF and is_leaf(tensor)):
                self._known[id(tensor)] = known
                self._list_later(known)
        self._last_written.clear()

    def _flags_of(self, tensor: torch.Tensor, known: Known, op: Op, *, written: bool = False) -> int:
        """The flags of an op's output; where the program has changed them since, as they were.

        No op returns a leaf that requires grad, except under ``no_grad`` a view of one, or what it was to write to:
        ``requires_grad_()`` came after. And what requires grad though no input does, or gradients were off, got
        its history from the custom Function that the op ran in.
        """
        tracked = requires_grad(tensor)
        leaf, view = is_leaf(tensor), BASE._is_view(tensor)
        flags = INFERENCE_TENSOR if BASE.is_inference(tensor) else 0
        if view:
            flags |= VIEW
        if not tracked:
            if self._is_doubtful(op, *known.source[1:]):
                self._doubtful.append((known, _PATIENCE))
            elif not view:
                known.tracked = False
            return flags | IS_LEAF
        if written:
            if not view and not leaf and op.mode == GRAD:
                known.tracked = True
            return flags | NEEDS_GRAD | (IS_LEAF if leaf else 0)
        if leaf:
            base = base_of(tensor) if view else None
            return flags | IS_LEAF | (NEEDS_GRAD if base is not None and requires_grad(base) else 0)
        if op.mode != GRAD or not _reads_tracked(op):
            return flags | IS_LEAF
        if not view:
            known.tracked = True
        return flags | NEEDS_GRAD

    def ends(self) -> list[torch.Tensor]:
        """Living results of ops that no op has read, in the order of the ops."""
        read = {one.source for op in self.ops for one in op.inputs}
        found = [
            (known.source, tensor)
            for known in self._known.values()
            if known.source.kind == OP and known.source not in read and (tensor := known.tensor()) is not None
        ]
        found.sort(key=lambda one: one[0])
        return [
            tensor
            for source, tensor in found
            if not self.saves_output(source.index) and (is_leaf(tensor) or history_of(tensor) is not None)
        ]

    def saves_output(self, index: int) -> bool:
        """An op that saves its result for backward detaches it first, at the very instruction that called the op."""
        op = self.ops[index]
        if index == 0 or not op.inputs or signature_of(op.func).name != "detach":
            return False
        before = self.ops[index - 1]
        source = op.inputs[0].source
        return (
            source.kind == OP
            and source.index == index - 1
            and op.line is before.line
            and op.inner is before.inner
            and signature_of(before.func).name != "detach"
        )

    def is_tracked(self, index: int) -> bool:
        """Some output of an op is known to have required grad."""
        flags = self.flags[index]
        return any(one != UNTOLD and one & NEEDS_GRAD for one in ([flags] if isinstance(flags, int) else flags))

    def _infos_of(self, tensor: torch.Tensor) -> tuple[TensorInfo]:
        """One record for equal facts, however many tensors have them."""
        try:
            key: tuple[Any, ...] = (tensor.shape, tensor.dtype, tensor.device)
            if type(tensor) is not _Tensor or tensor.layout is not torch.strided:
                key = (*key, _layout_of(tensor), type(tensor))
            known = self._infos.get(key)
        except NOT_TOLD:  # no single shape, or one with symbols
            return (_plain_info(tensor),)
        if known is None:
            known = self._infos[key] = (_plain_info(tensor),)
        return known


def _plain_info(tensor: torch.Tensor) -> TensorInfo:
    return tensor_info(tensor, ())._replace(
        version=None, requires_grad=None, is_leaf=None, is_inference=None, is_view=None
    )


_NEVER_TENSORS = frozenset(
    {int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types of most other arguments."""


def _split(op: Op, count: int) -> Iterator[Op]:
    """One op for each tensor that a ``_foreach_…_`` op writes: torch makes a backward node for each, in order."""
    parts = [tuple(one for one in op.inputs if one.place >> IN_LIST in {0, number + 1}) for number in range(count)]
    made = [any(one.requires_grad for one in part) for part in parts]
    number = op.number - sum(made)
    for part, makes in zip(parts, made, strict=True):
        number += makes
        yield op._replace(inputs=part, number=number if op.number >= 0 and makes else -1)


def _reads_tracked(op: Op) -> bool:
    for one in op.inputs:  # noqa: SIM110  any() takes three times as long
        if one[1]:
            return True
    return False


def _written(signature: Signature, args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[torch.Tensor]:
    """The arguments that an op writes in place."""
    found: list[torch.Tensor] = []
    for place in sorted(signature.writes):
        value = args[place] if place < len(args) else (kwargs or {}).get(signature.names[place])
        found += _tensors_in(value)
    return found


def _tensors_in(result: Any) -> Iterator[torch.Tensor]:
    if is_tensor(result):
        yield result
    elif isinstance(result, (list, tuple)):
        for member in result:
            yield from _tensors_in(member)
    elif isinstance(result, dict):
        for member in result.values():
            yield from _tensors_in(member)
