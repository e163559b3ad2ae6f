"""A recording laid over a walk: one graph of what ran and of what autograd kept of it.

The walk is the truth about gradients: every edge that it found is a gradient edge. The recording
adds the ops that left no node, the arguments that carry no gradient, and for each op its line, module and mode. Which
op a backward node belongs to, ``claims.py`` decides.

While the graph is made, everything goes by a number: first the ops, then the leaves and the nodes made unseen of the
recording, then the nodes of the walk.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from graphscope.capture.code.switches import GRAD
from graphscope.capture.evidence.gather import Links, gather
from graphscope.capture.merging.claims import Entry, Place, find_claims, incoming_of, match_arguments, recorded_output
from graphscope.capture.merging.opnodes import Describer, Options
from graphscope.capture.merging.reasons import Reasons
from graphscope.capture.recording.oprecords import LEAF, NODE, OP, Input, Op, Source, signature_of
from graphscope.capture.recording.record import Recorder
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.order import topological_order
from graphscope.capture.walking.walk import Root, Walked, quiet_look, walk_linked
from graphscope.garbage import collection_paused
from graphscope.model import Edge, GraphData, Kind, Node, Reason

__all__ = ["Options", "merge"]

_STEP = 1 << 24
"""Room between two ops for leaves and nodes that stand between them."""

_MADE_ANEW = "the history of a view, made anew after what it views was written in place"

_WRITES = Node._fields.index("writes")

_PLAIN = Options()

_new = tuple.__new__
"""Makes a record from a tuple of all its fields in order, at a third of the cost of a call by field."""


class _Link(NamedTuple):
    """An edge between numbers."""

    source: int
    output: int
    slot: int
    gradient: bool
    reason: Reason | None
    argument: str | None


def merge(
    recorder: Recorder,
    roots: Sequence[Root],
    names: Names,
    *,
    others: Sequence[Root] = (),
    options: Options = _PLAIN,
) -> GraphData:
    """Everything that was recorded, with the graph behind ``roots`` and ``others``."""
    recorder.log.settle()
    walked = walk_linked(roots, names, others=others, every_module=options.every_module)
    with quiet_look(), collection_paused():
        given = [*roots, *others]
        merged = _Merge(recorder, walked, names, options, given)
        data = merged.build(given)
        links = Links(recorder, walked, names, data, merged.id_of, merged.id_of_walked, merged.claims, options.base)
        return dataclasses.replace(data, evidence=gather(links))


class _Merge:
    """One merge; its attributes are the tables that the steps share."""

    def __init__(
        self, recorder: Recorder, walked: Walked, names: Names, options: Options, given: Sequence[Root]
    ) -> None:
        self._recorder, self._log, self._walked, self._names = recorder, recorder.log, walked, names
        incoming = incoming_of(walked)
        self._claims = find_claims(
            self._log, walked, incoming, self._strangers(given, incoming), self._acquaintances(given)
        )
        self._first_leaf = len(self._log.ops)
        self._first_unseen = self._first_leaf + len(self._log.leaves)
        self._first_walked = 0
        """Known after the last unseen node is."""
        self._moved: dict[int, Place] = {}
        """Leaves of the walk that the recording knows better, as outputs of untracked ops."""
        self._risen: dict[Place, int] = {}
        """Outputs of untracked ops that ``requires_grad_()`` has made leaves, with their position in the walk."""
        self._walk_leaf: dict[int, int] = {}
        """Leaves of the recording that the walk met too, with their position there."""
        self._names_at: dict[Place, list[str]] = {}
        self._describe = Describer(recorder, names, options)
        self._reasons = Reasons()
        self._incoming = incoming
        self._nodes: dict[int, Node] = {}
        self._links: dict[int, list[_Link]] = {}
        self._reached: set[int] = set()
        """Untracked ops whose result is a root that says it requires grad."""
        self._ids: dict[int, str] = {}

    def _strangers(self, given: Sequence[Root], incoming: Sequence[Sequence[Entry]]) -> set[int]:
        """Where in the walk the nodes stand whose results are given and were never met while recording."""
        found: set[int] = set()
        for root, output in zip(given, self._walked.data.roots, strict=False):
            if root.tensor is not None and root.node is not None and self._log.known_source(root.tensor) is None:
                found.update(source for source, _, _, _ in incoming[int(output[1:])])
        return found

    def _acquaintances(self, given: Sequence[Root]) -> set[int]:
        """Where in the walk the nodes stand that made a given tensor, as an op of the recording did."""
        found: set[int] = set()
        for root in given:
            source = None if root.tensor is None or root.node is None else self._log.known_source(root.tensor)
            identity = self._walked.numbers.get(root.node._sequence_nr()) if source is not None else None
            if identity is not None:
                found.add(int(identity[1:]))
        return found

    @property
    def claims(self) -> dict[str, int]:
        """Recorded op of each backward node of the walk, by its id there."""
        return {f"n{position}": index for position, index in self._claims.op_of.items()}

    def build(self, given: Sequence[Root]) -> GraphData:
        """The whole graph."""
        tensors = {id(root.tensor): root.tensor for root in given if root.tensor is not None}
        tensors |= {id(tensor): tensor for tensor in self._names.all_tensors()}
        self._link(tensors)
        self._reached = {
            place[0] for position, place in self._moved.items() if self._walked.data.nodes[position].reached
        }
        self._add_walked()
        noise = self._noise()
        for index, op in enumerate(self._log.ops):
            if index not in noise:
                self._add_op(index, op)
        self._add_outputs()
        return self._finish()

    def id_of(self, source: Source) -> str | None:
        """Id in the built graph of what the recording knows; ``None`` of what was left out."""
        return self._ids.get(self._place(source)[0])

    def id_of_walked(self, identity: str) -> str | None:
        """Id in the built graph of a node of the walk."""
        return self._ids.get(self._walk_place(int(identity[1:]), 0)[0])

    def _link(self, tensors: dict[int, torch.Tensor]) -> None:
        """Find the living tensors in both the walk and the recording, and their names."""
        leaves = self._walked.leaves
        named: list[tuple[Source, tuple[str, ...]]] = []
        for key, tensor in tensors.items():
            source = self._log.known_source(tensor)
            if source is None:
                continue
            if key in leaves:
                position = int(leaves[key][1:])
                if source.kind == OP and self._walked.data.nodes[position].accumulate is not None:
                    self._risen[source.index, source.output] = position
                elif source.kind == OP:
                    self._moved[position] = (source.index, source.output)
                elif source.kind == LEAF:
                    self._walk_leaf[source.index] = position
            names = self._names.of(tensor)
            if names:
                named.append((source, names))
        for index, leaf in enumerate(self._log.leaves):
            held = leaf.tensor()
            if held is not None and id(held) in leaves:
                self._walk_leaf.setdefault(index, int(leaves[id(held)][1:]))
        self._first_unseen = self._first_leaf + len(self._log.leaves)
        self._first_walked = self._first_unseen + len(self._log.unseen)
        for source, names in named:
            known = self._names_at.setdefault(self._place(source), [])
            known += [name for name in names if name not in known]

    def _place(self, source: Source) -> Place:
        """The node that a source is, after claims and identities are known."""
        kind, index, output = source
        if kind == OP:
            position = self._risen.get((index, output)) if self._risen else None
            return (index, output) if position is None else (self._first_walked + position, 0)
        if kind == LEAF:
            position = self._walk_leaf.get(index)
            return (self._first_leaf + index if position is None else self._first_walked + position), 0
        unseen = self._log.unseen[index]
        maker = self._claims.unseen.get(index)
        if maker is not None:
            outputs = self._log.numbers.get(maker, ())
            return maker, outputs.index(output) if output in outputs else 0
        identity = self._walked.numbers.get(unseen.number)
        if identity is None or self._walked.data.nodes[int(identity[1:])].backward != unseen.kind.name:
            return self._first_unseen + index, 0
        return self._walk_place(int(identity[1:]), output)

    def _walk_place(self, position: int, output: int) -> Place:
        index = self._claims.op_of.get(position)
        if index is not None:
            if len(self._log.outputs[index]) == 1:
                return index, 0
            return index, recorded_output(self._log, index, self._walked.data.nodes[position], output)
        return self._moved.get(position) or (self._first_walked + position, output)

    def _add_walked(self) -> None:
        """Nodes that only the walk knows, and the leaves of both."""
        leaves = {position: self._log.leaves[index] for index, position in self._walk_leaf.items()}
        for position, node in enumerate(self._walked.data.nodes):
            if node.kind is Kind.OUTPUT or position in self._moved or position in self._claims.op_of:
                continue
            number = self._first_walked + position
            leaf = leaves.get(position)
            if leaf is not None:
                self._nodes[number] = node._replace(location=self._describe.location_of_leaf(leaf))
            elif node.kind is Kind.OP and node.note is None:
                made_anew = node.backward == "AsStridedBackward0"
                self._nodes[number] = node._replace(op=None, note=_MADE_ANEW if made_anew else None)
            else:
                self._nodes[number] = node
            self._links[number] = self._torch_links(position)
            if leaf is not None and leaf.alias is not None:
                self._add_alias(number, leaf.alias)
        for (index, output), position in self._risen.items():
            self._links[self._first_walked + position].append(_Link(index, output, 0, False, None, None))  # noqa: FBT003
        for index, unseen in enumerate(self._log.unseen):
            number, _ = self._place(Source(NODE, index))
            if unseen.before is not None and number >= self._first_unseen and self._describe.is_inner(unseen.before):
                self._need(number)
                self._add_inner_result(number, unseen.before)

    def _torch_links(self, position: int) -> list[_Link]:
        links = []
        for position_of_source, output_there, slot, gradient in self._incoming[position]:
            source, output = self._walk_place(position_of_source, output_there)
            links.append(_new(_Link, (source, output, slot, gradient, None, None)))
        return links

    def _add_alias(self, number: int, alias: Source) -> None:
        """A leaf that shares memory with, or was made from, something recorded."""
        source, output = self._place(alias)
        if source == number:
            return
        self._need(source)
        if source < self._first_leaf:
            tracked = self._describe.tracked(source, output)
        else:
            node = self._nodes.get(source)
            if node is None and source >= self._first_walked:  # its turn comes later
                node = self._walked.data.nodes[source - self._first_walked]
            tracked = node is not None and bool(node.outputs[output].requires_grad)
        link = _Link(source, output, 0, False, Reason.DATA if tracked else None, None)  # noqa: FBT003  a record
        self._links.setdefault(number, []).append(link)

    def _add_inner_result(self, number: int, before: Source) -> None:
        """The last op inside a custom Function's forward made its result."""
        node = self._nodes[number]
        if node.note is not None and "torch.compile" in node.note:
            return
        source, output = self._place(before)
        where = self._describe.location_of_call(before)
        if where is not None:
            self._nodes[number] = node._replace(location=where)
        slots = len(self._links[number]) + len(node.without_gradient)
        self._links[number].append(_Link(source, output, slots, False, None, None))  # noqa: FBT003  a record

    def _need(self, number: int) -> None:
        """Make the node of a leaf or an unseen backward node when something reads it, and what it is made from."""
        aliases: list[tuple[int, Source]] = []
        while number not in self._nodes and self._first_leaf <= number < self._first_walked:
            self._links[number] = []
            if number >= self._first_unseen:
                self._nodes[number] = self._describe.unseen(self._log.unseen[number - self._first_unseen])
                break
            leaf = self._log.leaves[number - self._first_leaf]
            self._nodes[number] = self._describe.leaf(leaf, tuple(self._names_at.get((number, 0), ())))
            if leaf.alias is None:
                break
            aliases.append((number, leaf.alias))
            number, _ = self._place(leaf.alias)
        for reader, alias in reversed(aliases):
            self._add_alias(reader, alias)

    def _noise(self) -> set[int]:
        """Ops of no interest: ``nn.init`` only fills leaves; an op that saves its own output detaches it first."""
        log, node_of = self._log, self._claims.node_of
        found: set[int] = set()
        suspected: list[int] = []
        for index, op in enumerate(log.ops):
            if index in node_of or op.raised:
                continue
            if op.run is not None and op.run.entry.word == "torch.nn.init":
                found.add(index)
            elif log.saves_output(index):
                suspected.append(index)
        if suspected:
            read = {one.source.index for op in log.ops for one in op.inputs if one.source.kind == OP}
            read |= {leaf.alias.index for leaf in log.leaves if leaf.alias is not None and leaf.alias.kind == OP}
            read |= {place[0] for place in (*self._moved.values(), *self._names_at)}
            found.update(index for index in suspected if index not in read)
        return found

    def _add_op(self, index: int, op: Op) -> None:
        position = self._claims.node_of.get(index)
        walked = self._walked.data.nodes[position] if position is not None else None
        node = self._describe.op(index, op, walked, self._names_at)
        self._nodes[index] = node._replace(reached=True) if index in self._reached else node
        places = []
        for one in op.inputs:
            place = self._place(one.source)
            if place[0] >= self._first_leaf:
                self._need(place[0])
            places.append(place)
        if position is None:
            self._links[index] = self._untracked_links(index, op, places)
        else:
            self._links[index] = self._tracked_links(index, op, places, position)

    def _untracked_links(self, index: int, op: Op, places: list[Place]) -> list[_Link]:
        """The arguments of an op that has no node, or none that the walk came to."""
        names = signature_of(op.func).argument_names
        tracked = op.mode == GRAD and self._describe.made_a_node(index)
        links = []
        for slot, (_, requires_grad, place) in enumerate(op.inputs):
            source, output = places[slot]
            gradient = tracked and requires_grad
            reason = None if gradient else self._reason(index, op.inputs[slot], source)
            links.append(_new(_Link, (source, output, slot, gradient, reason, names[place])))
        return links

    def _tracked_links(self, index: int, op: Op, places: list[Place], position: int) -> list[_Link]:
        """torch's edges with the arguments they stand for, then the arguments without gradient."""
        names = signature_of(op.func).argument_names
        links = self._torch_links(position)
        matched = match_arguments(links, places)
        for place, argument in enumerate(matched):
            if argument >= 0:
                source, output, slot, gradient, _, _ = links[place]
                links[place] = _new(_Link, (source, output, slot, gradient, None, names[op.inputs[argument].place]))
        if len(places) == len(links) and -1 not in matched:
            return links
        without = self._walked.data.nodes[position].without_gradient
        count = len(links) + len(without)
        free = iter([*without, *range(count, count + len(places))])
        for argument, one in enumerate(op.inputs):
            if argument not in matched:
                source, output = places[argument]
                reason = self._reason(index, one, source)
                links.append(_new(_Link, (source, output, next(free), False, reason, names[one.place])))
        return links

    def _reason(self, index: int, one: Input, source: int) -> Reason | None:
        known = self._nodes.get(source) if source >= self._first_leaf else None
        op = self._log.ops[index]
        if known is None and one.requires_grad and source < self._first_leaf and self._log.ops[source].run is not None:
            op = self._log.ops[source]  # a view of a leaf, made where gradients were off
        outputs = self._nodes[index].outputs
        return self._reasons.of(op, one, known, outputs, tracked=index in self._claims.node_of)

    def _add_outputs(self) -> None:
        for root in self._walked.data.roots:
            position = int(root[1:])
            number = self._first_walked + position
            self._nodes[number] = self._walked.data.nodes[position]
            self._links[number] = self._torch_links(position)

    def _settle_flags(self) -> None:
        """Leaves that are gone require grad as when they were last read: some were frozen after they were met."""
        flags = {
            one.source.index: one.requires_grad
            for op in self._log.ops
            for one in op.inputs
            if one.source.kind == LEAF and self._log.leaves[one.source.index].tensor() is None
        }
        for index, flag in flags.items():
            node = self._nodes.get(self._first_leaf + index)
            if node is not None:
                (info,) = node.outputs
                self._nodes[self._first_leaf + index] = node._replace(outputs=(info._replace(requires_grad=flag),))

    def _finish(self) -> GraphData:
        self._settle_flags()
        numbers = list(self._nodes)
        times = self._times(numbers)
        order = topological_order(times, self._sources(numbers))
        if len(order) < len(numbers):
            self._break_circles({numbers[place] for place in set(range(len(numbers))).difference(order)})
            order = topological_order(times, self._sources(numbers))
        ids = self._ids = {numbers[place]: f"n{rank}" for rank, place in enumerate(order)}
        writes = self._writes(ids)
        nodes, edges = [], []
        for place in order:
            number = numbers[place]
            identity = ids[number]
            node = self._nodes[number]
            nodes.append(_new(Node, (identity, *node[1:_WRITES], writes.get(number, ()), *node[_WRITES + 1 :])))
            links = self._links[number]
            if len(links) > 1:
                links.sort(key=_slot)
            for source, output, slot, gradient, reason, argument in links:
                if source in ids:
                    edges.append(_new(Edge, (ids[source], output, identity, slot, gradient, reason, argument)))
        walked = self._walked.data
        return GraphData(
            nodes=tuple(nodes),
            edges=tuple(edges),
            roots=tuple(ids[self._first_walked + int(root[1:])] for root in walked.roots),
            torch=walked.torch,
            recorded=True,
            storages=walked.storages,
            modules=walked.modules,
            regions=self._describe.regions(),
            calls=self._describe.calls(ids),
            notices=(*walked.notices, *self._describe.notices()),
        )

    def _sources(self, numbers: list[int]) -> list[list[int]]:
        position = {number: place for place, number in enumerate(numbers)}
        return [[position[one.source] for one in self._links[number] if one.source in position] for number in numbers]

    def _break_circles(self, numbers: set[int]) -> None:
        """Leave out edges of data that would run in a circle: a value that was written back where it came from."""
        for number in numbers:
            self._links[number] = [one for one in self._links[number] if one.gradient or one.source not in numbers]

    def _writes(self, ids: dict[int, str]) -> dict[int, tuple[str, ...]]:
        found: dict[int, tuple[str, ...]] = {}
        for index, sources in self._log.writes.items():
            numbers = [self._place(source)[0] for source in sources]
            found[index] = tuple(dict.fromkeys(ids[number] for number in numbers if number in ids))
        return found

    def _times(self, numbers: list[int]) -> list[int]:
        """When each came to be: ops in the order they ran, nodes by their number, leaves before their first reader."""
        latest = list(itertools.accumulate((op.number for op in self._log.ops), max))
        walk_numbers = {int(identity[1:]): number for number, identity in self._walked.numbers.items()}
        last = (len(self._log.ops) + 2) * _STEP
        times: dict[int, int] = {}
        for number in numbers:
            if number < self._first_leaf:
                times[number] = (number + 1) * _STEP
            elif self._nodes[number].kind is Kind.OP:
                if number < self._first_walked:
                    made = self._log.unseen[number - self._first_unseen].number
                else:
                    made = walk_numbers.get(number - self._first_walked, 0)
                after = bisect.bisect_right(latest, made)  # ops that began before the node was made
                times[number] = after * _STEP + _STEP // 2 + made % (_STEP // 4)
            else:
                times[number] = last + (_STEP if self._nodes[number].kind is Kind.OUTPUT else 0)
        for number in numbers:
            if self._nodes[number].kind is Kind.OP:
                time = times[number] - _STEP // 8
                for one in self._links[number]:
                    source = one.source
                    if source >= self._first_leaf and source in times and self._nodes[source].kind is Kind.LEAF:
                        times[source] = min(times[source], time + one.slot)
        return [times[number] for number in numbers]


def _slot(link: _Link) -> int:
    return link.slot
