"""Models from ``transformers``, recorded: the walk node for node, every op in its module."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import graphscope
from tests.recorded import ops, same_as_walk
from tests.unit.test_compare_models import Made, gpt2, mamba, t5, tagger, vit, whisper

MODELS = [gpt2, vit, t5, whisper, mamba, tagger]


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]


@pytest.fixture(params=MODELS, ids=lambda make: make.__name__)
def made(request: pytest.FixtureRequest) -> Made:
    torch.manual_seed(0)
    make: Callable[[], Made] = request.param
    return make()


def output_of(result: Any) -> torch.Tensor:
    if isinstance(result, Mapping):
        found: torch.Tensor = result["loss"] if "loss" in result else result["logits"].sum()
        return found
    total: torch.Tensor = result.sum()
    return total


@contextmanager
def spans_of(model: nn.Module) -> Iterator[list[tuple[str, int, int]]]:
    """Between which numbers each module made its backward nodes, told by hooks of its own."""
    number = torch._C._autograd._get_sequence_nr
    open_calls: list[tuple[str, int]] = []
    spans: list[tuple[str, int, int]] = []

    def before(path: str) -> Callable[..., None]:
        return lambda *_: open_calls.append((path, number()))

    def after(*_: Any) -> None:
        path, begun = open_calls.pop()
        spans.append((path, begun, number()))

    handles = []
    for path, module in model.named_modules():
        handles += [module.register_forward_pre_hook(before(path)), module.register_forward_hook(after)]
    yield spans
    for handle in handles:
        handle.remove()


def innermost(spans: list[tuple[str, int, int]], number: int) -> str | None:
    return next((path for path, begun, ended in spans if begun <= number < ended), None)  # inner calls end first


def test_the_graph_is_the_walk_and_every_node_has_its_op(made: Made) -> None:
    model, inputs = made
    with graphscope.recording() as recording:
        loss = output_of(model(**inputs))
    assert recording._recorder.puzzles == []
    graph = recording.graph(loss)
    assert same_as_walk(graph, graphscope.walk(loss)) == []
    assert all(node.location is not None for node in ops(graph))
    parameters = {name for name, one in model.named_parameters() if one.requires_grad}
    loss.backward()
    filled = {name for name, one in model.named_parameters() if one.grad is not None}
    reached = {
        name.removeprefix("model.") for node in graph.nodes if node.accumulate is not None for name in node.names
    }
    assert parameters & reached == filled


def test_every_op_stands_in_the_module_that_ran(made: Made) -> None:
    model, inputs = made
    paths = {id(module): path for path, module in model.named_modules()}
    with spans_of(model) as spans, graphscope.recording() as recording:
        output_of(model(**inputs))
    recorder = recording._recorder
    checked = 0
    for index, op in enumerate(recorder.log.ops):
        if op.number < 0 or not recorder.log.is_tracked(index):
            continue
        module = recorder.modules[recorder.calls[op.module][0]][1]() if op.module >= 0 else None
        if module is not None and id(module) not in paths:
            continue  # made in a forward: a loss function
        told = paths.get(id(module)) if module is not None else None
        if op.module < 0 or module is not None:
            assert told == innermost(spans, op.number - 1), op.func
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(made: Made, mode: Callable[[], Any]) -> None:
    model, inputs = made
    model.eval()
    with mode():
        expected = output_of(model(**inputs))
        with graphscope.recording() as recording:
            result = output_of(model(**inputs))
        graph = recording.graph(result).check()
    assert torch.equal(expected, result)
    assert {node.mode for node in ops(graph)} == {mode.__name__}
    (region,) = {node.region for node in ops(graph)}
    assert region is not None


def test_nothing_of_a_model_lives_on(made: Made) -> None:
    model, inputs = made

    def run() -> Any:
        return output_of(model(**inputs))

    def living() -> int:
        gc.collect()
        return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())

    run()
    before = living()
    with graphscope.recording() as recording:
        run()
    assert living() == before
    recording.graph().check()
