"""``watch_backward``: which calls are the program's, what is in sight, and that nothing stays."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphscope.capture.program.backward import BackwardCall, watch_backward
from graphscope.capture.program.choose import Choice, graph_of_call
from graphscope.errors import InputError
from graphscope.model import GraphData, Kind


def graphs_of(program: Callable[[], object], choice: Choice | None = None) -> list[GraphData]:
    """The graph at every backward of a program, checked."""
    taken: list[GraphData] = []

    def take(call: BackwardCall) -> None:
        assert call.number == len(taken) + 1
        taken.append(graph_of_call(call, choice=choice or Choice()).check())

    with watch_backward(take):
        program()
    return taken


def root_names(graph: GraphData) -> list[str]:
    return [graph.by_id[root].names[0] for root in graph.roots]


def leaf_names(graph: GraphData) -> list[str]:
    return [node.names[0] for node in graph.nodes if node.kind is Kind.LEAF]


def a_tensor() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def test_every_way_into_the_engine_is_seen() -> None:
    def program() -> None:
        x, seed = a_tensor(), torch.ones(3)
        loss = (x * x).sum()
        loss.backward(retain_graph=True)
        torch.autograd.backward([loss, x * 2], [torch.ones(()), seed])
        torch.autograd.grad((x * 3).sum(), x)
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(x.sin()), seed)
        torch.func.grad(lambda t: t.sin().sum())(torch.ones(3))
        torch.autograd.functional.jacobian(lambda t: t * 2, torch.ones(1))

    graphs = graphs_of(program)
    assert [root_names(graph) for graph in graphs] == [["loss"], ["loss", "output[1]"], *[["output"]] * 4]


def test_calls_of_a_running_backward_are_not_the_programs() -> None:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(_: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(_: object, grad: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = a_tensor()
                (inner,) = torch.autograd.grad((x * x).sum(), x)
            return grad * inner

    def custom() -> None:
        apply: Any = Inner.apply
        apply(a_tensor()).sum().backward()

    def reentrant() -> None:
        checkpoint(torch.sin, a_tensor(), use_reentrant=True).sum().backward()

    assert len(graphs_of(custom)) == 1
    assert len(graphs_of(reentrant)) == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
def test_a_compiler_that_traces_is_not_the_program() -> None:
    """AOTAutograd differentiates while it compiles; the program does so later, once, also within compiled code."""
    net = nn.Linear(3, 1)
    compiled = torch.compile(net, backend="aot_eager")

    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = net(x).sum()
        loss.backward()
        return loss

    def program() -> None:
        loss = compiled(torch.ones(2, 3)).sum()
        loss.backward()
        step(torch.ones(2, 3))
        step(torch.ones(2, 3))

    graphs = graphs_of(program)
    assert len(graphs) == 3
    assert {node.backward for node in graphs[0].nodes} >= {"CompiledFunctionBackward"}
    torch._dynamo.reset()


def test_names_come_from_all_frames_and_the_nearest_wins() -> None:
    class Trainer:
        def __init__(self, model: nn.Module) -> None:
            self.model = model

        def step(self, x: torch.Tensor) -> None:
            loss = self.model(x).sum()
            loss.backward()

    def program() -> None:
        x = a_tensor()
        extra = a_tensor()
        Trainer(nn.Linear(3, 1)).step(x + extra)

    (graph,) = graphs_of(program)
    assert root_names(graph) == ["loss"]
    assert set(leaf_names(graph)) == {"extra", "program().x", "self.model.weight", "self.model.bias"}


def test_in_a_thread() -> None:
    def program() -> None:
        def work() -> None:
            inner = a_tensor()
            inner.sum().backward()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    (graph,) = graphs_of(program)
    assert leaf_names(graph) == ["inner"]


def test_roots_and_namers_can_be_chosen() -> None:
    def program() -> None:
        held = {"w": a_tensor()}
        hidden = held["w"].sin()
        hidden.sum().backward()

    (graph,) = graphs_of(program, Choice(roots=("hidden",), namers=("held",)))
    assert (root_names(graph), leaf_names(graph)) == (["hidden"], ["held.w"])
    with pytest.raises(InputError, match=r"no tensor named 'hiden'\. Did you mean hidden"):
        graphs_of(program, Choice(roots=("hiden",)))


def test_the_graph_is_taken_before_torch_frees_it() -> None:
    def program() -> None:
        x = a_tensor()
        y = x.exp()
        y.sum().backward()

    (graph,) = graphs_of(program)
    assert [saved.state for node in graph.nodes for saved in node.saved] == ["live"]
    assert [node.grad for node in graph.nodes if node.kind is Kind.LEAF] == [None]


def test_nothing_is_kept_alive() -> None:
    def program() -> weakref.ref[torch.Tensor]:
        x = a_tensor()
        hidden = x.exp()
        kept = weakref.ref(hidden)
        hidden.sum().backward()
        del hidden
        assert kept() is None, "the variable is gone while its function still runs"
        return kept

    graphs: list[GraphData] = []
    gc.disable()
    try:
        with watch_backward(lambda call: graphs.append(graph_of_call(call))):
            assert program()() is None
            assert len(graphs) == 1
    finally:
        gc.enable()


def test_torch_is_put_back() -> None:
    before = torch.autograd.graph._engine_run_backward

    def stop(_: BackwardCall) -> None:
        raise KeyError("from tell")

    x = a_tensor()
    with pytest.raises(KeyError, match="from tell"), watch_backward(stop):
        x.sum().backward()
    assert x.grad is None, "what tell raises comes before the backward"
    assert vars(torch.autograd)["_engine_run_backward"] is before
    assert torch.autograd.graph._engine_run_backward is before


def test_watching_twice_at_once() -> None:
    outer: list[int] = []
    inner: list[int] = []
    x = a_tensor()
    with watch_backward(lambda call: outer.append(call.number)):
        with watch_backward(lambda call: inner.append(call.number)):
            x.sum().backward()
        x.sum().backward()
    assert (outer, inner) == ([1, 2], [1])
