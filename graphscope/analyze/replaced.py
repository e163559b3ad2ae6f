"""Parameters that nothing read because another tensor stood in their place.

``forward`` that builds a layer, ``torch.func.functional_call``, a weight that is computed: the module ran, and what it
read where its parameter should be has the parameter's shape, but is something else.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

from graphscope.analyze.flow import Flow
from graphscope.findings import Because, Cause, to_place
from graphscope.model import GraphData, Kind, Node, Role


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replacements:
    """Finds what stands in the place of a parameter."""

    data: GraphData
    flow: Flow

    def of(self, parameter: Node) -> Because | None:
        """What was read instead of a parameter that nothing but an optimizer read; ``None`` if nothing tells."""
        if any(not self.flow.is_bookkeeping(self.data.by_id[edge.target]) for edge in self.data.outgoing[parameter.id]):
            return None
        shape = parameter.outputs[0].shape
        homes = (name.rpartition(".")[0] for name in parameter.names)
        in_place = (self._read_in.get((shape, home)) for home in homes)
        node = next((one for one in in_place if one is not None), None) or self._made_in_forward.get(shape)
        if node is None or node.id == parameter.id:
            return None
        return Because(Cause.NOT_IN_GRAPH, node.location, (node.id,))

    def words_of(self, because: Because) -> str:
        """The other tensor, to begin a sentence with."""
        node = self.data.by_id[because.nodes[-1]]
        if node.names:
            return node.names[0]
        what = "Another parameter" if node.role is Role.PARAMETER else "Another tensor"
        return what if node.location is None else f"{what}, made at {to_place(node.location)},"

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(module.path for module in self.data.modules)

    @cached_property
    def _read_in(self) -> dict[tuple[object, str], Node]:
        """By shape and module: what wants a gradient and is read there without being a parameter of that module."""
        found: dict[tuple[object, str], Node] = {}
        for node in self._wanting:
            own = {name.rpartition(".")[0] for name in node.names} if node.role is Role.PARAMETER else ()
            for edge in self.data.outgoing[node.id]:
                module = self.data.by_id[edge.target].module
                if module is not None and module not in own:
                    found.setdefault((node.outputs[0].shape, module), node)
        return found

    @cached_property
    def _made_in_forward(self) -> dict[object, Node]:
        """By shape: nameless parameters that a module nobody knows has read, with the line that made them."""
        found: dict[object, Node] = {}
        for node in self._wanting:
            if node.role is Role.PARAMETER and not node.names and node.location is not None:
                modules = (self.data.by_id[edge.target].module for edge in self.data.outgoing[node.id])
                if any(module is not None and module not in self._paths for module in modules):
                    found.setdefault(node.outputs[0].shape, node)
        return found

    @cached_property
    def _wanting(self) -> list[Node]:
        return [
            node
            for node in self.data.nodes
            if node.kind is not Kind.OUTPUT and node.outputs and node.outputs[0].requires_grad
        ]
