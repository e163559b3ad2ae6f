"""The graph: immutable records, no torch.

Everything that graphscope knows about a run is one ``GraphData``: nodes (leaves, ops, outputs),
edges that run the way data flows, and the storages, modules and grad-mode regions that they
refer to. Capture makes it, transforms turn it into another, analyses and renderers only read it.

Records are ``NamedTuple``s: they cost little by the hundred thousand and cannot be changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from graphscope.errors import GraphCheckError
from graphscope.kinds import Clue, Gradient, Kind, Reason, Role, State

__all__ = [
    "Bundle",
    "Clue",
    "Edge",
    "Evidence",
    "Frame",
    "Gradient",
    "GraphData",
    "Group",
    "Kind",
    "Location",
    "Module",
    "Node",
    "Reason",
    "Region",
    "Role",
    "SavedTensor",
    "State",
    "Storage",
    "TensorInfo",
    "View",
    "reached_from",
]


class TensorInfo(NamedTuple):
    """One tensor as far as it is known. ``None`` always means "not known"."""

    shape: tuple[int | str, ...] | None = None
    """Sizes; a symbolic size is its text; ``None`` where torch itself cannot tell (strided nested tensors)."""
    dtype: str | None = None
    """torch's name without ``torch.``: ``float32``."""
    device: str | None = None
    names: tuple[str, ...] = ()
    """Every name the tensor goes by, best first."""
    requires_grad: bool | None = None
    is_leaf: bool | None = None
    is_inference: bool | None = None
    is_view: bool | None = None
    version: int | None = None
    """The version counter when the graph was taken."""
    layout: str | None = None
    """``sparse_coo``, ``jagged`` …; ``None`` for strided."""
    subclass: str | None = None
    """Class name where it is neither ``Tensor`` nor ``Parameter``."""


class SavedTensor(NamedTuple):
    """One tensor that a backward node keeps."""

    name: str
    """torch's slot name without ``_saved_``: ``mat1``; list members as ``tensors[0]``."""
    state: State
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    bytes: int | None = None
    """Bytes of the tensor itself; the storage it keeps alive may be larger."""
    storage: str | None = None
    """Id of the storage; two saved tensors with one storage are counted once."""
    modified: bool | None = None
    """Written in place since it was saved; ``None`` where that cannot be known."""


class Location(NamedTuple):
    """A line of source."""

    file: str
    line: int
    code: str = ""
    function: str | None = None


class Node(NamedTuple):
    """A leaf, an op or an output mark."""

    id: str
    kind: Kind
    outputs: tuple[TensorInfo, ...] = ()
    """What an op returned; of a leaf and of an output mark, the one tensor itself."""
    reached: bool = False
    """A backward from the roots runs through here."""
    role: Role | None = None
    op: str | None = None
    """The forward op (``addmm``); ``None`` if a backward node belongs to no op that was seen."""
    backward: str | None = None
    """torch's own node name (``AddmmBackward0``); ``None`` for an untracked op."""
    accumulate: str | None = None
    """Of a reached leaf: the name of its ``AccumulateGrad`` node."""
    grad: TensorInfo | None = None
    """Of a leaf: its ``.grad`` if there is one."""
    retains_grad: bool = False
    hooks: int = 0
    """Hooks registered on the tensor or its accumulator."""
    saved: tuple[SavedTensor, ...] = ()
    without_gradient: tuple[int, ...] = ()
    """Slots of ``next_functions`` that hold ``None``: inputs that need no gradient."""
    stopped: bool = False
    """The walk did not follow this node's inputs: it had come to a depth that only just can be freed safely."""
    mode: str | None = None
    """Grad mode when the op ran (``grad``, ``no_grad``, ``inference_mode``); ``None`` if not recorded."""
    module: str | None = None
    location: Location | None = None
    region: str | None = None
    writes: tuple[str, ...] = ()
    """Ids of the nodes whose tensors the op changed in place."""
    note: str | None = None
    """One plain sentence where the name alone would puzzle ("one opaque node of torch.compile")."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names of all outputs, best first."""
        if len(self.outputs) == 1:
            return self.outputs[0].names
        return tuple(name for output in self.outputs for name in output.names)


class Edge(NamedTuple):
    """One use of a tensor: from what made it to what read it."""

    source: str
    output: int
    """Which output of the source."""
    target: str
    slot: int
    """Index in ``next_functions`` of the target; position among its tensor arguments where it has no backward node."""
    gradient: bool
    """torch holds this edge: a gradient that arrives at the target goes on to the source."""
    reason: Reason | None = None
    """Set only on an edge that cuts."""
    argument: str | None = None
    """The argument's name in the op's schema, when recorded."""


class Storage(NamedTuple):
    """Memory that saved tensors keep alive."""

    id: str
    bytes: int
    """Size of the whole storage."""
    parameter: bool = False
    """It belongs to a parameter or buffer, which exists anyway."""


class Module(NamedTuple):
    """One ``nn.Module`` in sight."""

    path: str
    type: str
    training: bool
    parameters: int = 0
    """Elements of its own parameters, not of its children's."""
    trainable: int = 0


class Evidence(NamedTuple):
    """Something that only the running program could tell, for an analysis to judge."""

    clue: Clue
    subject: str = ""
    """A name: of a variable, an attribute, a module path."""
    nodes: tuple[str, ...] = ()
    location: Location | None = None
    also: tuple[Location, ...] = ()
    words: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


class Call(NamedTuple):
    """One time that a module's forward ran."""

    module: str
    """Path of the module; its class where nobody holds it."""
    parent: int | None = None
    """Place in ``GraphData.calls`` of the call around it, which stands earlier."""
    nodes: tuple[str, ...] = ()
    """Ids of the ops that ran in it, but in no call within."""


class Region(NamedTuple):
    """A stretch of code that ran under one grad mode."""

    id: str
    mode: str
    """``no_grad``, ``inference_mode``, ``enable_grad`` …"""
    entered: str
    """``with``, ``decorator`` or ``statement``."""
    location: Location | None = None
    parent: str | None = None
    left_on: bool = False
    """Still in force when the recording ended."""


class Group(NamedTuple):
    """What a folded box stands for. Figures are those of one block where it stands for several equal ones."""

    title: str
    """What the box is called, seen from the frame around it: ``attn``, ``h.0–h.11``."""
    members: tuple[str, ...]
    """Ids in the whole graph of all nodes that the box stands for."""
    module: str | None = None
    """Full path of the module; of the first one where the box stands for several."""
    type: str | None = None
    """Class of the module."""
    call: int = 1
    """Which call of the module this is."""
    calls: int = 1
    """How often the module was called."""
    times: int = 1
    """How many calls of this module the box stands for."""
    step: int = 1
    """How far each of them is from the one before; 0 if that differs."""
    repeats: int = 1
    """Equal blocks in a row that are drawn as this one box."""
    ops: int = 0
    rounds: int = 1
    """So many times equal ops run one after the other inside: a loop, or a module that is called again and again."""
    ops_in_rounds: int = 0
    """Ops in those rounds, all of them together."""
    untracked: int = 0
    """Ops that autograd did not record."""
    tensors: int = 0
    """Parameters inside."""
    unreached: int = 0
    """Those of them that require a gradient, and that none arrives at."""
    trainable: int = 0
    """Elements of parameters inside that require a gradient."""
    frozen: int = 0
    """Elements of parameters inside that do not."""
    saved: int = 0
    """Tensors that ops inside keep for backward, in whatever state."""
    checkpointed: int = 0
    """Those of them that a checkpoint computes again instead of keeping them."""
    saved_bytes: int = 0
    """Bytes of the storages that ops inside keep for backward, parameters and buffers left out, each once."""
    shared_bytes: int = 0
    """Those of them that do not come again with each round, where what is drawn stands for several: so many rounds keep
    so many times the rest, and these once. 0 where it is not as plain as that."""
    gradient: Gradient = Gradient.NONE
    cuts: tuple[tuple[Reason, int], ...] = ()
    """Why edges inside cut something off that would have a gradient and gets none, and how many of each."""


class Frame(NamedTuple):
    """A box around what is drawn of one module, or of one round of something that repeats."""

    id: str
    title: str
    """Seen from the frame around it."""
    nodes: tuple[str, ...]
    """Ids of the drawn nodes in it that are in no frame further inside."""
    parent: str | None = None
    """Id of the frame around it, which stands earlier."""
    module: str | None = None
    type: str | None = None
    call: int = 1
    calls: int = 1
    times: int = 1
    step: int = 1
    repeats: int = 1
    """Equal blocks in a row, of which one is drawn."""
    members: tuple[str, ...] = ()
    """Where something repeats: ids in the whole graph of all nodes of all rounds, round after round; what stands in
    the same place of each round is drawn as the node of the first."""


class Bundle(NamedTuple):
    """What a drawn edge to or from a folded box stands for."""

    edges: int
    """Edges of the whole graph."""
    tensors: int
    """Different tensors that they carry."""
    reached: bool
    """A gradient arrives at the reader."""


class View(NamedTuple):
    """What a drawing leaves out, and how what it shows stands together. All but the first two are only in a view."""

    hidden: int = 0
    """Nodes of the whole graph that are not drawn as themselves."""
    notes: tuple[str, ...] = ()
    """One sentence per choice, for the picture."""
    groups: Mapping[str, Group] = MappingProxyType({})
    """What the nodes of kind ``GROUP`` stand for, by id."""
    frames: tuple[Frame, ...] = ()
    bundles: Mapping[Edge, Bundle] = MappingProxyType({})
    """Edges that stand for others."""
    missing: Mapping[str, int] = MappingProxyType({})
    """By the id of a drawn node: how many of its edges come from nodes that are left out."""
    whole: GraphData | None = None
    """The graph that this is a view of; ``None`` if this is it."""

    @property
    def is_whole(self) -> bool:
        """Nothing is folded: every node and edge here is one of the graph itself."""
        return not (self.groups or self.frames or self.bundles)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphData:
    """A whole graph. Not changed after it is made; ``check()`` verifies it."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    roots: tuple[str, ...]
    torch: str
    recorded: bool = False
    storages: tuple[Storage, ...] = ()
    modules: tuple[Module, ...] = ()
    regions: tuple[Region, ...] = ()
    calls: tuple[Call, ...] = ()
    """Calls of modules, as far as ops ran in them; empty where they were not recorded."""
    notices: tuple[str, ...] = ()
    """What a reader must know: a walk that stopped early, facts this torch does not offer."""
    view: View = View()
    evidence: tuple[Evidence, ...] = ()

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """Nodes by id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def region_modes(self) -> dict[str, str]:
        """Mode of each region, by its id."""
        return {region.id: region.mode for region in self.regions}

    @cached_property
    def incoming(self) -> dict[str, list[Edge]]:
        """Edges into each node, by slot."""
        return self._edges_by(edge.target for edge in self.edges)

    @cached_property
    def outgoing(self) -> dict[str, list[Edge]]:
        """Edges out of each node, in order."""
        return self._edges_by(edge.source for edge in self.edges)

    @cached_property
    def owners(self) -> dict[str, list[str]]:
        """Ids of the nodes that save a tensor in each storage, each once."""
        found: dict[str, dict[str, None]] = {}
        for node in self.nodes:
            for saved in node.saved:
                if saved.storage is not None:
                    found.setdefault(saved.storage, {})[node.id] = None
        return {storage: list(nodes) for storage, nodes in found.items()}

    def _edges_by(self, ends: Iterable[str]) -> dict[str, list[Edge]]:
        grouped: dict[str, list[Edge]] = {node.id: [] for node in self.nodes}
        for end, edge in zip(ends, self.edges, strict=True):
            grouped[end].append(edge)
        return grouped

    def check(self) -> GraphData:
        """Verify every invariant and return the graph itself.

        Raises:
            GraphCheckError: with all findings, if an id is doubled or unknown, an edge runs against the
                order, an output has no single source, or ``reached`` is not what the edges say.
        """
        faults = self.faults()
        if faults:
            listed = "; ".join(faults[:10])
            message = f"the graph breaks {len(faults)} of its own rules: {listed}. Please report this to graphscope."
            raise GraphCheckError(message)
        return self

    def faults(self) -> list[str]:
        """Every broken invariant in words; empty if the graph is sound."""
        return [*self._edge_faults()] or [*self._node_faults(), *self._view_faults()] or [*self._reached_faults()]

    def _node_faults(self) -> Iterable[str]:
        storages = {storage.id for storage in self.storages}
        regions = {region.id for region in self.regions}
        for root in self.roots:
            if root not in self.by_id or self.by_id[root].kind not in {Kind.OUTPUT, Kind.GROUP}:
                yield f"root {root} is no output node"
        for node in self.nodes:
            if node.kind in {Kind.LEAF, Kind.OUTPUT} and len(node.outputs) != 1:
                yield f"{node.kind} {node.id} has {len(node.outputs)} tensors"
            if node.kind is Kind.LEAF and (node.backward or node.op):
                yield f"leaf {node.id} has an op"
            if node.reached and node.kind is Kind.LEAF and not (node.accumulate or self._is_root_itself(node)):
                yield f"leaf {node.id} is reached without an accumulator"
            if node.region is not None and node.region not in regions:
                yield f"{node.id} stands in unknown region {node.region}"
            for saved in node.saved:
                if saved.storage is not None and saved.storage not in storages:
                    yield f"{node.id} saves unknown storage {saved.storage}"
            for written in node.writes:
                if written not in self.by_id:
                    yield f"{node.id} writes unknown node {written}"
        yield from self._evidence_faults()
        yield from self._call_faults()

    def _call_faults(self) -> Iterable[str]:
        for number, call in enumerate(self.calls):
            if call.parent is not None and not 0 <= call.parent < number:
                yield f"call {number} of {call.module} stands before the call {call.parent} around it"
            for identity in call.nodes:
                if identity not in self.by_id:
                    yield f"call {number} of {call.module} holds unknown node {identity}"

    def _evidence_faults(self) -> Iterable[str]:
        for evidence in self.evidence:
            for identity in evidence.nodes:
                if identity not in self.by_id:
                    yield f"evidence of {evidence.clue} names unknown node {identity}"

    def _is_root_itself(self, node: Node) -> bool:
        return any(self.by_id[edge.target].kind is Kind.OUTPUT for edge in self.outgoing[node.id])

    def _edge_faults(self) -> Iterable[str]:
        if len(self.by_id) != len(self.nodes):
            yield "two nodes share an id"
        position = {node.id: index for index, node in enumerate(self.nodes)}
        into_outputs = dict.fromkeys((node.id for node in self.nodes if node.kind is Kind.OUTPUT), 0)
        for edge in self.edges:
            if edge.source not in position or edge.target not in position:
                yield f"edge {edge.source}→{edge.target} ends nowhere"
                continue
            source = self.by_id[edge.source]
            if position[edge.source] >= position[edge.target]:
                yield f"edge {edge.source}→{edge.target} runs against the order"
            if source.kind is not Kind.GROUP and edge.output >= len(source.outputs):
                yield f"edge {edge.source}→{edge.target} leaves output {edge.output} of {len(source.outputs)}"
            if edge.reason is not None and edge.gradient:
                yield f"edge {edge.source}→{edge.target} carries a gradient and a reason for none"
            if edge.target in into_outputs:
                into_outputs[edge.target] += 1
        for output, count in into_outputs.items():
            if count != 1:
                yield f"output {output} has {count} sources"

    def _view_faults(self) -> Iterable[str]:
        groups = {node.id for node in self.nodes if node.kind is Kind.GROUP}
        yield from (f"group {one} stands for nothing" for one in sorted(groups.difference(self.view.groups)))
        yield from (f"group {one} is not there" for one in sorted(set(self.view.groups).difference(groups)))
        if self.view.bundles:
            edges = set(self.edges)
            yield from (f"bundle {one} is not there" for one in self.view.bundles if one not in edges)
        framed: set[str] = set()
        frames: set[str | None] = {None}
        for frame in self.view.frames:
            if frame.parent not in frames:
                yield f"frame {frame.id} stands before its parent {frame.parent}"
            frames.add(frame.id)
            yield from (f"frame {frame.id} holds unknown {one}" for one in frame.nodes if one not in self.by_id)
            yield from (f"{one} is in two frames" for one in frame.nodes if one in framed)
            framed.update(frame.nodes)

    def _reached_faults(self) -> Iterable[str]:
        """Of a view that hides nodes only what its edges show can be verified."""
        if not self.view.is_whole:
            return
        expected = reached_from(self, self.roots)
        for node in self.nodes:
            if node.id in expected if not node.reached else node.id not in expected and not self.view.hidden:
                yield f"{node.id} says reached={node.reached}, the edges say {node.id in expected}"


def reached_from(data: GraphData, roots: Iterable[str]) -> set[str]:
    """Ids of the nodes that a backward from ``roots`` runs through, the roots included."""
    reached = set(roots)
    stack = list(reached)
    while stack:
        for edge in data.incoming[stack.pop()]:
            if edge.gradient and edge.source not in reached:
                reached.add(edge.source)
                stack.append(edge.source)
    return reached
