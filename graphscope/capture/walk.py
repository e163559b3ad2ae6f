"""From tensors to their graph: the records of a walk over ``grad_fn`` and ``next_functions``.

The walk keeps no node, runs no hook, unpacks no saved tensor, and never recurses. Nodes are
discovered and ordered first (``discover.py``) and read once, in their final order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from graphscope.capture.discover import discover, topological_order
from graphscope.capture.names import Names, is_graph_edge
from graphscope.capture.optypes import NodeType, node_types
from graphscope.capture.saved import SavedReader, dtype_name, shape_of, storage_key
from graphscope.capture.stack import safe_depth
from graphscope.garbage import collection_paused
from graphscope.model import Edge, GraphData, Kind, Node, Role, TensorInfo

_PASSES_PARAMETER_ON = frozenset({"t", "transpose", "view", "expand", "permute", "unsqueeze", "to_copy", "reshape"})
"""Ops through which a parameter is still the parameter of its module: ``x @ weight.T``."""


_new_op = functools.partial(tuple.__new__, Node)
_new_edge = functools.partial(tuple.__new__, Edge)
"""Records from a tuple of all their fields in order: a third of the cost of a call by field, which a walk feels."""


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
    return Root(name, value, value.grad_fn, value.output_nr)


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
        self._kinds = node_types(trace.nodes)
        self._order = topological_order(trace)
        self._ids = [""] * len(trace.nodes)
        for place, position in enumerate(self._order):
            self._ids[position] = f"n{place}"
        self._saved = SavedReader(self._parameter_storages())
        self._named = self._named_outputs([*roots, *others])
        self._plain_outputs: dict[tuple[Any, ...], tuple[TensorInfo, ...]] = {}
        self._leaf_ids: dict[int, str] = {}
        self._owners: dict[str, str] = {}
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []

    def build(self, roots: Sequence[Root], others: Sequence[Root], *, every_module: bool) -> GraphData:
        self._add_nodes()
        for root in roots:
            if root.node is None:
                self._leaf_root(root)
        root_ids = tuple(self._add_root(root) for root in roots)
        self._add_unused(others, every_module=every_module)
        return GraphData(
            nodes=tuple(self._nodes),
            edges=tuple(self._edges),
            roots=root_ids,
            torch=str(torch.__version__),
            storages=tuple(self._saved.storages),
            modules=self._names.module_records(),
            notices=tuple(self._notices()),
        )

    def _parameter_storages(self) -> set[int]:
        leaves = [node.variable for node, kind in zip(self._trace.nodes, self._kinds, strict=True) if kind.accumulate]
        parameters = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Parameter)]
        parameters += [tensor for tensor, _ in self._names.module_tensors()]
        return {key for key in map(storage_key, parameters) if key is not None}

    def _named_outputs(self, given: Sequence[Root]) -> dict[int, dict[int, tuple[torch.Tensor, list[str]]]]:
        """Tensors in hand, by position of their node and output number, with their names.

        Reading ``grad_fn`` touches a node, so not too many are read.
        """
        named: dict[int, dict[int, tuple[torch.Tensor, list[str]]]] = {}
        index = self._trace.index
        for _, (tensor, names) in zip(range(safe_depth() // 8), self._names.tracked(), strict=False):
            position = index.get(tensor.grad_fn)
            if position is not None:
                _, known = named.setdefault(position, {}).setdefault(tensor.output_nr, (tensor, []))
                known += [name for name in names if name not in known]
        for root in given:
            if root.node is not None and root.tensor is not None:
                named.setdefault(index[root.node], {}).setdefault(root.output, (root.tensor, []))
        return named

    def _add_nodes(self) -> None:
        """One record per node, in order. The hot loop: locals and whole tuples keep it near the cost of reading."""
        nodes, following, index, reached, stopped = self._trace
        ids, kinds, owners, named = self._ids, self._kinds, self._owners, self._named
        outputs_of, read_saved = self._outputs, self._saved.read
        add_node, add_edge, kind_op = self._nodes.append, self._edges.append, Kind.OP
        for position in self._order:
            node, kind, identity = nodes[position], kinds[position], ids[position]
            if kind.accumulate:
                self._add_leaf(identity, node.variable, reached=position < reached, accumulate=kind.name)
                continue
            _, op, backward, _, slots, note = kind
            without: tuple[int, ...] = ()
            owner: str | None = None
            slot = 0
            for source, output in following[position]:
                if source is None:
                    without += (slot,)
                else:
                    source_id = ids[index[source]]
                    add_edge(_new_edge((source_id, output, identity, slot, True, None, None)))
                    if source_id in owners:
                        owner = owner or owners[source_id]
                slot += 1  # noqa: SIM113  enumerate would make a tuple an edge
            if owner is not None and slot == 1 and op in _PASSES_PARAMETER_ON:
                owners[identity] = owner
            saved = read_saved(node, slots) if slots else ()
            record = _new_op(
                # fmt: off
                (identity, kind_op, outputs_of(node), position < reached, None, op, backward, None, None, False, 0,
                 saved, without, position in stopped, None, owner, None, None, (), note)
                # fmt: on
            )
            add_node(_with_names(record, named[position]) if position in named else record)

    def _outputs(self, node: Any) -> tuple[TensorInfo, ...]:
        metadata = getattr(node, "_input_metadata", None)
        if metadata is None:  # torch older than the attribute
            return (TensorInfo(requires_grad=True, is_leaf=False),)
        if len(metadata) != 1:
            return tuple(_from_metadata(one) for one in metadata)
        only = metadata[0]
        try:
            key = (*only.shape, only.dtype, only.device)
            known = self._plain_outputs.get(key)
        except (RuntimeError, TypeError):  # no single shape, or one with symbols that cannot be compared
            return (_from_metadata(only),)
        if known is None:
            known = self._plain_outputs[key] = (_from_metadata(only),)
        return known

    def _add_leaf(self, identity: str, tensor: torch.Tensor, *, reached: bool, accumulate: str | None) -> None:
        names = self._names.of(tensor) or self._names.of_alias(tensor)
        role = self._names.roles.get(id(tensor))
        if role is None:
            role = Role.PARAMETER if isinstance(tensor, torch.nn.Parameter) else Role.INPUT
        if role is Role.PARAMETER and names:
            self._owners[identity] = names[0].rpartition(".")[0]
        self._leaf_ids[id(tensor)] = identity
        grad = tensor.grad if tensor.is_leaf else None
        self._nodes.append(
            Node(
                identity,
                Kind.LEAF,
                (_from_tensor(tensor, names),),
                reached,
                role=role,
                accumulate=accumulate,
                grad=None if grad is None else _from_tensor(grad, ()),
                hooks=len(tensor._backward_hooks or ()) + len(getattr(tensor, "_post_accumulate_grad_hooks", None) or ()),
            )
        )

    def _leaf_root(self, root: Root) -> None:
        """A root without history: reached if it requires grad, since its own ``.grad`` would be filled."""
        tensor = root.tensor
        if tensor is not None and id(tensor) not in self._leaf_ids:
            self._add_leaf(f"n{len(self._nodes)}", tensor, reached=tensor.requires_grad, accumulate=None)

    def _add_root(self, root: Root) -> str:
        identity = f"n{len(self._nodes)}"
        if root.node is None:
            source = self._leaf_ids[id(root.tensor)]
        else:
            source = self._ids[self._trace.index[root.node]]
        names = (root.name, *(name for name in self._known_names(root) if name != root.name))
        if root.tensor is not None:
            info = _from_tensor(root.tensor, names)
        else:
            info = _from_metadata(root.node._input_metadata[root.output])._replace(names=names)
        tracked = bool(info.requires_grad)
        self._nodes.append(Node(identity, Kind.OUTPUT, (info,), reached=True))
        self._edges.append(Edge(source, root.output, identity, 0, tracked))
        return identity

    def _known_names(self, root: Root) -> tuple[str, ...]:
        return self._names.of(root.tensor) if root.tensor is not None else ()

    def _add_unused(self, others: Sequence[Root], *, every_module: bool) -> None:
        """Leaves that nothing read: named tensors without history, and parameters of the modules in sight."""
        for root in others:
            if root.node is None and root.tensor is not None and id(root.tensor) not in self._leaf_ids:
                self._add_leaf(f"n{len(self._nodes)}", root.tensor, reached=False, accumulate=None)
        used = {_top(name) for node in self._nodes if node.kind is Kind.LEAF for name in node.names}
        for tensor, role in self._names.module_tensors():
            wanted = every_module or any(_top(name) in used for name in self._names.of(tensor))
            if role is Role.PARAMETER and wanted and id(tensor) not in self._leaf_ids:
                self._add_leaf(f"n{len(self._nodes)}", tensor, reached=False, accumulate=None)

    def _notices(self) -> Iterator[str]:
        if self._trace.stopped:
            yield (
                f"The walk stopped after {len(self._trace.nodes):,} nodes, as many as the stack of this thread can surely "
                "free again; what lies behind is not shown. Walk in the main thread, or in one with a larger stack."
            )
        if not hasattr(torch._C._autograd, "SavedTensor"):
            yield f"torch {torch.__version__} cannot show saved tensors without unpacking them, so none are listed."


def _top(name: str) -> str:
    """The variable that a dotted name starts from; the whole name of a model given without one is its own start."""
    head, dot, _ = name.partition(".")
    return head if dot else ""


def _with_names(record: Node, named: dict[int, tuple[torch.Tensor, list[str]]]) -> Node:
    """An op with what is known of those of its outputs that are in hand."""
    outputs = list(record.outputs)
    for number, (tensor, names) in named.items():
        outputs[number] = _from_tensor(tensor, tuple(names))
    return record._replace(
        outputs=tuple(outputs), retains_grad=any(bool(tensor.retains_grad) for tensor, _ in named.values())
    )


def _from_metadata(metadata: Any) -> TensorInfo:
    """An output as its backward node knows it. It requires grad, or the node would not have it."""
    return TensorInfo(shape_of(metadata), dtype_name(metadata.dtype), str(metadata.device), (), True, False)


def _from_tensor(tensor: torch.Tensor, names: tuple[str, ...]) -> TensorInfo:
    kind, inference, layout = type(tensor), tensor.is_inference(), tensor.layout
    return TensorInfo(
        shape_of(tensor),
        dtype_name(tensor.dtype),
        str(tensor.device),
        names,
        tensor.requires_grad,
        tensor.is_leaf,
        inference,
        tensor._is_view(),
        None if inference else tensor._version,
        None if layout is torch.strided else str(layout).removeprefix("torch."),
        None if kind is torch.Tensor or kind is torch.nn.Parameter else kind.__name__,
    )
