"""The words that stand for what torch names otherwise, and text made fit to be seen."""

from __future__ import annotations

from graphscope.model import Kind, Node, Reason, Role, TensorInfo
from graphscope.units import to_shape_text

NAME_LIMIT = 44
"""Longest name drawn in full; longer ones lose their middle."""

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
    Reason.CUSTOM_FUNCTION: "inside a custom Function, which has its own backward",
    Reason.UNKNOWN: "no gradient, reason unknown",
}

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
    "custom_function": "a custom Function",
    "checkpoint": "a reentrant checkpoint",
}

_UNNAMED = {Role.PARAMETER: "unnamed parameter", Role.BUFFER: "unnamed buffer", Role.INPUT: "unnamed input"}
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
