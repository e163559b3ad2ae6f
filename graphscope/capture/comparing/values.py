"""Whether two runs returned the same numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from graphscope.capture.walking.names import flatten_tensors
from graphscope.capture.walking.tensors import is_tensor
from graphscope.capture.walking.walk import quiet_look
from graphscope.runs import Values

Copies = list[torch.Tensor | None]
"""Tensors without their history; ``None`` for what is no tensor or has no values."""


def copy_values(result: object) -> Copies:
    """Copies of all tensors that a function returned: what it writes later does not change them."""
    with quiet_look(), torch.no_grad():
        return [_copy(value) for _, value in flatten_tensors(result, "")]


def _copy(value: Any) -> torch.Tensor | None:
    if not is_tensor(value) or value.device.type == "meta":
        return None
    try:
        dense = value.detach() if value.layout is torch.strided else value.detach().to_dense()
        copy: torch.Tensor = dense.clone()
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return copy


def compare_values(first: Copies, second: Copies) -> Values:
    """Equal or not, and by how much not. NaN is equal to NaN at the same place, as two runs of one computation go."""
    if len(first) != len(second):
        return Values(equal=False)
    if not first or None in (*first, *second):
        return Values(None)
    difference = 0.0
    with quiet_look(), torch.no_grad():
        for one, other in zip(first, second, strict=True):
            if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
                return Values(equal=False)
            difference = max(difference, _difference(one, other))
    return Values(equal=difference == 0, difference=difference if math.isfinite(difference) else None)


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest absolute difference; infinite where only one side is finite."""
    if one.numel() == 0 or torch.equal(one, other):
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    left, right = one.cpu().to(wide), other.cpu().to(wide)
    same = (left == right) | (left.isnan() & right.isnan())
    apart = torch.where(same, torch.zeros_like(left), left - right).abs()
    return float(torch.nan_to_num(apart, nan=math.inf).max())
