"""Which recorded op made which backward node, and which of its arguments and outputs the node's are.

torch makes an op's backward node before it runs the op, and numbers nodes as it makes them: the node that is made
between two ops is the later op's, as a rule. It is only taken for that if its name or the shape of its result agrees
and torch said of a result that it requires grad. A node that no op claims stays on its own.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from graphscope.capture.code.switches import GRAD
from graphscope.capture.recording.oplog import OpLog
from graphscope.capture.recording.oprecords import NEEDS_GRAD, NODE, OP, UNTOLD, Source, signature_of
from graphscope.capture.walking.walk import Walked
from graphscope.model import Kind, Node

_COPY_SLICES = "CopySlices"
"""What a write into a view leaves: made after the op, and the base's, not the view's."""

_MADE_ANEW = "AsStridedBackward0"
"""Also the history that a view gets when what it views was written: whose name agrees with no op, is such a one."""

Place = tuple[int, int]
"""A node and an output of it."""

Entry = tuple[int, int, int, bool]
"""What a node of a walk reads: position of the source, output there, slot, and whether a gradient goes back."""


class Claims(NamedTuple):
    """Which op made which node."""

    op_of: dict[int, int]
    """Op by position of the node in the walk."""
    node_of: dict[int, int]
    """The reverse."""
    unseen: dict[int, int]
    """Op by place of a node that was met while recording and that the walk did not come to."""


def incoming_of(walked: Walked) -> list[list[Entry]]:
    """What each node of a walk reads, by position."""
    found: list[list[Entry]] = [[] for _ in walked.data.nodes]
    positions = {node.id: position for position, node in enumerate(walked.data.nodes)}
    for source, output, target, slot, gradient, _, _ in walked.data.edges:
        found[positions[target]].append((positions[source], output, slot, gradient))
    return found


def find_claims(
    log: OpLog,
    walked: Walked,
    incoming: Sequence[Sequence[Entry]],
    strangers: Collection[int] = (),
    acquaintances: Iterable[int] = (),
) -> Claims:
    """Pair the nodes of a walk, and those met while recording, with the ops of a recording.

    Another thread numbers its nodes from its own start, so a number proves nothing where one has been at work. Nodes
    known to be a stranger's are given to no op, nor is what only they lead to, nor what an op reads that did not
    come from where the node says.

    Args:
        log: the recording.
        walked: the walk.
        incoming: what ``incoming_of`` tells of it.
        strangers: positions in the walk of nodes whose results are at hand, and that the recording never met.
        acquaintances: positions of nodes whose results are at hand, and that the recording knows.
    """
    makers = _Makers(log)
    met = {one.number for one in log.unseen if one.before is None and not one.kind.custom}
    nodes, order = walked.data.nodes, walked.order
    op_of: dict[int, int] = {}
    node_of: dict[int, int] = {}
    trusted = bytearray(len(nodes))
    for position in acquaintances:
        trusted[position] = True
    readers: dict[int, list[int]] = {}
    """Ops that torch says to have read what a node made."""
    for position in range(len(nodes) - 1, -1, -1):  # readers first
        node = nodes[position]
        number = order.get(position)
        passes = number is None
        index: int | None = None
        if number is not None and trusted[position]:
            index = makers.of(number, node)
            passes = True
            if index is None:
                pass
            elif number in met or position in strangers or not makers.is_read_by(index, readers.get(position, ())):
                index, passes = None, False
            elif index in node_of:
                index = None
        if index is not None:
            op_of[position] = index
            node_of[index] = position
        if passes:
            for source, _, _, _ in incoming[position]:
                trusted[source] = True
                if index is not None and node.backward != _COPY_SLICES:
                    readers.setdefault(source, []).append(index)
    return Claims(op_of, node_of, _claims_of_unseen(log, walked, makers, node_of))


def _claims_of_unseen(log: OpLog, walked: Walked, makers: _Makers, node_of: dict[int, int]) -> dict[int, int]:
    """As ``find_claims``, of nodes that some tensor had while it lived."""
    found: dict[int, int] = {}
    for place, one in enumerate(log.unseen):
        if one.number not in walked.numbers and one.before is not None:
            kind = one.kind
            node = Node("", Kind.OP, (one.info,), op=kind.op, backward=kind.name, note=kind.note)
            index = makers.of(one.number, node)
            if index is not None and index not in node_of:
                found[place] = index
    return found


class _Makers:
    """The ops between which torch's counter of nodes moved."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        self._ops: list[int] = []
        self._starts: list[int] = []
        self._stops: list[int] = []
        last = log.first_number
        for index, op in enumerate(log.ops):
            if op.number >= 0 and op.mode == GRAD:
                if op.number > last:
                    self._ops.append(index)
                    self._starts.append(last)
                    self._stops.append(op.number)
                last = op.number

    def is_read_by(self, index: int, readers: Iterable[int]) -> bool:
        """Whether ops have read a result of another, or one that another tensor stands for by now."""
        return all(any(self._is_from(one.source, index) for one in self._log.ops[op].inputs) for op in readers)

    def _is_from(self, source: Source, index: int) -> bool:
        if source.kind == OP:
            return source.index == index
        if source.kind != NODE:
            return False
        first = bisect.bisect_right(self._stops, self._log.unseen[source.index].number)
        return index in self._ops[max(first - 1, 0) : first + 1]

    def of(self, number: int, node: Node) -> int | None:
        """The op that made a node of this number."""
        place = bisect.bisect_right(self._stops, number)
        if node.backward == _COPY_SLICES:
            return self._writer(place - 1, number) if place else None
        if place == len(self._ops) or self._starts[place] > number:
            return None
        index = self._ops[place]
        is_last = number == self._stops[place] - 1
        if _agrees(self._log, index, node, is_last=is_last, by_name=True):
            return index
        passes = not self._log.may_carry(index)
        for further in self._span(place):  # a write in place first clones what its own derivative needs
            if (passes or further in self._log.writes) and _agrees(
                self._log, further, node, is_last=is_last, by_name=True
            ):
                return further
        return index if _agrees(self._log, index, node, is_last=is_last) else None

    def _span(self, place: int) -> range:
        """The ops that ran after torch's counter moved and before it moved again, without the first."""
        following = self._ops[place + 1] if place + 1 < len(self._ops) else len(self._log.ops)
        return range(self._ops[place] + 1, following)

    def _writer(self, place: int, number: int) -> int | None:
        """The op that wrote into a view right before a node was made; of an op on each of a list, the part."""
        index, ops = self._ops[place], self._log.ops
        first = index
        while first > 0 and ops[first - 1].func is ops[index].func and ops[first - 1].line is ops[index].line:
            first -= 1
        parts = [one for one in range(first, index + 1) if _writes_view(self._log, one)]
        if signature_of(ops[index].func).each and len(parts) > 1:
            part = number - self._stops[place]
            return parts[part] if part < len(parts) else None
        return next((one for one in (index, *self._span(place)) if one in self._log.writes), None)


def _writes_view(log: OpLog, index: int) -> bool:
    """An op wrote into a view: what it views is an output of the op, too."""
    return len(log.writes.get(index, ())) > 1


def _agrees(log: OpLog, index: int, node: Node, *, is_last: bool, by_name: bool = False) -> bool:
    """Whether an op can have made a node that was made right before it; ``by_name``: whether it says so itself."""
    if node.note is not None and "autograd.Function" in node.note:
        return False
    flags = log.flags[index]
    carries = [flags] if isinstance(flags, int) else flags
    if not any(one != UNTOLD and one & NEEDS_GRAD for one in carries):
        return False
    if signature_of(log.ops[index].func).name.rstrip("_") == node.op:
        return True
    if by_name or node.backward == _MADE_ANEW:
        return False
    first = log.outputs[index][0]
    return is_last and first.shape == node.outputs[0].shape and first.dtype == node.outputs[0].dtype


def recorded_output(log: OpLog, index: int, node: Node, number: int) -> int:
    """Which recorded output of an op a node's output is."""
    outputs = log.outputs[index]
    if len(outputs) == 1:
        return 0
    if node.backward == _COPY_SLICES:  # its output is the base, noted after what the op returned
        return len(outputs) - 1
    told = log.numbers.get(index, ())
    if number in told:
        return told.index(number)
    flags = log.flags[index]
    told_flags = flags if isinstance(flags, list) else [flags]
    carrying = [place for place, one in enumerate(told_flags) if one == UNTOLD or one & NEEDS_GRAD]
    return carrying[number] if number < len(carrying) else min(number, len(outputs) - 1)


def match_arguments(slots: Sequence[Sequence[Any]], arguments: Sequence[Place]) -> list[int]:
    """For each of torch's edges the argument it stands for, or -1; both run in the schema's order.

    ``slots`` are records that begin with a source and an output of it.
    """
    matched: list[int] = []
    start, count = 0, len(arguments)
    for slot in slots:
        wanted = (slot[0], slot[1])
        place = start
        while place < count and arguments[place] != wanted:
            place += 1
        if place < count:
            matched.append(place)
            start = place + 1
        else:
            matched.append(-1)
    return matched
