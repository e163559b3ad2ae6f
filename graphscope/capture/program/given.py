"""What a caller gives: tensors in any nesting, and names for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import FrameType

from graphscope.capture.walking.names import Names, describe_mistake, flatten_tensors, frame_namespaces, to_namespace
from graphscope.capture.walking.walk import Root, quiet_look, to_root, walk_graph
from graphscope.errors import InputError
from graphscope.model import GraphData


def gather_names(names: object, frame: FrameType | None) -> Names:
    """The names given, else the variables of ``frame``."""
    known = Names(by_memory=names is not None)
    if names is not None:
        known.search(to_namespace(names))
    elif frame is not None:
        for namespace in frame_namespaces(frame):
            known.search(namespace)
    return known


def walk_given(outputs: object, names: object, frame: FrameType | None) -> GraphData:
    """The graph behind ``outputs``, named as ``gather_names`` does. Nothing that it held is left when it returns."""
    with quiet_look():
        return _walk(outputs, names, frame)  # what that held is gone when the collector looks again


def _walk(outputs: object, names: object, frame: FrameType | None) -> GraphData:
    known = gather_names(names, frame)
    return walk_graph(to_roots(outputs, known), known, every_module=names is not None)


def to_roots(outputs: object, known: Names) -> list[Root]:
    """Every tensor in ``outputs`` as a root, under its best name.

    Raises:
        InputError: if there is none; the message says what was probably meant.
    """
    keyed = isinstance(outputs, Mapping) or dataclasses.is_dataclass(outputs)  # keys and fields are names themselves
    found = flatten_tensors(outputs, "" if keyed else "output")
    if not found:
        raise InputError(describe_mistake(outputs))
    return [to_root(known.best_name(value) or path, value) for path, value in found]
