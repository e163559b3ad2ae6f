"""Where values go, and where gradients stop: the graph as steps between positions, with writes in place followed.

An edge tells that a value was read. A write in place through an alias (``weight.data += …``) or under ``no_grad`` tells
no edge: whoever reads the memory later reads what was written, and no gradient comes back that way. Such reads
are steps of their own here.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from graphscope.findings import Because, Cause
from graphscope.kinds import SHAPE_READERS
from graphscope.model import Clue, Edge, GraphData, Kind, Location, Node, Reason, TensorInfo

_CUTS = {
    Reason.NO_GRAD: Cause.NO_GRAD,
    Reason.INFERENCE_MODE: Cause.INFERENCE_MODE,
    Reason.DETACH: Cause.DETACH,
    Reason.DATA: Cause.DATA,
    Reason.INTEGER_DTYPE: Cause.INTEGER_DTYPE,
    Reason.NON_DIFFERENTIABLE: Cause.NON_DIFFERENTIABLE,
    Reason.LEFT_PYTORCH: Cause.LEFT_PYTORCH,
    Reason.CUSTOM_FUNCTION: Cause.CUSTOM_FUNCTION,
    Reason.UNKNOWN: Cause.UNKNOWN,
}
"""Reasons that take a gradient from a tensor that wanted one; ``frozen`` and ``constant`` take none."""

_ALIASES = frozenset(
    {
        "alias",
        "as_strided",
        "detach",
        "diagonal",
        "expand",
        "narrow",
        "permute",
        "select",
        "slice",
        "squeeze",
        "t",
        "transpose",
        "unsqueeze",
        "view",
    }
)
"""Ops whose result is the same memory, or a part of it."""

_LIMIT = 8
"""Causes kept of one tensor."""

_OF_OPTIMIZERS = ("foreach", "fused_")
"""Ops on many parameters at once, which write each of them with what belongs to it alone."""

ASSIGNED = re.compile(r"(\w+)\s*=[^=]")
"""A line that gives a name to what it computes."""

_NEAR = 12
"""Lines within which two statements are taken to stand in one short function."""

_CHECKPOINT = "checkpoint"
CHECKPOINT_NODE = "CheckpointFunctionBackward"


class Step(NamedTuple):
    """A value that goes from one node to a later one."""

    source: int
    """Position in ``data.nodes``."""
    target: int
    cut: Because | None
    """Why no gradient comes back, if one was wanted; ``None`` also where there was none to cut."""
    gradient: bool


class Cut(NamedTuple):
    """A step that cuts, seen from somewhere before it."""

    hops: int
    """Steps from the cut to the nearest root."""
    step: int
    """Number of the step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow:
    """The steps of a graph. Everything else is worked out when it is first asked for, once for all nodes."""

    data: GraphData

    @cached_property
    def position(self) -> dict[str, int]:
        """Position of each node."""
        return {node.id: place for place, node in enumerate(self.data.nodes)}

    @cached_property
    def steps(self) -> list[Step]:
        """Every edge, then every read of memory that was written in place."""
        position = self.position
        found = [
            Step(position[edge.source], position[edge.target], self._cut(edge), edge.gradient)
            for edge in self.data.edges
            if self.data.by_id[edge.target].op not in SHAPE_READERS
        ]
        return [*found, *self._reads_of_written()]

    @cached_property
    def outgoing(self) -> list[list[int]]:
        """Numbers of the steps from each position."""
        grouped: list[list[int]] = [[] for _ in self.data.nodes]
        for number, step in enumerate(self.steps):
            grouped[step.source].append(number)
        return grouped

    @cached_property
    def incoming(self) -> list[list[int]]:
        """Numbers of the steps into each position."""
        grouped: list[list[int]] = [[] for _ in self.data.nodes]
        for number, step in enumerate(self.steps):
            grouped[step.target].append(number)
        return grouped

    @cached_property
    def reached(self) -> bytearray:
        """By position: a backward runs through here, by torch's edges or when a checkpoint runs its block again."""
        reached = self._given_gradients() if self._unanswered else bytearray(node.reached for node in self.data.nodes)
        for place, node in enumerate(self.data.nodes):
            if node.reached and node.backward == CHECKPOINT_NODE:
                self._revive(place, reached)
        return reached

    @cached_property
    def _unanswered(self) -> dict[tuple[str, str], Location | None]:
        """Inputs of custom Functions, as function and source, that their ``backward`` answers with None."""
        found = [one for one in self.data.evidence if one.clue is Clue.NO_GRADIENT and len(one.nodes) > 1]
        edges = Counter((edge.target, edge.source) for edge in self.data.edges if edge.gradient) if found else Counter()
        pairs = {(one.nodes[0], one.nodes[1]): one.location for one in found}
        return {pair: where for pair, where in pairs.items() if edges[pair] == 1}

    def _given_gradients(self) -> bytearray:
        """By position: a gradient really comes here. torch runs what lies behind a None, and hands on nothing.

        A custom Function gets zeros for a None, so that behind it there are gradients again.
        """
        reached = bytearray(len(self.data.nodes))
        waiting = [(root, True) for root in self.data.roots]
        seen: set[tuple[str, bool]] = set(waiting)
        while waiting:
            identity, given = waiting.pop()
            node = self.data.by_id[identity]
            given = given or is_custom(node)
            reached[self.position[identity]] |= given
            for edge in self.data.incoming[identity]:
                step = (edge.source, given and (identity, edge.source) not in self._unanswered)
                if edge.gradient and step not in seen:
                    seen.add(step)
                    waiting.append(step)
        return reached

    def _revive(self, checkpoint: int, reached: bytearray) -> None:
        """Go back through the block that a reentrant checkpoint will run again with gradients on."""
        modes = {region.id: region.mode for region in self.data.regions}
        waiting = [checkpoint]
        while waiting:
            place = waiting.pop()
            for number in self.incoming[place]:
                step = self.steps[number]
                node = self.data.nodes[step.source]
                inner = modes.get(node.region or "") == _CHECKPOINT
                if not inner and (place == checkpoint or step.cut is None or step.cut.cause is not Cause.NO_GRAD):
                    continue
                if inner and step.cut is not None and step.cut.cause is not Cause.NO_GRAD:
                    continue
                if not reached[step.source]:
                    reached[step.source] = True
                    waiting += [step.source] if inner else []

    @cached_property
    def cuts(self) -> list[tuple[Cut, ...] | None]:
        """By position: the cuts on the ways to the roots, nearest to a root first; ``None`` if no way leads to one."""
        nodes, steps, outgoing, reached = self.data.nodes, self.steps, self.outgoing, self.reached
        found: list[tuple[Cut, ...] | None] = [None] * len(nodes)
        hops = [0] * len(nodes)
        roots = {self.position[root] for root in self.data.roots}
        for place in range(len(nodes) - 1, -1, -1):
            if place in roots:
                found[place] = ()
                continue
            ways: tuple[Cut, ...] | None = None
            for number in outgoing[place]:
                step = steps[number]
                beyond = found[step.target]
                if beyond is None:
                    continue
                here = () if reached[step.target] else beyond
                if step.cut is not None:
                    here = (*here, Cut(hops[step.target], number))
                hops[place] = min(hops[place] or 1 << 60, hops[step.target] + 1)
                ways = here if ways is None or ways == here else _merged(ways, here)
            found[place] = ways
        return found

    @cached_property
    def lost(self) -> list[tuple[int, ...]]:
        """By position: the steps before it that took its history, nearest first; of nodes with a history, none."""
        found: list[tuple[int, ...]] = [()] * len(self.data.nodes)
        for place, numbers in enumerate(self.incoming):
            ways: tuple[int, ...] = ()
            for number in numbers:
                step = self.steps[number]
                before = () if step.gradient else found[step.source]
                here = (number,) if step.cut is not None and not step.gradient else before
                if here and here != ways:
                    ways = tuple(dict.fromkeys((*ways, *here)))[:_LIMIT]
            found[place] = ways
        return found

    def because(self, numbers: Sequence[int]) -> list[Because]:
        """The causes behind steps, each cause and line once."""
        return self.unique(cut for number in numbers if (cut := self.steps[number].cut) is not None)

    @staticmethod
    def unique(cuts: Iterable[Because]) -> list[Because]:
        """Each cause and line once, the first of them."""
        found: dict[tuple[Cause, Location | None], Because] = {}
        for cut in cuts:
            found.setdefault((cut.cause, cut.location), cut)
        return list(found.values())

    def is_inside(self, number: int) -> bool:
        """A step into the forward of a custom Function."""
        cut = self.steps[number].cut
        return cut is not None and cut.cause is Cause.CUSTOM_FUNCTION

    def followers(self, start: int) -> list[int]:
        """Positions of everything that the value at ``start`` went into, itself left out, in order."""
        seen = {start}
        waiting = [start]
        while waiting:
            for number in self.outgoing[waiting.pop()]:
                target = self.steps[number].target
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return sorted(seen - {start})

    def is_bookkeeping(self, node: Node) -> bool:
        """An op of an optimizer or an initializer, not of the forward."""
        return node.region in self._bookkeeping or (node.op or "").startswith(_OF_OPTIMIZERS)

    @cached_property
    def _bookkeeping(self) -> frozenset[str]:
        return frozenset(
            region.id
            for region in self.data.regions
            if region.entered == "library"
            and region.mode == "no_grad"
            and (region.location is None or "step(" in region.location.code)
        )

    @cached_property
    def _region_places(self) -> dict[str, Location | None]:
        return {region.id: region.location for region in self.data.regions}

    def _cut(self, edge: Edge) -> Because | None:
        if edge.gradient:
            ends = (edge.target, edge.source)
            return (
                Because(Cause.CUSTOM_FUNCTION, self._unanswered[ends], ends[::-1]) if ends in self._unanswered else None
            )
        source, target = self.data.by_id[edge.source], self.data.by_id[edge.target]
        ends = (edge.source, edge.target)
        cause = _CUTS.get(edge.reason) if edge.reason is not None else None
        if cause is None:
            return self._new_leaf(edge, source, target) or self._untracked_output(edge, source)
        read = source.outputs[edge.output]
        if read.is_inference and read.requires_grad and cause in {Cause.NON_DIFFERENTIABLE, Cause.UNKNOWN}:
            return Because(Cause.INFERENCE_MODE, self._made_at(source) or target.location, ends)
        if target.kind is Kind.LEAF:  # an alias that somebody made of it
            return Because(cause, self._made_anew_at(source) or target.location or source.location, ends)
        if cause is Cause.NO_GRAD and gives_name_away(source, target):
            return Because(cause, target.location, ends)
        region = target.region or source.region  # a view of a leaf, made with gradients off, is read outside
        if cause in {Cause.NO_GRAD, Cause.INFERENCE_MODE} and region is not None:
            return Because(cause, self._region_places[region] or target.location, ends)
        if cause is Cause.DETACH and target.location is not None and "deepcopy(" in target.location.code:
            return Because(Cause.NOT_IN_GRAPH, target.location, ends)  # a copy has taken its place
        if cause is Cause.NON_DIFFERENTIABLE and _hands_on_indices(target):
            return Because(Cause.INTEGER_DTYPE, target.location, ends)
        if cause is Cause.CUSTOM_FUNCTION:
            return Because(cause, self._marked_near(target.location) or target.location, ends)
        return Because(cause, target.location, ends)

    def _marked_near(self, place: Location | None) -> Location | None:
        """The ``mark_non_differentiable`` of the forward in which a line stands."""
        marks = [
            one.location
            for one in self.data.evidence
            if one.clue is Clue.STATEMENT
            and one.subject == "non_differentiable"
            and one.location is not None
            and place is not None
            and one.location.file == place.file
            and abs(one.location.line - place.line) <= _NEAR
        ]
        return marks[0] if len(marks) == 1 else None

    def _new_leaf(self, edge: Edge, source: Node, target: Node) -> Because | None:
        """``nn.Parameter(tensor)``: the same numbers, and no history."""
        if target.kind is not Kind.LEAF or not target.outputs[0].requires_grad or source.mode != "grad":
            return None
        if source.outputs[edge.output].requires_grad is False or not self._wanted[self.position[source.id]]:
            return None
        where = self._made_anew_at(source) or target.location or source.location
        return Because(Cause.DATA, where, (edge.source, edge.target))

    def _made_anew_at(self, source: Node) -> Location | None:
        """The ``nn.Parameter(…)`` that took the numbers of a node: the one that names it, else the next in the file."""
        made = source.location
        marks = [
            (one.words[0], one.location)
            for one in self.data.evidence
            if one.clue is Clue.STATEMENT and one.subject == "new_parameter" and one.words and one.location is not None
        ]
        names = {_assigned(source), *(name for info in source.outputs for name in info.names)}
        names |= {name.partition(".")[2] for name in names if name is not None}
        named = [where for word, where in marks if word.removeprefix("self.") in names]
        after = [
            where
            for _, where in marks
            if made is not None and where.file == made.file and 0 <= where.line - made.line <= _NEAR
        ]
        return next(iter([*(named if len(named) == 1 else ()), *after]), None)

    def _untracked_output(self, edge: Edge, source: Node) -> Because | None:
        """One of several outputs of a recorded op: the indices beside the values."""
        read = source.outputs[edge.output]
        if len(source.outputs) < 2 or read.requires_grad is not False:  # noqa: PLR2004  several
            return None
        if not any(info.requires_grad for info in source.outputs):
            return None
        cause = Cause.NON_DIFFERENTIABLE if _carries_gradient(read) else Cause.INTEGER_DTYPE
        return Because(cause, source.location, (edge.source, edge.source))

    def _made_at(self, node: Node) -> Location | None:
        """Where an inference tensor was made: inside a custom Function's forward, if it came out of one."""
        incoming = self.data.incoming[node.id]
        inner = [self.data.by_id[edge.source] for edge in incoming if not edge.gradient]
        beside = [self.data.by_id[one.target] for edge in incoming for one in self.data.outgoing[edge.source]]
        inner += [one for one in beside if one.id != node.id and _gives_inference_tensor(one, node)]
        if not incoming:  # what it was made of is gone
            before = self.data.nodes[: self.position[node.id]]
            inner += [one for one in reversed(before) if _gives_inference_tensor(one, node)][:1]
        return next((one.location for one in inner if one.location is not None), node.location)

    def _reads_of_written(self) -> Iterator[Step]:
        """What later readers of some memory read: the result of the last op that wrote there."""
        writers = self._writers()
        if not writers:
            return
        for root, places in writers.items():
            writers[root] = sorted(set(places))
            for earlier, later in itertools.pairwise(writers[root]):
                yield Step(earlier, later, None, gradient=False)
        for edge in self.data.edges:
            source, reader = self.position[edge.source], self.position[edge.target]
            places = writers.get(self._memory_of(source, edge.output), [])
            before = bisect.bisect_left(places, reader)
            made = -1 if self.data.nodes[source].kind is Kind.LEAF else source  # a leaf stands right before its reader
            if before and places[before - 1] > made:
                yield Step(places[before - 1], reader, self._through_data(places[before - 1]), gradient=False)

    def _writers(self) -> dict[tuple[int, int], list[int]]:
        """Positions of the ops that wrote in place, by the memory that they wrote to."""
        writers: dict[tuple[int, int], list[int]] = {}
        for place, node in enumerate(self.data.nodes):
            if node.writes and not self.is_bookkeeping(node):
                read = {edge.source: edge.output for edge in self.data.incoming[node.id]}
                for written in node.writes:
                    memory = self._memory_of(self.position[written], read.get(written, 0))
                    writers.setdefault(memory, []).append(place)
        for evidence in self.data.evidence:
            if evidence.clue is Clue.REASSIGNED and len(evidence.nodes) == 2:  # noqa: PLR2004  leaf and maker
                leaf, maker = (self.position[identity] for identity in evidence.nodes)
                writers.setdefault(self._memory_of(leaf, 0), []).append(maker)
        return writers

    def _through_data(self, writer: int) -> Because | None:
        """With gradients on an alias hides the write; under ``no_grad`` what is written was cut off before."""
        node = self.data.nodes[writer]
        if node.mode != "grad" or not self._wanted[writer] or not any(map(_carries_gradient, node.outputs)):
            return None
        return Because(Cause.DATA, node.location, (node.id, node.id))

    @cached_property
    def _wanted(self) -> bytearray:
        """By position: some value that went into the node came of a tensor that requires grad."""
        wanted = bytearray(len(self.data.nodes))
        for place, node in enumerate(self.data.nodes):
            wanted[place] = any(info.requires_grad for info in node.outputs) or any(
                edge.gradient or edge.reason in _CUTS or wanted[self.position[edge.source]]
                for edge in self.data.incoming[node.id]
            )
        return wanted

    @cached_property
    def _memory(self) -> list[tuple[int, int] | None]:
        """By position: node and output with the same memory, the first as far as ops and writes in place tell.

        ``None`` of what has memory of its own: one for each output.
        """
        memory: list[tuple[int, int] | None] = [None] * len(self.data.nodes)
        for place, node in enumerate(self.data.nodes):
            if node.kind is Kind.OP and (node.op in _ALIASES or node.writes):
                for edge in self.data.incoming[node.id][:1]:
                    source = self.position[edge.source]
                    memory[place] = memory[source] or (source, edge.output)
        return memory

    def _memory_of(self, place: int, output: int) -> tuple[int, int]:
        return self._memory[place] or (place, output)


def is_custom(node: Node) -> bool:
    """A backward node of a ``torch.autograd.Function`` in Python."""
    return node.note is not None and "custom autograd.Function" in node.note


def gives_name_away(leaf: Node, made: Node) -> bool:
    """``w = w - step``: the line gives the name of a leaf to what it computes of it."""
    name = _assigned(made)
    return leaf.kind is Kind.LEAF and name is not None and name in {*leaf.names, _assigned(leaf)}


def _assigned(node: Node) -> str | None:
    found = ASSIGNED.match(node.location.code) if node.location is not None else None
    return None if found is None else found[1]


def _merged(ways: tuple[Cut, ...], more: tuple[Cut, ...]) -> tuple[Cut, ...]:
    return tuple(sorted(set(ways).union(more)))[:_LIMIT]


def _carries_gradient(info: TensorInfo) -> bool:
    return str(info.dtype).startswith(("float", "bfloat", "complex"))


def _hands_on_indices(node: Node) -> bool:
    """Of ``max(dim)`` only the indices are left; the values, which carry a gradient, have died at once."""
    kinds = {_carries_gradient(info) for info in node.outputs}
    return kinds == {True, False} and all(info.requires_grad is not True for info in node.outputs)


def _gives_inference_tensor(node: Node, like: Node) -> bool:
    return any(info.is_inference and info.shape == like.outputs[0].shape for info in node.outputs)
