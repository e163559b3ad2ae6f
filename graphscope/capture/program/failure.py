"""What a program raised, read from its traceback while the frames are still there.

The tensors that a failing backward started from are in the variables of torch's own frames; so is the tensor that
could not be copied. They become the roots of the graph in which the story is looked for.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from graphscope.capture.code.source import Line, Owner, owner_of, to_location
from graphscope.capture.program.backward import program_frames, variables_of
from graphscope.capture.program.choose import Choice, Places, graph_of_tensors, graph_of_variables
from graphscope.capture.recording.record import Recorded
from graphscope.capture.walking.tensors import is_tensor
from graphscope.errors import InputError
from graphscope.findings import Raised
from graphscope.model import GraphData

_STARTS: dict[CodeType, str] = {torch.autograd.backward.__code__: "tensors", torch.autograd.grad.__code__: "outputs"}
"""Functions of torch that enter the engine, and the argument that it starts from."""
_COPIES: dict[CodeType, str] = {
    torch.Tensor.__deepcopy__.__code__: "self",
    torch.Tensor.__reduce_ex__.__code__: "self",
}
"""Functions of torch that refuse a tensor with a history, and the tensor."""

_PLACES = 12


def read_error(error: BaseException, base: Path | None = None) -> Raised:
    """Type, text and lines of an exception of the program."""
    entries = list(traceback.walk_tb(error.__traceback__))
    frames = [frame for frame, _ in entries]
    lines = [
        Line(frame.f_code, number)
        for frame, number in reversed(entries)
        if owner_of(frame.f_code.co_filename) is Owner.USER
    ]
    if isinstance(error, RecursionError) and lines:
        often = Counter(lines).most_common(1)[0][0]
        lines.sort(key=lambda line: line != often)
    places = dict.fromkeys(place for line in lines if (place := to_location(line, base)) is not None)
    return Raised(
        type(error).__name__,
        str(error),
        tuple(places)[:_PLACES],
        any(frame.f_code in _STARTS for frame in frames),
        _innermost_module(frames),
    )


def graph_of_failure(
    error: BaseException, recorded: Recorded | None, further: Places = (), choice: Choice | None = None
) -> GraphData:
    """The graph in which an error happened: behind the tensors concerned, else of those in the variables.

    Without any tensor, and nothing recorded, it is empty.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_frames = variables_of(program_frames(reversed(frames)))
    places = [*of_frames, *further]
    choice = choice or Choice()
    concerned = list(_tensors_concerned(frames))
    if (concerned or not of_frames) and not choice.roots:  # what was there before a library was called is no result
        return graph_of_tensors(concerned, places, choice, recorded)
    try:
        return graph_of_variables(places, choice, recorded)
    except InputError:
        return graph_of_tensors([], places, Choice(), recorded)


def _tensors_concerned(frames: list[FrameType]) -> Iterator[torch.Tensor]:
    for tables in (_COPIES, _STARTS):
        for frame in reversed(frames):
            name = tables.get(frame.f_code)
            if name is not None:
                yield from _tensors_in(frame.f_locals.get(name))
                return


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if is_tensor(value):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (member for member in value if is_tensor(member))


def _innermost_module(frames: list[FrameType]) -> str | None:
    for frame in reversed(frames):
        if frame.f_code.co_name == "forward" and frame.f_globals.get("__name__", "").startswith("torch.nn."):
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module):
                return type(module).__name__
    return None
