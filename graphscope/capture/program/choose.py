"""Which of the tensors in sight are the roots of a graph, and the graph behind them.

Behind a script's variables or a function's result there may be many tensors. Unless the user says which (``--root``),
the one called ``loss`` is the root, else those that no other leads to.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from graphscope.capture.merging.merge import Options, merge
from graphscope.capture.program.backward import BackwardCall, Namespace, variables_of
from graphscope.capture.recording.record import Recorded
from graphscope.capture.walking.names import Names, describe_mistake, flatten_tensors
from graphscope.capture.walking.walk import Root, to_root, walk_graph
from graphscope.errors import InputError
from graphscope.model import GraphData

PREFERRED_ROOT = "loss"

_NAMES_LISTED = 10


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the user says about roots and names."""

    roots: tuple[str, ...] = ()
    """Names of the roots; empty for those that suggest themselves."""
    namers: tuple[str, ...] = ()
    """The variables that may name tensors; empty for all."""
    every_module: bool = False
    """Tell the parameters of every module in sight, used or not."""


_ANY = Choice()

Found = Mapping[str, Any]
"""Tensors and graph edges by name, in the order found."""


Places = Sequence[tuple[str, Namespace]]
"""Namespaces with the place they live in (``main()``, ``globals()``), nearest first."""


def graph_of_call(
    call: BackwardCall, further: Places = (), choice: Choice = _ANY, recorded: Recorded | None = None
) -> GraphData:
    """The graph that a backward is about to run through; its roots are the tensors that it starts from.

    Args:
        call: as ``watch_backward`` tells it.
        further: where to look for names after the variables of the calling frames.
        choice: what the user says; a name that is not in sight raises InputError.
        recorded: the recording, for a graph of everything that ran.
    """
    places = [*variables_of(call.frames), *further]
    names = _names_from(places, choice)
    if choice.roots:
        roots = pick_roots(_by_name(_names_from(places, _ANY)), choice.roots)
        return _build(roots, names, recorded, others=_alive(names, recorded), every_module=choice.every_module)
    many = len(call.outputs) > 1
    roots = [
        to_root(names.best_name(value) or (f"output[{position}]" if many else "output"), value)
        for position, value in enumerate(call.outputs)
    ]
    return _build(roots, names, recorded, others=_alive(names, recorded), every_module=choice.every_module)


def graph_of_variables(places: Places, choice: Choice = _ANY, recorded: Recorded | None = None) -> GraphData:
    """The graph of the tensors that variables hold, directly or within containers and objects.

    Raises:
        InputError: if there is no tensor, or a wanted name is not in sight.
    """
    names = _names_from(places, choice)
    found = _by_name(_names_from(places, _ANY) if choice.namers else names)
    if choice.roots:
        roots = pick_roots(found, choice.roots)
        return _build(roots, names, recorded, others=_alive(names, recorded), every_module=choice.every_module)
    tracked = {known[0]: tensor for tensor, known in names.tracked()}
    held = {name: found[name] for _, namespace in places for name in namespace if name in found}
    candidates = {PREFERRED_ROOT: held[PREFERRED_ROOT]} if PREFERRED_ROOT in held else tracked or held
    if not candidates:
        raise InputError(f"The variables hold {'modules, but ' * bool(names.modules)}no tensor.")
    roots = default_roots(candidates)
    return _build(roots, names, recorded, others=_others(tracked), every_module=choice.every_module)


def graph_of_tensors(
    tensors: Sequence[torch.Tensor], places: Places, choice: Choice = _ANY, recorded: Recorded | None = None
) -> GraphData:
    """The graph behind tensors in hand, and of those that variables hold beside; with a recording all that ran."""
    names = _names_from(places, choice)
    many = len(tensors) > 1
    roots = [
        to_root(names.best_name(tensor) or (f"output[{position}]" if many else "output"), tensor)
        for position, tensor in enumerate(tensors)
    ]
    others = _others({known[0]: tensor for tensor, known in names.tracked()})
    return _build(roots, names, recorded, others=others)


def graph_of_value(
    value: object,
    name: str,
    *,
    beside: Namespace | None = None,
    further: Places = (),
    choice: Choice = _ANY,
    recorded: Recorded | None = None,
) -> GraphData:
    """The graph of every tensor in a value: a tensor, or any nesting of containers with tensors and modules.

    Args:
        value: what a variable holds or a function returned.
        name: what a value is called that does not name its members by keys.
        beside: modules and tensors that were given with it and name what is in the graph.
        further: where to look for more names.
        choice: what the user says; the roots are by default ``loss``, else those that no other leads to.
        recorded: the recording, for a graph of everything that ran.

    Raises:
        InputError: if there is no tensor in the value, or a wanted name is not in sight.
    """
    members = _members(value)
    given: Namespace = {**(beside or {}), **({name: value} if members is None else members)}
    every_module = any(isinstance(member, nn.Module) for member in given.values())
    places = [("", given), *(_without_modules(further) if every_module else further)]
    names = _names_from(places, choice)
    found = dict(flatten_tensors(value, name if members is None else ""))
    if not found:
        raise InputError(f"{name}: {describe_mistake(value)}")
    if choice.roots:
        roots = pick_roots({**found, **_by_name(_names_from(places, _ANY))}, choice.roots)
    else:
        roots = default_roots(found)
    return _build(roots, names, recorded, others=_others(found), every_module=every_module)


def _build(
    roots: Sequence[Root],
    names: Names,
    recorded: Recorded | None,
    *,
    others: Sequence[Root] = (),
    every_module: bool = False,
) -> GraphData:
    """Of a recording everything that ran, else what autograd kept."""
    if recorded is None:
        return walk_graph(roots, names, others=others, every_module=every_module)
    options = Options(base=recorded.base, every_module=every_module)
    return merge(recorded.recorder, roots, names, others=others, options=options)


def _alive(names: Names, recorded: Recorded | None) -> list[Root]:
    """Named tensors with a history: what the recording tells of them is checked against their backward nodes."""
    return _others({known[0]: tensor for tensor, known in names.tracked()}) if recorded is not None else []


def _members(value: object) -> Namespace | None:
    """What names itself by keys or fields; ``None`` of anything else."""
    if isinstance(value, Mapping):
        return {str(key): member for key, member in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def _without_modules(places: Places) -> Places:
    """Modules that were not given are no matter of a graph that tells every parameter of those that were."""
    return [
        (place, {name: member for name, member in namespace.items() if not isinstance(member, nn.Module)})
        for place, namespace in places
    ]


def _others(found: Found) -> list[Root]:
    return [to_root(name, value) for name, value in found.items()]


def default_roots(found: Found) -> list[Root]:
    """``loss`` if it is there, else the tensors with a history that no other leads to, else all of them."""
    if PREFERRED_ROOT in found:
        return [to_root(PREFERRED_ROOT, found[PREFERRED_ROOT])]
    candidates = [to_root(name, value) for name, value in found.items()]
    data = walk_graph(candidates, Names())
    outputs = set(data.roots)
    read = {edge.source for edge in data.edges if edge.target not in outputs}
    ends: dict[tuple[str, int], Root] = {}
    for root, output in zip(candidates, data.roots, strict=True):
        (edge,) = data.incoming[output]
        if root.node is not None and edge.source not in read:
            ends.setdefault((edge.source, edge.output), root)  # two names of one tensor are one root
    return list(ends.values()) or candidates


def pick_roots(found: Found, wanted: Iterable[str]) -> list[Root]:
    """The tensors of the given names; the name of a container stands for all that it holds.

    Raises:
        InputError: with the nearest names, if there is none of that name.
    """
    roots: list[Root] = []
    for name in wanted:
        members = {name: found[name]} if name in found else _within(name, found)
        if not members:
            raise InputError(f"There is no tensor named {name!r}. {_nearest(name, found)}")
        roots += [to_root(path, value) for path, value in members.items()]
    return roots


def _within(name: str, found: Found) -> dict[str, Any]:
    return {
        path: value
        for path, value in found.items()
        if path.startswith((f"{name}.", f"{name}[")) and not isinstance(value, nn.Parameter)
    }


def _nearest(name: str, found: Found) -> str:
    close = difflib.get_close_matches(name, found, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    own = [path for path, value in found.items() if not isinstance(value, nn.Parameter)] or list(found)
    if not own:
        return "There are no tensors in sight."
    more = f" and {len(own) - _NAMES_LISTED} more" if len(own) > _NAMES_LISTED else ""
    return f"In sight are {', '.join(own[:_NAMES_LISTED])}{more}."


def _names_from(places: Places, choice: Choice) -> Names:
    names = Names(by_memory=bool(choice.namers))  # what the user names may be a state_dict
    distinct = _distinct(places)
    for namer in choice.namers:
        if not any(namer in namespace for namespace in distinct):
            known = dict.fromkeys(name for namespace in distinct for name in namespace)
            raise InputError(f"There is no variable named {namer!r} to take names from. {_nearest(namer, known)}")
    for namespace in distinct:
        names.search({name: value for name, value in namespace.items() if not choice.namers or name in choice.namers})
    return names


def _distinct(places: Places) -> list[Namespace]:
    """Every variable under a name of its own: one that another hides is told with its place, ``main().x``."""
    taken: dict[str, object] = {}
    result = []
    for place, namespace in places:
        shown: Namespace = {}
        for name, value in namespace.items():
            own = name if taken.get(name, value) is value else f"{place}.{name}"
            if taken.setdefault(own, value) is value:
                shown[own] = value
        result.append(shown)
    return result


def _by_name(names: Names) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for tensor in names.all_tensors():
        for name in names.of(tensor):
            found.setdefault(name, tensor)
    return found
