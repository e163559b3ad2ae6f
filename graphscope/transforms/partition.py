"""Which nodes stand in which box, and which boxes in which frame."""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from graphscope.model import GraphData, Kind, Node, Role
from graphscope.transforms.inference import Scope
from graphscope.transforms.links import Links
from graphscope.transforms.repeats import Item, Repeats, Run
from graphscope.transforms.scopes import Block, Scopes, is_inner


class Plain(StrEnum):
    """How the ops are drawn that stand in an open block, but in none of its inner ones."""

    OPS = "ops"
    """One by one."""
    LINES = "lines"
    """One box for each stretch from one line of source."""
    STRETCHES = "stretches"
    """One box for each stretch between two inner blocks."""


_UNREAD_DRAWN = 8
"""Most parameters that nothing reads to be drawn one by one."""
_UNREAD_LEVEL = 2
"""Levels of module names by which more of them are put together."""

_NAMES_SHOWN = 3
"""Most modules of a round that its frame is called after."""

Opens = Callable[[Block], bool]
"""Whether the inside of a block is drawn."""


@dataclasses.dataclass(kw_only=True, slots=True)
class Surround:
    """A frame in the making."""

    title: str
    scope: Scope | None
    parent: Surround | None
    block: Block | None = None
    """The one call of the scope that it is drawn around."""
    last: Scope | None = None
    """The module of the last round, where the rounds are modules of their own."""
    run: Run | None = None
    """What repeats, of which the first round is drawn in here."""

    @property
    def repeats(self) -> int:
        """How many rounds the one that is drawn stands for."""
        return 1 if self.run is None else self.run.rounds


@dataclasses.dataclass(kw_only=True, slots=True)
class Box:
    """Something drawn: one node, or a group of several."""

    members: list[int]
    """Positions; of equal rounds in a row those of the first."""
    frame: Surround | None
    block: Block | None = None
    repeats: int = 1
    last: Scope | None = None
    scope: Scope | None = None
    title: str | None = None
    """Where no scope gives it one."""
    closed: bool = False
    """Takes in the leaves that only it reads."""

    @property
    def is_group(self) -> bool:
        """Stands for more than one node."""
        return len(self.members) > 1 or self.repeats > 1


class Partition:
    """One way of drawing a graph: every node is in one box, or in a round that an equal one is drawn for."""

    def __init__(self, data: GraphData, links: Links, scopes: Scopes, repeats: Repeats | None) -> None:
        """Start with no box."""
        self.data, self.links, self.scopes, self.repeats = data, links, scopes, repeats
        self.boxes: list[Box] = []
        self.box_of = array("q", [-1]) * len(data.nodes)
        self.drawn_as = array("q", range(len(data.nodes)))
        """Position of the node that is drawn for each node: itself, or its counterpart in the first of equal rounds."""
        self.runs: list[Run] = []
        self.run_of = array("q", [-1]) * len(data.nodes)
        """Number of the run of each node that stands in a later round."""

    def add(self, box: Box) -> None:
        """Put nodes into a new box."""
        for position in box.members:
            self.box_of[position] = len(self.boxes)
        self.boxes.append(box)


def divide(
    data: GraphData,
    links: Links,
    scopes: Scopes,
    opens: Opens,
    *,
    repeats: Repeats | None,
    apart: frozenset[Block] = frozenset(),
    plain: Plain = Plain.OPS,
) -> Partition:
    """Divide a graph into boxes: closed blocks, and the ops of open ones.

    Args:
        data: a whole graph, or a part of one.
        links: its edges.
        scopes: its blocks.
        opens: which blocks are open. A block in a closed one is never asked for.
        repeats: finds equal rounds, to be drawn once; ``None`` draws all.
        apart: blocks that are equal only to one another.
        plain: how ops in no inner block are drawn.
    """
    partition = Partition(data, links, scopes, repeats)
    divider = _Divider(partition, opens, apart, plain)
    stack: list[tuple[Block, Surround | None]] = [(scopes.whole, None)]
    while stack:
        stack.extend(reversed(list(divider.divide(*stack.pop()))))
    _follow_to_the_end(partition.drawn_as)
    _place_leaves(partition)
    _place_rest(partition)
    return partition


class _Divider:
    """Divides one block at a time."""

    def __init__(self, partition: Partition, opens: Opens, apart: frozenset[Block], plain: Plain) -> None:
        self._partition, self._opens, self._repeats = partition, opens, partition.repeats
        self._apart, self._plain = apart, plain
        self._sequence, self._free = partition.scopes.sequence, partition.scopes.free

    def divide(self, block: Block, frame: Surround | None) -> Iterator[tuple[Block, Surround | None]]:
        """Put the items of an open block into boxes, and return the open blocks among them with their frames."""
        items = list(block.items())
        runs = self._repeats.runs_in(block, self._apart) if self._repeats is not None else []
        begin = 0
        for run in runs:
            yield from self._add_all(items[begin : run.first], frame)
            begin = run.first + run.period * run.rounds
            self._draw_first_round_only(run)
            if run.period == 1:
                yield from self._add(items[run.first], frame, run, items[begin - 1])
            else:
                inner = self._round_frame(items, run, frame)
                yield from self._add_all(items[run.first : run.first + run.period], inner)
        yield from self._add_all(items[begin:], frame)

    def _add_all(self, items: Sequence[Item], frame: Surround | None) -> Iterator[tuple[Block, Surround | None]]:
        for is_op, stretch in itertools.groupby(items, key=lambda item: isinstance(item, int)):
            if is_op and self._plain is not Plain.OPS:
                self._add_plain([item for item in stretch if isinstance(item, int)], frame)
            else:
                for item in stretch:
                    yield from self._add(item, frame, None, None)

    def _add_plain(self, places: Sequence[int], frame: Surround | None) -> None:
        """Boxes for ops in no inner block, by line if so wanted."""

        def line(place: int) -> object:
            where = self._partition.data.nodes[self._sequence[place]].location
            return where[:2] if where is not None and self._plain is Plain.LINES else None

        places = [place for place in places if not self._free[self._sequence[place]]]
        for _, stretch in itertools.groupby(places, key=line):
            members = [self._sequence[place] for place in stretch]
            self._partition.add(
                Box(members=members, frame=frame, title=self._lines_of(members), closed=len(members) > 1)
            )

    def _add(
        self, item: Item, frame: Surround | None, run: Run | None, last: Item | None
    ) -> Iterator[tuple[Block, Surround | None]]:
        repeats = 1 if run is None else run.rounds
        ended = last.scope if isinstance(last, Block) else None
        if isinstance(item, int):
            members = self._ops(item, item + 1)
            if members:
                box = Box(members=members, frame=frame, repeats=repeats, closed=repeats > 1)
                self._partition.add(box)
            return
        members = self._ops(item.start, item.end)
        opens = self._opens(item)
        if len(members) == 1 or not opens:
            closed = repeats > 1 or not opens
            box = Box(
                members=members, frame=frame, block=item, scope=item.scope, repeats=repeats, last=ended, closed=closed
            )
            self._partition.add(box)
            return
        if repeats > 1 or (item.scope is not None and item.scope.is_module):
            frame = Surround(title="", scope=item.scope, parent=frame, block=item, last=ended, run=run)
        yield item, frame

    def _ops(self, start: int, end: int) -> list[int]:
        """Positions of the ops in a stretch; leaves find their place later, by who reads them."""
        free = self._free
        return [position for position in self._sequence[start:end] if not free[position]]

    def _draw_first_round_only(self, run: Run) -> None:
        drawn_as, run_of, sequence = self._partition.drawn_as, self._partition.run_of, self._sequence
        number = len(self._partition.runs)
        self._partition.runs.append(run)
        for place in range(run.start + run.length, run.end, run.length):
            for offset in range(run.length):
                position = sequence[place + offset]
                drawn_as[position] = sequence[run.start + offset]
                run_of[position] = number
        for leaves in run.leaves[1:]:
            for first, leaf in leaves.items():
                drawn_as[leaf] = first
                run_of[leaf] = number

    def _round_frame(self, items: Sequence[Item], run: Run, frame: Surround | None) -> Surround:
        """A frame around the first round; called after its modules, if it has some, else after its lines."""
        here, end = (
            [item for item in items[start : start + run.period] if not isinstance(item, int)]
            for start in (run.first, run.first + run.period * (run.rounds - 1))
        )
        if len(here) == 1 and _name(here[0]) != _name(end[0]):
            return Surround(title="", scope=here[0].scope, last=end[0].scope, parent=frame, run=run)
        title = _names_of(here, end, frame) or self._lines_of(self._sequence[run.start : run.start + run.length])
        return Surround(title=title, scope=None, parent=frame, run=run)

    def _lines_of(self, positions: Sequence[int]) -> str:
        """The source lines of some nodes, if they are known and in one file."""
        places = [self._partition.data.nodes[position].location for position in positions]
        known = [place for place in places if place is not None]
        if not known or any(place.file != known[0].file for place in known):
            return ""
        first, last = min(place.line for place in known), max(place.line for place in known)
        file = known[0].file.rpartition("/")[2]
        return f"{file}:{first}" if first == last else f"{file}:{first}–{last}"


def _names_of(first: Sequence[Block], last: Sequence[Block], frame: Surround | None) -> str:
    """The modules of a round as seen from the frame around it: ``first, second``, ``conv.0–conv.8, pool``."""
    if len(first) != len(last) or not all(block.scope is not None and block.scope.is_module for block in first):
        return ""
    outer = next((one.scope.name for one in _outwards(frame) if one.scope is not None and one.scope.is_module), "")
    names = []
    for one, other in zip(first, last, strict=True):
        here, there = (_name(block).removeprefix(f"{outer}.") for block in (one, other))
        names.append(here if here == there else f"{here}–{there}")
    names = list(dict.fromkeys(names))
    return ", ".join(names) if len(names) <= _NAMES_SHOWN else f"{names[0]}, …, {names[-1]}"


def _name(block: Block) -> str:
    return "" if block.scope is None else block.scope.name


def _follow_to_the_end(drawn_as: array[int]) -> None:
    """What is drawn for a node may itself stand in a later round of something within."""
    for position in range(len(drawn_as)):
        while drawn_as[drawn_as[position]] != drawn_as[position]:
            drawn_as[position] = drawn_as[drawn_as[position]]


def _place_leaves(partition: Partition) -> None:
    """A leaf goes into the box of its readers if that is closed and the leaf is its own; else it is drawn."""
    data, links, box_of, drawn_as = partition.data, partition.links, partition.box_of, partition.drawn_as
    readers: dict[int, dict[int, None]] = {}
    free = partition.scopes.free
    for source, target in zip(links.source, links.target, strict=True):
        if free[source]:
            readers.setdefault(source, {})[box_of[drawn_as[target]]] = None
    of_a_round = {first for position, first in enumerate(drawn_as) if position != first}
    shared: dict[tuple[object, ...], list[int]] = {}
    for leaf, boxes in readers.items():
        if drawn_as[leaf] != leaf:
            continue
        number, *more = boxes
        only = partition.boxes[number] if number >= 0 and not more else None
        if only is not None and only.closed and _belongs_to(data, leaf, only):
            box_of[leaf] = number
            only.members.append(leaf)
            continue
        if more and leaf not in of_a_round and all(box >= 0 and partition.boxes[box].closed for box in boxes):
            shared.setdefault((tuple(boxes), *_kind_of(data, leaf)), []).append(leaf)
            continue
        frame = _common_frame([partition.boxes[box].frame if box >= 0 else None for box in boxes])
        if leaf not in of_a_round:
            frame = _outside_of_rounds(frame) if is_inner(data.nodes[leaf]) else None
        partition.add(Box(members=[leaf], frame=frame))
    for key, leaves in shared.items():
        _place_shared(partition, leaves, list(readers[leaves[0]]), key[1])


def _kind_of(data: GraphData, leaf: int) -> tuple[object, ...]:
    """What leaves must have in common to be drawn as one: the module, and what a gradient does; else themselves."""
    node = data.nodes[leaf]
    if node.role not in {Role.PARAMETER, Role.BUFFER} or not node.names:
        return None, leaf
    return Scope(node.names[0].rpartition(".")[0]), node.role, node.reached, node.outputs[0].requires_grad


def _place_shared(partition: Partition, leaves: list[int], boxes: list[int], scope: object) -> None:
    """The parameters that one module lends to several boxes are one box."""
    frame = _common_frame([partition.boxes[box].frame for box in boxes])
    frame = _outside_of_rounds(frame) if is_inner(partition.data.nodes[leaves[0]]) else None
    owner = scope if isinstance(scope, Scope) and len(leaves) > 1 else None
    partition.add(Box(members=leaves, frame=frame, scope=owner))


def _belongs_to(data: GraphData, leaf: int, box: Box) -> bool:
    """Parameters, buffers and unnamed constants go with what reads them; what the user handed in stays in sight."""
    if is_inner(data.nodes[leaf]):
        return True
    if box.scope is not None and box.scope.is_module:
        own = box.scope.name + "." if box.scope.name else ""
        return any(name.startswith(own) for name in data.nodes[leaf].names)
    return False


def _common_frame(frames: list[Surround | None]) -> Surround | None:
    """The innermost frame around all."""
    first, *rest = ({id(frame): frame for frame in _outwards(one)} for one in frames)
    return next((frame for key, frame in first.items() if all(key in other for other in rest)), None)


def _outside_of_rounds(frame: Surround | None) -> Surround | None:
    """A frame in which nothing repeats: what all rounds share stands in none of them."""
    inside = [one for one in _outwards(frame) if one.repeats > 1]
    return inside[-1].parent if inside else frame


def _outwards(frame: Surround | None) -> Iterator[Surround]:
    while frame is not None:
        yield frame
        frame = frame.parent


def _place_rest(partition: Partition) -> None:
    """Outputs stand for themselves, and so do the leaves that nothing reads, if they are few.

    An unread parameter of a module that is drawn as a box goes into that.
    """
    boxes = {box.scope.name: number for number, box in enumerate(partition.boxes) if box.closed and box.scope}
    rest: dict[str, list[int]] = {}
    for position, node in enumerate(partition.data.nodes):
        if partition.box_of[position] >= 0 or partition.drawn_as[position] != position:
            continue
        owners = _owners(node) if node.kind is Kind.LEAF and node.role is Role.PARAMETER else []
        number = next((boxes[owner] for owner in owners if owner in boxes), None)
        if number is not None:
            partition.box_of[position] = number
            partition.boxes[number].members.append(position)
        elif owners:
            rest.setdefault(owners[max(len(owners) - _UNREAD_LEVEL, 0)], []).append(position)
        else:
            partition.add(Box(members=[position], frame=None))
    few = sum(map(len, rest.values())) <= _UNREAD_DRAWN
    for owner, leaves in rest.items():
        if few:
            for leaf in leaves:
                partition.add(Box(members=[leaf], frame=None))
        else:
            partition.add(Box(members=leaves, frame=None, scope=Scope(owner) if len(leaves) > 1 else None))


def _owners(node: Node) -> list[str]:
    """Paths of the modules around a parameter, innermost first."""
    owners = []
    name = node.names[0] if node.names else ""
    while "." in name:
        name = name.rpartition(".")[0]
        owners.append(name)
    return owners
