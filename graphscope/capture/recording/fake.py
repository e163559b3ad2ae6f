"""Run a program on fake tensors: shapes and histories without numbers, so without memory and in a fraction of the time.

torch's ``FakeTensorMode`` (torch/_subclasses/fake_tensor.py) lets every op say what it would return. What is made while
it is on is fake; what was made before is let in as a fake copy. A module's own tensors are stood in for, one fake for
each, so that the graph ends in leaves with their names; and everything about the module is put back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as tree

from graphscope.capture.code.source import Line, Owner, owner_of, to_location
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.search import module_dictionary
from graphscope.model import GraphData, Location, TensorInfo

_OWN = ("_parameters", "_buffers", "_modules")
"""Where a module keeps its tensors and modules: dicts that are changed in place."""


NOTICE = "Run on fake tensors, which have shapes but no numbers; nothing was computed and no memory taken."


class FakeRun:
    """One run on fake tensors, and the fakes that stand in for tensors of before."""

    def __init__(self) -> None:
        """Prepare; nothing is on yet."""
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._names = Names()
        self._fakes: dict[int, torch.Tensor] = {}

    @contextlib.contextmanager
    def active(self, namespace: Mapping[str, object]) -> Iterator[None]:
        """Run the block on fake tensors.

        Args:
            namespace: what the block uses. The modules in it, at any depth, get fake parameters and buffers for as long
                as it lasts; afterwards they are as they were, with all their attributes and every ``.grad``.
        """
        self._names.search(namespace)
        try:
            with _grads_kept(list(self._names.all_tensors())), self._stood_in(), _logging_less(), self.mode:
                yield
        except Exception as error:
            need = describe_need(error)
            if need is not None:
                error.add_note(f"graphscope: {need}")
            raise

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function or module with fake copies of its arguments; in the block only."""
        given, wanted = tree.tree_map_only(torch.Tensor, self._fake_of, (args, kwargs))
        return function(*given, **wanted)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """While names are looked up: modules show their fakes."""
        with self._stood_in():
            yield

    def name_arguments(self, names: Names) -> None:
        """Let fake copies of arguments go by the names of what they are copies of."""
        own = {id(tensor) for tensor, _ in self._names.module_tensors()}
        for tensor in list(names.all_tensors()):
            fake = self._fakes.get(id(tensor))
            if fake is not None and id(tensor) not in own:
                for name in names.of(tensor):
                    names.add_tensor(name, fake)

    @staticmethod
    def told_of(data: GraphData) -> GraphData:
        """The graph of a fake run: that its tensors are fake is said once."""
        nodes = tuple(node._replace(outputs=tuple(map(_plain, node.outputs))) for node in data.nodes)
        return dataclasses.replace(data, nodes=nodes, notices=(*data.notices, NOTICE))

    def _fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The one fake for a tensor; what cannot be faked stands for itself."""
        if isinstance(tensor, FakeTensor):
            return tensor
        fake = self._fakes.get(id(tensor))
        if fake is None:
            self._names.add_tensor("", tensor)  # holds it, so that its id stays its own
            fake = self._fakes[id(tensor)] = self._make(tensor)
        return fake

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            fake: torch.Tensor = self.mode.from_tensor(tensor, static_shapes=True)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):  # uninitialized, sparse, some subclasses
            return tensor
        return fake

    @contextlib.contextmanager
    def _stood_in(self) -> Iterator[None]:
        modules = list({id(module): module for _, module in self._names.modules}.values())
        before = [_Attributes(module) for module in modules]
        try:
            for module in modules:
                for kind in ("_parameters", "_buffers"):
                    own = module_dictionary(module).get(kind) or {}
                    for key, tensor in own.items():
                        if tensor is not None:
                            own[key] = self._fake_of(tensor)
            yield
        finally:
            for attributes in before:
                attributes.put_back()


def _plain(tensor: TensorInfo) -> TensorInfo:
    return tensor._replace(subclass=None) if tensor.subclass == FakeTensor.__name__ else tensor


class _Attributes:
    """All that a module has, to be put back."""

    def __init__(self, module: nn.Module) -> None:
        self._stored = module_dictionary(module)
        self._all = dict(self._stored)
        self._own = {key: dict(self._stored[key]) for key in _OWN if key in self._stored}

    def put_back(self) -> None:
        self._stored.clear()
        self._stored.update(self._all)
        for key, members in self._own.items():
            self._stored[key].clear()
            self._stored[key].update(members)


@contextlib.contextmanager
def _logging_less() -> Iterator[None]:
    """torch logs an error of the program with its own traceback, and then raises it."""
    logger = logging.getLogger(fake_tensor.__name__)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _grads_kept(tensors: list[torch.Tensor]) -> Iterator[None]:
    """A backward on fakes must leave nothing in the ``.grad`` of tensors that are none."""
    leaves = [tensor for tensor in tensors if tensor.is_leaf and tensor.requires_grad]
    before = [leaf.grad for leaf in leaves]
    try:
        yield
    finally:
        for leaf, grad in zip(leaves, before, strict=True):
            if leaf.grad is not grad:
                leaf.grad = grad


def used_by(function: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> dict[str, object]:
    """What a call uses that existed before: the function, its arguments, and the variables that its code names."""
    found: dict[str, object] = {"function": function, "arguments": args, "options": dict(kwargs or {})}
    waiting: list[object] = [function]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for name, value in _variables_of(one):
            found.setdefault(name, value)
            if isinstance(value, (types.FunctionType, types.MethodType)):
                waiting.append(value)
    return found


def _variables_of(function: object) -> Iterator[tuple[str, object]]:
    """Variables around a function that it names; of a bound method or a partial also what it is bound to."""
    for attribute in ("__self__", "func", "args", "keywords", "__wrapped__"):
        bound = getattr(function, attribute, None) if not isinstance(function, nn.Module) else None
        if bound is not None and not isinstance(bound, types.ModuleType):
            yield f"{attribute} {id(function)}", bound
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return
    for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # not yet filled
            yield name, cell.cell_contents
    variables = getattr(function, "__globals__", {})
    for name in _names_in(code):
        if name in variables:
            yield name, variables[name]


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


_NEEDS = (
    ("DataDependentOutputException", "asks a tensor for a number"),
    ("DynamicOutputShapeException", "makes a tensor whose shape depends on numbers"),
    ("UnsupportedFakeTensorException", "uses a kind of tensor that has no fake"),
    ("UnsupportedOperatorException", "runs an operation that needs numbers"),
)
"""Errors of torch/_subclasses/fake_tensor.py and what a line does that raises them."""

_TEXTS = (
    (".numpy() is not supported for tensor subclasses", "makes an array of a tensor"),
    ("passed to FakeTensor.__format__", "writes a tensor's number into a text"),
)
"""Errors that others raise at a fake tensor."""


def describe_need(error: BaseException, base: Path | None = None) -> str | None:
    """One line for an error that came of fake tensors having no numbers: where, what, what to do; None for others."""
    kinds = [kind for kind, _ in _NEEDS if isinstance(error, getattr(fake_tensor, kind, ()))]
    needs = [dict(_NEEDS)[kind] for kind in kinds] or [need for text, need in _TEXTS if text in str(error)]
    if not needs:
        return None
    lines = [Line(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    owners = {owner_of(line.code.co_filename): to_location(line, base) for line in lines}
    user, library = owners.get(Owner.USER), owners.get(Owner.LIBRARY)
    inner = library if library is not None and _is_last(lines, Owner.LIBRARY) else None
    where = _to_words(user or library)
    if inner is not None and user is not None:
        where += f", within it {_to_words(inner)},"
    return (
        f"{where} {needs[0]}, and fake tensors have shapes but no numbers. Leave this line out of the fake run: "
        "return the loss before it, or branch on shapes and settings instead."
    )


def _is_last(lines: list[Line], owner: Owner) -> bool:
    """The innermost line that is anybody's is this owner's."""
    owners = [owner_of(line.code.co_filename) for line in lines]
    return [one for one in owners if one in {Owner.USER, Owner.LIBRARY}][-1:] == [owner]


def _to_words(location: Location | None) -> str:
    return "A line" if location is None else f"{location.file}:{location.line} ({location.code})"
