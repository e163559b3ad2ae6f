"""What backward keeps, against what torch hands to its own hooks for saved tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphscope
from graphscope.analyze.memory import measure_memory
from graphscope.model import GraphData, Location, SavedTensor, State, Storage
from graphscope.render.memory_terminal import render
from graphscope.render.terminal_lines import LineOptions
from tests.leaks import random_states
from tests.unit.graphs import flow, graph, leaf, op, output

SCHEMA = jsonschema.Draft202012Validator(
    json.loads(files("graphscope").joinpath("schema/memory-1.json").read_text(encoding="utf-8"))
)


def kept_by_torch(function: Callable[[], torch.Tensor], parameters: set[int]) -> int:
    """Bytes of the storages that torch saves while a function runs, parameters left out, each once."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    assert result.requires_grad
    return sum(size for key, size in storages.items() if key not in parameters)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.rand(2, 5, 16)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )
    return net, torch.rand(2, 1, 8, 8)


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.rand(4, 6)


@pytest.mark.parametrize("make", [transformer, convolutions, perceptron])
def test_bytes_are_those_that_torch_saves(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> None:
    model, x = make()
    held = [*model.parameters(), *model.buffers()]
    own = {tensor.untyped_storage()._cdata for tensor in held}
    expected = kept_by_torch(lambda: model(x).pow(2).sum(), own)
    loss = model(x).pow(2).sum()
    memory = graphscope.walk(loss, names={"model": model}).memory()
    assert memory.bytes == expected
    assert sum(storage.bytes for storage in memory.data.storages if storage.parameter) == memory.data.parameter_bytes


@pytest.mark.parametrize("make", [transformer, perceptron])
def test_shares_add_up(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> None:
    model, x = make()
    with graphscope.recording() as rec:
        loss = model(x).pow(2).sum()
    memory = rec.graph(loss).memory()
    assert sum(share.bytes for share in memory.by_op) == memory.bytes > 0
    assert sum(share.bytes for share in memory.by_line) == memory.bytes
    by_path = {share.name: share for share in memory.by_module}
    outside = by_path[""].bytes if "" in by_path else 0
    assert by_path["model"].bytes + outside == memory.bytes
    for path, share in by_path.items():
        children = [one for name, one in by_path.items() if name.rpartition(".")[0] == path and name]
        assert sum(child.bytes for child in children) <= share.bytes or not path
    SCHEMA.validate(memory.to_json())


def test_a_storage_that_two_ops_keep_is_counted_once() -> None:
    x = torch.ones(100, requires_grad=True)
    h = x.exp()
    memory = graphscope.walk((h.sin() + h.cos()).sum()).memory()
    assert memory.bytes == 400
    (storage,) = memory.data.storages
    assert [op for op, _, _ in storage.savers] == ["exp", "sin", "cos"]
    assert [(share.name, share.bytes, share.tensors) for share in memory.by_op] == [
        ("exp", 400, 1),
        ("cos", 0, 1),
        ("sin", 0, 1),
    ]


def test_a_view_keeps_its_whole_storage() -> None:
    x = torch.ones(1000)
    w = torch.ones(10, requires_grad=True)
    assert graphscope.walk((w * x[:10]).sum()).memory().bytes == 4000


def test_after_backward_nothing_is_kept() -> None:
    model, x = perceptron()
    loss = model(x).sum()
    loss.backward()
    memory = graphscope.walk(loss).memory()
    assert memory.bytes == 0
    assert memory.data.states["freed"] > 0
    assert "freed by a backward" in str(memory)


def test_packed_and_checkpointed_tensors_have_states_of_their_own() -> None:
    model, x = perceptron()
    with torch.autograd.graph.saved_tensors_hooks(lambda _: "elsewhere", lambda _: x):
        packed = graphscope.walk(model(x).sum()).memory()
    checkpointed = graphscope.walk(checkpoint(model, x, use_reentrant=False).sum()).memory()
    assert (packed.bytes, set(packed.data.states)) == (0, {"packed"})
    assert checkpointed.data.states["checkpointed"] > 0
    assert checkpointed.bytes < graphscope.walk(model(x).sum()).memory().bytes


def test_a_checkpoint_saves_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Against a checkpoint that is really put around the module."""
    model = nn.ModuleDict(
        {
            "first": nn.Linear(6, 64),
            "body": nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3))),
        }
    )
    x = torch.rand(4, 6)
    with graphscope.recording() as rec:
        loss = model["body"](model["first"](x)).sum()
    plain = rec.graph(loss).memory()
    told = {share.name: share.bytes for share in plain.data.checkpoint_saves}["model.body"]
    again = checkpoint(model["body"], model["first"](x), use_reentrant=False).sum()
    really = plain.bytes - graphscope.walk(again).memory().bytes
    entering = 4 * 64 * 4  # the input of the block, which the checkpoint keeps by a hook that no walk looks into
    assert told in {really, really - entering}
    assert capsys.readouterr().out == ""


def test_memory_changes_nothing() -> None:
    model, x = perceptron()
    loss = model(x).sum()
    before, random = [parameter._version for parameter in model.parameters()], random_states()
    graphscope.memory(loss, model)
    assert random_states() == random
    assert [parameter._version for parameter in model.parameters()] == before
    assert all(parameter.grad is None for parameter in model.parameters())


def keeping(count: int) -> GraphData:
    """A graph of so many ops, each of which keeps a storage of its own."""
    nodes: list[Any] = [leaf("n0", "w")]
    edges = []
    for number in range(1, count + 1):
        saved = SavedTensor("result", State.LIVE, (number,), "float32", 4 * number, f"s{number}")
        place = Location("train.py", number, "h = h.exp() " * 20)
        nodes.append(op(f"n{number}", "exp", "ExpBackward0", saved=(saved,), module="m.x" * 30, location=place))
        edges.append(flow(f"n{number - 1}", f"n{number}"))
    nodes.append(output(f"n{count + 1}", "loss"))
    edges.append(flow(f"n{count}", f"n{count + 1}"))
    storages = tuple(Storage(f"s{number}", 4 * number) for number in range(1, count + 1))
    return graph(nodes, edges, storages=storages)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_report_fits(width: int, encoding: str) -> None:
    kept = measure_memory(keeping(30))
    text = render(kept, LineOptions(width=width, encoding=encoding))
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii() == (encoding == "ascii")
    assert len(text.splitlines()) < len(render(kept, LineOptions(width=width), details=True).splitlines())
    assert "more" in text


def test_bars_tell_the_share() -> None:
    kept = measure_memory(keeping(2))
    lines = [
        line for line in render(kept, LineOptions(width=80, encoding="ascii")).splitlines() if line.startswith("s")
    ]
    assert [line.count("#") for line in lines] == [40, 20]
    assert lines[0].split()[:2] == ["s2", "[2]"]


def test_nothing_kept_is_said_in_one_line() -> None:
    x = torch.ones(2, requires_grad=True)
    memory = graphscope.walk((x + 1).sum()).memory()
    assert str(memory) == "0 B in 0 storages kept for a backward from output.\n"
    assert repr(memory) == "<Memory: 0 B kept for backward in 0 storages>"
    SCHEMA.validate(memory.to_json())
