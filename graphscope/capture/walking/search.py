"""Tensors and modules in whatever holds them: variables, dicts, lists, dataclasses, plain objects, modules.

Only what is stored is read, through descriptors of Python and torch themselves: no property, ``__getattr__``,
``__class__`` or ``__iter__`` of a user's class runs. A name is put together only for what is worth one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import types
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from graphscope.capture.walking.tensors import BASE

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


class Listener(Protocol):
    """Who is told of what is found."""

    def add_tensor(self, path: str, tensor: torch.Tensor) -> None:
        """A tensor, or a graph edge."""

    def add_module(self, path: str, module: nn.Module, stored: dict[str, Any]) -> None:
        """A module and what it stores; its own tensors are among that."""


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
"""A tensor or a graph edge: found rather than read."""

_VARIABLES = _Holder(dict.items)

_LIST = _Holder(enumerate, indexed=True)
"""A plain list or tuple."""

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""What most long lists hold."""

_MODULE = _Holder(lambda _: (), is_module=True)


class _Holders(dict[type, "_Holder | None"]):
    """``_holder_of`` each kind, asked once."""

    def __missing__(self, kind: type) -> _Holder | None:
        found = self[kind] = _holder_of(kind)
        return found


class Search:
    """Finds every tensor and module that variables lead to, shortest paths first.

    A module that stands in several places of a model goes by all of them, since its parameters are tied. A variable
    names its module, too: first where it was there before the model, as in ``net = Sequential(encoder, decoder)``,
    last where it came later, as in ``for m in net.modules()``. One that is found again in another object goes by
    its first path alone, as does everything else that holds.
    """

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._holders = _Holders()
        self._ignored: dict[type, frozenset[str]] = {}
        self._visits: dict[int, int] = {}
        self._variables: set[int] = set()
        """Modules that are variables themselves."""
        self._waiting: deque[tuple[str, Any, _Holder, int]] = deque()
        self._budget = 0

    def find(self, variables: Mapping[str, object], listener: Listener) -> None:
        """Tell of all tensors and modules. Nothing is read twice over all calls."""
        self._budget = _MEMBERS_READ_IN_ALL
        self._look_at("", variables, _VARIABLES, 0, listener)
        while self._waiting and self._budget > 0:
            name, value, holder, depth = self._waiting.popleft()
            if holder.is_module:
                if self._is_new(value, depth):
                    self._look_at_module(name, value, depth, listener)
            elif id(value) not in self._visits:
                self._visits[id(value)] = 1
                self._look_at(name, value, holder, depth, listener)
        self._waiting.clear()

    def _is_new(self, module: nn.Module, depth: int) -> bool:
        """A variable names its module also where that was found within another one."""
        if depth > 1:
            return id(module) not in self._visits
        known = id(module) in self._variables
        self._variables.add(id(module))
        return not known

    def _look_at(self, name: str, value: Any, holder: _Holder, depth: int, listener: Listener) -> None:
        members = list(itertools.islice(holder.read(value), _MEMBERS_READ if depth else None))
        self._budget -= len(members)
        for key, member in members:
            inner = self._holders[type(member)]
            if inner is not None:
                path = f"{name}[{key}]" if holder.indexed else f"{name}.{key}" if name else str(key)
                if inner is _TENSOR:
                    listener.add_tensor(path, member)
                else:
                    self._wait(path, member, inner, depth + 1)

    def _look_at_module(self, name: str, module: nn.Module, depth: int, listener: Listener) -> None:
        """A module and those below it, breadth first; models have hundreds, so this is a loop of its own."""
        holders, visits = self._holders, self._visits
        constants, tell = self._ignored, listener.add_module
        tree = [(name, module)]
        for path, value in tree:
            visited = visits.get(id(value), 0)
            if visited == _MODULE_ALIASES:
                continue
            visits[id(value)] = visited + 1
            stored = module_dictionary(value)
            tell(path, value, stored)
            prefix = f"{path}." if path else ""
            children = stored.get("_modules")
            if children:
                for key, child in children.items():
                    if child is not None:
                        tree.append((prefix + key, child))
            ignored = constants.get(type(value)) or self._ignore(type(value))
            for key in stored:
                if key not in ignored and key[:1] != "_":
                    inner = holders[type(stored[key])]
                    if inner is _TENSOR:
                        listener.add_tensor(prefix + key, stored[key])
                    elif inner is not None and not inner.is_object:  # objects are configurations, tokenizers, losses
                        self._wait(prefix + key, stored[key], inner, depth + 1)

    def _ignore(self, kind: type) -> frozenset[str]:
        """Attributes that hold no tensor: those of every module, and the constants by the rules of TorchScript."""
        constants = getattr(kind, "__constants__", ())
        ignored = self._ignored[kind] = _MODULE_ATTRIBUTES | frozenset(key for key in constants if type(key) is str)
        return ignored

    def _wait(self, path: str, value: Any, holder: _Holder, depth: int) -> None:
        holds_nothing = holder is _LIST and _ATOMS.issuperset(map(type, value[:_MEMBERS_READ]))
        if holder.is_module or not (depth > _DEPTH_READ or holds_nothing):
            self._waiting.append((path, value, holder, depth))


def find_tensors(value: object, name: str) -> Iterator[Found]:
    """Every tensor and graph edge in any nesting of dicts, lists, tuples and dataclasses, in the order of writing."""
    waiting: list[Found] = [(name, value)]
    seen: dict[int, object] = {}
    while waiting:
        name, value = waiting.pop()
        kind = type(value)
        foreign = issubclass(kind, Mapping) and not issubclass(kind, (dict, UserDict))
        holder = _Holder(Mapping.items) if foreign else _holder_of(kind)  # what is given may be asked for its keys
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


module_dictionary: Callable[[nn.Module], dict[str, Any]] = nn.Module.__dict__["__dict__"].__get__
"""What a module stores, past any ``__getattribute__``."""


def _holder_of(kind: type) -> _Holder | None:
    """How to read values of a kind; ``None`` if they hold nothing that has a name.

    Kinds of installed packages are remembered; a user's class is looked at anew, so that it can go.
    """
    return _holder_once(kind) if str(kind.__module__).partition(".")[0] in _FOREIGN else _holder(kind)


def _holder(kind: type) -> _Holder | None:
    if issubclass(kind, (BASE, torch.autograd.graph.GradientEdge)):
        return _TENSOR
    if issubclass(kind, nn.Module):
        return _MODULE
    if issubclass(kind, (dict, list, tuple, deque)):
        return _holder_of_builtin(kind)
    if issubclass(kind, (type, types.ModuleType)):
        return None
    attributes = _Attributes(kind)
    if issubclass(kind, UserDict):
        return _Holder(lambda value: attributes.of(value).get("data", {}).items())
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return _Holder(lambda value: _only(names, attributes.of(value)))
    if str(kind.__module__).partition(".")[0] in _FOREIGN:
        return None
    return _Holder(lambda value: attributes.of(value).items(), is_object=True)


def _holder_of_builtin(kind: type) -> _Holder:
    """A container of Python itself, or a subclass, read past what that overrides."""
    if kind in {list, tuple}:
        return _LIST
    if issubclass(kind, dict):
        return _Holder(dict.items)
    fields = getattr(kind, "_fields", None) or getattr(kind, "__match_args__", None)  # the latter: torch.return_types
    if issubclass(kind, tuple) and fields:
        return _Holder(lambda value: zip(fields, tuple.__iter__(value), strict=False))
    base: Any = next(base for base in (list, tuple, deque) if issubclass(kind, base))
    return _Holder(lambda value: enumerate(base.__iter__(value)), indexed=True)


_holder_once = functools.cache(_holder)


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""What every module stores of its own."""


def _only(names: Iterable[str], stored: Mapping[str, Any]) -> Members:
    return [(name, stored[name]) for name in names if name in stored]


_PYTHONS_OWN = frozenset({types.GetSetDescriptorType, types.MemberDescriptorType})


class _Attributes:
    """Reads what instances of a class store, by the descriptors that Python itself made for it."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @functools.cached_property
    def _slots(self) -> list[tuple[str, Callable[[Any], Any]]]:
        found = [(name, member) for name, member in self._members() if name != "__dict__"]
        return [(name, member.__get__) for name, member in found if type(member) is types.MemberDescriptorType]

    @functools.cached_property
    def _dictionaries(self) -> list[Callable[[Any], dict[str, Any]]]:
        found = [member for name, member in self._members() if name == "__dict__"]
        return [member.__get__ for member in found if type(member) in _PYTHONS_OWN]

    def _members(self) -> Iterator[tuple[str, Any]]:
        for base in reversed(self._kind.__mro__):
            yield from vars(base).items()

    def of(self, value: Any) -> dict[str, Any]:
        """Attributes in ``__slots__``, then those in ``__dict__``."""
        stored: dict[str, Any] = {}
        for name, get in self._slots:
            with contextlib.suppress(AttributeError):  # a slot without a value
                stored[name] = get(value)
        for get in self._dictionaries:
            stored |= get(value)
        return stored
