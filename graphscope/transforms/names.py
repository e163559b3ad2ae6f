"""From what a user calls something to the nodes that are meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from graphscope.errors import InputError
from graphscope.model import GraphData

_LISTED = 8


def nodes_called(data: GraphData, name: str) -> set[str]:
    """Ids of the nodes that a name means: an id, a tensor, or a module with all that runs in it.

    A name may leave out what stands in front, as a picture does inside the frame of a module: ``h.3.attn``.

    Raises:
        InputError: if nothing has that name, or several things end in it; the message tells which.
    """
    if name in data.by_id:
        return {name}
    found = {node.id for node in data.nodes if name in node.names}
    found = found or {node.id for node in data.nodes if is_within(node.module, name)}
    return found or _ending_in(data, name)


def _ending_in(data: GraphData, name: str) -> set[str]:
    end = f".{name}"
    tensors = {node.id: one for node in data.nodes for one in node.names if one.endswith(end)} if name else {}
    paths = [module.path for module in data.modules if module.path.endswith(end)] if name else []
    modules = [path for path in paths if any(is_within(node.module, path) for node in data.nodes)]
    ends = [*dict.fromkeys(tensors.values()), *modules]
    if not ends:
        raise unknown("tensor, module or node", name, known_names(data))
    if len(ends) > 1:
        more = f" and {len(ends) - _LISTED} more" if len(ends) > _LISTED else ""
        raise InputError(f"{name!r} could be {', '.join(ends[:_LISTED])}{more}. Give more of the name.")
    return set(tensors) or {node.id for node in data.nodes if is_within(node.module, modules[0])}


def is_within(module: str | None, path: str) -> bool:
    """A module is the one of that path, or in it."""
    return module is not None and (module == path or module.startswith(f"{path}.") or not path)


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """An error that names what there is instead."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, n=3) or [one for one in names if name and name in one][:3]
    if not near:
        parts = name.count(".") + 1
        ends = {".".join(one.split(".")[-parts:]): one for one in reversed(names)}
        near = [ends[end] for end in difflib.get_close_matches(name, ends, n=3)]
    if near:
        return InputError(f"There is no {what} {name!r} in the graph. Did you mean {' or '.join(map(repr, near))}?")
    if not names:
        return InputError(f"There is no {what} {name!r} in the graph, which has none with a name.")
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return InputError(f"There is no {what} {name!r} in the graph. It has {', '.join(names[:_LISTED])}{more}.")


def known_names(data: GraphData) -> Iterable[str]:
    """Names of tensors, then paths of modules."""
    yield from (name for node in data.nodes for name in node.names if name)
    yield from (module.path for module in data.modules if module.path)
    yield from (node.module for node in data.nodes if node.module)
