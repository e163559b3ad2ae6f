"""A recording laid over the walk: why an edge cuts, what is left out, and the same text from run to run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphscope
from graphscope.model import Edge, Kind, Reason, Role
from tests.recorded import apply, ops, same_as_walk, the_op

Tensor = torch.Tensor


class Cut(NamedTuple):
    """Where a computation from ``h`` is cut: the op that reads what had a gradient, and the reason."""

    compute: Callable[[Tensor], Any]
    op: str
    reason: Reason


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, a: Tensor) -> Tensor:
        return a * 2

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


@torch.no_grad()
def untracked(h: Tensor) -> Tensor:
    return h * 2


@torch.inference_mode()
def inferred(h: Tensor) -> Tensor:
    return h * 2


CUTS = {
    "detach": Cut(lambda h: h.detach() * 2, "detach", Reason.DETACH),
    "detach at the end of a longer line": Cut(lambda h: (h + 1).sin().detach(), "detach", Reason.DETACH),
    "data": Cut(lambda h: h.data * 2, "detach", Reason.DATA),
    "data in an expression": Cut(lambda h: (h * h.data).sum(), "detach", Reason.DATA),
    "numpy": Cut(lambda h: torch.from_numpy(h.detach().numpy()), "detach", Reason.DETACH),
    "numpy of what is cut already": Cut(lambda h: h.data.numpy(), "detach", Reason.DATA),
    "item": Cut(lambda h: h.sum().item() * h, "local_scalar_dense", Reason.LEFT_PYTORCH),
    "float": Cut(lambda h: float(h.sum()) * h, "local_scalar_dense", Reason.LEFT_PYTORCH),
    "tensor of a tensor": Cut(lambda h: torch.tensor(h) * 1, "detach", Reason.LEFT_PYTORCH),
    "argmax": Cut(lambda h: h.argmax() * 2, "argmax", Reason.INTEGER_DTYPE),
    "comparison": Cut(lambda h: (h > 0).float() * 2, "gt", Reason.INTEGER_DTYPE),
    "long": Cut(lambda h: h.long() + 1, "to_copy", Reason.INTEGER_DTYPE),
    "no_grad": Cut(untracked, "mul", Reason.NO_GRAD),
    "inference_mode": Cut(inferred, "mul", Reason.INFERENCE_MODE),
    "a custom Function": Cut(lambda h: apply(NoGradient, h), "mul", Reason.CUSTOM_FUNCTION),
    "nothing to derive": Cut(torch.zeros_like, "zeros_like", Reason.NON_DIFFERENTIABLE),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CUTS)
def test_why_an_edge_cuts(name: str) -> None:
    compute, op, reason = CUTS[name]
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        h = x * 1
        compute(h)
    graph = recording.graph().check()
    readers = [node.id for node in ops(graph) if node.op == op]
    assert reason in {edge.reason for reader in readers for edge in graph.data.incoming[reader]}


def edges_into(graph: graphscope.Graph, op: str) -> dict[str | None, Edge]:
    return {edge.argument: edge for edge in graph.data.incoming[the_op(graph, op).id]}


def test_frozen_and_constant_arguments() -> None:
    layer = nn.Linear(3, 3)
    layer.weight.requires_grad_(False)  # noqa: FBT003
    x = torch.rand(2, 3)
    with graphscope.recording() as recording:
        y = layer(x)
    graph = recording.graph(y)
    assert same_as_walk(graph, graphscope.walk(y)) == []
    assert edges_into(graph, "addmm")["mat1"].reason is Reason.CONSTANT
    (edge,) = graph.data.incoming[the_op(graph, "t").id]
    assert edge.reason is Reason.FROZEN
    assert graph.data.by_id[edge.source].role is Role.PARAMETER


def test_rounding_is_connected() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        y = x.round() * 2
    graph = recording.graph(y)
    assert all(edge.gradient for edge in graph.edges)
    assert x_reached(graph)


def x_reached(graph: graphscope.Graph) -> bool:
    (leaf,) = [node for node in graph.nodes if "x" in node.names]
    return leaf.reached


def test_what_comes_back_from_numpy_hangs_on_what_it_was() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        array = (x * 2).detach().numpy()
        back = torch.from_numpy(array)
        y = back * 3
    graph = recording.graph(y)
    assert {node.op for node in ops(graph)} >= {"mul", "detach"}
    (leaf,) = [node for node in graph.nodes if "back" in node.names]
    assert leaf.kind is Kind.LEAF
    (edge,) = graph.data.incoming[leaf.id]
    assert (graph.data.by_id[edge.source].op, edge.gradient) == ("detach", False)


def test_a_parameter_made_of_a_result_hangs_on_it() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        h = x * 2
        p = nn.Parameter(h)
        y = p.sum()
    graph = recording.graph(y)
    assert same_as_walk(graph, graphscope.walk(y)) == []
    (leaf,) = [node for node in graph.nodes if "p" in node.names]
    (edge,) = graph.data.incoming[leaf.id]
    assert graph.data.by_id[edge.source].op in {"mul", "detach"}
    assert not x_reached(graph)


def test_a_new_layer_brings_no_clutter() -> None:
    with graphscope.recording() as recording:
        layer = nn.Linear(3, 1)
        y = layer(torch.ones(2, 3))
    graph = recording.graph(y)
    assert [node.op for node in ops(graph)] == ["t", "addmm"]
    assert sorted(node.role for node in graph.nodes if node.role is not None) == ["constant", "parameter", "parameter"]
    assert len(recording.graph().nodes) == len(graph.nodes)


def test_what_an_op_saves_of_its_own_is_no_op_of_the_program() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        y = x.exp().sigmoid()
        z = y.detach()
    assert [node.op for node in ops(recording.graph([y, z]))] == ["exp", "sigmoid", "detach"]
    assert [node.op for node in ops(recording.graph())] == ["exp", "sigmoid", "detach"]


def test_what_leads_elsewhere_is_left_out_and_shown_when_asked_for() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        loss = (x * 2).sum()
        aside = x.sin()
    graph, whole = recording.graph(loss).check(), recording.graph().check()
    assert [node.op for node in ops(graph)] == ["mul", "sum"]
    assert [node.op for node in ops(whole)] == ["mul", "sum", "sin"]
    assert len(whole.roots) == 2
    assert aside.requires_grad


def test_ops_of_the_engine_are_counted_not_shown() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        loss = (x * 2).sum()
        loss.backward()
    graph = recording.graph(loss)
    assert [node.op for node in ops(graph)] == ["mul", "sum"]
    assert any("of backward passes ran" in notice for notice in graph.data.notices)


def test_a_derivative_that_is_tracked_belongs_to_the_program() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        penalty = gradient.pow(2).sum()
    graph = recording.graph(penalty)
    assert same_as_walk(graph, graphscope.walk(penalty)) == []
    assert "ran during a backward" in {node.note for node in ops(graph)}


def test_a_checkpoint_that_ran_without_gradients() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        y = checkpoint(torch.sin, x * 2, use_reentrant=True)
    graph = recording.graph(y)
    assert same_as_walk(graph, graphscope.walk(y)) == []
    sine = the_op(graph, "sin")
    (region,) = [region for region in graph.data.regions if region.id == sine.region]
    assert region.mode == "checkpoint"
    assert region.location is not None
    assert region.location.code.startswith("y = checkpoint(")


def test_nothing_but_a_leaf() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        pass
    graph = recording.graph(x).check()
    assert [node.kind for node in graph.nodes] == [Kind.LEAF, Kind.OUTPUT]
    assert recording.graph().nodes == ()


def test_a_graph_may_be_asked_for_in_the_middle_and_again() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        y = x * 2
        first = recording.graph(y)
        z = y.sin()
        second = recording.graph(z)
    assert [node.op for node in ops(first.check())] == ["mul"]
    assert [node.op for node in ops(second.check())] == ["mul", "sin"]
    assert recording.graph(z).to_json() == second.to_json()
    assert len(recording._recorder.log.ops) == 2, "to look is not recorded"


def test_a_value_written_back_to_where_it_came_from() -> None:
    """Data may run in a circle where a tensor is written in place; a graph may not."""
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        y = apply(NoGradient, x)
        with torch.no_grad():
            y.mul_(y * 2)
            y.add_(y)
        z = y.sum()
    assert same_as_walk(recording.graph(z), graphscope.walk(z)) == []
    recording.graph().check()


PROGRAM = """
import json, sys, torch, graphscope
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
names = {f"name{number}": torch.rand(3, requires_grad=True) for number in range(20)}
@torch.no_grad()
def target(v):
    return model(v) * 2
with graphscope.recording() as rec:
    total = sum(value.sin().sum() for value in names.values())
    x = torch.stack(list(names.values()))
    loss = (model(x) - target(x)).pow(2).mean() + total + x.detach().numpy().sum()
sys.stdout.write(json.dumps([rec.graph(loss).to_json(), rec.graph().to_json(), str(rec.graph(loss))]))
"""


def test_two_processes_tell_the_same(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    told = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, str(file)],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        )
        told.append(done.stdout)
    assert told[0] == told[1]
    graph, whole, _ = json.loads(told[0])
    assert len(whole["nodes"]) >= len(graph["nodes"]) > 60


def test_two_runs_tell_the_same() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    def run() -> dict[str, Any]:
        with graphscope.recording() as recording:
            x = torch.ones(2, 3)
            with torch.no_grad():
                target = model(x)
            loss = (model(x) - target).pow(2).mean()
        return recording.graph(loss, names={"model": model}).to_json()

    assert run() == run()


def test_a_tensor_without_a_name_tells_what_made_it() -> None:
    weight = torch.ones(2, 3, requires_grad=True)

    def step() -> torch.Tensor:
        noise = torch.zeros(3)
        return weight @ torch.ones(3) + weight @ noise + torch.full((2,), 0.5).reshape(2)

    rec = graphscope.record(step)
    leaves = {
        node.note: node.names
        for node in rec.graph(rec.result).nodes
        if node.kind is Kind.LEAF and node.role is not None
    }
    assert leaves["made by torch.ones(3)"] == ()
    assert leaves["made by torch.full((2,), 0.5)"] == ()
    assert {names for note, names in leaves.items() if note is None} <= {("weight",), ("noise",)}
