"""Why an argument of an op carries no gradient."""

from __future__ import annotations

import ast

from graphscope.capture.oplog import Input, Op
from graphscope.capture.optypes import base_name
from graphscope.capture.regions import CUSTOM, INFERENCE, NO_GRAD
from graphscope.capture.source import expression_at
from graphscope.model import Kind, Node, Reason, Role

_LEAVES_TORCH = frozenset(
    {
        "numpy",
        "tolist",
        "item",
        "tensor",
        "as_tensor",
        "from_numpy",
        "asarray",
        "array",
        "float",
        "int",
        "bool",
        "__array__",
    }
)
_CARRIES = ("float", "bfloat", "complex")


def reason_for(op: Op, one: Input, source: Node | None, *, tracked: bool) -> Reason | None:
    """The reason of an edge that cuts; ``None`` if there was no gradient to cut on it.

    Args:
        op: the reading op.
        one: the argument.
        source: what it came from.
        tracked: the op made a backward node, so that only this argument is left out.
    """
    if not one.requires_grad:
        if source is None or source.kind is not Kind.LEAF:
            return None
        return Reason.FROZEN if source.role is Role.PARAMETER else Reason.CONSTANT
    if op.mode == INFERENCE:
        return Reason.INFERENCE_MODE
    if op.mode == NO_GRAD:
        return Reason.CUSTOM_FUNCTION if op.entry is not None and op.entry.mode == CUSTOM else Reason.NO_GRAD
    name = base_name(op.func._schema.name)
    if name == "local_scalar_dense":
        return Reason.LEFT_PYTORCH
    if name == "detach":
        return _reason_of_detach(op)
    if op.outputs and not any(str(info.dtype).startswith(_CARRIES) for info in op.outputs):
        return Reason.INTEGER_DTYPE
    if tracked or not any(info.requires_grad for info in op.outputs):
        return Reason.NON_DIFFERENTIABLE
    return Reason.UNKNOWN


def _reason_of_detach(op: Op) -> Reason:
    """``.detach()``, ``.data``, ``.numpy()`` and ``torch.tensor(t)`` are one op; the expression tells them apart."""
    line = op.lines.inner
    word = last_word(expression_at(line)) if line is not None else ""
    if word in _LEAVES_TORCH:
        return Reason.LEFT_PYTORCH
    return Reason.DATA if word == "data" else Reason.DETACH


def last_word(text: str) -> str:
    """The method or attribute that an expression ends in: ``numpy`` of ``h.detach().numpy()``."""
    try:
        expression = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if isinstance(expression, ast.Call):
        expression = expression.func
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
