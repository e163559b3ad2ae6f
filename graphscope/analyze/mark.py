"""The findings of an explanation put on the nodes that they are about, for a picture to show."""

from __future__ import annotations

import dataclasses

from graphscope.analyze.explain import explain
from graphscope.findings import Explained, Severity
from graphscope.kinds import RAISED_NOTE
from graphscope.model import Clue, GraphData, State

_SHORT: dict[str, str] = {
    "saved_tensor_modified": "overwrites what backward needs",
    "silent_overwrite": "overwrites what backward needs, unseen by torch",
    "graph_freed": "uses a graph that a backward has freed",
    "loss_without_history": "has no history",
    "loss_is_leaf": "made a leaf: nothing is trained",
    "double_backward_unsupported": "has no second derivative",
    "derivative_not_implemented": "has no derivative",
    "reentrant_checkpoint_cut": "no gradient: the checkpoint cut it off",
    "everything_frozen": "frozen",
}
"""What a box says of a hazard; whatever else there is stands in the report."""


_FAULTS = frozenset({"Error", "NotImplemented"})
"""Backward nodes that stand for a derivative that there is not."""


def mark_what_will_raise(data: GraphData) -> GraphData:
    """As ``mark``, of the graph that a backward is about to run through; most are sound, and are not explained."""
    clues = {one.clue for one in data.evidence}
    if Clue.BACKWARD not in clues or any((node.note or "").startswith("×") for node in data.nodes):
        return data
    if Clue.OVERWRITE in clues or not all(data.by_id[root].outputs[0].requires_grad for root in data.roots):
        return mark(data, explain(data, starts_backward=True))
    is_suspect = any(
        (node.backward or "").rpartition("::")[2] in _FAULTS or any(saved.state is State.FREED for saved in node.saved)
        for node in data.nodes
    )
    return mark(data, explain(data, starts_backward=True)) if is_suspect else data


def mark(data: GraphData, explained: Explained) -> GraphData:
    """The same graph with a note on each node at which something goes wrong; the culprit is the first of a hazard."""
    notes: dict[str, list[str]] = {}
    for hazard in explained.hazards:
        words = _SHORT.get(hazard.kind)
        if hazard.severity is Severity.ERROR and words is not None and hazard.nodes:
            notes.setdefault(hazard.nodes[0], []).append(f"× {words}")
    error = explained.error
    if error is not None and error.location is not None and not notes:
        at_fault = [node for node in data.nodes if node.location == error.location]
        if at_fault and not any(RAISED_NOTE in (node.note or "") for node in at_fault):
            notes[at_fault[-1].id] = [f"× {error.type} comes from this line"]
    nodes = (
        node._replace(note="; ".join([*notes[node.id], *([node.note] if node.note else [])]))
        if node.id in notes
        else node
        for node in data.nodes
    )
    return dataclasses.replace(data, nodes=tuple(nodes))
