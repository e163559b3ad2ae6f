"""Everything that running a function may change, noted before and put back afterwards.

Comparing runs one function several times. Each run must begin where the first one did, and the program must find
everything as it was: random numbers, buffers, parameters, ``.grad``, flags, attributes of modules. Buffers are copied
beforehand, since some ops write them without their schema saying so. Any other tensor is copied at the moment that an
op is about to write it, which costs nothing where nothing is written.

What stays changed: a graph that ``backward`` has freed, the history of a tensor that had one and was written in place,
and objects that are neither tensors nor modules (an optimizer's counters, a list that the function appends to).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from graphscope.capture.comparing.randomness import given_sources, global_sources
from graphscope.capture.comparing.sight import in_sight
from graphscope.capture.program.backward import BackwardCall, watch_backward
from graphscope.capture.walking.discover import discover
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.search import module_dictionary
from graphscope.capture.walking.tensors import BASE, NOT_TOLD, gradient, is_leaf, is_tensor, requires_grad, storage_of
from graphscope.capture.walking.walk import quiet_look, to_root

_MODULE_TABLES = frozenset(name for name, value in vars(nn.Module()).items() if type(value) in {dict, OrderedDict})
"""Attributes of every module that are tables: ``_buffers``, ``_forward_hooks`` …"""

_UNMARKED = frozenset({"running_mean", "running_var"})
"""Arguments that batch-norm ops write though their schema does not say so."""

_MISSING = object()

Undo = Callable[[], None]
"""Puts one thing back."""


class Kept(NamedTuple):
    """Memory as it was before anything wrote it."""

    storage: torch.UntypedStorage
    copy: torch.UntypedStorage


class StateKeeper(TorchDispatchMode):
    """Notes what a function may change, and puts it back as often as ``restore`` is called."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        beside: Mapping[str, object] | None = None,
    ) -> None:
        """Look at everything that a call of ``function`` would get to see, and at what stands beside it."""
        super().__init__()  # type: ignore[no-untyped-call]
        seen = {**(beside or {}), **in_sight(function, args, kwargs)}
        self._random = [*global_sources(), *given_sources(seen.values())]
        self._kept: dict[int, Kept] = {}
        self._made: set[int] = set()
        self._tensors: dict[int, tuple[torch.Tensor, Undo]] = {}
        self._modules: dict[int, tuple[nn.Module, Undo]] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        """Every buffer met, by name."""
        self.met_modules = False
        """In its last recorded run the function used modules that were not known: it makes new ones in every run."""
        self.roots: list[nn.Module] = []
        """Modules that the function gets to see and that are in no other one."""
        names = Names()
        names.search(seen)
        for name, module in names.modules:
            self.add_module(module, name)
        for tensor in names.all_tensors():
            self._add_tensor(tensor)
        self._known = self._keys()
        """What was there before the runs."""

    def add_module(self, module: nn.Module, name: str = "") -> bool:
        """Note a module with all its children; False if it is known already."""
        if id(module) in self._modules:
            return False
        self.roots.append(module)
        with _disable_current_modes():
            for path, child in module.named_modules():
                if id(child) not in self._modules:
                    self._add_one_module(child, ".".join(filter(None, [name or type(module).__name__, path])))
        return True

    def _add_one_module(self, module: nn.Module, name: str) -> None:
        self._modules[id(module)] = (module, _module_undoer(module))
        for _, tensor in _tensors_of(module, "_parameters", "_buffers"):
            self._add_tensor(tensor)
        for key, tensor in _tensors_of(module, "_buffers"):
            self.buffers.setdefault(f"{name}.{key}", tensor)
            self._keep(tensor)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self._tensors and not is_lazy(tensor):
            with quiet_look():
                self._tensors[id(tensor)] = (tensor, _tensor_undoer(tensor))

    def _keep(self, tensor: torch.Tensor) -> None:
        """Copy the memory of a tensor, unless there is a copy already."""
        storage = storage_of(tensor)
        if storage is not None and storage._cdata not in self._kept:
            with suppress(*NOT_TOLD, NotImplementedError):  # fake and meta tensors have nothing to copy
                self._kept[storage._cdata] = Kept(storage, storage.clone())

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """As ``Recorder`` has it, so that what is compiled stays compiled."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Copy what an op is about to write, and run it."""
        keywords = kwargs or {}
        for tensor in _written(func, args, keywords):
            if not self._was_made(tensor):
                self._add_tensor(tensor)
                self._keep(tensor)
        result = func(*args, **keywords)
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            storage = storage_of(tensor) if is_tensor(tensor) else None
            if storage is not None and storage._cdata not in self._kept:
                self._note_made(storage, args)
        return result

    def _note_made(self, storage: torch.UntypedStorage, args: tuple[Any, ...]) -> None:
        """Memory that an op returns is new, unless it is that of an argument."""
        inputs = (member for one in args for member in (one if isinstance(one, (list, tuple)) else (one,)))
        if not any(is_tensor(one) and _same_memory(one, storage) for one in inputs):
            self._made.add(storage._cdata)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch what the block writes, and which leaves it runs backward into."""
        with watch_backward(self._note_gradients), self:
            yield

    def _note_gradients(self, call: BackwardCall) -> None:
        with _disable_current_modes():
            roots = [to_root("", value) for value in call.outputs]
            trace = discover([root.node for root in roots], [])
            leaves = [node.variable for node, kind in zip(trace.nodes, trace.kinds, strict=True) if kind.accumulate]
            for leaf in [*leaves, *(root.tensor for root in roots if root.node is None)]:
                if leaf is None or self._was_made(leaf):
                    continue
                self._add_tensor(leaf)
                grad = gradient(leaf)
                if grad is not None:
                    self._add_tensor(grad)
                    self._keep(grad)

    def _was_made(self, tensor: torch.Tensor) -> bool:
        storage = storage_of(tensor)
        return storage is not None and storage._cdata in self._made

    def moved_buffers(self) -> dict[str, torch.Tensor]:
        """The buffers that are not what they were, by name."""
        return {name: tensor for name, tensor in self.buffers.items() if self._has_moved(tensor)}

    def _has_moved(self, tensor: torch.Tensor) -> bool:
        storage = storage_of(tensor)
        kept = self._kept.get(storage._cdata) if storage is not None else None
        if kept is None:
            return False
        empty = (torch.empty(0, dtype=torch.uint8, device=tensor.device) for _ in kept)
        now, before = (view.set_(memory) for view, memory in zip(empty, kept, strict=True))
        return not torch.equal(now, before)

    def random_numbers_drawn(self) -> bool:
        """A generator of torch, numpy or Python is not where it was."""
        return any(source.has_moved() for source in self._random)

    def restore(self) -> None:
        """Put everything back; the memory last, since the others only say which memory it is."""
        for _, undo in self._modules.values():
            undo()
        with quiet_look():
            for _, undo in self._tensors.values():
                undo()
        for storage, copy in self._kept.values():
            if storage.nbytes() != copy.nbytes():
                storage.resize_(copy.nbytes())
            storage.copy_(copy)
        for source in self._random:
            source.put_back()

    def forget_made(self, *, watched: bool = True) -> None:
        """Let go of what the run itself made, so that it does not live as long as the comparison.

        Modules that were met in the run and hold no tensor from before it go, too; the next run will meet them anew.

        Args:
            watched: the run was inside ``active``; of one that was not, whatever is new goes.
        """
        if watched:
            self._forget_modules_made()
            self._tensors = {key: found for key, found in self._tensors.items() if not self._was_made(found[0])}
            self._kept = {key: kept for key, kept in self._kept.items() if key not in self._made}
        else:
            modules, tensors, storages = self._known
            self._modules = {key: self._modules[key] for key in modules}
            self._tensors = {key: self._tensors[key] for key in tensors}
            self._kept = {key: self._kept[key] for key in storages}
        self.roots = [module for module in self.roots if id(module) in self._modules]
        self.buffers = {name: tensor for name, tensor in self.buffers.items() if id(tensor) in self._tensors}
        self._made.clear()
        self._known = self._keys()

    def _forget_modules_made(self) -> None:
        known = self._known[0]
        for module in [found[0] for key, found in self._modules.items() if key not in known]:
            tensors = [tensor for _, tensor in _tensors_of(module, "_parameters", "_buffers")]
            if not tensors or any(map(self._was_made, tensors)):
                del self._modules[id(module)]
            else:
                self.roots.append(module)  # what it stood in may be gone

    def _keys(self) -> tuple[list[int], list[int], list[int]]:
        return list(self._modules), list(self._tensors), list(self._kept)


def _tensors_of(module: nn.Module, *tables: str) -> list[tuple[str, torch.Tensor]]:
    """Own parameters or buffers of a module with their names."""
    stored = module_dictionary(module)
    return [found for table in tables for found in (stored.get(table) or {}).items() if is_tensor(found[1])]


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return
    for argument, value in _with_arguments(schema, args, kwargs):
        alias = argument.alias_info
        if (alias is not None and alias.is_write) or argument.name in _UNMARKED:
            yield from (each for each in (value if isinstance(value, (list, tuple)) else (value,)) if is_tensor(each))


def _with_arguments(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for place, argument in enumerate(schema.arguments):
        if place < len(args):
            yield argument, args[place]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _same_memory(tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
    other = storage_of(tensor)
    return other is not None and other._cdata == storage._cdata


def _module_undoer(module: nn.Module) -> Undo:
    """Attributes of a module, and what its own tables (buffers, hooks, children) hold.

    A lazy module makes its parameters at its first call, and stays as it is then.
    """
    stored = module_dictionary(module)
    if any(is_lazy(tensor) for _, tensor in _tensors_of(module, "_parameters", "_buffers")):
        return lambda: None
    before = dict(stored)
    tables = {name: (stored[name], dict(stored[name])) for name in _MODULE_TABLES if name in stored}
    training = getattr(module, "training", _MISSING)

    def undo() -> None:
        _refill(stored, before)
        for table, content in tables.values():
            _refill(table, content)
        if training is not _MISSING and module.training is not training:
            module.training = bool(training)  # a scripted module keeps its flag elsewhere

    return undo


def _refill(table: dict[Any, Any], content: Mapping[Any, Any]) -> None:
    same = list(table) == list(content) and all(table[key] is value for key, value in content.items())
    if not same:
        table.clear()
        table.update(content)


def _tensor_undoer(tensor: torch.Tensor) -> Undo:
    """Which memory a tensor is, its flags, its ``.grad`` and its version; what stands in the memory is kept apart."""
    memory = BASE.detach(tensor)
    was_leaf, flag = is_leaf(tensor), requires_grad(tensor)
    grad = gradient(tensor) if was_leaf else None
    inference = BASE.is_inference(tensor)
    version = None if inference else tensor._version

    def undo() -> None:
        if was_leaf and not is_leaf(tensor):
            with suppress(RuntimeError):  # torch refuses this for a view
                tensor.detach_()
        if _place_of(tensor) != _place_of(memory):
            tensor.data = memory
        if was_leaf and requires_grad(tensor) != flag:
            tensor.requires_grad_(flag)
        if was_leaf and gradient(tensor) is not grad:
            tensor.grad = grad
        if version is not None and tensor._version != version:
            _set_version(tensor, version)

    return undo


def _place_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    try:
        return (
            BASE.untyped_storage(tensor)._cdata,
            BASE.storage_offset(tensor),
            tuple(BASE.size(tensor)),
            tuple(BASE.stride(tensor)),
        )
    except NOT_TOLD:
        return None


def _set_version(tensor: torch.Tensor, version: int) -> None:
    """A tensor that holds what it held has the version that it had: a graph that saved it before is still right."""
    setter: Any = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)
    if setter is not None:
        try:
            setter((tensor,), (version,))
        except TypeError:  # torch before 2.6 takes one tensor
            setter(tensor, version)
