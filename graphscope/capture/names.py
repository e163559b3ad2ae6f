"""What the user calls each tensor.

Names come from namespaces: the variables of a frame, or whatever mapping the caller gives. They are searched
breadth first through dicts, lists, dataclasses, plain objects and modules, so that the
shortest name comes first. Only stored attributes are read: no property, ``__getattr__`` or other user code runs.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from graphscope.capture.saved import storage_key
from graphscope.errors import InputError
from graphscope.model import Module, Role

_MEMBERS_READ = 10_000
"""Members looked at in one container: a list of a million samples holds no names worth the time."""

_OBJECTS_READ = 20_000
"""Objects looked at in one search of variables; the shortest names are found first."""

_DEPTH_READ = 6
"""How many containers and objects a name may lead through, modules inside modules apart."""

_FOREIGN = ("torch.", "builtins", "numpy", "typing", "graphscope", "collections")
"""Modules whose objects hold no names of the user's."""

_MODULE_ALIASES = 8
"""Paths listed for one shared module."""

Found = tuple[str, object]


class Names:
    """Every tensor and module that a search found, with its names."""

    def __init__(self, *, by_memory: bool = False) -> None:
        """Start empty; ``search`` fills it. ``by_memory`` lets the entries of a state_dict name what they alias."""
        self._by_memory = by_memory
        self.tensors: dict[int, list[str]] = {}
        self.roles: dict[int, Role] = {}
        self.modules: list[tuple[str, nn.Module]] = []
        self._held: dict[int, torch.Tensor] = {}
        self._by_storage: dict[tuple[Any, ...], list[str]] | None = None

    def search(self, namespace: Mapping[str, object], *, attribute_access: bool = True) -> None:
        """Add what a namespace leads to; names from earlier searches come first."""
        for name, value in _breadth_first(namespace.items(), enter_objects=attribute_access):
            if isinstance(value, torch.Tensor):
                self._add_tensor(name, value)
            elif isinstance(value, nn.Module):
                self.modules.append((name, value))
                for path, role, tensor in _own_tensors(name, value):
                    self._add_tensor(path, tensor, role)

    def _add_tensor(self, name: str, tensor: torch.Tensor, role: Role | None = None) -> None:
        key = id(tensor)
        self._held[key] = tensor
        known = self.tensors.setdefault(key, [])
        if name not in known:
            if role is Role.PARAMETER and key not in self.roles:
                known.insert(0, name)  # the qualified name says more than a loop variable
            else:
                known.append(name)
        if role is not None:
            self.roles.setdefault(key, role)

    def of(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """All names of this very tensor."""
        return tuple(self.tensors.get(id(tensor), ()))

    def best_name(self, value: object) -> str | None:
        """The first name of a tensor, if it has one."""
        names = self.tensors.get(id(value))
        return names[0] if names else None

    def of_alias(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """Names of detached tensors over exactly the same memory: entries of a ``state_dict``."""
        if not self._by_memory:
            return ()
        if self._by_storage is None:
            self._by_storage = {}
            for key, held in self._held.items():
                place = None if held.requires_grad else _memory_place(held)
                if place is not None:
                    self._by_storage.setdefault(place, []).extend(self.tensors[key])
        place = _memory_place(tensor)
        return tuple(self._by_storage.get(place, ())) if place is not None else ()

    def tracked(self) -> Iterator[tuple[torch.Tensor, list[str]]]:
        """Named tensors that an op made under autograd, in the order found."""
        for key, tensor in self._held.items():
            if tensor.requires_grad and not tensor.is_leaf:
                yield tensor, self.tensors[key]

    def module_tensors(self) -> Iterator[tuple[torch.Tensor, Role]]:
        """Parameters and buffers of all modules in sight, each once."""
        for key, role in self.roles.items():
            yield self._held[key], role

    def all_tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor found, in the order found."""
        yield from self._held.values()

    def module_records(self) -> tuple[Module, ...]:
        """The modules in sight as data."""
        records = []
        for path, module in self.modules:
            own = [p for p in module.__dict__.get("_parameters", {}).values() if isinstance(p, torch.Tensor)]
            records.append(
                Module(
                    path,
                    type(module).__name__,
                    training=bool(module.__dict__.get("training", False)),
                    parameters=sum(_element_count(p) for p in own),
                    trainable=sum(_element_count(p) for p in own if p.requires_grad),
                )
            )
        return tuple(records)


def frame_namespaces(frame: types.FrameType) -> list[dict[str, object]]:
    """Locals, then globals of a frame, without leaving a copy of the locals behind in it.

    Up to Python 3.12 reading ``f_locals`` of a running function fills a dict that the frame keeps, and with it
    every tensor in it, after the user's ``del``. It is emptied again unless somebody else holds it.
    """
    result = [_presentable(frame.f_globals)]
    if frame.f_locals is not frame.f_globals:
        variables = frame.f_locals
        result.insert(0, _presentable(variables))
        kept_by_frame_here_and_call = 3
        in_function = bool(frame.f_code.co_flags & 0x1)  # CO_OPTIMIZED: class bodies really live in their dict
        if sys.version_info < (3, 13) and in_function and sys.getrefcount(variables) <= kept_by_frame_here_and_call:
            variables.clear()
    return result


def _presentable(variables: Mapping[str, object]) -> dict[str, object]:
    """Variables without Python's own names and without the history that a notebook keeps."""
    notebook_history = {"In", "Out", "exit", "quit", "get_ipython"} if "get_ipython" in variables else set()
    shown = {
        name: value
        for name, value in variables.items()
        if isinstance(name, str) and not name.startswith("_") and name not in notebook_history
    }
    private = {
        name: value
        for name, value in variables.items()
        if isinstance(name, str) and name.startswith("_") and not name.startswith("__") and not notebook_history
    }
    return shown | private


def flatten_tensors(value: object, prefix: str) -> list[tuple[str, object]]:
    """Tensors and graph edges in any nesting of dicts, lists, tuples and dataclasses, with the path to each."""
    return [
        (name, member)
        for name, member in _breadth_first([(prefix, value)], enter_objects=False, ordered=True)
        if isinstance(member, torch.Tensor) or is_graph_edge(member)
    ]


def is_graph_edge(value: object) -> bool:
    """A ``torch.autograd.graph.GradientEdge``: a backward node and one of its outputs."""
    edge_type = getattr(torch.autograd.graph, "GradientEdge", None)
    return edge_type is not None and isinstance(value, edge_type)


def _breadth_first(start: Iterable[Found], *, enter_objects: bool, ordered: bool = False) -> Iterator[Found]:
    """Everything that the starting values lead to. ``ordered`` keeps the order of writing (depth first)."""
    waiting: deque[tuple[str, object, int]] = deque((name, value, 0) for name, value in start)
    visits: dict[int, int] = {}
    for _ in range(_OBJECTS_READ):
        if not waiting:
            return
        name, value, depth = waiting.popleft()
        yield name, value
        is_module = isinstance(value, nn.Module)
        limit = _MODULE_ALIASES if is_module else 1
        if isinstance(value, (torch.Tensor, str, bytes, int, float, type(None))) or is_graph_edge(value):
            continue
        seen = visits.get(id(value), 0)
        if seen >= limit or (depth >= _DEPTH_READ and not is_module):
            continue
        visits[id(value)] = seen + 1
        members = ((path, member, depth + 1) for path, member in _members(name, value, enter_objects=enter_objects))
        if ordered:
            waiting.extendleft(reversed(list(members)))
        else:
            waiting.extend(members)


def _members(name: str, value: object, *, enter_objects: bool) -> Iterator[Found]:
    if isinstance(value, nn.Module):
        if enter_objects:
            yield from _module_members(name, value)
    elif isinstance(value, Mapping):
        for index, key in enumerate(value):
            if index >= _MEMBERS_READ:
                return
            yield _joined(name, str(key)), value[key]
    elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
        yield from ((_joined(name, field), member) for field, member in zip(value._fields, value, strict=False))
    elif isinstance(value, (list, tuple, deque)):
        for index, member in zip(range(_MEMBERS_READ), value, strict=False):
            yield f"{name}[{index}]", member
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        stored = _stored_attributes(value)
        for field in dataclasses.fields(value):
            if field.name in stored:
                yield _joined(name, field.name), stored[field.name]
    elif enter_objects and not isinstance(value, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
        if not type(value).__module__.startswith(_FOREIGN):
            yield from ((_joined(name, key), member) for key, member in list(_stored_attributes(value).items()))


def _module_members(name: str, module: nn.Module) -> Iterator[Found]:
    """Child modules, and what the module holds in plain attributes; its own tensors come by ``_own_tensors``."""
    stored = module.__dict__
    for key, child in list((stored.get("_modules") or {}).items()):
        if child is not None:
            yield _joined(name, key), child
    for key, member in list(stored.items()):
        if key[:1] != "_" and _may_hold_tensors(member.__class__):
            yield _joined(name, key), member


@functools.cache
def _may_hold_tensors(kind: type) -> bool:
    return issubclass(kind, (torch.Tensor, nn.Module, list, tuple, dict))


def _own_tensors(name: str, module: nn.Module) -> Iterator[tuple[str, Role, torch.Tensor]]:
    stored = module.__dict__
    for attribute, role in (("_parameters", Role.PARAMETER), ("_buffers", Role.BUFFER)):
        own = stored.get(attribute)
        if own:
            for key, tensor in list(own.items()):
                if isinstance(tensor, torch.Tensor):
                    yield _joined(name, key), role, tensor


def _stored_attributes(value: object) -> dict[str, object]:
    """Instance attributes, past any ``__getattribute__`` of the class; slots are read where they are plain."""
    try:
        stored = object.__getattribute__(value, "__dict__")
    except AttributeError:
        stored = {}
    if not isinstance(stored, dict):
        return {}
    return stored


def _joined(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _memory_place(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    key = storage_key(tensor)
    if key is None:
        return None
    return key, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())


def _element_count(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.numel())
    except (RuntimeError, TypeError):  # symbolic or nested
        return 0


def to_namespace(names: object) -> dict[str, object]:
    """Any accepted form of ``names`` as one mapping: a module, a mapping, pairs, or a sequence of those."""
    if names is None:
        return {}
    if isinstance(names, Mapping):
        return {str(key): value for key, value in names.items()}
    if isinstance(names, nn.Module):
        return {"": names}
    if isinstance(names, Iterable) and not isinstance(names, (str, bytes, torch.Tensor)):
        merged: dict[str, object] = {}
        for member in names:
            if isinstance(member, (Mapping, nn.Module)):
                merged |= to_namespace(member)
            elif isinstance(member, Sequence) and len(member) == 2 and isinstance(member[0], str):  # noqa: PLR2004
                merged[member[0]] = member[1]
            else:
                break
        else:
            return merged
    message = (
        f"names was given as {type(names).__name__}. Expected a module, a dict of names to tensors or modules, "
        "or model.named_parameters(). Example: walk(loss, names={'model': model, 'x': x})"
    )
    raise InputError(message)


def describe_mistake(given: object) -> str:
    """One line for somebody who gave something that holds no tensor: what it is, what was expected, what to do."""
    owner = getattr(given, "__self__", None) if isinstance(given, (types.MethodType, types.BuiltinMethodType)) else None
    kind = f"{type(given).__module__}.{type(given).__qualname__}".removeprefix("builtins.")
    if isinstance(given, nn.Module):
        hint = "A module has no graph before it runs: pass what it returns, as in walk(model(x))"
    elif isinstance(owner, torch.Tensor):
        hint = f"That is a method, not its result: add the parentheses, .{getattr(given, '__name__', 'method')}()"
    elif given is None:
        hint = "Did a function without a return statement make it? backward() and in-place list methods return None"
    elif isinstance(given, (bool, int, float, complex)):
        hint = "A number has left autograd; pass the tensor it came from, before .item() or float()"
    elif type(given).__module__ == "numpy":
        hint = "An array has left autograd; pass the tensor it came from, before .numpy()"
    elif hasattr(type(given), "next_functions"):
        hint = "That is a backward node; pass its tensor, or torch.autograd.graph.GradientEdge(node, 0)"
    elif callable(given):
        hint = "A function has no graph before it runs: pass what it returns"
    elif isinstance(given, (Mapping, list, tuple, set)) and not given:
        hint = "It is empty"
    else:
        hint = "Pass a tensor, or dicts, lists, tuples or dataclasses that hold some"
    return f"{kind} was given where a tensor was expected. {hint}."
