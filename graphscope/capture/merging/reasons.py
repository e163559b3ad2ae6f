"""Why an argument of an op carries no gradient."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from graphscope.capture.code.source import Line, expression_at
from graphscope.capture.recording.oprecords import CARRIES_GRADIENT, Input, Op, signature_of
from graphscope.capture.recording.regions import CUSTOM, INFERENCE, NO_GRAD
from graphscope.model import Kind, Node, Reason, Role, TensorInfo

_LEAVES_TORCH = frozenset(
    {
        "numpy",
        "tolist",
        "item",
        "tensor",
        "new_tensor",
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


class Reasons:
    """Tells reasons; what an expression says is read once for each instruction."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self._words: dict[int, str] = {}

    def of(
        self, op: Op, one: Input, source: Node | None, outputs: Sequence[TensorInfo], *, tracked: bool
    ) -> Reason | None:
        """The reason of an edge that cuts; ``None`` if there was no gradient to cut on it.

        Args:
            op: the reading op.
            one: the argument.
            source: what it came from, if that is a leaf.
            outputs: what the op returned.
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
        name = signature_of(op.func).name
        if name == "local_scalar_dense":
            return Reason.LEFT_PYTORCH
        if name == "detach":
            return self._of_detach(op)
        if outputs and not any(str(info.dtype).startswith(CARRIES_GRADIENT) for info in outputs):
            return Reason.INTEGER_DTYPE
        if tracked or not any(info.requires_grad for info in outputs):
            return Reason.NON_DIFFERENTIABLE
        return Reason.UNKNOWN

    def _of_detach(self, op: Op) -> Reason:
        """``.detach()``, ``.data``, ``.numpy()``, ``torch.tensor(t)`` are one op; the expression tells them apart."""
        word = self._last_word(op.inner) if op.inner is not None else ""
        if word in _LEAVES_TORCH:
            return Reason.LEFT_PYTORCH
        return Reason.DATA if word == "data" else Reason.DETACH

    def _last_word(self, line: Line) -> str:
        word = self._words.get(id(line))
        if word is None:
            word = self._words[id(line)] = last_word(expression_at(line))
        return word


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
