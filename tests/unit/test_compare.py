"""Runs side by side: figures against torch itself, rows against what must stand level, every way of showing them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

import graphscope
from graphscope.comparison import Comparison
from graphscope.errors import InputError
from graphscope.render.svg import texts

SCHEMA = json.loads(files("graphscope").joinpath("schema/compare-1.json").read_text(encoding="utf-8"))
CORNERS = ("train", "train+no_grad", "eval", "eval+no_grad")


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, but every field must be described in it."""
    result = copy.deepcopy(schema)
    for part in [result, *result["$defs"].values()]:
        if "properties" in part:
            part["additionalProperties"] = False
    return result


STRICT = jsonschema.Draft202012Validator(closed(SCHEMA))


def small_net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)]
    return nn.Sequential(*layers)


def corners() -> Comparison:
    net, batch = small_net(), torch.ones(6, 4)
    return graphscope.compare(net, batch, modes=CORNERS, repeats=1)


@pytest.fixture(scope="module")
def four() -> Comparison:
    return corners()


def shown_by(comparison: Comparison) -> list[str]:
    """Every line of text in the picture."""
    written = comparison.to("svg")
    assert isinstance(written, bytes)
    return list(texts(written))


def backward_nodes(outputs: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Nodes and accumulators that ``next_functions`` leads to."""
    found: set[Any] = set()
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [source for source, _ in node.next_functions if source is not None]
    accumulators = sum(1 for node in found if node.name().endswith("AccumulateGrad"))
    return len(found) - accumulators, accumulators


def saved_by_torch(run: Callable[[], torch.Tensor], owned: Sequence[torch.Tensor]) -> tuple[int, int, int]:
    """Tensors that torch packs, and the bytes of their storages without and with those of ``owned``."""
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in packed}
    theirs = {tensor.untyped_storage().data_ptr() for tensor in owned}
    return len(packed), sum(size for place, size in sizes.items() if place not in theirs), sum(sizes.values())


class Attention(nn.Module):
    """A layer with softmax, products and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(self.norm(x)).chunk(3, dim=-1)
        result: torch.Tensor = x + (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return result


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)), (5, 16)),
        (Attention, (2, 5, 8)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), (2, 3, 8, 8)),
        (lambda: nn.GRU(4, 3, batch_first=True), (2, 5, 4)),
    ],
    ids=["layers", "attention", "convolution", "recurrent"],
)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_figures_are_those_of_torch(make: Callable[[], nn.Module], shape: tuple[int, ...], mode: str) -> None:
    net, x = make(), torch.rand(shape)
    (figures,) = graphscope.compare(net, x, modes=(mode,), repeats=1).data.figures
    net.train(mode == "train")
    owned = [*net.parameters(), *net.buffers()]

    def run() -> torch.Tensor:
        result = net(x)
        return result if isinstance(result, torch.Tensor) else result[0]

    assert (figures.saved_tensors, figures.saved_bytes, figures.saved_bytes_total) == saved_by_torch(run, owned)
    result = net(x)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    assert (figures.backward_nodes, figures.accumulators) == backward_nodes(outputs)
    flags = [(output.tensor.requires_grad, output.grad_fn) for output in figures.outputs]
    assert flags == [(output.requires_grad, output.grad_fn.name() if output.grad_fn else None) for output in outputs]


def test_a_storage_saved_twice_is_counted_once() -> None:
    x = torch.ones(1000, requires_grad=True)
    (figures,) = graphscope.compare(lambda: (x * 1).sin() + x.cos() * x.exp(), modes=("grad",), repeats=1).data.figures
    assert figures.saved_tensors > 4
    assert figures.saved_bytes % 4000 in {0, 4, 8}
    assert figures.saved_bytes < figures.saved_tensors * 4000


def test_under_no_grad_there_is_nothing_to_keep(four: Comparison) -> None:
    for run, figures in zip(four.runs, four.data.figures, strict=True):
        assert (figures.backward_nodes == 0) == ("no_grad" in run.mode)
        assert (figures.saved_bytes == 0) == ("no_grad" in run.mode)
        assert figures.ops == sum(1 for node in run.data.nodes if node.op)
        run.data.check()


def rows(comparison: Comparison) -> list[tuple[Any, ...]]:
    return [
        (row.op, *(None if node is None else node.backward or "-" for node in row.cells)) for row in comparison.rows
    ]


def test_the_corners_stand_level(four: Comparison) -> None:
    assert rows(four) == [
        ("t", "TBackward0", "-", "TBackward0", "-"),
        ("addmm", "AddmmBackward0", "-", "AddmmBackward0", "-"),
        ("add", "-", "-", None, None),
        ("native_batch_norm", "NativeBatchNormBackward0", "-", "NativeBatchNormBackward0", "-"),
        ("relu", "ReluBackward0", "-", "ReluBackward0", "-"),
        ("empty_like", "-", "-", None, None),
        ("bernoulli", "-", "-", None, None),
        ("div", "-", "-", None, None),
        ("mul", "MulBackward0", "-", None, None),
        ("t", "TBackward0", "-", "TBackward0", "-"),
        ("addmm", "AddmmBackward0", "-", "AddmmBackward0", "-"),
    ]
    assert all(row.differs for row in four.rows)


def test_branches_on_the_mode_stand_in_rows_of_their_own() -> None:
    x = torch.ones(2, requires_grad=True)

    def branch() -> torch.Tensor:
        y = x * 2
        if torch.is_grad_enabled():
            y = y.sin() + 1
        else:
            y = y + 1
            y = y.cos()
        return y.exp()

    comparison = graphscope.compare(branch, modes=("grad", "no_grad"), repeats=1)
    assert rows(comparison) == [
        ("mul", "MulBackward0", "-"),
        ("sin", "SinBackward0", None),
        ("add", "AddBackward0", None),
        ("add", None, "-"),
        ("cos", None, "-"),
        ("exp", "ExpBackward0", "-"),
    ]


def test_a_fused_kernel_stands_against_the_ops_that_it_replaces() -> None:
    x = torch.rand(1, 3, 8)
    net = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 8))
    comparison = graphscope.compare(net, x, modes=("eval", "eval+no_grad"), repeats=1)
    found = {row.op: row for row in comparison.rows}
    assert found["transformer_encoder_layer_fwd"].cells[0] is None
    alone = [row for row in comparison.rows if row.cells[1] is None]
    assert len(alone) > 10
    assert {row.cells[0].module for row in alone if row.cells[0]} >= {"net.1", "net.1.linear1"}
    ends = [row for row in comparison.rows if row.cells[0] and row.cells[1]]
    assert {node.module for row in ends for node in row.cells if node} == {"net.0", "net.2"}


def test_two_tensors_of_one_run() -> None:
    x, y, z = torch.ones(3, requires_grad=True), torch.ones(3), torch.ones(3)
    with graphscope.recording() as recording:
        m = x + y + z
        with torch.no_grad():
            w = x + y + z
        n = (x + y) * 2
    comparison = recording.compare(m, w)
    assert rows(comparison) == [("add", "AddBackward0", "-")] * 2
    assert [run.mode for run in comparison.runs] == ["m", "w"]
    assert comparison.runs[1].values.equal
    three = recording.compare(m, w, n)
    assert [run.values.difference for run in three.runs] == [0, 0, 1]
    assert rows(three) == [
        ("add", "AddBackward0", "-", "AddBackward0"),
        ("add", "AddBackward0", "-", None),
        ("mul", None, None, "MulBackward0"),
    ]
    assert [run.mode for run in recording.compare(m, m).runs] == ["m (1)", "m (2)"]
    assert [run.mode for run in recording.compare(m, w, names={"a": m, "b": w}).runs] == ["a", "b"]


def test_what_are_no_two_tensors_is_refused() -> None:
    with graphscope.recording() as recording:
        m = torch.ones(2, requires_grad=True) * 2
    with pytest.raises(InputError, match="takes two"):
        recording.compare(m)
    with pytest.raises(InputError):
        recording.compare(m, 3)  # type: ignore[arg-type]


def test_the_first_layer_under_no_grad_is_seen() -> None:
    net, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), torch.ones(1, 3)

    def with_all() -> torch.Tensor:
        hidden = net[0](x)
        result: torch.Tensor = net[1](hidden)
        return result

    def without_first() -> torch.Tensor:
        with torch.no_grad():
            hidden = net[0](x)
        result: torch.Tensor = net[1](hidden)
        return result

    graphs = [graphscope.record(with_all).graph(), graphscope.record(without_first).graph()]
    assert graphs[0].to_dot().source != graphs[1].to_dot().source
    comparison = graphscope.compare(graphs[0], graphs[1], names=("all", "without first"))
    assert rows(comparison) == [
        ("t", "TBackward0", "-"),
        ("addmm", "AddmmBackward0", "-"),
        ("t", "TBackward0", "TBackward0"),
        ("addmm", "AddmmBackward0", "AddmmBackward0"),
    ]
    assert [row.differs for row in comparison.rows] == [True, True, False, False]
    shown = shown_by(comparison)
    assert [text for text in shown if text.startswith("no_grad()")]
    assert "recorded only in all" in shown
    with pytest.raises(InputError):
        graphscope.compare(graphs[0])


def test_saved_graphs_are_compared_without_torch_of_their_own(tmp_path: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    graphscope.walk((x * 2).sin()).save(tmp_path / "a.json")
    graphscope.walk((x * 2).cos().sum()).save(tmp_path / "b.json")
    before, after = (graphscope.load(tmp_path / name) for name in ("a.json", "b.json"))
    assert rows(graphscope.compare(before, after)) == [
        ("mul", "MulBackward0", "MulBackward0"),
        ("sin", "SinBackward0", None),
        ("cos", None, "CosBackward0"),
        ("sum", None, "SumBackward0"),
    ]


def test_json_is_as_the_schema_says_and_only_seconds_vary(four: Comparison) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    documents = [graphscope.compare(small_net(), torch.ones(6, 4), modes=CORNERS).to_json() for _ in range(2)]
    for document in [*documents, four.to_json()]:
        STRICT.validate(document)
        for run in document["runs"]:
            assert run.pop("seconds") > 0
    assert documents[0] == documents[1]
    assert json.loads(str(four.to("json"))) == four.to_json()
    assert [set(row["in"]) for row in documents[0]["rows"]][:3] == [set(CORNERS), set(CORNERS), {*CORNERS[:2]}]


def test_a_run_that_raised_carries_its_error_and_the_others_show() -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        kept = torch.ones(2)
    comparison = graphscope.compare(lambda: (x * 2).sin() * kept, modes=("grad", "no_grad"), repeats=1)
    broken, fine = comparison.to_json()["runs"]
    assert broken["error"]["type"] == "RuntimeError"
    assert "Inference tensors cannot be saved" in broken["error"]["text"]
    assert broken["error"]["location"]["code"].startswith("comparison = ")
    assert broken["ops"] == 2
    assert broken["seconds"] is None
    assert "error" not in fine
    assert fine["values_equal"]
    STRICT.validate(comparison.to_json())
    shown = shown_by(comparison)
    assert "× RuntimeError" in shown
    assert "RuntimeError: Inference tensors" in str(comparison)
