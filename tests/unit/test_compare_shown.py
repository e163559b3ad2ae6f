"""Comparisons as tables and pictures: everything said, nothing overlapping, long ones folded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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
from graphscope.errors import FormatError
from graphscope.model import GraphData, Kind, Location, Node, TensorInfo
from graphscope.render.compare_terminal import render
from graphscope.render.compare_words import row_words
from graphscope.render.svg import texts
from graphscope.render.terminal_lines import LineOptions
from graphscope.render.terminal_text import cells
from graphscope.runs import Failure, Row, Run, Seconds

SCHEMA = json.loads(files("graphscope").joinpath("schema/compare-1.json").read_text(encoding="utf-8"))
CORNERS = ("train", "train+no_grad", "eval", "eval+no_grad")


def corners() -> Comparison:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)]
    net = nn.Sequential(*layers)
    return graphscope.compare(net, torch.ones(6, 4), modes=CORNERS, repeats=1)


@pytest.fixture(scope="module")
def four() -> Comparison:
    return corners()


def shown_by(comparison: Comparison) -> list[str]:
    """Every line of text in the picture."""
    written = comparison.to("svg")
    assert isinstance(written, bytes)
    return list(texts(written))


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
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
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
    shown = shown_by(four)
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
    jsonschema.validate(json.loads(str(comparison.to("json"))), SCHEMA)
    assert "\x1b" not in str(comparison)
    assert max(map(cells, lines_of(str(comparison)))) <= 100
    if name.isprintable() and 0 < len(name) < 20:
        assert any(name in text for text in shown_by(comparison))


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
    shown = shown_by(comparison)
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
        (("AddBackward0", None, "missing"), "does not run in c; recorded only in a"),
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

    assert "recorded, and let go since" in str(graphscope.compare(step, modes=("grad",), repeats=1))
    comparison = graphscope.compare(step, modes=("grad", "no_grad"), repeats=1)
    assert comparison.rows[0].differs
    assert row_words(comparison.rows[0], ("grad", "no_grad")) == "recorded only in grad"


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


def test_a_spread_that_does_not_fit_keeps_all_its_figures() -> None:
    run = Run(
        "grad", GraphData(nodes=(), edges=(), roots=(), torch="2.13.0"), seconds=Seconds(0.0286, 9.23e-05, 12.345, 7)
    )
    data = compare_runs([run._replace(mode=mode) for mode in CORNERS], same_program=True)
    for encoding, spread in (("utf-8", ["(0.0923–", "12,345)"]), ("ascii", ["(0.0923-", "12,345)"])):
        text = render(data, LineOptions(width=80, encoding=encoding))
        first = [line.split()[0] for line in lines_of(text) if re.match(r" +[(\d]", line)]
        assert first == spread


def test_what_a_backward_freed_is_told() -> None:
    x = torch.ones(3, requires_grad=True)
    with graphscope.recording() as recording:
        m = (x * x).sum()
        with torch.no_grad():
            w = (x * x).sum()
    assert "freed" not in str(recording.compare(m, w))
    m.backward()
    comparison = recording.compare(m, w)
    freed = next(line.split() for line in lines_of(str(comparison)) if "freed" in line)
    assert freed == ["of", "these", "freed", "2", "0"]
    assert [run.get("freed_tensors", 0) for run in comparison.to_json()["runs"]] == [2, 0]
    jsonschema.validate(comparison.to_json(), SCHEMA)
    shown = shown_by(comparison)
    assert "2 saved tensors freed by a backward" in shown
    assert shown.count("keeps nothing for backward") == 1
