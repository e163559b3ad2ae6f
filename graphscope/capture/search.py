"""Tensors and modules in whatever holds them: variables, dicts, lists, dataclasses, plain objects, modules.

Only what is stored is read, through descriptors of Python and torch themselves: no property, ``__getattr__``,
``__class__`` or ``__iter__`` of a user's class runs. A name is put together only for what is worth one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import types
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from graphscope.capture.tensors import BASE

_MEMBERS_READ = 10_000
"""Members looked at in one container of the user's: a list of a million samples holds no names worth the time."""

_MEMBERS_READ_IN_ALL = 300_000
"""Members looked at in one search; the shortest names are found first."""

_DEPTH_READ = 6
"""How many containers and objects a name may lead through, modules apart."""

_MODULE_ALIASES = 8
"""Paths listed for one module that stands in several places of a model."""

_FOREIGN = (frozenset(sys.stdlib_module_names) - {"types"}) | {"torch", "numpy", "graphscope"}
"""Packages whose objects hold no names of the user's; ``types`` has ``SimpleNamespace``."""

Found = tuple[str, Any]

Members = Iterable[tuple[object, Any]]
"""Keys, fields or indices, and what stands there."""


class _Holder(NamedTuple):
    """How to read what a value holds."""

    read: Callable[[Any], Members]
    indexed: bool = False
    """The keys are positions: ``x[0]`` instead of ``x.key``."""
    is_module: bool = False
    is_object: bool = False


_TENSOR = _Holder(lambda _: ())
"""How to read what is found rather than read: a tensor or a graph edge."""


def find_named(variables: Mapping[str, object]) -> Iterator[Found]:
    """Every tensor and module that variables lead to, breadth first.

    A module that is found again elsewhere goes by its first path alone; one that stands in several places of a model
    goes by all of them, since its parameters are tied.
    """
    holders: dict[type, _Holder | None] = {}
    visits: dict[int, int] = {}
    budget = _MEMBERS_READ_IN_ALL
    waiting: deque[tuple[str, Any, _Holder, int, bool]] = deque([("", variables, _Holder(dict.items), 0, False)])
    while waiting and budget > 0:
        name, value, holder, depth, in_module = waiting.popleft()
        is_module = holder.is_module
        seen = visits.get(id(value), 0)
        if seen and not (is_module and in_module and seen < _MODULE_ALIASES):
            continue
        visits[id(value)] = seen + 1
        if is_module:
            yield name, value
        members = list(itertools.islice(holder.read(value), _MEMBERS_READ if depth else None))
        budget -= len(members)
        for key, member in members:
            kind = type(member)
            try:
                inner = holders[kind]
            except KeyError:
                inner = holders[kind] = _holder_of(kind)
            if inner is None:
                continue
            path = f"{name}[{key}]" if holder.indexed else f"{name}.{key}" if name else str(key)
            if inner is _TENSOR:
                yield path, member
            elif inner.is_module or (depth < _DEPTH_READ and not (is_module and inner.is_object)):
                waiting.append((path, member, inner, depth + 1, is_module))


def find_tensors(value: object, name: str) -> Iterator[Found]:
    """Every tensor and graph edge in any nesting of dicts, lists, tuples and dataclasses, in the order of writing."""
    waiting: list[Found] = [(name, value)]
    seen: dict[int, object] = {}
    while waiting:
        name, value = waiting.pop()
        kind = type(value)
        foreign = issubclass(kind, Mapping) and not issubclass(kind, (dict, UserDict))  # given, so it may be asked
        holder = _Holder(kind.items) if foreign else _holder_of(kind)
        if holder is _TENSOR:
            yield name, value
        elif holder is not None and not holder.is_module and not holder.is_object and id(value) not in seen:
            seen[id(value)] = value
            members = [(_join(name, key, holder), member) for key, member in holder.read(value)]
            waiting += reversed(members)


def _join(name: str, key: object, holder: _Holder) -> str:
    return f"{name}[{key}]" if holder.indexed else f"{name}.{key}" if name else str(key)


def is_graph_edge(value: object) -> bool:
    """A ``torch.autograd.graph.GradientEdge``: a backward node and one of its outputs."""
    return issubclass(type(value), torch.autograd.graph.GradientEdge)


def is_module(value: object) -> bool:
    """``isinstance`` would go on to ask the ``__class__`` of a value that is none, which may be user code."""
    return issubclass(type(value), nn.Module)


module_dictionary: Callable[[nn.Module], dict[str, Any]] = nn.Module.__dict__["__dict__"].__get__
"""What a module stores, past any ``__getattribute__``."""


def own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Name and tensor of a module's own parameters, then of its buffers, and whether it is a parameter."""
    stored = module_dictionary(module)
    for attribute in ("_parameters", "_buffers"):
        own = stored.get(attribute)
        if own:
            for key, tensor in list(own.items()):
                if tensor is not None:
                    yield key, tensor, attribute == "_parameters"


def _holder_of(kind: type) -> _Holder | None:
    """How to read values of a kind; ``None`` if they hold nothing that has a name."""
    if issubclass(kind, (BASE, torch.autograd.graph.GradientEdge)):
        return _TENSOR
    if issubclass(kind, nn.Module):
        return _Holder(_read_module, is_module=True)
    if issubclass(kind, dict):
        return _Holder(dict.items)
    if issubclass(kind, (list, deque)):
        iterate = list.__iter__ if issubclass(kind, list) else deque.__iter__
        return _Holder(lambda value: enumerate(iterate(value)), indexed=True)
    if issubclass(kind, tuple):
        fields = getattr(kind, "_fields", None) or getattr(kind, "__match_args__", None)  # torch.return_types has these
        if fields:
            return _Holder(lambda value: zip(fields, tuple.__iter__(value), strict=False))
        return _Holder(lambda value: enumerate(tuple.__iter__(value)), indexed=True)
    if issubclass(kind, UserDict):
        return _Holder(lambda value: _stored(value).get("data", {}).items())
    if dataclasses.is_dataclass(kind):
        fields = tuple(field.name for field in dataclasses.fields(kind))
        return _Holder(lambda value: _fields(value, fields))
    if issubclass(kind, (type, types.ModuleType)) or str(kind.__module__).partition(".")[0] in _FOREIGN:
        return None
    return _Holder(lambda value: _stored(value).items(), is_object=True)


def _read_module(module: nn.Module) -> Members:
    """Child modules, and what a module holds in plain attributes; its own tensors come by ``own_tensors``."""
    stored = module_dictionary(module)
    for key, child in list((stored.get("_modules") or {}).items()):
        if child is not None:
            yield key, child
    for key, member in list(stored.items()):
        if key[:1] != "_":
            yield key, member


def _fields(value: object, names: tuple[str, ...]) -> Members:
    stored = _stored(value)
    return [(name, stored[name]) for name in names if name in stored]


def _stored(value: object) -> dict[str, Any]:
    """Instance attributes, read by the descriptors that Python itself made for ``__dict__`` and ``__slots__``."""
    stored: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        for name, member in vars(kind).items():
            if type(member) is types.MemberDescriptorType:
                with contextlib.suppress(AttributeError):  # a slot without a value
                    stored[name] = member.__get__(value)
            elif name == "__dict__" and type(member) is types.GetSetDescriptorType:
                stored |= member.__get__(value)
    return stored
