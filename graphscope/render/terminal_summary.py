"""The table below the tree: how much of everything there is, in words and numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from graphscope.model import GraphData, Kind, Node, Role, State
from graphscope.style import Look, look_of, title_of, visible
from graphscope.units import to_bytes_text, to_count_text

UNREACHED_LIMIT = 8
"""Most names in the list of leaves that no gradient arrives at."""

_STATE_WORDS = {
    State.FREED: "freed by a backward",
    State.PACKED: "packed by a hook",
    State.CHECKPOINTED: "checkpointed, computed again in backward",
    State.UNAVAILABLE: "cannot be looked at",
}
_ROLE_WORDS = {
    Role.PARAMETER: ("parameter", "parameters"),
    Role.BUFFER: ("buffer", "buffers"),
    Role.INPUT: ("input", "inputs"),
    Role.CONSTANT: ("constant", "constants"),
}


class Fact(NamedTuple):
    """One row of the table."""

    label: str
    text: str


def summarize(view: GraphData) -> list[Fact]:
    """The rows of the table; what there is none of has no row. All figures but the last are of the whole graph."""
    data = view.view.whole or view
    looks = Counter(look_of(node, data.view) for node in data.nodes)
    return [
        Fact("nodes", _nodes_text(data)),
        Fact("depth", f"{to_count_text(depth_of(data), 'op')} on the longest way from a leaf to an output"),
        *_op_facts(looks),
        *_leaf_facts(data, looks),
        *_parameter_facts(data),
        *_saved_facts(data),
        *_unreached_facts(data),
        *(Fact("notice", visible(notice)) for notice in data.notices),
        *_hidden_facts(view),
    ]


def depth_of(data: GraphData) -> int:
    """Ops on the longest way from a leaf to a root; without roots, to any node.

    >>> depth_of(GraphData(nodes=(), edges=(), roots=(), torch=""))
    0
    """
    place = {node.id: number for number, node in enumerate(data.nodes)}
    counts = [node.kind in {Kind.OP, Kind.GROUP} for node in data.nodes]
    depth = [int(counted) for counted in counts]
    for edge in sorted(data.edges, key=lambda edge: place[edge.target]):  # inputs come before their readers
        target = place[edge.target]
        depth[target] = max(depth[target], depth[place[edge.source]] + counts[target])
    return max((depth[place[root]] for root in data.roots), default=0) if data.roots else max(depth, default=0)


def elements_of(node: Node) -> int | None:
    """Elements of a node's first tensor; ``None`` where a size is symbolic or not known."""
    shape = node.outputs[0].shape
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(shape) else None


def _nodes_text(data: GraphData) -> str:
    kinds = Counter(node.kind for node in data.nodes)
    words = {
        Kind.OP: ("op", "ops"),
        Kind.GROUP: ("folded box", "folded boxes"),
        Kind.LEAF: ("leaf", "leaves"),
        Kind.OUTPUT: ("output", "outputs"),
    }
    parts = [to_count_text(kinds[kind], *names) for kind, names in words.items() if kinds[kind]]
    return f"{len(data.nodes):,}: {', '.join(parts)}" if parts else "0"


def _op_facts(looks: Counter[Look]) -> Iterator[Fact]:
    words = {
        Look.TRACKED: "recorded by autograd",
        Look.DEAD: "recorded but not reached",
        Look.UNTRACKED: "not recorded",
    }
    parts = [f"{looks[look]:,} {text}" for look, text in words.items() if looks[look]]
    if parts:
        yield Fact("ops", ", ".join(parts))


def _leaf_facts(data: GraphData, looks: Counter[Look]) -> Iterator[Fact]:
    words = {
        Look.TRAINABLE: "trainable",
        Look.UNREACHED: "trainable but not reached",
        Look.FROZEN: "frozen",
        Look.CONSTANT: "constant",
    }
    parts = [f"{looks[look]:,} {text}" for look, text in words.items() if looks[look]]
    roles = Counter(node.role for node in data.nodes if node.kind is Kind.LEAF)
    named = [to_count_text(roles[role], *names) for role, names in _ROLE_WORDS.items() if roles[role]]
    if parts:
        yield Fact("leaves", ", ".join(parts) + (f" ({', '.join(named)})" if named else ""))


def _parameter_facts(data: GraphData) -> Iterator[Fact]:
    parameters = [node for node in data.nodes if node.kind is Kind.LEAF and node.role is Role.PARAMETER]
    if not parameters:
        return
    counted = [(node, elements) for node in parameters if (elements := elements_of(node)) is not None]
    trainable = sum(elements for node, elements in counted if node.outputs[0].requires_grad)
    frozen = sum(elements for node, elements in counted if not node.outputs[0].requires_grad)
    text = f"{to_count_text(trainable + frozen, 'element')}: {trainable:,} trainable, {frozen:,} frozen"
    unknown = len(parameters) - len(counted)
    yield Fact("parameters", text + (f", {unknown:,} of unknown size" if unknown else ""))


def _saved_facts(data: GraphData) -> Iterator[Fact]:
    saved = [tensor for node in data.nodes for tensor in node.saved]
    if not saved:
        return
    used = {tensor.storage for tensor in saved}
    held = [storage for storage in data.storages if storage.id in used]
    kept = [storage for storage in held if not storage.parameter]
    size = to_bytes_text(sum(storage.bytes for storage in kept))
    text = f"{size} in {to_count_text(len(kept), 'storage')} kept for backward"
    beside = [storage for storage in held if storage.parameter]
    if beside:
        text += f"; {to_bytes_text(sum(storage.bytes for storage in beside))} more are parameters or buffers"
    yield Fact("saved", text)
    states = Counter(tensor.state for tensor in saved)
    parts = [f"{states[state]:,} {words}" for state, words in _STATE_WORDS.items() if states[state]]
    overwritten = sum(1 for tensor in saved if tensor.modified)
    if overwritten:
        parts.append(f"{overwritten:,} overwritten since")
    if parts:
        yield Fact("saved tensors", f"{', '.join(parts)} (of {len(saved):,})")


def _unreached_facts(data: GraphData) -> Iterator[Fact]:
    names = [title_of(node) for node in data.nodes if look_of(node) is Look.UNREACHED]
    if not names:
        return
    text = ", ".join(names[:UNREACHED_LIMIT])
    if len(names) > UNREACHED_LIMIT:
        text += f" … and {len(names) - UNREACHED_LIMIT:,} more"
    yield Fact("not reached", f"{len(names):,}: {text}")


def _hidden_facts(data: GraphData) -> Iterator[Fact]:
    view = data.view
    if view.hidden:
        yield Fact("hidden", f"{to_count_text(view.hidden, 'node')} of the whole graph")
    yield from (Fact("view", visible(note)) for note in view.notes)
