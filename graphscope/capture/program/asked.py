"""The graph of tensors that a caller has in hand, with the modules and tensors that it is to tell of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from torch import nn

from graphscope.capture.merging.merge import Options, merge
from graphscope.capture.program.given import to_roots
from graphscope.capture.recording.record import active_recorder
from graphscope.capture.walking.names import Names, describe_mistake, frame_namespaces
from graphscope.capture.walking.tensors import is_tensor
from graphscope.capture.walking.walk import to_root, walk_graph
from graphscope.errors import InputError
from graphscope.model import GraphData


def graph_of_given(outputs: object, others: Sequence[object], frame: FrameType | None) -> GraphData:
    """The graph of tensors in hand; of the recording that is going on, where one is.

    Args:
        outputs: where a backward would start.
        others: modules and tensors to be told of, besides what the variables of ``frame`` name.
        frame: the caller's.

    Raises:
        InputError: if there is no tensor in ``outputs``, or an other is neither module nor tensor.
    """
    known = Names()
    spaces = frame_namespaces(frame) if frame is not None else []
    for place, other in enumerate(others):
        if not _is_module(other) and not is_tensor(other):
            raise InputError(describe_mistake(other))
        known.search({_name_of(other, spaces) or f"{'module' if _is_module(other) else 'tensor'}{place}": other})
    has_modules = any(map(_is_module, others))
    for space in spaces:
        known.search({name: value for name, value in space.items() if not (has_modules and _is_module(value))})
    roots = to_roots(outputs, known)
    beside = [to_root(known.best_name(one) or "tensor", one) for one in others if is_tensor(one)]
    recorder = active_recorder()
    if recorder is None:
        return walk_graph(roots, known, others=beside, every_module=True)
    file = Path(frame.f_code.co_filename) if frame is not None else Path()
    options = Options(base=file.parent if file.is_absolute() else None, every_module=True)
    return merge(recorder, roots, known, others=beside, options=options)


def _is_module(value: object) -> bool:
    return issubclass(type(value), nn.Module)


def _name_of(value: object, spaces: Iterable[Mapping[str, object]]) -> str | None:
    return next((name for space in spaces for name, member in space.items() if member is value), None)
