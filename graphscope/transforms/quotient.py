"""From boxes to a graph: groups with their figures, and one edge for many that look the same."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from graphscope.kinds import SHAPE_READERS
from graphscope.model import (
    Bundle,
    Edge,
    Frame,
    Gradient,
    GraphData,
    Group,
    Kind,
    Node,
    Reason,
    Role,
    State,
    TensorInfo,
    View,
)
from graphscope.transforms.calls import Calls, find_calls
from graphscope.transforms.inference import Scope
from graphscope.transforms.partition import Box, Partition, Surround
from graphscope.transforms.repeats import Run
from graphscope.transforms.scopes import Block

_TENSORS_SHOWN = 4
"""Most different kinds of tensors told of that leave a group."""


_NO_CALLS = Calls()


def to_view(partition: Partition) -> GraphData:
    """The graph of the boxes: what is drawn, in an order in which inputs come first."""
    return _Quotient(partition).build()


class _Crossing(NamedTuple):
    """What makes edges between two boxes look the same."""

    source: int
    target: int
    gradient: bool
    reached: bool
    reason: Reason | None


class _Traffic:
    """What goes into, out of and on inside a group."""

    __slots__ = ("cuts", "leaving", "passes_on")

    def __init__(self) -> None:
        self.passes_on = False
        self.cuts: Counter[Reason] = Counter()
        self.leaving: dict[TensorInfo, None] = {}


class _Quotient:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._data = partition.data
        self._boxes = partition.boxes
        self._rank = self._ranks()
        self._ids = self._make_ids()
        self._traffic = {number: _Traffic() for number, box in enumerate(self._boxes) if box.is_group}
        self._types = {module.path: module.type for module in self._data.modules}
        self._bytes = {storage.id: storage.bytes for storage in self._data.storages if not storage.parameter}
        self._members: dict[int, list[int]] = {number: [] for number in self._traffic}
        for position, drawn in enumerate(partition.drawn_as):
            box = partition.box_of[drawn]
            if box in self._members:
                self._members[box].append(position)
        self._calls = find_calls(partition, _drawn_blocks(self._boxes))

    def build(self) -> GraphData:
        data, boxes = self._data, self._boxes
        edges, bundles = self._edges()
        self._note_left_out()
        order = sorted(range(len(boxes)), key=self._rank.__getitem__)
        groups = {self._ids[number]: self._group(number) for number in self._traffic}
        shown = {self._ids[number] for number in order}
        nodes = [
            self._group_node(number, groups[self._ids[number]])
            if boxes[number].is_group
            else _with_writes(data.nodes[boxes[number].members[0]], shown)
            for number in order
        ]
        rank = {self._ids[number]: place for place, number in enumerate(order)}
        hidden = len(data.nodes) - sum(not box.is_group for box in boxes)
        view = View(
            data.view.hidden + hidden, data.view.notes, dict(sorted(groups.items(), key=lambda item: rank[item[0]])),
            tuple(self._frames(order)), bundles, self._missing(), data.view.whole or data,
        )  # fmt: skip
        edges.sort(key=lambda edge: (rank[edge.target], edge.slot))
        return dataclasses.replace(data, nodes=tuple(nodes), edges=tuple(edges), evidence=(), calls=(), view=view)

    def _missing(self) -> dict[str, int]:
        """What a part of a graph lacks, by what is drawn."""
        missing: Counter[str] = Counter()
        for identity, count in self._data.view.missing.items():
            position = self._partition.links.index[identity]
            is_op = self._data.nodes[position].kind is not Kind.LEAF
            if is_op and self._partition.drawn_as[position] == position:
                missing[self._ids[self._partition.box_of[position]]] += count
        return dict(missing)

    # ------------------------------------------------------------------------------------------ order and ids

    def _ranks(self) -> list[tuple[int, int]]:
        """A key for each box by which inputs come first: where its first op stands; a leaf right before its readers."""
        partition, free = self._partition, self._partition.scopes.free
        ranks = [
            (min((position for position in box.members if not free[position]), default=-1), 1) for box in self._boxes
        ]
        first: dict[int, int] = {}
        for source, target in zip(partition.links.source, partition.links.target, strict=True):
            if free[source] and partition.drawn_as[source] == source:
                reader = ranks[partition.box_of[partition.drawn_as[target]]][0]
                number = partition.box_of[source]
                first[number] = min(first.get(number, reader), reader)
        for number, box in enumerate(self._boxes):
            if ranks[number][0] < 0:
                ranks[number] = (first.get(number, box.members[0]), 0)
        return ranks

    def _make_ids(self) -> list[str]:
        """Nodes keep theirs; a group is called after its first member, ``g12`` if that is ``n12``."""
        taken = set(self._partition.links.index)
        ids = []
        for box in self._boxes:
            first = self._data.nodes[min(box.members)].id
            name = first
            if box.is_group:
                name = f"g{first[1:]}" if first[:1] == "n" else f"g {first}"
                while name in taken:
                    name += "'"
                taken.add(name)
            ids.append(name)
        return ids

    # ------------------------------------------------------------------------------------------------- edges

    def _edges(self) -> tuple[list[Edge], dict[Edge, Bundle]]:
        """Edges between nodes as they are; of those to or from groups one for each look."""
        partition, data, boxes = self._partition, self._data, self._boxes
        index, box_of, drawn_as = partition.links.index, partition.box_of, partition.drawn_as
        merged: dict[_Crossing, list[Edge]] = {}
        bundled: set[_Crossing] = set()
        later: dict[_Crossing, list[Edge]] = {}
        for edge in data.edges:
            source, target = index[edge.source], index[edge.target]
            drawn = drawn_as[source]
            from_box, to_box = box_of[drawn], box_of[drawn_as[target]]
            reached = edge.gradient and data.nodes[target].reached
            is_first = drawn_as[target] == target
            if from_box == to_box:
                if edge.reason is not None and is_first and self._cuts_off(edge, source):
                    self._traffic[from_box].cuts[edge.reason] += 1
                continue
            self._note(edge, source, from_box, to_box, reached=reached)
            if not is_first and self._is_in_run(source, partition.run_of[target]):
                continue  # a later round is connected in itself, and to the one before, as the first one is
            crossing = _Crossing(from_box, to_box, edge.gradient, reached, edge.reason)
            (merged if is_first else later).setdefault(crossing, []).append(edge)
            if drawn != source or boxes[from_box].is_group or boxes[to_box].is_group:
                bundled.add(crossing)
        for crossing, alike in later.items():
            known = {(edge.source, edge.output) for edge in merged.get(crossing, ())}
            others = [edge for edge in alike if (edge.source, edge.output) not in known]
            if others:  # each round reads something else, or only later ones read anything
                merged.setdefault(crossing, []).extend(others)
                bundled.add(crossing)
        self._join_readers_of_shapes(merged)
        slots: Counter[int] = Counter()
        edges: list[Edge] = []
        bundles: dict[Edge, Bundle] = {}
        for crossing, alike in merged.items():
            if crossing not in bundled:
                edges += alike
                continue
            drawn_edge = self._bundled(crossing, alike, slots)
            edges.append(drawn_edge)
            tensors = {(edge.source, edge.output) for edge in alike}
            bundles[drawn_edge] = Bundle(len(alike), len(tensors), crossing.reached)
        return edges, bundles

    def _join_readers_of_shapes(self, merged: dict[_Crossing, list[Edge]]) -> None:
        """What a folded box takes only the shape of, beside the values, cuts nothing: a dropout's mask.

        Of such an edge nothing is to be seen but the one that stands for the values.
        """
        for crossing in [one for one in merged if one.reason is Reason.NON_DIFFERENTIABLE]:
            if not self._boxes[crossing.target].is_group:
                continue
            values = next((one for one in merged if one[:2] == crossing[:2] and one.gradient), None)
            known = {(edge.source, edge.output) for edge in merged[values]} if values is not None else set()
            if values is not None and all(
                self._data.by_id[edge.target].op in SHAPE_READERS and (edge.source, edge.output) in known
                for edge in merged[crossing]
            ):
                merged[values] += merged.pop(crossing)

    def _is_in_run(self, position: int, number: int) -> bool:
        """A node stands in some round of a run."""
        run, place = self._partition.runs[number], self._partition.scopes.place[position]
        return (
            run.start <= place < run.end
            or self._partition.run_of[position] == number
            or (place < 0 and position in run.leaves[0])
        )

    def _cuts_off(self, edge: Edge, source: int) -> bool:
        """Something that could have a gradient gets none, and not on another way either."""
        node = self._data.nodes[source]
        return edge.output < len(node.outputs) and bool(node.outputs[edge.output].requires_grad) and not node.reached

    def _note(self, edge: Edge, source: int, from_box: int, to_box: int, *, reached: bool) -> None:
        """What an edge says of the groups at its ends."""
        leaves, enters = self._traffic.get(from_box), self._traffic.get(to_box)
        if leaves is not None:
            outputs = self._data.nodes[source].outputs
            if len(leaves.leaving) < _TENSORS_SHOWN and edge.output < len(outputs):
                leaves.leaving[outputs[edge.output]._replace(names=(), version=None)] = None
        if enters is not None and reached:
            enters.passes_on = enters.passes_on or not _is_parameter(self._data.nodes[source])

    def _note_left_out(self) -> None:
        """What groups pass on to nodes that this part of a graph leaves out."""
        whole, index = self._data.view.whole, self._partition.links.index
        if whole is None or not self._data.view.missing:
            return
        for edge in whole.edges:
            if edge.gradient and edge.source not in index and edge.target in index:
                target = index[edge.target]
                group = self._traffic.get(self._partition.box_of[self._partition.drawn_as[target]])
                if group is not None and self._data.nodes[target].reached:
                    group.passes_on = group.passes_on or not _is_parameter(whole.by_id[edge.source])

    def _bundled(self, crossing: _Crossing, alike: list[Edge], slots: Counter[int]) -> Edge:
        edge = alike[0]
        slot, output, argument = edge.slot, edge.output, edge.argument
        if self._boxes[crossing.target].is_group:
            slot = slots[crossing.target]
            slots[crossing.target] += 1
        if self._boxes[crossing.source].is_group:
            output = 0
        if self._boxes[crossing.target].is_group or len(alike) > 1:
            argument = None
        ends = self._ids[crossing.source], output, self._ids[crossing.target]
        return Edge(*ends, slot, edge.gradient, edge.reason, argument)

    # ------------------------------------------------------------------------------------------------ groups

    def _group_node(self, number: int, group: Group) -> Node:
        """The node of a group; ``op`` is its title, all else that is to be said of it stands in ``data.view``."""
        nodes = [self._data.nodes[position] for position in self._boxes[number].members]
        ops = [node for node in nodes if node.kind is Kind.OP]
        regions, modes, places = ({getattr(node, fact) for node in ops} for fact in ("region", "mode", "location"))
        return Node(
            self._ids[number],
            Kind.GROUP,
            tuple(self._traffic[number].leaving),
            any(node.reached for node in ops or nodes),
            op=f"{group.title} ×{group.repeats:,}" if group.repeats > 1 else group.title,
            module=group.module,
            mode=next(iter(modes)) if len(modes) == 1 else None,
            region=next(iter(regions)) if len(regions) == 1 else None,
            location=next(iter(places)) if len(places) == 1 else None,
        )

    def _group(self, number: int) -> Group:
        box, traffic = self._boxes[number], self._traffic[number]
        nodes = [self._data.nodes[position] for position in box.members]
        ops = [node for node in nodes if node.kind is Kind.OP]
        parameters = [node for node in nodes if node.kind is Kind.LEAF and node.role is Role.PARAMETER]
        saved = [one for node in ops for one in node.saved]
        kept = _storages(ops)
        scope = box.scope
        calls = _NO_CALLS if box.block is None else self._calls.get(box.block, _NO_CALLS)
        rounds, in_rounds = self._rounds_inside(box)
        module = scope.name if scope is not None and scope.is_module else None
        title = box.title or _title(scope, box.last, box.frame) or _op_title(ops)
        return Group(
            title=title if ops else f"parameters of {title}",
            members=tuple(self._data.nodes[position].id for position in self._members[number]),
            module=module,
            type=self._types.get(module) if module is not None else None,
            call=1 if box.block is None else box.block.call,
            calls=self._count_calls(scope) if ops else 1,
            times=calls.times,
            step=calls.step,
            repeats=box.repeats,
            ops=len(ops),
            rounds=rounds,
            ops_in_rounds=in_rounds,
            untracked=sum(node.backward is None for node in ops),
            tensors=len(parameters),
            unreached=sum(bool(node.outputs[0].requires_grad) and not node.reached for node in parameters),
            trainable=sum(_elements(node) for node in parameters if node.outputs[0].requires_grad),
            frozen=sum(_elements(node) for node in parameters if not node.outputs[0].requires_grad),
            saved=len(saved),
            checkpointed=sum(one.state is State.CHECKPOINTED for one in saved),
            saved_bytes=self._size(kept),
            shared_bytes=self._shared_bytes(number, kept, len(ops)),
            gradient=_gradient(traffic, arrives=any(node.reached for node in ops or nodes)),
            cuts=tuple(sorted(traffic.cuts.items())),
        )

    def _shared_bytes(self, number: int, kept: set[str], ops: int) -> int:
        """Of what one round keeps, what comes once for all; 0 where only some share it, as in rounds within rounds."""
        members = set(self._members[number])
        later = [self._data.nodes[position] for position in members.difference(self._boxes[number].members)]
        theirs = _storages(later)
        shared = self._size(kept & theirs)
        if not shared:
            return 0
        more = sum(node.kind is Kind.OP for node in later) // ops
        return shared if self._size(theirs - kept) == more * (self._size(kept) - shared) else 0

    def _size(self, storages: Iterable[str]) -> int:
        return sum(self._bytes.get(storage, 0) for storage in storages)

    def _rounds_inside(self, box: Box) -> tuple[int, int]:
        """How often what most of a closed block consists of runs, and how many ops that are in all."""
        repeats = self._partition.repeats
        if repeats is None or box.block is None:
            return 1, 0
        longest = max(repeats.runs_in(box.block), key=lambda run: run.end - run.start, default=None)
        if longest is None or 2 * (longest.end - longest.start) < box.block.end - box.block.start:
            return 1, 0
        scopes = self._partition.scopes
        return longest.rounds, sum(
            not scopes.free[position] for position in scopes.sequence[longest.start : longest.end]
        )

    def _count_calls(self, scope: Scope | None) -> int:
        return 1 if scope is None else self._partition.scopes.calls.get(scope.place, 1)

    # ------------------------------------------------------------------------------------------------ frames

    def _frames(self, order: list[int]) -> Iterator[Frame]:
        """Frames, outer before inner, in the order of what stands in them."""
        within: dict[int, list[str]] = {}
        frames: dict[int, Surround] = {}
        for number in order:
            chain = []
            frame = self._boxes[number].frame
            if frame is not None:
                within.setdefault(id(frame), []).append(self._ids[number])
            while frame is not None and id(frame) not in frames:
                chain.append(frame)
                frame = frame.parent
            frames.update((id(one), one) for one in reversed(chain))
        names = {key: f"f{number}" for number, key in enumerate(frames)}
        for key, frame in frames.items():
            module = frame.scope.name if frame.scope is not None and frame.scope.is_module else None
            calls = _NO_CALLS if frame.block is None else self._calls.get(frame.block, _NO_CALLS)
            yield Frame(
                id=names[key],
                title=frame.title or _title(frame.scope, frame.last, frame.parent),
                nodes=tuple(within.get(key, ())),
                parent=None if frame.parent is None else names[id(frame.parent)],
                module=module,
                type=self._types.get(module) if module is not None else None,
                call=1 if frame.block is None else frame.block.call,
                calls=1 if frame.block is None else self._count_calls(frame.scope),
                times=calls.times,
                step=calls.step,
                repeats=frame.repeats,
                members=() if frame.run is None else tuple(self._rounds(frame.run)),
            )

    def _rounds(self, run: Run) -> Iterator[str]:
        nodes, sequence = self._data.nodes, self._partition.scopes.sequence
        for number, leaves in enumerate(run.leaves):
            start = run.start + number * run.length
            yield from (nodes[position].id for position in sequence[start : start + run.length])
            yield from (nodes[position].id for position in leaves.values())


def _drawn_blocks(boxes: Iterable[Box]) -> Iterator[Block]:
    """What is drawn as a box, and what there is a frame around."""
    frames: dict[int, Surround] = {}
    for box in boxes:
        if box.block is not None:
            yield box.block
        frames.update((id(frame), frame) for frame in _around(box.frame))
    yield from (frame.block for frame in frames.values() if frame.block is not None)


def _storages(nodes: Iterable[Node]) -> set[str]:
    return {saved.storage for node in nodes for saved in node.saved if saved.storage is not None}


def _with_writes(node: Node, shown: set[str]) -> Node:
    if not node.writes:
        return node
    return node._replace(writes=tuple(written for written in node.writes if written in shown))


def _gradient(traffic: _Traffic, *, arrives: bool) -> Gradient:
    if arrives and traffic.passes_on:
        return Gradient.PASSES
    if traffic.cuts:
        return Gradient.DIES
    return Gradient.ENTERS if arrives else Gradient.NONE


def _is_parameter(node: Node) -> bool:
    return node.kind is Kind.LEAF and node.role is Role.PARAMETER


def _elements(node: Node) -> int:
    shape = node.outputs[0].shape
    if shape is None:
        return 0
    return math.prod(size for size in shape if isinstance(size, int))


def _around(frame: Surround | None) -> Iterator[Surround]:
    while frame is not None:
        yield frame
        frame = frame.parent


def _title(scope: Scope | None, last: Scope | None, frame: Surround | None) -> str:
    """The module as seen from the frame around it; of several in a row the first and the last."""
    if scope is None:
        return ""
    outer = ""
    while frame is not None and not outer:
        around = frame.scope
        if around is not None and around.is_module and around.name not in {"", scope.name}:
            outer = f"{around.name}."
        frame = frame.parent
    first = scope.name.removeprefix(outer)
    if last is None or last.name == scope.name:
        return first
    return f"{first}–{last.name.removeprefix(outer)}"


def _op_title(ops: list[Node]) -> str:
    names: Mapping[str, None] = dict.fromkeys(node.op or node.backward or "unknown operation" for node in ops)
    return ", ".join(names)
