"""Looking does not touch: a program is the same before and after, and nothing of it is kept alive."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import graphscope
from graphscope.capture.program.choose import graph_of_value, graph_of_variables
from graphscope.errors import InputError
from tests.leaks import changes, global_state, random_states
from tests.subjects import SUBJECTS, Marked, Net, Variables, training_step

BASE: Any = torch._C.TensorBase


@pytest.fixture(params=SUBJECTS)
def variables(request: pytest.FixtureRequest) -> Iterator[Variables]:
    torch.manual_seed(0)
    try:
        yield SUBJECTS[request.param]()
    finally:
        Marked.switched_on = False


def fingerprint(variables: Variables) -> dict[str, Any]:
    """Everything of a program that a look could change."""
    found = {**global_state(), **random_states()}
    for name, value in variables.items():
        if isinstance(value, nn.Module):
            for path, module in value.named_modules():
                found |= {f"{name}.{path} {key}": told for key, told in module_print(module).items()}
            for path, tensor in value.state_dict(keep_vars=True).items():
                found[f"{name}.{path}"] = tensor_print(tensor)
        elif issubclass(type(value), torch.Tensor):
            found[name] = tensor_print(value)
    return found


def module_print(module: nn.Module) -> dict[str, Any]:
    stored = vars(module)
    return {
        "training": module.training,
        "attributes": {key: id(value) for key, value in stored.items()},
        "members": {key: list(value) for key, value in stored.items() if isinstance(value, dict)},
        "references": sys.getrefcount(module),
    }


def tensor_print(tensor: torch.Tensor) -> dict[str, Any]:
    """Read past what a subclass overrides, as the library has to."""
    with torch._C.DisableTorchFunction():
        node = BASE.grad_fn.__get__(tensor)
        grad = BASE.grad.__get__(tensor) if BASE.is_leaf.__get__(tensor) else None
        return {
            "references": sys.getrefcount(tensor),
            "requires_grad": BASE.requires_grad.__get__(tensor),
            "version": None if BASE.is_inference(tensor) else BASE._version.__get__(tensor),
            "hooks": list(BASE._backward_hooks.__get__(tensor) or ()),
            "attributes": list(torch.Tensor.__dict__["__dict__"].__get__(tensor)),
            "node": (id(node), sys.getrefcount(node)) if node is not None else None,
            "grad": None if grad is None else (id(grad), grad.tolist(), sys.getrefcount(grad)),
            "values": values_of(tensor),
        }


def values_of(tensor: torch.Tensor) -> object:
    plain = type(tensor) in {torch.Tensor, nn.Parameter} and tensor.layout is torch.strided
    return tensor.tolist() if plain and tensor.device.type == "cpu" and not tensor.is_nested else None


def look(variables: Variables, names: object) -> graphscope.Graph:
    return graphscope.walk(variables["loss"], names=names)


def test_walk_changes_nothing(variables: Variables) -> None:
    calls = {key: value.calls for key, value in variables.items() if isinstance(value, Net)}
    look(variables, variables)  # nodes get their Python objects when they are first asked for
    before = fingerprint(variables)
    look(variables, variables).check()
    assert not changes(before, fingerprint(variables))
    assert calls == {key: value.calls for key, value in variables.items() if isinstance(value, Net)}


def test_first_walk_changes_nothing_but_gives_nodes_their_python_objects(variables: Variables) -> None:
    before = fingerprint(variables)
    look(variables, variables)
    after = fingerprint(variables)
    for told in (before, after):
        for value in told.values():
            if isinstance(value, dict):
                value.pop("node", None)
    assert not changes(before, after)


def test_walk_names_from_the_frame_and_changes_nothing() -> None:
    variables = training_step()
    model, loss = variables["model"], variables["loss"]
    look(variables, variables)
    before = fingerprint(variables)
    graph = graphscope.walk(loss)
    assert not changes(before, fingerprint(variables))
    assert "model.first.weight" in {name for node in graph.nodes for name in node.names}
    assert model.calls == 2


def test_the_command_lines_ways_change_nothing(variables: Variables) -> None:
    def take() -> None:
        graph_of_value(variables, "build").check()
        graph_of_variables([("globals()", variables)]).check()

    take()
    before = fingerprint(variables)
    take()
    assert not changes(before, fingerprint(variables))


METHODS: dict[str, Callable[[graphscope.Graph, Path], object]] = {
    "nodes": lambda graph, _: (graph.nodes, graph.edges, graph.roots, graph.data),
    "check": lambda graph, _: graph.check(),
    "to_json": lambda graph, _: graph.to_json(),
    "to_dot": lambda graph, _: graph.to_dot(),
    "svg": lambda graph, _: graph.to("svg"),
    "png": lambda graph, _: graph.to("png"),
    "dot": lambda graph, _: graph.to("dot"),
    "text": lambda graph, _: graph.to("txt"),
    "json": lambda graph, _: graph.to("json"),
    "save": lambda graph, folder: graph.save(folder / "graph.json"),
    "repr": lambda graph, _: (repr(graph), str(graph)),
    "explain": lambda graph, _: graph.explain().to_json(),
    "memory": lambda graph, _: graph.memory().to_json(),
    "rich": lambda graph, _: Console(quiet=True).print(graph),
    "notebook": lambda graph, _: graph._repr_mimebundle_(),
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_a_graph_change_nothing(method: str, tmp_path: Path) -> None:
    variables = training_step()
    graph = look(variables, variables)
    METHODS[method](graph, tmp_path)  # what is loaded at first use
    before = fingerprint(variables)
    METHODS[method](graph, tmp_path)
    assert not changes(before, fingerprint(variables))


@pytest.mark.parametrize(
    ("outputs", "names"),
    [(None, None), ([], None), (3, None), ("model", None), ("loss", 5), ("loss", [1, 2])],
)
def test_a_walk_that_raises_changes_nothing(outputs: object, names: object) -> None:
    variables = training_step()
    given = variables[outputs] if isinstance(outputs, str) else outputs
    look(variables, variables)
    before = fingerprint(variables)
    with pytest.raises(InputError):
        graphscope.walk(given, names=names)
    assert not changes(before, fingerprint(variables))


def test_a_walk_that_fails_in_the_middle_restores_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = training_step()
    look(variables, variables)
    before = fingerprint(variables)
    monkeypatch.setattr("graphscope.capture.walking.walk.tensor_info", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        graphscope.walk(variables["loss"])
    monkeypatch.undo()
    assert not changes(before, fingerprint(variables))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:  # noqa: FBT001
    variables = training_step()
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        look(variables, variables)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Whatever goes must go by itself: a cycle that holds tensors keeps their memory until some later collection."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Iterator[Callable[[], Variables]]:
    try:
        yield SUBJECTS[request.param]
    finally:
        Marked.switched_on = False


def survivors(make: Callable[[], Variables], *, walked: bool) -> set[str]:
    """What of a program is still there after its variables went, while its graph is held."""
    variables = make()
    graph = look(variables, dict(variables)) if walked else None
    known: dict[str, Callable[[], bool]] = {}
    for name, value in variables.items():
        if issubclass(type(value), torch.Tensor):
            known[name] = life_of(value)
            if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_nested:
                known[f"memory of {name}"] = life_of_storage(value)
        elif isinstance(value, nn.Module):
            known[name] = life_of(value)
    value = None
    variables.clear()
    left = {name for name, lives in known.items() if lives()}
    assert graph is None or graph.nodes
    return left


def life_of(value: object) -> Callable[[], bool]:
    held = weakref.ref(value)
    return lambda: held() is not None


def life_of_storage(tensor: torch.Tensor) -> Callable[[], bool]:
    storage = StorageWeakRef(tensor.untyped_storage())
    return lambda: not storage.expired()


@pytest.mark.usefixtures("without_collector")
def test_a_graph_keeps_nothing_alive(subject: Callable[[], Variables]) -> None:
    assert survivors(subject, walked=True) == survivors(subject, walked=False)


@pytest.mark.usefixtures("without_collector")
def test_most_things_go_by_themselves() -> None:
    """The test above has something to see."""
    assert not survivors(SUBJECTS["written in place"], walked=False)


@pytest.mark.usefixtures("without_collector")
def test_the_calling_frame_keeps_nothing_alive() -> None:
    """Up to Python 3.12 reading the variables of a running function leaves a copy of them in its frame."""
    x = torch.ones(3, requires_grad=True)
    h = x * 2
    loss = h.sum()
    graph = graphscope.walk(loss)
    held = [weakref.ref(h), weakref.ref(loss)]
    del h, loss
    assert [reference() for reference in held] == [None, None]
    assert {name for node in graph.nodes for name in node.names} >= {"h", "loss", "x"}


@pytest.mark.usefixtures("without_collector")
def test_the_calling_frame_keeps_what_exec_left_in_it() -> None:
    exec("left = 5")  # noqa: S102
    before = locals()
    del before
    loss = torch.ones(3, requires_grad=True).sum()
    graphscope.walk(loss)
    if sys.version_info < (3, 13):
        assert locals()["left"] == 5


@pytest.mark.usefixtures("without_collector")
def test_variables_that_somebody_holds_stay() -> None:
    loss = torch.ones(3, requires_grad=True).sum()
    held = locals()
    graphscope.walk(loss)
    assert held["loss"] is loss


@pytest.mark.usefixtures("without_collector")
def test_a_closure_keeps_its_cells() -> None:
    loss = torch.ones(3, requires_grad=True).sum()

    def inner() -> graphscope.Graph:
        return graphscope.walk(loss)

    assert inner().nodes[-1].names == ("loss",)
    assert inner().nodes[-1].names == ("loss",)


@pytest.mark.usefixtures("without_collector")
def test_a_walk_that_raises_keeps_nothing_alive() -> None:
    x = torch.ones(3, requires_grad=True)
    held = weakref.ref(x)
    with pytest.raises(InputError):
        graphscope.walk(None)
    del x
    assert held() is None


@pytest.mark.usefixtures("without_collector")
def test_a_custom_function_class_can_go() -> None:
    def make() -> tuple[torch.Tensor, weakref.ref[type]]:
        class Passing(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
                return x.clone()

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor) -> Any:  # noqa: ARG004
                return grads[0]

        apply: Any = Passing.apply
        return apply(torch.ones(2, requires_grad=True)), weakref.ref(Passing)

    y, kind = make()
    graph = graphscope.walk(y)
    assert [node.op for node in graph.nodes if node.op] == ["Passing"]
    del y
    gc.collect()
    assert kind() is None
