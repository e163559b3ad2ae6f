"""What makes two ops or leaves equal: everything but their names, ids, and where their inputs come from."""

from __future__ import annotations

from graphscope.model import GraphData, Node, SavedTensor, TensorInfo
from graphscope.transforms.links import Links


class KeyMaker:
    """Gives equal nodes of one graph the same small number."""

    def __init__(self, data: GraphData, links: Links) -> None:
        """Prepare; nothing is read yet."""
        self._nodes, self._edges, self._links = data.nodes, data.edges, links
        self._numbers: dict[object, int] = {}
        self._outputs: dict[int, int] = {}
        """Number of each tuple of outputs by its ``id()``: a graph holds equal ones once, and holds them all."""
        self._leaves: dict[int, int] = {}

    def key_of(self, position: int) -> int:
        """The number of a node."""
        links = self._links
        first, last = links.start[position], links.start[position + 1]
        if first == last:
            known = self._leaves.get(position)
            if known is None:
                known = self._leaves[position] = self._number((self._facts(self._nodes[position]),))
            return known
        edges = tuple(self._edges[links.number[link]][3:] for link in range(first, last))
        return self._number((self._facts(self._nodes[position]), edges))

    def _facts(self, node: Node) -> tuple[object, ...]:
        place = node.location
        return (
            node.kind, node.op, node.backward, self._outputs_number(node.outputs), node.reached, node.role, node.mode,
            node.note, None if place is None else place[:2], tuple(map(_saved_facts, node.saved)), node.accumulate,
            node.grad is None, node.retains_grad, node.hooks, node.without_gradient, node.stopped, bool(node.writes),
        )  # fmt: skip

    def _outputs_number(self, outputs: tuple[TensorInfo, ...]) -> int:
        number = self._outputs.get(id(outputs))
        if number is None:
            number = self._outputs[id(outputs)] = self._number(tuple(map(_tensor_facts, outputs)))
        return number

    def _number(self, facts: object) -> int:
        return self._numbers.setdefault(facts, len(self._numbers))


def _tensor_facts(tensor: TensorInfo) -> tuple[object, ...]:
    return (
        tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_leaf, tensor.is_inference,
        tensor.layout, tensor.subclass,
    )  # fmt: skip


def _saved_facts(saved: SavedTensor) -> tuple[object, ...]:
    return saved.name, saved.state, saved.shape, saved.dtype, saved.bytes, saved.modified
