"""Backward node types: torch's name, the forward op behind it, and what can be read from it.

torch builds the class name of a node from the op's name: the parts between underscores are capitalised and
joined, ``Backward`` and a number follow (tools/autograd/load_derivatives.py in torch). Turning that
round needs the list of ops, since ``grid_sampler_2d`` and ``max_pool2d`` lose their underscores alike.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import torch

from graphscope.capture.walking.saved import Slot, slots_of
from graphscope.capture.walking.tensors import metadata_info

_NODE_NAME = re.compile(r"(.+)Backward(?:Autograd[A-Za-z]+)?(?:\d+(?:[A-Z][A-Za-z]*)?)?(_copy)?$")
"""The op, then a dispatch key, the number of its derivative, an overload: ``ForeachMulBackward1Scalar``."""

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_NOTES = {
    "CopySlices": "a write in place into a view: the base gets a new history",
    "CopyBackwards": "a copy between tensors, devices or dtypes",
    "BackwardHookFunction": "put here by register_full_backward_hook of a module",
    "CompiledFunction": "one opaque node of torch.compile: the ops inside are not visible",
    "CompiledFunctionBackward": "the compiled backward: it cannot be differentiated again",
    "CheckpointFunction": "a reentrant checkpoint: its forward runs again in backward",
    "MkldnnRnnLayer": "a whole LSTM layer in one kernel",
    "Error": "looks connected, but raises when backward runs through it",
    "NotImplemented": "looks connected, but torch has no derivative here and raises in backward",
    "UndefinedGrad": "hands on no gradient at all",
}


_LIST_OPS = frozenset({"cat", "stack", "block_diag"})


class NodeType(NamedTuple):
    """What one kind of backward node is."""

    accumulate: bool
    """An ``AccumulateGrad``: the end of the graph at a leaf."""
    op: str
    """The forward op's word, ``addmm``."""
    name: str
    """torch's own name, ``AddmmBackward0``."""
    custom: bool
    """Made by a ``torch.autograd.Function`` in Python."""
    slots: tuple[Slot, ...]
    note: str | None
    takes_list: bool
    """It may have any number of inputs; see ``input_count``."""


class NodeTypes:
    """The type of each node of one walk. A user's Function class is not remembered beyond it, so that it can go."""

    def __init__(self) -> None:
        self.known: dict[type, NodeType] = {}
        """By class, for those nodes whose class tells."""
        self._unnamed: dict[str, NodeType] = {}

    def look_up(self, node: Any) -> NodeType:
        """The type of a node whose class is not yet among ``known``."""
        kind = type(node)
        if kind.__name__ != "CppFunction":
            found = self.known[kind] = _describe(kind, kind.__name__)
            return found
        name = node.name().rpartition("::")[2]  # C++ nodes without a class of their own
        return self._unnamed.get(name) or self._unnamed.setdefault(name, _describe(kind, name))


def input_count(node: Any, kind: NodeType) -> int:
    """How many inputs a node has at most, told without touching them; torch has no call for that.

    Of a list of tensors there are about as many as the result is long, or as there are results.
    """
    if kind.custom:
        return len(node.needs_input_grad)
    outputs = [metadata_info(output).shape or () for output in getattr(node, "_input_metadata", ())]
    sizes = [size for shape in outputs for size in shape if isinstance(size, int)]
    return max(3 * len(outputs), *sizes, 1)


def _describe(node_class: type, name: str) -> NodeType:
    custom = issubclass(node_class, torch._C._FunctionBase)
    return _describe_fully(node_class, name, custom=custom) if custom else _describe_once(node_class, name)


@functools.cache
def _describe_once(node_class: type, name: str) -> NodeType:
    return _describe_fully(node_class, name, custom=False)


def _describe_fully(node_class: type, name: str, *, custom: bool) -> NodeType:
    stem = _stem(name)
    op = stem if custom else op_word(name)
    return NodeType(
        accumulate=name == "AccumulateGrad",
        op=op,
        name=name,
        custom=custom,
        slots=slots_of(node_class),
        note=_NOTES.get(stem) or ("a custom autograd.Function" if custom else None),
        takes_list=custom or node_class.__name__ == "CppFunction" or op in _LIST_OPS,
    )


def op_word(node_name: str) -> str:
    """The aten base name behind a node's name, without leading underscore.

    >>> op_word("LogSoftmaxBackward0"), op_word("GridSampler2DBackward0"), op_word("MaxPool2DWithIndicesBackward0")
    ('log_softmax', 'grid_sampler_2d', 'max_pool2d_with_indices')
    >>> op_word("ForeachMulBackward1Scalar"), op_word("SumBackwardAutogradNestedTensor0"), op_word("ViewBackward0_copy")
    ('foreach_mul', 'sum', 'view_copy')
    >>> op_word("ConvolutionBackwardBackward0"), op_word("CopyBackwards")
    ('convolution_backward', 'copy_backwards')
    """
    stem = _stem(node_name).lstrip("_")
    known = _aten_names().get(stem) or _aten_names().get(stem + "Forward")  # _flash_attention_forward
    if known is not None:
        return known
    return _WORD_START.sub("_", stem).lower() if stem else node_name


def _stem(node_name: str) -> str:
    matched = _NODE_NAME.match(node_name)
    return node_name if matched is None else matched[1] + (matched[2] or "")


def base_name(qualified: str) -> str:
    """``log_softmax`` for ``aten::_log_softmax.int``."""
    return qualified.rpartition("::")[2].partition(".")[0].lstrip("_")


@functools.cache
def _aten_names() -> dict[str, str]:
    list_names = getattr(torch._C, "_dispatch_get_all_op_names", None)
    if list_names is None:
        return {}
    names = {}
    for qualified in sorted(list_names()):
        if qualified.startswith("aten::"):
            base = base_name(qualified)
            names["".join(part.title() for part in base.rstrip("_").split("_"))] = base.rstrip("_")
    return names
