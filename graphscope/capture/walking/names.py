"""What the user calls each tensor.

Names come from namespaces: the variables of a frame, or whatever mapping the caller gives (``search.py`` reads them).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from graphscope.capture.walking import tensors
from graphscope.capture.walking.search import Search, find_tensors, module_dictionary
from graphscope.errors import InputError
from graphscope.model import Module, Role

_new = tuple.__new__

_PARAMETER, _BUFFER = Role.PARAMETER, Role.BUFFER  # naming an enum member costs a look-up each time


class Names:
    """Every tensor and module that a search found, with its names."""

    def __init__(self, *, by_memory: bool = False) -> None:
        """Start empty; ``search`` fills it. ``by_memory`` lets the entries of a state_dict name what they alias."""
        self._by_memory = by_memory
        self._search = Search()
        self.tensors: dict[int, list[str]] = {}
        self.roles: dict[int, Role] = {}
        self.searched: list[Mapping[str, object]] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self._held: dict[int, torch.Tensor] = {}
        self._by_storage: dict[tuple[Any, ...], list[str]] | None = None

    def search(self, namespace: Mapping[str, object]) -> None:
        """Add what a namespace leads to; names from earlier searches come first."""
        self.searched.append(namespace)
        self._search.find(namespace, self)

    def add_module(self, path: str, module: nn.Module, stored: dict[str, Any]) -> None:
        """A module and its own tensors; models have hundreds of both."""
        names, roles, held = self.tensors, self.roles, self._held
        self.modules.append((path, module))
        prefix = f"{path}." if path else ""
        for own, role in ((stored.get("_parameters"), _PARAMETER), (stored.get("_buffers"), _BUFFER)):
            if not own:
                continue
            for key, tensor in own.items():
                identity = id(tensor)
                if tensor is None or identity in names:
                    self.add_tensor(prefix + key, tensor, role)
                else:
                    names[identity] = [prefix + key]
                    held[identity] = tensor
                    roles[identity] = role

    def add_tensor(self, name: str, tensor: torch.Tensor | None, role: Role | None = None) -> None:
        """A module's own tensor has a role; its qualified name says more than a loop variable's and comes first."""
        if tensor is None:
            return
        key = id(tensor)
        known = self.tensors.get(key)
        if known is None:
            self.tensors[key] = [name]
            self._held[key] = tensor
        elif name not in known:
            known.insert(0 if role and key not in self.roles else len(known), name)
        if role:
            self.roles.setdefault(key, role)

    def of(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """All names of this very tensor."""
        return tuple(self.tensors.get(id(tensor), ()))

    def of_each(self, given: Sequence[torch.Tensor]) -> list[tuple[str, ...]]:
        """All names of each tensor, by its memory where it has none of its own."""
        known = self.tensors
        names = [tuple(known.get(id(tensor), ())) for tensor in given]
        if self._by_memory:
            names = [own or self.of_alias(tensor) for own, tensor in zip(names, given, strict=True)]
        return names

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
                place = None if tensors.requires_grad(held) else tensors.memory_place(held)
                if place is not None:
                    self._by_storage.setdefault(place, []).extend(self.tensors[key])
        place = tensors.memory_place(tensor)
        return tuple(self._by_storage.get(place, ())) if place is not None else ()

    def tracked(self) -> list[tuple[torch.Tensor, list[str]]]:
        """Named tensors that an op made under autograd, in the order found."""
        with torch._C.DisableTorchFunction():
            found = [tensor for tensor in tensors.non_leaves(self._held.values()) if tensors.requires_grad(tensor)]
        return [(tensor, self.tensors[id(tensor)]) for tensor in found]

    def module_tensors(self) -> list[tuple[torch.Tensor, Role]]:
        """Parameters and buffers of all modules in sight, each once."""
        return [(self._held[key], role) for key, role in self.roles.items()]

    def all_tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor found, in the order found."""
        yield from self._held.values()

    def module_records(self) -> tuple[Module, ...]:
        """The modules in sight as data."""
        records = []
        for path, module in self.modules:
            stored = module_dictionary(module)
            total = trainable = 0
            for tensor in (stored.get("_parameters") or {}).values():
                if tensor is not None:
                    elements = tensors.element_count(tensor)
                    total += elements
                    trainable += elements if tensors.requires_grad(tensor) else 0
            records.append(
                _new(Module, (path, type(module).__name__, stored.get("training") is True, total, trainable))
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
            for name in (*frame.f_code.co_varnames, *frame.f_code.co_cellvars, *frame.f_code.co_freevars):
                variables.pop(name, None)
    return result


def _presentable(variables: Mapping[Any, object]) -> dict[str, object]:
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
    return list(find_tensors(value, prefix))


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
    if isinstance(given, type) and issubclass(given, nn.Module):
        name = given.__qualname__
        return (
            f"{name} is a class and was given where a tensor was expected. Make an instance of it, call that, and pass "
            f"what it returns, as in walk({name}(…)(x))."
        )
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
