"""Fake runs: the graph of a real run, without its numbers, and nothing about the model is changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

import graphscope
from graphscope.capture.recording.fake import NOTICE, used_by
from tests.leaks import changes, global_state


class Net(nn.Module):
    """Has a tied weight, a buffer that moves, a plain tensor, and a habit of keeping its last result."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout()
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.offset = torch.ones(4)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.kept = self.drop(self.norm(self.first(x))) + self.offset
        result: torch.Tensor = self.last(self.kept)
        return result


def facts(module: nn.Module) -> dict[str, Any]:
    """Everything that a fake run must leave as it was."""
    found: dict[str, Any] = {"attributes": {key: id(value) for key, value in vars(module).items()}}
    for name, one in module.named_modules():
        found[f"{name} attributes"] = sorted(vars(one))
    for name, tensor in module.state_dict(keep_vars=True).items():
        grad = None if tensor.grad is None else tensor.grad.tolist()
        found[name] = id(tensor), tensor._version, tensor.tolist(), grad, tensor.requires_grad
    return found


def words(graph: graphscope.Graph) -> list[object]:
    """All but the names of results: what a module kept of the fake run is gone."""
    return [
        (node.op, node.backward, node.kind == "op" or node.names, node.module, node.reached, node.outputs[0].shape)
        for node in graph.nodes
    ]


def test_the_graph_is_that_of_a_real_run() -> None:
    net, x = Net(), torch.rand(3, 4, requires_grad=True)
    fake, real = graphscope.record(net, x, fake=True), graphscope.record(net, x)
    graph, expected = fake.graph(fake.result).check(), real.graph(real.result)
    assert words(graph) == words(expected)
    assert graph.edges == expected.edges
    assert isinstance(fake.result, FakeTensor)
    assert NOTICE in graph.data.notices
    assert {output.subclass for node in graph.nodes for output in node.outputs} == {None}


@pytest.mark.parametrize("way", ["module", "function", "partial", "method", "block"])
def test_nothing_is_changed(way: str) -> None:
    net, x = Net(), torch.rand(3, 4)
    net(x).sum().backward()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = net(x).pow(2).sum()
        loss.backward()
        return loss

    calls: dict[str, Callable[[], object]] = {
        "module": lambda: graphscope.record(net, x, fake=True),
        "function": lambda: graphscope.record(step, x, fake=True),
        "partial": lambda: graphscope.record(functools.partial(step, x), fake=True),
        "method": lambda: graphscope.record(net.forward, x, fake=True),
    }
    before, world = facts(net), global_state()
    if way == "block":
        with graphscope.recording(fake=True):
            step(x)
    else:
        calls[way]()
    assert facts(net) == before
    assert changes(world, global_state()) == []


def test_a_failing_run_changes_nothing() -> None:
    net, x = Net(), torch.rand(3, 4)
    before = facts(net)

    def fails() -> None:
        if net(x).sum() > 0:
            pytest.fail("a fake tensor has no number")

    with pytest.raises(DataDependentOutputException):
        graphscope.record(fails, fake=True)
    assert facts(net) == before


def test_a_model_may_be_built_in_the_run() -> None:
    """Its weight alone would take 4 TB."""
    with graphscope.recording(fake=True) as rec:
        layer = nn.Linear(10**6, 10**6)
        loss = layer(torch.rand(2, 10**6)).sum()
    graph = rec.graph(loss).check()
    assert ("layer.weight",) in [node.names for node in graph.nodes]
    assert [node.names for node in graph.nodes if node.kind == "output"] == [("loss",)]


def test_a_function_may_build_the_model() -> None:
    def build() -> object:
        return nn.Sequential(nn.Linear(10**6, 10**6), nn.ReLU())(torch.rand(2, 10**6)).sum()

    rec = graphscope.record(build, fake=True)
    assert [node.op for node in rec.graph(rec.result).nodes if node.op and node.backward] == [
        "t", "addmm", "relu", "sum",
    ]  # fmt: skip


def test_a_backward_leaves_no_grad_behind() -> None:
    """Also in a tensor that is no module's."""
    w = torch.ones(3, requires_grad=True)

    def step() -> torch.Tensor:
        loss = (w * 2).sum()
        loss.backward()
        return loss

    rec = graphscope.record(step, fake=True)
    assert w.grad is None
    assert any("w" in node.names for node in rec.graph(rec.result).nodes)


def test_arguments_keep_their_names() -> None:
    x = torch.rand(2, requires_grad=True)
    rec = graphscope.record(lambda given, *, scale: (given * scale).sum(), x, scale=torch.ones(2), fake=True)
    assert next(node.names for node in rec.graph(rec.result).nodes if node.kind == "leaf") == ("x",)


def test_what_a_call_uses() -> None:
    net = Net()

    def inner() -> object:
        return net

    def outer() -> object:
        return inner()

    found = used_by(functools.partial(outer), (1,), {"key": 2}).values()
    assert any(value is net for value in found)
    assert any(value is Net for value in used_by(lambda: Net).values())
    assert used_by(net)["function"] is net


def test_an_error_of_a_fake_run_says_which_line_needs_a_number() -> None:
    weight = torch.ones(3, requires_grad=True)

    def step() -> torch.Tensor:
        return weight * weight.sum().item()

    with pytest.raises(RuntimeError) as raised:
        graphscope.record(step, fake=True)
    (note,) = raised.value.__notes__
    assert "return weight * weight.sum().item()) asks a tensor for a number" in note
    assert "Leave this line out of the fake run" in note

    def wrong() -> torch.Tensor:
        return weight @ torch.ones(4)

    with pytest.raises(RuntimeError) as raised:
        graphscope.record(wrong, fake=True)
    assert not getattr(raised.value, "__notes__", [])
