"""The further lines of a node, the words on an edge, and a whole graph in one sentence."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator

from graphscope.model import Edge, GraphData, Kind, Node, SavedTensor, State, TensorInfo
from graphscope.style.groups import group_lines
from graphscope.style.looks import Look, look_of, reads_shape
from graphscope.style.words import (
    MODE_WORDS,
    ODD_NODES,
    REASON_WORDS,
    elide,
    short_backward,
    tensor_words,
    title_of,
    visible,
)
from graphscope.units import to_bytes_text, to_count_text, to_shape_text

_OUTPUTS_SHOWN = 6
"""Most outputs of an op that get a line each."""
_QUIET_ARGUMENTS = {"self", "other", "input", "tensors"}
_STATE_WORDS = {
    State.FREED: "freed",
    State.PACKED: "packed by a hook",
    State.CHECKPOINTED: "checkpointed: computed again in backward",
    State.UNAVAILABLE: "cannot be looked at",
}

_BY_TORCH = frozenset({"custom_function", "checkpoint"})
"""Regions in which torch itself switches gradients off, since backward is taken care of in another way."""


def details_of(node: Node, data: GraphData, show: Collection[str] = ()) -> tuple[str, ...]:
    """The further lines of a box, in reading order.

    ``show`` is any of ``saved hooks versions accumulate source`` (the words of ``--show``); others say nothing here.
    """
    if node.kind is Kind.OP:
        lines = [*_op_lines(node, data)]
    elif node.kind is Kind.LEAF:
        lines = [*_leaf_lines(node)]
    elif node.kind is Kind.OUTPUT:
        lines = [*_output_lines(node)]
    elif node.id in data.view.groups:
        lines = [*group_lines(node, data.view.groups[node.id])]
    else:
        lines = [tensor_words(tensor) for tensor in node.outputs[:1]]
    missing = data.view.missing.get(node.id)
    if missing and node.kind is not Kind.LEAF:
        group = data.view.groups.get(node.id)
        each = "each " if group is not None and group.repeats > 1 else ""
        lines.append(f"{each}{to_count_text(missing, 'input')} not drawn")
    note = node_note(node)
    if note is not None:
        lines.append(note)
    if show:
        lines.extend(_shown_lines(node, data, show))
    return tuple(lines)


def _op_lines(node: Node, data: GraphData) -> Iterator[str]:
    if node.backward is not None:
        if node.op is not None:
            yield short_backward(node.backward)
    elif node.mode is not None and node.mode != "grad":
        inside = data.region_modes.get(node.region) if node.region is not None else None
        mode = inside if inside in _BY_TORCH else node.mode
        yield f"not recorded: {'in ' * (inside in _BY_TORCH)}{MODE_WORDS.get(mode, mode)}"
    elif look_of(node) is Look.UNTRACKED:
        yield "no backward node"
    if len(node.outputs) == 1:
        yield _named_tensor_words(node.outputs[0])
    else:
        yield from _output_words(node.outputs)
    if node.without_gradient:
        stubs = stub_slots(node, data)
        if stubs:
            yield to_count_text(len(stubs), "input") + " without gradient"
    if node.stopped:
        yield "the walk stopped here"


def _output_words(outputs: tuple[TensorInfo, ...]) -> Iterator[str]:
    """A line for each output; of very many for each stretch of those that look the same."""
    lines = [_named_tensor_words(tensor) for tensor in outputs]
    if len(outputs) <= _OUTPUTS_SHOWN:
        yield from (f"output {number}: {line}" for number, line in enumerate(lines))
        return
    number = 0
    for line, same in itertools.groupby(lines):
        last = number + len(list(same)) - 1
        yield f"output {number}: {line}" if last == number else f"outputs {number}–{last:,}: {line}"
        number = last + 1


def _named_tensor_words(tensor: TensorInfo) -> str:
    if not tensor.names:
        return tensor_words(tensor)
    names = " = ".join(elide(visible(name)) for name in tensor.names)
    return f"{names}: {tensor_words(tensor)}"


def _leaf_lines(node: Node) -> Iterator[str]:
    tensor = node.outputs[0]
    role = node.role.value if node.role is not None and tensor.names else None
    yield f"{role} · {tensor_words(tensor)}" if role else tensor_words(tensor)
    for name in tensor.names[1:]:
        yield f"also {elide(visible(name))}"


def _output_lines(node: Node) -> Iterator[str]:
    tensor = node.outputs[0]
    words = tensor_words(tensor)
    yield f"output · {words}" if tensor.names else words
    for name in tensor.names[1:]:
        yield f"also {elide(visible(name))}"
    if tensor.requires_grad is False:
        yield "requires_grad=False: backward cannot start here"


def stub_slots(node: Node, data: GraphData) -> tuple[int, ...]:
    """Inputs without gradient that no edge of the graph stands for."""
    if not node.without_gradient:
        return ()
    drawn = {edge.slot for edge in data.incoming[node.id]}
    return tuple(slot for slot in node.without_gradient if slot not in drawn)


def stub_words(slot: int) -> str:
    """What stands in place of an input of which nothing else is known."""
    return f"input {slot}: no gradient needed here"


def _shown_lines(node: Node, data: GraphData, show: Collection[str]) -> Iterator[str]:
    if "accumulate" in show and node.kind is Kind.LEAF:
        if node.accumulate is not None:
            yield short_backward(node.accumulate)
        if node.outputs[0].requires_grad:
            yield f".grad: {tensor_words(node.grad)}" if node.grad is not None else ".grad is None"
    if "hooks" in show:
        if node.hooks:
            yield to_count_text(node.hooks, "hook")
        if node.retains_grad:
            yield "retain_grad(): keeps its .grad"
    if "versions" in show:
        yield from (f"version {tensor.version}" for tensor in node.outputs if tensor.version is not None)
    if "saved" in show:
        yield from (saved_words(saved, data) for saved in node.saved)
    if "source" in show and node.location is not None:
        yield visible(f"{node.location.file}:{node.location.line}")
        if node.location.code:
            yield elide(visible(node.location.code))


def saved_words(saved: SavedTensor, data: GraphData) -> str:
    """One tensor that a node keeps for backward: its slot, size, state, and whether it was overwritten."""
    words = [f"{'kept' if saved.state is State.FREED else 'keeps'} {visible(saved.name)}"]
    if saved.shape is not None:
        words[0] += f": {to_shape_text(saved.shape)}"
    if saved.state in _STATE_WORDS:
        words.append(_STATE_WORDS[saved.state])
    else:
        words.append("size unknown" if saved.bytes is None else to_bytes_text(saved.bytes))
    if saved.storage is not None and len(data.owners[saved.storage]) > 1:
        words.append(f"shared as {saved.storage}")
    if saved.modified:
        words.append("overwritten since")
    return " · ".join(words)


def node_note(node: Node) -> str | None:
    """A plain sentence for a node whose name alone would puzzle."""
    if node.note is not None:
        return visible(node.note)
    return ODD_NODES.get(short_backward(node.backward)) if node.backward is not None else None


def edge_words(edge: Edge, data: GraphData) -> tuple[str, ...]:
    """What is written on an edge: which output, which argument, why no gradient comes back. Often nothing."""
    words = []
    source, bundle = data.by_id[edge.source], data.view.bundles.get(edge)
    several = bundle is not None and bundle.tensors > 1
    if len(source.outputs) > 1 and source.kind is not Kind.GROUP and not several:
        words.append(f"output {edge.output}")
    argument = edge.argument
    is_told = argument in {name.rpartition(".")[2] for name in source.names}  # conv.weight is the weight
    is_told = is_told or argument in _QUIET_ARGUMENTS
    if argument is not None and not is_told and len(data.incoming[edge.target]) > 1:
        words.append(visible(argument))
    if edge.reason is not None:
        words.append("only its shape is read" if reads_shape(edge, data) else REASON_WORDS[edge.reason])
    if bundle is not None and several:
        words.append(f"×{bundle.tensors:,}")
    return tuple(words)


_LOOK_NOUNS: dict[Look, tuple[str, str]] = {
    Look.TRAINABLE: ("leaf that gets a gradient", "leaves that get a gradient"),
    Look.UNREACHED: ("trainable leaf that gets none", "trainable leaves that get none"),
    Look.FROZEN: ("frozen parameter", "frozen parameters"),
    Look.CONSTANT: ("leaf without gradient", "leaves without gradient"),
    Look.TRACKED: ("recorded operation", "recorded operations"),
    Look.DEAD: ("recorded operation that backward does not reach", "recorded operations that backward does not reach"),
    Look.UNTRACKED: ("operation that was not recorded", "operations that were not recorded"),
    Look.OUTPUT: ("root", "roots"),
    Look.GROUP: ("folded box", "folded boxes"),
    Look.FROZEN_GROUP: ("folded box with frozen parameters", "folded boxes with frozen parameters"),
    Look.CUT_GROUP: ("folded box that misses a gradient", "folded boxes that miss a gradient"),
    Look.SILENT_GROUP: ("folded box where no gradient arrives", "folded boxes where no gradient arrives"),
}


def describe(data: GraphData) -> str:
    """One sentence for somebody who cannot see the drawing: how many of what, and the names of the roots."""
    counts = Counter(look_of(node, data.view) for node in data.nodes)
    parts = [to_count_text(counts[look], *_LOOK_NOUNS[look]) for look in Look if counts[look]]
    roots = [elide(title_of(data.by_id[root])) for root in data.roots[:3]]
    if len(data.roots) > len(roots):
        roots.append("…")
    hidden = f" {to_count_text(data.view.hidden, 'node')} not drawn." if data.view.hidden else ""
    return f"{to_count_text(len(data.nodes), 'node')}: {', '.join(parts)}. Computes {', '.join(roots)}.{hidden}"


def summary_line(data: GraphData) -> str:
    """How much there is, in a few words.

    >>> summary_line(GraphData(nodes=(), edges=(), roots=(), torch=""))
    '0 ops, 0 leaves'
    """
    kinds = Counter(node.kind for node in data.nodes)
    parts = [to_count_text(kinds[Kind.OP], "op"), to_count_text(kinds[Kind.LEAF], "leaf", "leaves")]
    if kinds[Kind.GROUP]:
        parts.append(to_count_text(kinds[Kind.GROUP], "folded box", "folded boxes"))
    if data.view.hidden:
        parts.append(to_count_text(data.view.hidden, "node") + " not drawn")
    return ", ".join(parts)
