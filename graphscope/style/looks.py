"""Which part a node or an edge plays, and how that is told without colour."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from graphscope.kinds import SHAPE_READERS
from graphscope.model import Edge, Gradient, GraphData, Group, Kind, Node, Reason, Role, View


class Look(StrEnum):
    """The part a node plays in the eyes of a reader."""

    TRAINABLE = "trainable"
    """A leaf with ``requires_grad=True`` that a backward from the roots fills."""
    UNREACHED = "unreached"
    """A leaf with ``requires_grad=True`` that no backward from the roots arrives at."""
    FROZEN = "frozen"
    """A parameter with ``requires_grad=False``."""
    CONSTANT = "constant"
    """Any other leaf with ``requires_grad=False``: input, buffer, constant."""
    TRACKED = "tracked"
    """An op that autograd recorded and a backward from the roots runs through."""
    DEAD = "dead"
    """An op that autograd recorded, but that no backward from the roots arrives at."""
    UNTRACKED = "untracked"
    """An op that autograd did not record."""
    OUTPUT = "output"
    """Marks a root."""
    GROUP = "group"
    """Several nodes folded into one box; a gradient arrives there."""
    FROZEN_GROUP = "frozen_group"
    """A folded box with parameters, all of them frozen."""
    CUT_GROUP = "cut_group"
    """A folded box with a parameter that should get a gradient and gets none, or with a cut inside."""
    SILENT_GROUP = "silent_group"
    """A folded box where no gradient arrives."""


GLYPHS: dict[Look, str] = {
    Look.TRAINABLE: "●",
    Look.UNREACHED: "◌",
    Look.FROZEN: "‖",
    Look.CONSTANT: "○",
    Look.TRACKED: "■",
    Look.DEAD: "◊",
    Look.UNTRACKED: "□",
    Look.OUTPUT: "►",
    Look.GROUP: "≡",
    Look.FROZEN_GROUP: "╫",
    Look.CUT_GROUP: "≠",
    Look.SILENT_GROUP: "═",
}
"""One mark for each look; every mark is in the bundled font. Round marks are leaves, filled ones carry gradient."""

MEANINGS: dict[Look, str] = {
    Look.TRAINABLE: "leaf, requires_grad=True: backward fills its .grad",
    Look.UNREACHED: "leaf, requires_grad=True, but no gradient arrives",
    Look.FROZEN: "frozen parameter: requires_grad=False",
    Look.CONSTANT: "input, buffer or constant: requires_grad=False",
    Look.TRACKED: "operation that autograd recorded",
    Look.DEAD: "recorded operation that backward never arrives at",
    Look.UNTRACKED: "operation that autograd did not record",
    Look.OUTPUT: "root: the result whose history this is",
    Look.GROUP: "several operations folded into one box",
    Look.FROZEN_GROUP: "folded box whose parameters are all frozen",
    Look.CUT_GROUP: "folded box where a parameter gets no gradient, or one is cut off",
    Look.SILENT_GROUP: "folded box where no gradient arrives",
}


class EdgeLook(StrEnum):
    """What a gradient does on an edge."""

    FLOWS = "flows"
    """A backward from the roots sends a gradient along it."""
    DEAD = "dead"
    """torch holds the edge, but no gradient arrives at its head."""
    CUT = "cut"
    """torch holds no such edge: data went here, a gradient never will."""


class Form(NamedTuple):
    """How a look is told without colour: the box and its line."""

    rounded: bool
    line: str
    """``solid``, ``dashed`` or ``dotted``."""
    width: float = 1.0
    double: bool = False


FORMS: dict[Look, Form] = {
    Look.TRAINABLE: Form(rounded=False, line="solid", width=2.0),
    Look.UNREACHED: Form(rounded=False, line="dotted", width=1.6),
    Look.FROZEN: Form(rounded=False, line="solid", double=True),
    Look.CONSTANT: Form(rounded=False, line="solid"),
    Look.TRACKED: Form(rounded=True, line="solid", width=1.2),
    Look.DEAD: Form(rounded=True, line="dotted", width=1.2),
    Look.UNTRACKED: Form(rounded=True, line="dashed", width=1.2),
    Look.OUTPUT: Form(rounded=True, line="solid", width=1.2),
    Look.GROUP: Form(rounded=True, line="solid", double=True),
    Look.FROZEN_GROUP: Form(rounded=False, line="solid", width=1.6, double=True),
    Look.CUT_GROUP: Form(rounded=True, line="solid", width=1.6, double=True),
    Look.SILENT_GROUP: Form(rounded=True, line="dashed", double=True),
}
"""Sharp boxes are tensors that somebody made, rounded ones are what was done with them."""


EDGE_LINES: dict[EdgeLook, str] = {EdgeLook.FLOWS: "solid", EdgeLook.DEAD: "dotted", EdgeLook.CUT: "dashed"}
"""The lines of edges, in the words of ``Form.line``."""

EDGE_MEANINGS: dict[EdgeLook, str] = {
    EdgeLook.FLOWS: "data forward, gradient back",
    EdgeLook.DEAD: "gradient could flow, but none arrives",
    EdgeLook.CUT: "data only: no gradient comes back",
}

EXPECTED_REASONS = frozenset({Reason.FROZEN, Reason.CONSTANT, Reason.INTEGER_DTYPE})
"""Cuts that surprise nobody; a renderer lets the others stand out."""


def is_alarming(edge: Edge, data: GraphData) -> bool:
    """A cut that may surprise."""
    return edge.reason is not None and edge.reason not in EXPECTED_REASONS and not reads_shape(edge, data)


def reads_shape(edge: Edge, data: GraphData) -> bool:
    """Only the shape of the tensor is read: the mask of a dropout is made like its input."""
    return edge.reason is Reason.NON_DIFFERENTIABLE and data.by_id[edge.target].op in SHAPE_READERS


def look_of(node: Node, view: View | None = None) -> Look:
    """The part a node plays; of a folded box only its view can tell."""
    if node.kind is Kind.OP:
        if node.backward is None and not _tracked(node):
            return Look.UNTRACKED
        return Look.TRACKED if node.reached else Look.DEAD
    if node.kind is Kind.LEAF:
        if node.outputs[0].requires_grad:
            return Look.TRAINABLE if node.reached else Look.UNREACHED
        return Look.FROZEN if node.role is Role.PARAMETER else Look.CONSTANT
    if node.kind is Kind.OUTPUT:
        return Look.OUTPUT
    group = view.groups.get(node.id) if view is not None else None
    return Look.GROUP if group is None else _group_look(group)


def _tracked(node: Node) -> bool:
    """Autograd recorded it, although its backward node was not met: it leads to no root, or is gone."""
    return node.mode == "grad" and any(info.requires_grad and info.is_leaf is False for info in node.outputs)


def _group_look(group: Group) -> Look:
    if not group.ops:
        return Look.UNREACHED if group.unreached else Look.TRAINABLE if group.trainable else Look.FROZEN
    if group.cuts or group.unreached:
        return Look.CUT_GROUP
    if group.frozen and not group.trainable:
        return Look.FROZEN_GROUP
    return Look.SILENT_GROUP if group.gradient is Gradient.NONE else Look.GROUP


def edge_look(edge: Edge, data: GraphData) -> EdgeLook:
    """What a gradient does on an edge."""
    if not edge.gradient:
        return EdgeLook.CUT
    if data.view.bundles and edge in data.view.bundles:
        return EdgeLook.FLOWS if data.view.bundles[edge].reached else EdgeLook.DEAD
    return EdgeLook.FLOWS if data.by_id[edge.target].reached else EdgeLook.DEAD
