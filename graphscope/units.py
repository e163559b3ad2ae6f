"""How numbers are written for people: bytes, counts, shapes."""

from __future__ import annotations

from collections.abc import Sequence

_STEP = 1024
_FOUR_DIGITS = 999.5
_EXACT = 10_000
"""Counts below are written in full."""
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def to_bytes_text(count: int) -> str:
    """Bytes in powers of 1,024 with three significant digits, as torch writes memory.

    >>> to_bytes_text(80), to_bytes_text(1_572_864), to_bytes_text(1_048_575)
    ('80 B', '1.5 MiB', '1 MiB')
    """
    value = float(count)
    for unit in _BYTE_UNITS:
        digits = f"{value:.3g}" if value < _FOUR_DIGITS else f"{value:.0f}"
        if float(digits) < _STEP or unit == _BYTE_UNITS[-1]:
            return f"{digits} {unit}"
        value /= _STEP
    raise AssertionError(count)  # the last unit always returns


def to_count_text(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun in the right number.

    >>> to_count_text(1, "node"), to_count_text(12345, "node"), to_count_text(2, "leaf", "leaves")
    ('1 node', '12,345 nodes', '2 leaves')
    """
    word = noun if count == 1 else (plural or noun + "s")
    return f"{count:,} {word}"


def to_amount_text(count: int) -> str:
    """A large count with three significant digits, as people write numbers of parameters.

    >>> to_amount_text(9_216), to_amount_text(124_439_808), to_amount_text(70_553_706_496)
    ('9,216', '124M', '70.6B')
    """
    if count < _EXACT:
        return f"{count:,}"
    value = float(count)
    for unit in ("", "K", "M", "B"):
        digits = f"{value:.3g}" if value < _FOUR_DIGITS else f"{value:.0f}"
        if float(digits) < 1000 or unit == "B":  # noqa: PLR2004 - thousands are what the units are
            return f"{digits}{unit}"
        value /= 1000
    raise AssertionError(count)  # the last unit always returns


def to_shape_text(shape: Sequence[int | str] | None) -> str:
    """A tensor shape as people write it; a 0-dim tensor is called a scalar.

    >>> to_shape_text((4, 2)), to_shape_text(()), to_shape_text(None), to_shape_text((3,))
    ('4×2', 'scalar', 'shape unknown', '[3]')
    """
    if shape is None:
        return "shape unknown"
    if len(shape) == 0:
        return "scalar"
    if len(shape) == 1:
        return f"[{shape[0]}]"
    return "×".join(str(size) for size in shape)
