"""Runs side by side: figures against torch itself, rows against what must stand level, every way of showing them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from torch.nn import functional

import graphscope
from graphscope.analyze.compare import compare_runs
from graphscope.bands import Band, fold_rows, hidden_rows
from graphscope.comparison import FORMATS, Comparison, compare_graphs
from graphscope.errors import FormatError, InputError
from graphscope.model import GraphData, Kind, Location, Node, TensorInfo
from graphscope.render.compare_terminal import render
from graphscope.render.compare_words import row_words
from graphscope.render.svg import texts
from graphscope.render.terminal_lines import LineOptions
from graphscope.render.terminal_text import cells
from graphscope.runs import Failure, Row, Run

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
        return x + (query @ key.transpose(-1, -2)).softmax(-1) @ value


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
    assert flags == [(output.requires_grad, output.grad_fn.name()) for output in outputs]


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
        return net[1](hidden)

    def without_first() -> torch.Tensor:
        with torch.no_grad():
            hidden = net[0](x)
        return net[1](hidden)

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
    shown = list(texts(bytes(comparison.to("svg"))))
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
    shown = list(texts(bytes(comparison.to("svg"))))
    assert "× RuntimeError" in shown
    assert "RuntimeError: Inference tensors" in str(comparison)


def lines_of(text: str) -> list[str]:
    return text.splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_tables_fit_the_width(four: Comparison, width: int, encoding: str) -> None:
    text = render(four.data, LineOptions(width=width, encoding=encoding))
    assert max(map(cells, lines_of(text))) <= width
    text.encode(encoding)
    for word in ("dropout", "backward nodes", "addmm"):
        assert word in text


def test_the_table_tells_the_figures(four: Comparison) -> None:
    found = {line[:28].strip(): line[28:].split() for line in lines_of(str(four)) if line}
    assert found["backward nodes"] == ["7", "0", "6", "0"]
    assert found["dropout"] == ["active", "active", "off", "off"]
    assert found["requires_grad"] == ["True", "False", "True", "False"]
    assert found["saved bytes"][2:4] == ["0", "B"]
    assert found["values"][:3] == ["the", "first", "equal"]
    assert "≠ mul  net.3" in str(four) or "≠ mul" in str(four)


def test_color_is_only_added(four: Comparison) -> None:
    plain = render(four.data, LineOptions(width=100))
    colored = render(four.data, LineOptions(width=100), color=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    assert colored != plain


def test_every_format_is_written(four: Comparison, tmp_path: Any) -> None:
    for format in FORMATS:
        written = four.to(f".{format.upper()}")
        assert written
        assert four.save(tmp_path / f"c.{format}").stat().st_size > 100
    assert bytes(four.to("png")).startswith(b"\x89PNG")
    assert bytes(four.to("pdf")).startswith(b"%PDF")
    with pytest.raises(FormatError, match="mmd"):
        four.to("mmd")
    with pytest.raises(FormatError, match="no suffix"):
        four.save(tmp_path / "c")


def test_a_notebook_shows_picture_and_tables(four: Comparison) -> None:
    bundle = four._repr_mimebundle_()
    assert set(bundle) == {"image/svg+xml", "text/plain"}
    assert "not recorded: no_grad()" in bundle["image/svg+xml"]
    assert "backward nodes" in bundle["text/plain"]
    again = four._repr_mimebundle_()["image/svg+xml"]
    ids = re.findall(r'\sid="([^"]*)"', bundle["image/svg+xml"] + again)
    assert len(ids) == len(set(ids))
    assert repr(four) == "<Comparison of train, train+no_grad, eval, eval+no_grad: 11 rows, 11 differ>"


def test_the_picture_is_the_same_every_time_and_level(four: Comparison) -> None:
    assert four.to("dot") == corners().to("dot") == four.to_dot().source
    heights: dict[str, set[str]] = {}
    for row, height in re.findall(r'"row (\d+) \d" \[pos="[\d.-]+,([\d.-]+)"', four.to_dot().source):
        heights.setdefault(row, set()).add(height)
    assert len(heights) == 11
    assert all(len(found) == 1 for found in heights.values())
    shown = list(texts(bytes(four.to("svg"))))
    assert shown.count("– does not run") == 10
    assert shown.count("≠") == 12  # the rows and the legend
    assert "recorded only in train, eval" in shown
    assert "values differ from train by up to" in " ".join(shown)


def boxes(source: str) -> Iterator[tuple[str, float, float, float, float]]:
    pattern = r'"?([\w ]+)"? \[pos="([\d.-]+),([\d.-]+)" width=([\d.]+) height=([\d.]+)'
    for name, x, y, width, height in re.findall(pattern, source):
        half, middle = float(width) * 36, float(height) * 36
        yield name, float(x) - half, float(x) + half, float(y) - middle, float(y) + middle


def test_no_two_boxes_of_a_picture_overlap(four: Comparison) -> None:
    placed = list(boxes(four.to_dot().source))
    assert len(placed) == 4 + 11 * 4 + 4 + 11 * 2 + 1
    for place, one in enumerate(placed):
        for other in placed[place + 1 :]:
            apart = one[2] <= other[1] or other[2] <= one[1] or one[4] <= other[3] or other[4] <= one[3]
            assert apart, (one, other)


HOSTILE = ['a"b', "<b>&amp;", "{|}", "\\n", "line\nbreak", "权重", "🙂", "", "\x1b[31m", "\\N", "x" * 300, "\ud800"]


def op(number: int, name: str, *, backward: str | None = None, module: str | None = None, file: str = "f.py") -> Node:
    tensor = TensorInfo((2,), "float32", "cpu", (name,), requires_grad=backward is not None, is_leaf=backward is None)
    return Node(
        f"n{number}",
        Kind.OP,
        (tensor,),
        op=name,
        backward=backward,
        mode="grad",
        module=module,
        location=Location(file, number, f"{name} = 1"),
    )


def graph(*nodes: Node) -> GraphData:
    return GraphData(nodes=nodes, edges=(), roots=(), torch="2.13.0", recorded=True)


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_shown_as_it_is(name: str) -> None:
    failure = Failure("Odd", name, Location(name, 1, name), name)
    data = graph(op(0, name, module=name, file=name), op(1, "add", backward=name))
    runs = [Run(name, data), Run("other", graph(op(0, "add")), failure=failure)]
    comparison = Comparison(compare_runs(runs, same_program=False))
    for format in ("svg", "dot", "txt", "json"):
        assert comparison.to(format)
    STRICT.validate(json.loads(str(comparison.to("json"))))
    assert "\x1b" not in str(comparison)
    assert max(map(cells, lines_of(str(comparison)))) <= 100
    if name.isprintable() and 0 < len(name) < 20:
        assert any(name in text for text in texts(bytes(comparison.to("svg"))))


def row(module: str | None, number: int, present: str = "ab") -> Row:
    nodes = tuple(op(number, "add", module=module) if run in present else None for run in "ab")
    return Row("add", nodes, differs=None in nodes)


def test_long_comparisons_are_folded_and_what_is_hidden_is_counted() -> None:
    made = [row(f"net.{layer}.{part}", layer * 100) for layer in range(10) for part in "abc" for _ in "123"]
    bands = fold_rows(made)
    assert [band.label for band in bands] == [f"net.{layer}" for layer in range(10)]
    assert hidden_rows(bands) == 90
    assert [member for band in bands for member in band.rows] == made
    assert fold_rows(made, None) == [Band((each,)) for each in made]
    assert fold_rows(made[:40]) == [Band((each,)) for each in made[:40]]
    data = graph(*(op(number, "add", module=f"net.{number // 10}") for number in range(90)))
    comparison = compare_graphs([("a", data), ("b", data)])
    shown = list(texts(bytes(comparison.to("svg"))))
    assert "90 rows folded into 9 boxes" in shown
    assert "90 rows folded" in render(comparison.data, LineOptions(width=80))
    assert str(comparison).count("net.3") == 10


def test_rows_that_ran_elsewhere_are_folded_apart_where_there_is_room() -> None:
    made = [row("net.a", 1)] * 30 + [row("net.a", 1, "a")] * 5 + [row("net.b", 1)] * 30
    bands = fold_rows([*made, *made])
    assert [len(band.rows) for band in bands] == [30, 5, 30] * 2


def test_code_without_modules_is_cut_after_its_first_rows() -> None:
    made = [row(None, number % 5) for number in range(1000)]
    bands = fold_rows(made)
    assert len(bands) == 40
    assert bands[-1].label == "all further operations"
    assert hidden_rows(bands) == 961


@pytest.mark.parametrize(
    ("backwards", "expected"),
    [
        (("AddBackward0", "AddBackward0"), ""),
        (("AddBackward0", None), "recorded only in a"),
        (("AddBackward0", "missing"), "runs only in a"),
        (("AddBackward0", "AddBackward0", None), "not recorded in c"),
        (("AddBackward0", None, "missing"), "does not run in c, recorded only in a"),
        (("MulBackward0", "MulBackward1"), "by another backward node"),
    ],
)
def test_a_row_says_how_it_differs(backwards: tuple[str | None, ...], expected: str) -> None:
    nodes = tuple(None if name == "missing" else op(0, "add", backward=name) for name in backwards)
    assert row_words(Row("add", nodes, differs=True), "abc"[: len(nodes)]) == expected


def test_an_op_whose_node_is_gone_is_not_called_unrecorded() -> None:
    x = torch.ones(2, requires_grad=True)

    def step() -> torch.Tensor:
        y = x * 2
        y.sum().backward()
        return y.detach()

    comparison = graphscope.compare(step, modes=("grad",), repeats=1)
    assert "recorded, and let go since" in str(comparison) or rows(comparison)[0][1] == "MulBackward0"


def test_ten_thousand_rows_are_no_trouble() -> None:
    x = torch.ones(1, requires_grad=True)

    def loop() -> torch.Tensor:
        y = x
        for _ in range(3000):
            y = y * 1 + 1
        return functional.relu(y)

    comparison = graphscope.compare(loop, modes=("grad", "no_grad"), repeats=1)
    assert len(comparison.rows) == 6001
    assert sum(row.cells[0] is None or row.cells[1] is None for row in comparison.rows) == 0
    assert len(lines_of(render(comparison.data, LineOptions(width=80)))) < 80
