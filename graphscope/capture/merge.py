"""A recording laid over a walk: one graph of what ran and of what autograd kept of it.

The walk is the truth about gradients: every edge that it found is a gradient edge. The recording
adds the ops that left no node, the arguments that carry no gradient, and for each op its line, module and mode. An
op and a backward node are one where the node's number is the one that the op should have made, and name or
shape agree; a node that no op claims stays on its own.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from graphscope.capture.evidence import Links, gather
from graphscope.capture.names import Names
from graphscope.capture.oplog import Input, Op, Source
from graphscope.capture.optypes import base_name
from graphscope.capture.order import topological_order
from graphscope.capture.reasons import reason_for
from graphscope.capture.record import Recorder
from graphscope.capture.regions import GRAD, Entry
from graphscope.capture.source import to_location
from graphscope.capture.walk import Root, Walked, quiet_look, walk_linked
from graphscope.garbage import collection_paused
from graphscope.model import Edge, GraphData, Kind, Node, Reason, Region, Role, TensorInfo

Key = tuple[str, int | str]
"""``("op", 3)``, ``("leaf", 0)``, ``("unseen", 0)`` of the recording, or ``("walk", "n4")``."""

Place = tuple[Key, int]
"""A key and an output of it."""

_STEP = 1 << 24
"""Room between two ops for leaves and nodes that stand between them."""


_MADE_ANEW = "the history of a view, made anew after what it views was written in place"


class Options(NamedTuple):
    """How a recording becomes a graph."""

    base: Path | None = None
    """Folder that file names are told from."""
    all_frames: bool = False
    """Name the innermost line that is not torch's, also inside installed packages."""
    every_module: bool = False


_PLAIN = Options()


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
        merged = _Merge(recorder, walked, names, options)
        data = merged.build([*roots, *others])
        links = Links(recorder, walked, names, data, merged.id_of, merged.id_of_walked, merged.claims, options.base)
        return dataclasses.replace(data, evidence=gather(links))


class _Merge:
    """One merge; its attributes are the tables that the steps share."""

    def __init__(self, recorder: Recorder, walked: Walked, names: Names, options: Options) -> None:
        self._recorder, self._log, self._walked, self._names = recorder, recorder.log, walked, names
        self._options = options
        self.claims = _claims(self._log.ops, walked)
        """Recorded op of each backward node of the walk, by its id there."""
        self._claimed = {index: identity for identity, index in self.claims.items()}
        self._moved: dict[str, Place] = {}
        """Leaves of the walk that the recording knows better, as outputs of untracked ops."""
        self._walk_leaf: dict[int, str] = {}
        """Leaves of the recording that the walk met too."""
        self._output_names: dict[Place, list[str]] = {}
        self._nodes: dict[Key, Node] = {}
        self._edges: dict[Key, list[Edge]] = {}
        self._places: dict[str, Place] = {}
        self._regions: list[Region] = []
        self._region_entry: Entry | None = None
        self._ids: dict[str, str] = {}

    def build(self, given: Sequence[Root]) -> GraphData:
        tensors = {id(root.tensor): root.tensor for root in given if root.tensor is not None}
        tensors |= {id(tensor): tensor for tensor in self._names.all_tensors()}
        self._link(tensors)
        self._add_walked()
        for index, op in enumerate(self._log.ops):
            if not self._is_noise(index, op):
                self._add_op(index, op)
        self._add_outputs()
        return self._finish()

    def id_of(self, source: Source) -> str | None:
        """Id in the built graph of what the recording knows; ``None`` of what was left out."""
        return self._ids.get(_label(self._place(source)[0]))

    def id_of_walked(self, identity: str) -> str | None:
        """Id in the built graph of a node of the walk."""
        return self._ids.get(_label(self._walk_place(identity, 0)[0]))

    def _link(self, tensors: dict[int, torch.Tensor]) -> None:
        """Find the living tensors in both the walk and the recording, and their names."""
        for key, tensor in tensors.items():
            source = self._log.known_source(tensor)
            if source is None:
                continue
            identity = self._walked.leaves.get(key)
            if identity is not None:
                if source.kind == "op":
                    self._moved[identity] = (("op", source.index), source.output)
                elif source.kind == "leaf":
                    self._walk_leaf[source.index] = identity
            names = self._names.of(tensor)
            if names:
                known = self._output_names.setdefault(self._place(source), [])
                known += [name for name in names if name not in known]
        for index, leaf in enumerate(self._log.leaves):
            held = leaf.tensor()
            if held is not None and id(held) in self._walked.leaves:
                self._walk_leaf.setdefault(index, self._walked.leaves[id(held)])

    def _place(self, source: Source) -> Place:
        """The node that a source is, after claims and identities are known."""
        if source.kind == "leaf":
            identity = self._walk_leaf.get(source.index)
            return (("leaf", source.index) if identity is None else ("walk", identity)), 0
        if source.kind == "node":
            unseen = self._log.unseen[source.index]
            identity = self._walked.numbers.get(unseen.number)
            if identity is None or self._walked.data.by_id[identity].backward != unseen.kind.name:
                return ("unseen", source.index), 0
            return self._walk_place(identity, source.output)
        return ("op", source.index), source.output

    def _walk_place(self, identity: str, output: int) -> Place:
        if identity in self._moved:
            return self._moved[identity]
        index = self.claims.get(identity)
        if index is None:
            return ("walk", identity), output
        return ("op", index), _recorded_output(self._log.ops[index], self._walked.data.by_id[identity], output)

    def _add_walked(self) -> None:
        """Nodes that only the walk knows, and the leaves of both."""
        lines = {identity: self._log.leaves[index] for index, identity in self._walk_leaf.items()}
        for node in self._walked.data.nodes:
            if node.kind is Kind.OUTPUT or node.id in self._moved or node.id in self.claims:
                continue
            key: Key = ("walk", node.id)
            leaf = lines.get(node.id)
            known = node
            if leaf is not None:
                role = Role.CONSTANT if leaf.constant and not leaf.info.requires_grad else node.role
                where = to_location(leaf.lines.user or leaf.lines.inner, self._options.base)
                known = node._replace(role=role, location=where)
            elif node.kind is Kind.OP and node.note is None:
                made_anew = node.backward == "AsStridedBackward0"
                known = node._replace(op=None, note=_MADE_ANEW if made_anew else None)
            self._nodes[key] = known
            self._edges[key] = [self._torch_edge(edge, key) for edge in self._walked.data.incoming[node.id]]
            if leaf is not None and leaf.alias is not None:
                self._add_alias(key, leaf.alias)
        for index, unseen in enumerate(self._log.unseen):
            place, _ = self._place(Source("node", index))
            if unseen.before is not None and place[0] == "walk":
                self._add_inner_result(place, unseen.before)

    def _torch_edge(self, edge: Edge, key: Key, argument: str | None = None) -> Edge:
        source, output = self._walk_place(edge.source, edge.output)
        return Edge(_label(source), output, _label(key), edge.slot, edge.gradient, None, argument)

    def _add_alias(self, key: Key, alias: Source) -> None:
        """A leaf that shares memory with, or was made from, something recorded."""
        place, output = self._place(alias)
        if place == key:
            return
        self._need(place)
        info = self._nodes[place].outputs[output] if place in self._nodes else None
        tracked = info is not None and bool(info.requires_grad)
        self._edges.setdefault(key, []).append(
            Edge(_label(place), output, _label(key), 0, False, Reason.DATA if tracked else None)
        )

    def _add_inner_result(self, key: Key, before: Source) -> None:
        """The last op inside a custom Function's forward made its result."""
        place, output = self._place(before)
        if self._nodes[key].note is not None and "torch.compile" in str(self._nodes[key].note):
            return
        slots = len(self._edges[key]) + len(self._nodes[key].without_gradient)
        self._edges[key].append(Edge(_label(place), output, _label(key), slots, False))
        _ = place

    def _need(self, key: Key) -> None:
        """Make the node of a leaf or an unseen backward node when something reads it."""
        if key in self._nodes or key[0] in {"op", "walk"}:
            return
        index = int(key[1])
        if key[0] == "leaf":
            leaf = self._log.leaves[index]
            held = leaf.tensor()
            role = self._names.roles.get(id(held)) if held is not None else None
            if role is None:
                role = Role.PARAMETER if leaf.parameter else Role.CONSTANT if leaf.constant else Role.INPUT
            where = to_location(leaf.lines.user or leaf.lines.inner, self._options.base)
            info = leaf.info._replace(names=tuple(self._output_names.get((key, 0), ())))
            self._nodes[key] = Node("", Kind.LEAF, (info,), role=role, location=where)
            self._edges[key] = []
            if leaf.alias is not None:
                self._add_alias(key, leaf.alias)
        else:
            unseen = self._log.unseen[index]
            self._nodes[key] = Node(
                "",
                Kind.OP,
                (unseen.info,),
                op=unseen.kind.op if unseen.kind.custom else None,
                backward=unseen.kind.name,
                note=unseen.kind.note,
            )
            self._edges[key] = []
            if unseen.before is not None:
                self._add_inner_result(key, unseen.before)

    def _is_noise(self, index: int, op: Op) -> bool:
        """An op that saves its own output detaches it first; ``nn.init`` only fills leaves."""
        if index in self._claimed or op.raised:
            return False
        if op.entry is not None and op.entry.word == "torch.nn.init":
            return True
        if base_name(op.func._schema.name) != "detach" or index == 0:
            return False
        source = op.inputs[0].source if op.inputs else None
        previous = source is not None and source.kind == "op" and source.index == index - 1
        place = (("op", index), 0)
        held = place in self._output_names or place in self._moved.values()  # it has a name, or is a root
        return previous and index not in self._read_ops() and not held

    def _read_ops(self) -> set[int]:
        if not hasattr(self, "_reads"):
            self._reads = {one.source.index for op in self._log.ops for one in op.inputs if one.source.kind == "op"}
            self._reads |= {leaf.alias.index for leaf in self._log.leaves if leaf.alias and leaf.alias.kind == "op"}
        return self._reads

    def _add_op(self, index: int, op: Op) -> None:
        key: Key = ("op", index)
        identity = self._claimed.get(index)
        walked = self._walked.data.by_id[identity] if identity is not None else None
        line = (op.lines.inner if self._options.all_frames else op.lines.user) or op.lines.inner
        self._nodes[key] = Node(
            "",
            Kind.OP,
            self._op_outputs(key, op, walked),
            walked is not None and walked.reached,
            op=base_name(op.func._schema.name).rstrip("_"),
            backward=walked.backward if walked else None,
            retains_grad=walked.retains_grad if walked else False,
            saved=walked.saved if walked else (),
            without_gradient=walked.without_gradient if walked else (),
            stopped=walked.stopped if walked else False,
            mode=op.mode,
            module=self._module_path(op.module),
            location=to_location(line, self._options.base),
            region=self._region_of(op),
            note=_note(op, walked),
        )
        self._edges[key] = list(self._op_edges(key, op, identity))

    def _op_outputs(self, key: Key, op: Op, walked: Node | None) -> tuple[TensorInfo, ...]:
        outputs = list(op.outputs)
        if walked is not None:
            for number, info in enumerate(walked.outputs):
                place = _recorded_output(op, walked, number)
                if place < len(outputs):
                    outputs[place] = outputs[place]._replace(
                        names=info.names, requires_grad=True, is_leaf=False, version=info.version
                    )
        for number, info in enumerate(outputs):
            names = self._output_names.get((key, number), ())
            outputs[number] = info._replace(names=tuple(dict.fromkeys((*names, *info.names))))
            if info.requires_grad is None and _surely_untracked(op):  # dead before it could be asked
                outputs[number] = outputs[number]._replace(requires_grad=False, is_leaf=True)
        return tuple(outputs)

    def _op_edges(self, key: Key, op: Op, identity: str | None) -> Iterator[Edge]:
        """torch's edges with the arguments they stand for, then the arguments without gradient."""
        places = [self._place(one.source) for one in op.inputs]
        for place, _ in places:
            self._need(place)
        slots = self._walked.data.incoming[identity] if identity is not None else []
        without = self._walked.data.by_id[identity].without_gradient if identity is not None else ()
        argument_of = _match_arguments([self._walk_place(edge.source, edge.output) for edge in slots], places)
        for edge, argument in zip(slots, argument_of, strict=True):
            yield self._torch_edge(edge, key, op.inputs[argument].argument if argument is not None else None)
        free = iter([*without, *range(len(slots) + len(without), len(slots) + len(without) + len(places))])
        used = {argument for argument in argument_of if argument is not None}
        tracked = identity is None and op.mode == GRAD and _made_a_node(op)
        for number, (one, (place, output)) in enumerate(zip(op.inputs, places, strict=True)):
            if number in used:
                continue
            gradient = tracked and one.requires_grad
            slot = next(free) if identity is not None else number
            reason = None if gradient else self._reason(op, one, place)
            yield Edge(_label(place), output, _label(key), slot, gradient, reason, one.argument)

    def _reason(self, op: Op, one: Input, place: Key) -> Reason | None:
        source = self._nodes.get(place)
        return reason_for(op, one, source, tracked=len(op.numbers) > 0)

    def _region_of(self, op: Op) -> str | None:
        """Consecutive ops under one switch stand in one region; coming back to the line later makes a new one."""
        if op.entry != self._region_entry:
            self._region_entry = op.entry
            if op.entry is not None:
                where = to_location(op.entry.line, self._options.base)
                self._regions.append(Region(f"r{len(self._regions)}", op.entry.mode, op.entry.entered, where))
        return self._regions[-1].id if op.entry is not None else None

    def _module_path(self, number: int) -> str | None:
        if number < 0:
            return None
        kind, reference = self._recorder.modules[number]
        module = reference()
        paths = {id(known): path for path, known in reversed(self._names.modules)} if module is not None else {}
        return paths.get(id(module), kind)

    def _add_outputs(self) -> None:
        for root in self._walked.data.roots:
            key: Key = ("walk", root)
            self._nodes[key] = self._walked.data.by_id[root]
            self._edges[key] = [self._torch_edge(edge, key) for edge in self._walked.data.incoming[root]]

    def _settle_flags(self) -> None:
        """Leaves that are gone require grad as when they were last read: some were frozen after they were met."""
        flags = {
            one.source.index: one.requires_grad
            for op in self._log.ops
            for one in op.inputs
            if one.source.kind == "leaf"
        }
        for (kind, index), node in self._nodes.items():
            if kind == "leaf" and index in flags and self._log.leaves[int(index)].tensor() is None:
                (info,) = node.outputs
                self._nodes[kind, index] = node._replace(outputs=(info._replace(requires_grad=flags[int(index)]),))

    def _finish(self) -> GraphData:
        self._settle_flags()
        keys = list(self._nodes)
        position = {_label(key): place for place, key in enumerate(keys)}
        sources = [[position[edge.source] for edge in self._edges[key] if edge.source in position] for key in keys]
        order = topological_order(self._times(keys), sources)
        ids = self._ids = {_label(keys[place]): f"n{rank}" for rank, place in enumerate(order)}
        nodes, edges = [], []
        for place in order:
            key = keys[place]
            nodes.append(self._nodes[key]._replace(id=ids[_label(key)], writes=self._writes(key, ids)))
            edges += [
                edge._replace(source=ids[edge.source], target=ids[edge.target])
                for edge in sorted(self._edges[key], key=lambda edge: edge.slot)
                if edge.source in ids
            ]
        walked = self._walked.data
        notices = [*walked.notices]
        if self._recorder.backward_ops:
            notices.append(f"{self._recorder.backward_ops:,} operations of backward passes ran and are not shown.")
        return GraphData(
            nodes=tuple(nodes),
            edges=tuple(edges),
            roots=tuple(ids[_label(("walk", root))] for root in walked.roots),
            torch=walked.torch,
            recorded=True,
            storages=walked.storages,
            modules=walked.modules,
            regions=tuple(self._regions),
            notices=tuple(notices),
        )

    def _writes(self, key: Key, ids: dict[str, str]) -> tuple[str, ...]:
        if key[0] != "op":
            return ()
        written = [_label(self._place(source)[0]) for source in self._log.ops[int(key[1])].writes]
        return tuple(dict.fromkeys(ids[label] for label in written if label in ids))

    def _times(self, keys: list[Key]) -> list[int]:
        """When each came to be: ops in the order they ran, nodes by their number, leaves before their first reader."""
        ends = [op.numbers.stop for op in self._log.ops]
        latest = list(itertools.accumulate(ends, max))
        walk_numbers = {identity: number for number, identity in self._walked.numbers.items()}
        last = (len(self._log.ops) + 2) * _STEP
        times: dict[Key, int] = {}
        for key in keys:
            if key[0] == "op":
                times[key] = (int(key[1]) + 1) * _STEP
            elif self._nodes[key].kind is Kind.OP:
                number = self._log.unseen[int(key[1])].number if key[0] == "unseen" else walk_numbers[str(key[1])]
                after = bisect.bisect_right(latest, number)  # ops that began before the node was made
                times[key] = after * _STEP + _STEP // 2 + number % (_STEP // 4)
            else:
                times[key] = last + (_STEP if self._nodes[key].kind is Kind.OUTPUT else 0)
        labels = {_label(key): key for key in keys}
        for key in keys:
            for edge in self._edges[key]:
                source = labels.get(edge.source)
                if source is not None and self._nodes[source].kind is Kind.LEAF and self._nodes[key].kind is Kind.OP:
                    times[source] = min(times[source], times[key] - _STEP // 8 + edge.slot)
        return [times[key] for key in keys]


def _label(key: Key) -> str:
    return f"{key[0]} {key[1]}"


def _claims(ops: Sequence[Op], walked: Walked) -> dict[str, int]:
    """Which recorded op made each backward node of the walk.

    An op's own node is made right before it runs; what a write into a view leaves (``CopySlices``) right after.
    """
    makers = [(op.numbers.stop, index) for index, op in enumerate(ops) if op.numbers]
    stops = [stop for stop, _ in makers]
    claims: dict[str, int] = {}
    taken: set[int] = set()
    for number, identity in sorted(walked.numbers.items()):
        place = bisect.bisect_right(stops, number)
        node = walked.data.by_id[identity]
        if node.backward == "CopySlices":
            index = makers[place - 1][1] if place else None
            agrees = index is not None and bool(ops[index].writes)
        else:
            index = makers[place][1] if place < len(makers) else None
            agrees = index is not None and number in ops[index].numbers and _agrees(ops[index], node, number)
        if index is not None and agrees and index not in taken:
            claims[identity] = index
            taken.add(index)
    return claims


def _agrees(op: Op, node: Node, number: int) -> bool:
    if node.note is not None and "autograd.Function" in node.note:
        return False
    if base_name(op.func._schema.name).rstrip("_") == node.op:
        return True
    return number == op.numbers[-1] and any(
        info.requires_grad is not False and info.shape == node.outputs[0].shape and info.dtype == node.outputs[0].dtype
        for info in op.outputs[:1]
    )


def _recorded_output(op: Op, node: Node, number: int) -> int:
    """Which recorded output a node's output is: nodes count only those that can carry a gradient."""
    if node.backward == "CopySlices":  # its output is the base, noted after what the op returned
        return len(op.outputs) - 1
    carrying = [place for place, info in enumerate(op.outputs) if info.requires_grad is not False]
    return carrying[number] if number < len(carrying) else min(number, len(op.outputs) - 1)


def _match_arguments(slots: list[Place], arguments: list[Place]) -> list[int | None]:
    """For each of torch's edges the argument it stands for; both run in the schema's order."""
    matched: list[int | None] = []
    start = 0
    for slot in slots:
        found = next((place for place in range(start, len(arguments)) if arguments[place] == slot), None)
        matched.append(found)
        if found is not None:
            start = found + 1
    return matched


def _made_a_node(op: Op) -> bool:
    """Whether autograd tracked an op of which nothing is left: of a result that died at once only the counter tells."""
    if any(info.requires_grad is not None for info in op.outputs):
        return any(info.requires_grad for info in op.outputs)
    return bool(op.numbers) and any(one.requires_grad for one in op.inputs)


def _surely_untracked(op: Op) -> bool:
    """By torch's rules no output of this op can require grad."""
    return op.mode != GRAD or not any(one.requires_grad for one in op.inputs)


def _note(op: Op, walked: Node | None) -> str | None:
    notes = [walked.note] if walked is not None and walked.note else []
    if op.in_backward:
        notes.append("ran during a backward")
    if op.autocast:
        notes.append("under autocast")
    if op.raised:
        notes.append("raised an error")
    return "; ".join(notes) or None
