"""What a node says and which part it plays: one place for all renderers.

A renderer asks ``look_of`` for the part a node plays, ``title_of`` and ``details_of`` for its words,
``edge_look`` and ``edge_words`` for an edge, and draws them in its own way. Nothing here knows a
format: escaping is the renderer's task, ``visible`` only makes sure that there is something to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import NamedTuple

from graphscope.model import Edge, GraphData, Kind, Node, Reason, Role, SavedTensor, State, TensorInfo
from graphscope.units import to_bytes_text, to_count_text, to_shape_text

NAME_LIMIT = 44
"""Longest name drawn in full; longer ones lose their middle."""


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
    """Several nodes folded into one box."""


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
}
"""Sharp boxes are tensors that somebody made, rounded ones are what was done with them."""


EDGE_MEANINGS: dict[EdgeLook, str] = {
    EdgeLook.FLOWS: "data forward, gradient back",
    EdgeLook.DEAD: "gradient could flow, but none arrives",
    EdgeLook.CUT: "data only: no gradient comes back",
}

REASON_WORDS: dict[Reason, str] = {
    Reason.FROZEN: "frozen",
    Reason.CONSTANT: "needs no gradient",
    Reason.NO_GRAD: "not recorded: no_grad()",
    Reason.INFERENCE_MODE: "not recorded: inference_mode()",
    Reason.DETACH: "detach() cut here",
    Reason.DATA: "cut by .data",
    Reason.INTEGER_DTYPE: "integers carry no gradient",
    Reason.NON_DIFFERENTIABLE: "not differentiable",
    Reason.LEFT_PYTORCH: "left PyTorch: numpy, item, tolist",
    Reason.CUSTOM_FUNCTION: "a custom Function returns no gradient",
    Reason.UNKNOWN: "no gradient, reason unknown",
}

EXPECTED_REASONS = frozenset({Reason.FROZEN, Reason.CONSTANT, Reason.INTEGER_DTYPE})
"""Cuts that surprise nobody; a renderer lets the others stand out."""

ODD_NODES: dict[str, str] = {
    "CopySlices": "an in-place write to a view, replayed on its base",
    "BackwardHookFunctionBackward": "put in by a module's full backward hook",
    "CompiledFunctionBackward": "one opaque node of torch.compile",
    "CheckpointFunctionBackward": "reentrant checkpoint: backward runs the block again",
    "MkldnnRnnLayerBackward0": "a whole LSTM layer in one node",
    "Error": "connected, but backward raises an error here",
    "NotImplemented": "connected, but torch has no derivative: backward raises",
    "UndefinedGrad": "passes an undefined gradient on",
}
"""A sentence for each backward node whose name alone would puzzle."""

MODE_WORDS: dict[str, str] = {
    "no_grad": "no_grad()",
    "inference_mode": "inference_mode()",
    "enable_grad": "enable_grad()",
    "grad": "gradients on",
}

_QUIET_ARGUMENTS = {"self", "other", "input", "tensors"}
_UNNAMED = {Role.PARAMETER: "unnamed parameter", Role.BUFFER: "unnamed buffer", Role.INPUT: "unnamed input"}
_STATE_WORDS = {
    State.FREED: "freed",
    State.PACKED: "packed by a hook",
    State.CHECKPOINTED: "checkpointed: computed again in backward",
    State.UNAVAILABLE: "cannot be looked at",
}
# U+2028/9 break lines; the bidi controls reorder what stands beside a name.
_UNSEEN = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFFFE}
_UNSEEN |= {*range(0xD800, 0xE000), 0xFFFF}
_ESCAPES = {code: ascii(chr(code))[1:-1] for code in _UNSEEN}


def visible(text: str) -> str:
    r"""Text as typed, with what cannot be seen or drawn written as Python writes it.

    A backslash stays one backslash; an empty or blank text gets quotes, so that there is something to see.

    >>> visible("a b"), visible(""), visible("  "), visible("a\x1b[0m"), visible(r"\n")
    ('a b', '""', '"  "', 'a\\x1b[0m', '\\n')
    """
    if text.isprintable() and text.strip():
        return text
    if any(character.isprintable() and character != " " for character in text):
        return text.translate(_ESCAPES)
    return f'"{text if text.isprintable() else ascii(text)[1:-1]}"'


def elide(text: str, limit: int = NAME_LIMIT) -> str:
    """Text of at most ``limit`` characters: a longer one loses its middle, where names say least.

    >>> elide("encoder.layers.0.self_attention.weight", 20)
    'encoder.laye….weight'
    """
    if len(text) <= limit:
        return text
    tail = (limit - 1) * 2 // 5
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def short_backward(name: str) -> str:
    """torch's node name without its C++ namespace.

    >>> short_backward("torch::autograd::CopySlices")
    'CopySlices'
    """
    return name.rpartition("::")[2]


def look_of(node: Node) -> Look:
    """The part a node plays."""
    if node.kind is Kind.OP:
        if node.backward is None:
            return Look.UNTRACKED
        return Look.TRACKED if node.reached else Look.DEAD
    if node.kind is Kind.LEAF:
        if node.outputs[0].requires_grad:
            return Look.TRAINABLE if node.reached else Look.UNREACHED
        return Look.FROZEN if node.role is Role.PARAMETER else Look.CONSTANT
    return Look.OUTPUT if node.kind is Kind.OUTPUT else Look.GROUP


def edge_look(edge: Edge, data: GraphData) -> EdgeLook:
    """What a gradient does on an edge."""
    if not edge.gradient:
        return EdgeLook.CUT
    return EdgeLook.FLOWS if data.by_id[edge.target].reached else EdgeLook.DEAD


def title_of(node: Node) -> str:
    """The first line of a box: the forward op, or the best name; words where there is no name. Never empty."""
    if node.kind is Kind.OP:
        return visible(node.op) if node.op is not None else short_backward(node.backward or "unknown operation")
    if node.kind is Kind.GROUP:
        return visible(node.op or node.module or "group")
    names = node.names
    if names:
        return visible(names[0])
    if node.kind is Kind.OUTPUT:
        return "output"
    return _UNNAMED.get(node.role, "unnamed tensor") if node.role else "unnamed tensor"


def tensor_words(tensor: TensorInfo) -> str:
    """Shape, and what is unusual: dtype unless float32, device unless cpu, layout, subclass, inference.

    >>> tensor_words(TensorInfo(shape=(4, 2), dtype="float32", device="cpu"))
    '4×2'
    >>> tensor_words(TensorInfo(shape=(), dtype="int64", device="cuda:0"))
    'scalar · int64 · cuda:0'
    """
    words = [to_shape_text(tensor.shape)]
    if tensor.dtype is not None and tensor.dtype != "float32":
        words.append(tensor.dtype)
    if tensor.device is not None and tensor.device != "cpu":
        words.append(visible(tensor.device))
    if tensor.layout is not None:
        words.append(tensor.layout)
    if tensor.subclass is not None:
        words.append(visible(tensor.subclass))
    if tensor.is_inference:
        words.append("inference tensor")
    return words[0] if len(words) == 1 else " · ".join(words)


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
    else:
        lines = [tensor_words(tensor) for tensor in node.outputs[:1]]
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
        yield f"not recorded: {MODE_WORDS.get(node.mode, node.mode)}"
    else:
        yield "no backward node"
    if len(node.outputs) == 1:
        yield _named_tensor_words(node.outputs[0])
    else:
        for number, tensor in enumerate(node.outputs):
            yield f"output {number}: {_named_tensor_words(tensor)}"
    if node.without_gradient:
        stubs = stub_slots(node, data)
        if stubs:
            yield to_count_text(len(stubs), "input") + " without gradient"
    if node.stopped:
        yield "the walk stopped here"


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
    if len(data.by_id[edge.source].outputs) > 1:
        words.append(f"output {edge.output}")
    argument = edge.argument
    if argument is not None and argument not in _QUIET_ARGUMENTS and len(data.incoming[edge.target]) > 1:
        words.append(visible(argument))
    if edge.reason is not None:
        words.append(REASON_WORDS[edge.reason])
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
    Look.GROUP: ("group of operations", "groups of operations"),
}


def describe(data: GraphData) -> str:
    """One sentence for somebody who cannot see the drawing: how many of what, and the names of the roots."""
    counts = Counter(map(look_of, data.nodes))
    parts = [to_count_text(counts[look], *_LOOK_NOUNS[look]) for look in Look if counts[look]]
    roots = [elide(title_of(data.by_id[root])) for root in data.roots[:3]]
    if len(data.roots) > len(roots):
        roots.append("…")
    hidden = f" {to_count_text(data.view.hidden, 'node')} not drawn." if data.view.hidden else ""
    return f"{to_count_text(len(data.nodes), 'node')}: {', '.join(parts)}. Computes {', '.join(roots)}.{hidden}"
