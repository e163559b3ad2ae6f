"""From tensors to their graph: the records of a walk over ``grad_fn`` and ``next_functions``.

The walk keeps no node, runs no hook, unpacks no saved tensor, and never recurses. Nodes are
discovered and ordered first (``discover.py``) and read once, in their final order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch

from graphscope.capture.walking import tensors
from graphscope.capture.walking.discover import discover
from graphscope.capture.walking.ids import numbered
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.saved import CAN_LOOK, SavedReader
from graphscope.capture.walking.search import is_graph_edge
from graphscope.capture.walking.stack import safe_depth
from graphscope.capture.walking.tensors import NOT_TOLD, metadata_info, tensor_info, tensor_infos
from graphscope.garbage import collection_paused
from graphscope.model import Edge, GraphData, Kind, Node, Role, TensorInfo

_PASSES_PARAMETER_ON = frozenset({"t", "transpose", "view", "expand", "permute", "unsqueeze", "to_copy", "reshape"})
"""Ops through which a parameter is still the parameter of its module: ``x @ weight.T``."""

_new = tuple.__new__
"""Makes a record from a tuple of all its fields in order, at a third of the cost of a call by field."""

_PARAMETER = Role.PARAMETER  # naming an enum member costs a look-up each time

_NONE, _FALSE, _EMPTY = repeat(None), repeat(False), repeat(())  # noqa: FBT003  columns of one value

_REFUSED = "torch refuses to tell its history: a view made apart from autograd, whose base was then written in place"

_UNKNOWN_OUTPUT = (TensorInfo(requires_grad=True, is_leaf=False),)
"""Of an op in a torch without ``_input_metadata``, such as 2.4."""


class Root(NamedTuple):
    """A tensor or graph edge to start from, and what it is called."""

    name: str
    tensor: torch.Tensor | None
    node: Any
    """Its ``grad_fn``; ``None`` for a leaf."""
    output: int


def to_root(name: str, value: Any) -> Root:
    """A tensor or ``GradientEdge`` as a root."""
    if is_graph_edge(value):
        return Root(name, None, value.node, value.output_nr)
    with torch._C.DisableTorchFunction():
        return Root(name, value, tensors.history_of(value), tensors.output_number(value))


def walk_graph(
    roots: Sequence[Root], names: Names, *, others: Sequence[Root] = (), every_module: bool = False
) -> GraphData:
    """The graph behind ``roots``.

    Args:
        roots: where a backward would start.
        names: what tensors are called, and the modules in sight.
        others: further tensors; their graphs are included, reached only where the roots lead to them.
        every_module: list unused parameters of every module in sight, not only of those that own a leaf of the graph.
    """
    with quiet_look():
        return _Builder(roots, names, others).build(roots, others, every_module=every_module)


class Walked(NamedTuple):
    """A graph together with what its nodes were, so that a recording can be laid over it."""

    data: GraphData
    numbers: dict[int, str]
    """Id of each op node by its ``_sequence_nr()``."""
    leaves: dict[int, str]
    """Id of each leaf by ``id()`` of its tensor."""
    nodes: Callable[[], dict[str, Any]]
    """The backward nodes themselves by id."""
    storages: dict[int, str]
    """Id of each storage by ``_cdata``."""
    order: dict[int, int]
    """``_sequence_nr()`` of each op node by its place among the nodes; another thread's may have the same."""


def walk_linked(roots: Sequence[Root], names: Names, *, others: Sequence[Root], every_module: bool) -> Walked:
    """``walk_graph`` with the links back to torch; valid while the tensors live."""
    with quiet_look():
        builder = _Builder(roots, names, others)
        data = builder.build(roots, others, every_module=every_module)
        return Walked(data, builder.numbers(), builder.leaf_ids, builder.nodes, builder.storage_ids(), builder.order())


@contextlib.contextmanager
def quiet_look() -> Iterator[None]:
    """Read without garbage collection, and without running ``__torch_function__`` of a subclass or mode."""
    with collection_paused(), torch._C.DisableTorchFunction():
        yield


class _Builder:
    """Turns a trace into records, in topological order."""

    def __init__(self, roots: Sequence[Root], names: Names, others: Sequence[Root]) -> None:
        self._names = names
        self._trace = trace = discover([root.node for root in roots], [root.node for root in others])
        self._order = trace.order()
        self._ids = [""] * len(trace.nodes)
        self._saved = SavedReader()
        self._named = self._named_outputs([*roots, *others])
        self._outputs: dict[tuple[Any, ...], tuple[TensorInfo, ...]] = {}
        """Outputs of ops by shape, dtype and device: few kinds, many ops."""
        self.leaf_ids: dict[int, str] = {}
        """Id of each leaf by ``id()`` of its tensor."""
        self._loose_parameters: list[torch.Tensor] = []
        """Parameters of no module in sight."""
        self._blind = False
        """torch does not tell what ops returned."""
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []

    def build(self, roots: Sequence[Root], others: Sequence[Root], *, every_module: bool) -> GraphData:
        self._add_nodes()
        self._complete_nodes()
        for root in roots:
            if root.node is None and root.tensor is not None:  # its own ``.grad`` would be filled, if it requires grad
                self._add_leaves([root.tensor], reached=tensors.requires_grad(root.tensor))
                if tensors.requires_grad(root.tensor) and not tensors.is_leaf(root.tensor):
                    self._nodes[-1] = self._nodes[-1]._replace(note=_REFUSED)
        root_ids = tuple(self._add_root(root) for root in roots)
        if self._blind:
            self._add_unknown_outputs()
        self._add_unused(others, every_module=every_module)
        return GraphData(
            nodes=tuple(self._nodes),
            edges=tuple(self._edges),
            roots=root_ids,
            torch=str(torch.__version__),
            storages=self._saved.storages(self._parameter_storages()),
            modules=self._names.module_records(),
            notices=tuple(self._notices()),
        )

    def numbers(self) -> dict[int, str]:
        """Id of each op by its ``_sequence_nr()``."""
        trace = self._trace
        return {
            number: identity
            for number, identity, kind in zip(trace.numbers, self._ids, trace.kinds, strict=True)
            if not kind.accumulate
        }

    def order(self) -> dict[int, int]:
        """The ``_sequence_nr()`` of each op, by its place among the nodes of the graph."""
        trace = self._trace
        return {
            int(identity[1:]): number
            for number, identity, kind in zip(trace.numbers, self._ids, trace.kinds, strict=True)
            if not kind.accumulate
        }

    def nodes(self) -> dict[str, Any]:
        """Each backward node by its id."""
        return dict(zip(self._ids, self._trace.nodes, strict=True))

    def storage_ids(self) -> dict[int, str]:
        """Id of each storage that saved tensors keep, by ``_cdata``."""
        return self._saved._ids

    def _parameter_storages(self) -> set[int]:
        """Keys of the memory that is there anyway: of parameters in the graph, and of what the modules in sight own."""
        return tensors.storage_keys([*(tensor for tensor, _ in self._names.module_tensors()), *self._loose_parameters])

    def _named_outputs(self, given: Sequence[Root]) -> dict[int, dict[int, tuple[torch.Tensor, list[str]]]]:
        """Tensors in hand, by position of their node and output number, with their names.

        Reading ``grad_fn`` touches a node, so not too many are read.
        """
        named: dict[int, dict[int, tuple[torch.Tensor, list[str]]]] = {}
        index = self._trace.index
        for _, (tensor, names) in zip(range(safe_depth() // 8), self._names.tracked(), strict=False):
            position = index.get(tensors.history_of(tensor))
            if position is not None:
                _, known = named.setdefault(position, {}).setdefault(tensors.output_number(tensor), (tensor, []))
                known += [name for name in names if name not in known]
        for root in given:
            if root.node is not None and root.tensor is not None:
                named.setdefault(index[root.node], {}).setdefault(root.output, (root.tensor, []))
        return named

    def _add_nodes(self) -> None:
        """One record per node, in order; leaves and ops are read apart, column by column where that is faster."""
        nodes, kinds, reached, ids = self._trace.nodes, self._trace.kinds, self._trace.reached, self._ids
        for position, identity in zip(self._order, numbered("n"), strict=False):
            ids[position] = identity
        at_leaves = [position for position in self._order if kinds[position].accumulate]
        at_ops = [position for position in self._order if not kinds[position].accumulate]
        leaves = self._leaf_records(
            [nodes[position].variable for position in at_leaves],
            [ids[position] for position in at_leaves],
            [position < reached for position in at_leaves],
            [kinds[position].name for position in at_leaves],
        )
        owners = self._owners(at_leaves, leaves)
        ops = iter(self._op_records(at_ops, owners))
        following = iter(leaves)
        self._nodes = [next(following) if kinds[position].accumulate else next(ops) for position in self._order]

    def _owners(self, at: Sequence[int], leaves: Sequence[Node]) -> dict[int, str]:
        """The module of each leaf that is the parameter of one, by position."""
        roles, nodes = self._names.roles, self._trace.nodes
        return {
            position: leaf.outputs[0].names[0].rpartition(".")[0]
            for position, leaf in zip(at, leaves, strict=True)
            if leaf.role is _PARAMETER and id(nodes[position].variable) in roles
        }

    def _op_records(self, at: Sequence[int], owners: dict[int, str]) -> Iterator[Node]:
        """Ops at the given positions; adds their edges. ``owners`` are the modules of parameters, by position."""
        nodes = [self._trace.nodes[position] for position in at]
        kinds = [self._trace.kinds[position] for position in at]
        reached = self._trace.reached
        outputs, without, modules = self._follow(at, owners)
        columns = zip(
            [self._ids[position] for position in at],
            repeat(Kind.OP),
            outputs,
            [position < reached for position in at],
            _NONE,
            [kind.op for kind in kinds],
            [kind.name for kind in kinds],
            *(_NONE, _NONE, _FALSE, repeat(0)),
            self._saved.read(nodes, [kind.slots for kind in kinds]),
            without,
            *(_FALSE, _NONE),
            modules,
            *(_NONE, _NONE, _EMPTY),
            [kind.note for kind in kinds],
            strict=False,
        )
        return map(_new, repeat(Node), columns)

    def _follow(
        self, at: Sequence[int], owners: dict[int, str]
    ) -> tuple[list[tuple[TensorInfo, ...]], list[tuple[int, ...]], list[str | None]]:
        """What each op returned, its slots without gradient, and the module whose parameter it reads; adds edges."""
        nodes, kinds, inputs, ids = self._trace.nodes, self._trace.kinds, self._trace.inputs, self._ids
        known_outputs, add_edge, new = self._outputs, self._edges.append, _new
        outputs: list[tuple[TensorInfo, ...]] = []
        without: list[tuple[int, ...]] = []
        modules: list[str | None] = []
        for position in at:
            target = ids[position]
            empty: tuple[int, ...] = ()
            owner = None
            slot = 0
            for entry in inputs[position]:
                if entry is None:
                    empty += (slot,)
                else:
                    source, output = entry
                    add_edge(new(Edge, (ids[source], output, target, slot, True, None, None)))
                    if owner is None and source in owners:
                        owner = owners[source]
                slot += 1
            if owner is not None and slot == 1 and kinds[position].op in _PASSES_PARAMETER_ON:
                owners[position] = owner
            without.append(empty)
            modules.append(owner)
            node = nodes[position]
            try:
                (only,) = node._input_metadata
                outputs.append(known_outputs[(*only.shape, only.dtype, only.device)])
            except (AttributeError, KeyError, *NOT_TOLD, ValueError):
                outputs.append(self._describe_outputs(node))
        return outputs, without, modules

    def _complete_nodes(self) -> None:
        """What holds for few nodes: outputs that are in hand, inputs that were not followed."""
        place = {position: int(self._ids[position][1:]) for position in (*self._named, *self._trace.stopped)}
        for position in self._trace.stopped:
            self._nodes[place[position]] = self._nodes[place[position]]._replace(stopped=True)
        for position, named in self._named.items():
            self._nodes[place[position]] = _with_names(self._nodes[place[position]], named)

    def _add_unknown_outputs(self) -> None:
        """As many outputs as are read, where torch does not tell how many there are."""
        read: dict[str, int] = {}
        for edge in self._edges:
            read[edge.source] = max(read.get(edge.source, 0), edge.output + 1)
        for place, node in enumerate(self._nodes):
            missing = read.get(node.id, 0) - len(node.outputs)
            if missing > 0:
                self._nodes[place] = node._replace(outputs=node.outputs + _UNKNOWN_OUTPUT * missing)

    def _describe_outputs(self, node: Any) -> tuple[TensorInfo, ...]:
        """What an op returned; the hot loop looks up what many ops return: one output of a shape that it has seen."""
        metadata = getattr(node, "_input_metadata", None)
        if metadata is None:
            self._blind = True
            return _UNKNOWN_OUTPUT
        outputs: tuple[TensorInfo, ...] = ()
        for one in metadata:
            try:
                key = (*one.shape, one.dtype, one.device)
                outputs += self._outputs.get(key) or self._outputs.setdefault(key, (metadata_info(one),))
            except NOT_TOLD:  # no single shape, or one with symbols, which are no keys
                outputs += (metadata_info(one),)
        return outputs

    def _leaf_records(
        self,
        leaves: Sequence[torch.Tensor],
        identities: Sequence[str],
        reached: Sequence[bool],
        accumulators: Sequence[str | None],
    ) -> list[Node]:
        names = self._names.of_each(leaves)
        roles = [self._role_of(leaf) for leaf in leaves]
        self.leaf_ids.update(zip(map(id, leaves), identities, strict=True))
        gradients = tensors.gradients(leaves)
        told = iter(tensor_infos([gradient for gradient in gradients if gradient is not None], _EMPTY))
        columns = zip(
            identities,
            repeat(Kind.LEAF),
            zip(tensor_infos(leaves, names), strict=True),  # one tensor each
            reached,
            roles,
            *(_NONE, _NONE),
            accumulators,
            [None if gradient is None else next(told) for gradient in gradients],
            _FALSE,
            tensors.hook_counts(leaves),
            *(_EMPTY, _EMPTY, _FALSE, _NONE, _NONE, _NONE, _NONE, _EMPTY, _NONE),
            strict=False,
        )
        return list(map(_new, repeat(Node), columns))

    def _role_of(self, leaf: torch.Tensor) -> Role:
        role = self._names.roles.get(id(leaf))
        if role is not None:
            return role
        if not tensors.is_parameter(leaf):
            return Role.INPUT
        self._loose_parameters.append(leaf)
        return _PARAMETER

    def _add_leaves(self, leaves: Sequence[torch.Tensor], *, reached: bool) -> None:
        """Add leaves that no node leads to, as far as they are not there yet."""
        fresh = list({id(leaf): leaf for leaf in leaves if id(leaf) not in self.leaf_ids}.values())
        identities = [f"n{place}" for place, _ in enumerate(fresh, len(self._nodes))]
        self._nodes += self._leaf_records(fresh, identities, [reached] * len(fresh), [None] * len(fresh))

    def _add_root(self, root: Root) -> str:
        identity = f"n{len(self._nodes)}"
        source = self.leaf_ids[id(root.tensor)] if root.node is None else self._ids[self._trace.index[root.node]]
        names = (root.name, *(name for name in self._known_names(root) if name != root.name))
        if root.tensor is not None:
            info = tensor_info(root.tensor, names)
        else:
            outputs = self._describe_outputs(root.node)
            info = (outputs + _UNKNOWN_OUTPUT * root.output)[root.output]._replace(names=names)
        tracked = bool(info.requires_grad)
        self._nodes.append(Node(identity, Kind.OUTPUT, (info,), reached=True))
        self._edges.append(Edge(source, root.output, identity, 0, tracked))
        return identity

    def _known_names(self, root: Root) -> tuple[str, ...]:
        return self._names.of(root.tensor) if root.tensor is not None else ()

    def _add_unused(self, others: Sequence[Root], *, every_module: bool) -> None:
        """Leaves that nothing read: named tensors without history, and parameters of the modules in sight."""
        alone = [root.tensor for root in others if root.node is None and root.tensor is not None]
        self._add_leaves(alone, reached=False)
        parameters = [tensor for tensor, role in self._names.module_tensors() if role is _PARAMETER]
        unused = [tensor for tensor in parameters if id(tensor) not in self.leaf_ids]
        if unused:
            used = {_top(name) for node in self._nodes if node.kind is Kind.LEAF for name in node.names}
            shown = [one for one in unused if every_module or any(_top(name) in used for name in self._names.of(one))]
            self._add_leaves(shown, reached=False)

    def _notices(self) -> Iterator[str]:
        if self._trace.stopped:
            yield (
                f"The walk stopped after {len(self._trace.nodes):,} nodes. With those of earlier walks that is as many "
                "as the stack of this thread can surely free again; what lies behind is not shown. "
                "Walk in the main thread, or in one with a larger stack."
            )
        if not CAN_LOOK:
            yield f"torch {torch.__version__} shows no saved tensor without unpacking it: only their names are told."
        if self._blind:
            yield f"torch {torch.__version__} does not tell what operations returned, unless a variable holds it."


def _top(name: str) -> str:
    """The variable that a dotted name starts from; the whole name of a model given without one is its own start."""
    head, dot, _ = name.partition(".")
    return head if dot else ""


def _with_names(record: Node, named: dict[int, tuple[torch.Tensor, list[str]]]) -> Node:
    """An op with what is known of those of its outputs that are in hand."""
    outputs = list(record.outputs)
    outputs += _UNKNOWN_OUTPUT * (max(named) + 1 - len(outputs))  # of a torch that does not tell how many there are
    for number, (tensor, names) in named.items():
        outputs[number] = tensor_info(tensor, tuple(names))
    held = [tensor for tensor, _ in named.values()]
    return record._replace(
        outputs=tuple(outputs),
        retains_grad=any(map(tensors.retains_grad, held)),
        hooks=sum(map(tensors.hook_count, held)),
    )
