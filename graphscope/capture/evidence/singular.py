"""Recorded ops at values where their derivative is infinite or not a number: ``sqrt`` at 0, ``log`` at 0.

The values are those that the op saved. They are read where they lie, by one comparison that no recorder sees; large
tensors, fake ones and those that a hook has packed are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphscope.capture.walking import tensors
from graphscope.capture.walking.walk import Walked
from graphscope.model import Node, State

_ELEMENTS = 1 << 20
"""Elements of one tensor that are looked at."""
_ELEMENTS_IN_ALL = 1 << 24


class _Singularity(NamedTuple):
    slot: str
    is_singular: Callable[[torch.Tensor], torch.Tensor]


_SINGULAR: dict[str, _Singularity] = {
    "sqrt": _Singularity("result", lambda value: value == 0),
    "rsqrt": _Singularity("result", torch.isinf),
    "reciprocal": _Singularity("result", torch.isinf),
    "log": _Singularity("self", lambda value: value == 0),
    "log2": _Singularity("self", lambda value: value == 0),
    "log10": _Singularity("self", lambda value: value == 0),
    "log1p": _Singularity("self", lambda value: value == -1),
    "acos": _Singularity("self", lambda value: value.abs() == 1),
    "asin": _Singularity("self", lambda value: value.abs() == 1),
    "atanh": _Singularity("self", lambda value: value.abs() == 1),
    "acosh": _Singularity("self", lambda value: value == 1),
    "div": _Singularity("other", lambda value: value == 0),
    "pow": _Singularity("self", lambda value: value == 0),
}
"""By op: where it keeps what decides, and at which values it has no derivative; ``pow`` for exponents below 1."""


def singular_nodes(walked: Walked) -> Iterator[tuple[str, int]]:
    """Id of each such node that a backward runs through, and how many of its values are singular."""
    candidates = [node for node in walked.data.nodes if node.op in _SINGULAR and node.reached]
    if not candidates:
        return
    raw = walked.nodes()
    left = _ELEMENTS_IN_ALL
    with _disable_current_modes(), torch.no_grad():
        for node in candidates:
            value = _saved_value(raw[node.id], node)
            if value is None or not 0 < value.numel() <= min(_ELEMENTS, left) or _is_masked(walked, node):
                continue
            left -= value.numel()
            count = int(_SINGULAR[node.op or ""].is_singular(value).sum())
            if count:
                yield node.id, count


def _saved_value(raw: Any, node: Node) -> torch.Tensor | None:
    slot = _SINGULAR[node.op or ""].slot
    if not any(saved.name == slot and saved.state is State.LIVE and not saved.modified for saved in node.saved):
        return None
    if node.op == "pow" and not _is_root(raw):
        return None
    value = getattr(raw, f"_raw_saved_{slot}").data
    return value if type(value) in tensors.PLAIN and value.device.type != "meta" and not value.is_sparse else None


def _is_root(raw: Any) -> bool:
    """``x ** 0.5``: an exponent between 0 and 1, which is no tensor."""
    exponent = getattr(raw, "_saved_exponent", None) if not hasattr(type(raw), "_raw_saved_exponent") else None
    return isinstance(exponent, (int, float)) and 0 < exponent < 1


def _is_masked(walked: Walked, node: Node) -> bool:
    """The op reads a ``relu``, whose derivative at 0 puts a plain zero in place of whatever arrives."""
    sources = [walked.data.by_id[edge.source] for edge in walked.data.incoming[node.id] if edge.gradient]
    return bool(sources) and all(source.op in {"relu", "threshold"} for source in sources)
