"""What the user wants of a target, as the options say it."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

from graphscope.errors import InputError
from graphscope.render.formats import SHOWABLE
from graphscope.transforms.view import Depth

_INPUT_FORM = re.compile(r"(?P<sizes>\d+(,\d+)*)?(:(?P<dtype>\w+))?")


class InputSpec(NamedTuple):
    """A tensor to call a module with."""

    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Which graphs to take, and from what."""

    roots: tuple[str, ...] = ()
    namers: tuple[str, ...] = ()
    at: int | None = 1
    """Number of the backward at which to take the graph; ``None`` for every one."""
    stop: bool = False
    """End the script after that graph."""
    inputs: tuple[InputSpec, ...] = ()
    every_module: bool = False
    """Tell the parameters of every module in sight, used or not."""
    transforms: bool = True
    """Gradients that ``torch.func`` takes count as backward calls."""
    record: bool = True
    """Record every operation, tracked or not."""
    keep_recording: bool = False
    """Go on after the graph is taken, so that the story of an error that comes later can be told."""
    fake: bool = False
    """Call a function or module on fake tensors."""


def parse_at(given: str) -> int | None:
    """A number from 1, or ``all``.

    Raises:
        InputError: for anything else.
    """
    if given == "all":
        return None
    if given.isascii() and given.isdigit() and int(given) > 0:
        return int(given)
    raise InputError(f"--at {given!r} is no number of a backward. Give 1 for the first, 3 for the third, or all.")


def parse_input(given: str) -> InputSpec:
    """Sizes with commas, then a dtype if it is not float32.

    Raises:
        InputError: for anything else.

    >>> parse_input("1,16:int64"), parse_input(":float64")
    (InputSpec(shape=(1, 16), dtype='int64'), InputSpec(shape=(), dtype='float64'))
    """
    form = _INPUT_FORM.fullmatch(given.replace(" ", ""))
    if form is None or not given:
        raise InputError(
            f"--input {given!r} is no shape. Give sizes and, if not float32, a dtype: 1,3,224,224 or 1,16:int64."
        )
    sizes = form["sizes"]
    return InputSpec(tuple(int(size) for size in sizes.split(",")) if sizes else (), form["dtype"] or "float32")


def parse_depth(given: str) -> Depth:
    """A number of module levels, ``auto`` or ``full``.

    Raises:
        InputError: for anything else.
    """
    if given == "auto":
        return "auto"
    if given == "full":
        return "full"
    if given.isascii() and given.isdigit():
        return int(given)
    raise InputError(f"--depth {given!r} is no depth. Give a number of module levels, auto, or full.")


def parse_show(given: list[str] | None) -> frozenset[str]:
    """Words of ``RenderOptions.show``.

    Raises:
        InputError: for a word that is none.
    """
    words = frozenset(parse_names(given))
    unknown = sorted(words.difference(SHOWABLE))
    if unknown:
        raise InputError(f"--show {unknown[0]!r} is nothing that can be shown. Choose from {', '.join(SHOWABLE)}.")
    return words


def parse_names(given: list[str] | None) -> tuple[str, ...]:
    """Values of an option that may be repeated and may hold several with commas."""
    return tuple(name for value in given or () for name in value.split(",") if name)
