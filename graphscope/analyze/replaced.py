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
        homes = {name.rpartition(".")[0] for name in parameter.names}
        for node in self._stand_ins:
            if node.outputs[0].shape != shape or node.id == parameter.id:
                continue
            readers = [self.data.by_id[edge.target] for edge in self.data.outgoing[node.id]]
            in_place = any(reader.module in homes for reader in readers)
            made_in_forward = (
                node.role is Role.PARAMETER
                and not node.names
                and any(reader.module is not None and reader.module not in self._paths for reader in readers)
            )
            if in_place or (made_in_forward and node.location is not None):
                return Because(Cause.NOT_IN_GRAPH, node.location, (node.id,))
        return None

    def words_of(self, because: Because) -> str:
        """The other tensor in a sentence."""
        node = self.data.by_id[because.nodes[-1]]
        if node.names:
            return node.names[0]
        what = "another parameter" if node.role is Role.PARAMETER else "another tensor"
        return what if node.location is None else f"{what}, made at {to_place(node.location)},"

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(module.path for module in self.data.modules)

    @cached_property
    def _stand_ins(self) -> list[Node]:
        """What wants a gradient and is read in a module without being its own parameter."""
        own: dict[str, set[str]] = {}
        for node in self.data.nodes:
            if node.kind is Kind.LEAF and node.role is Role.PARAMETER:
                own[node.id] = {name.rpartition(".")[0] for name in node.names}
        found = []
        for node in self.data.nodes:
            if node.kind is Kind.OUTPUT or not node.outputs or not node.outputs[0].requires_grad:
                continue
            modules = {
                module
                for edge in self.data.outgoing[node.id]
                if (module := self.data.by_id[edge.target].module) is not None
            }
            if modules - own.get(node.id, set()):
                found.append(node)
        return found
