"""What a graph offers to a notebook, and that nothing is drawn for nobody."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import graphscope
from graphscope import notebook
from graphscope.errors import EngineError, InputError
from graphscope.model import GraphData
from graphscope.notebook import PLAIN, SVG, mimebundle
from tests.unit import graphs


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Prefixes of the pictures asked for; none is really drawn."""
    asked: list[str] = []

    def to_picture(data: GraphData, format: str, *, timeout: float, id_prefix: str) -> bytes:
        assert data.nodes
        assert format == "svg"
        assert 0 < timeout <= 60
        asked.append(id_prefix)
        return b"<svg/>"

    monkeypatch.setattr(notebook, "to_picture", to_picture)
    return asked


def in_ipython(monkeypatch: pytest.MonkeyPatch, *active_types: str) -> None:
    formatter = SimpleNamespace(active_types=list(active_types))
    module = SimpleNamespace(get_ipython=lambda: SimpleNamespace(display_formatter=formatter))
    monkeypatch.setitem(sys.modules, "IPython", module)


@pytest.mark.parametrize(
    ("include", "exclude", "types"),
    [
        (None, None, {SVG, PLAIN}),
        ([SVG], None, {SVG}),
        ([PLAIN], None, {PLAIN}),
        (["text/html"], None, set()),
        (None, [SVG], {PLAIN}),
        (None, {PLAIN}, {SVG}),
        ([SVG, PLAIN], [PLAIN], {SVG}),
        ([], None, set()),
    ],
)
def test_only_what_is_asked_for(
    drawn: list[str], include: list[str] | None, exclude: list[str] | None, types: set[str]
) -> None:
    assert set(mimebundle(graphs.addition(), include=include, exclude=exclude)) == types
    assert len(drawn) == (SVG in types)


def test_picture_is_an_svg_with_the_names() -> None:
    bundle = mimebundle(graphs.frozen_linear())
    assert bundle[SVG].startswith("<svg")
    for text in bundle.values():
        assert "model.fc.weight" in text
    assert not bundle[PLAIN].endswith("\n")


def test_same_graph_twice_shares_no_id() -> None:
    first, second = (re.findall(r' id="([^"]+)"', mimebundle(graphs.addition())[SVG]) for _ in range(2))
    assert len(first) > 5
    assert not set(first) & set(second)


def test_a_large_flat_graph_has_a_picture_in_time_with_ids_of_its_own() -> None:
    z = torch.ones(2, requires_grad=True)
    for _ in range(1000):
        z = z * 1.5
    graph = graphscope.walk(z).fold("full")
    first, second = (mimebundle(graph.drawn, include=[SVG])[SVG] for _ in range(2))
    assert first.count('class="node ') == 1002
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (first, second)]
    assert len(ids[0]) > 2000
    assert ids[0].isdisjoint(ids[1])


def test_every_picture_has_its_own_prefix(drawn: list[str]) -> None:
    for data in (graphs.addition(), graphs.addition(), graphs.top_k()):
        mimebundle(data)
    assert len(set(drawn)) == 3


@pytest.mark.parametrize("error", [EngineError("Nothing here can draw."), OSError("Read-only file system")])
@pytest.mark.parametrize("include", [None, [SVG]])
def test_text_and_reason_where_drawing_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception, include: list[str] | None
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise error

    monkeypatch.setattr(notebook, "to_picture", fail)
    bundle = mimebundle(graphs.addition(), include=include)
    assert set(bundle) == {PLAIN}
    assert bundle[PLAIN].startswith(f"No picture: {error}\n\n")
    assert "n1 add" in bundle[PLAIN]


def test_ipython_in_a_terminal_gets_text_of_its_width(monkeypatch: pytest.MonkeyPatch, drawn: list[str]) -> None:
    in_ipython(monkeypatch, PLAIN)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: SimpleNamespace(columns=50, lines=20))
    bundle = mimebundle(graphs.frozen_linear())
    assert set(bundle) == {PLAIN}
    assert drawn == []
    assert 40 < max(map(len, bundle[PLAIN].splitlines())) <= 50


def test_kernel_gets_both(monkeypatch: pytest.MonkeyPatch, drawn: list[str]) -> None:
    in_ipython(monkeypatch, PLAIN, "text/html", SVG)
    assert set(mimebundle(graphs.addition())) == {SVG, PLAIN}
    assert len(drawn) == 1


def test_show_prints_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    loss = x.exp().sum()
    graphscope.show(loss)
    shown = capsys.readouterr().out
    assert "exp  ExpBackward0" in shown
    assert "● n0 x  input" in shown
    assert "► n3 loss" in shown


def test_show_takes_what_shows_itself(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(2, requires_grad=True)
    graphscope.show(graphscope.walk(x.cos()))
    assert "cos  CosBackward0" in capsys.readouterr().out
    graphscope.show(graphscope.explain(x.cos()))
    assert "x gets a gradient" in capsys.readouterr().out
    graphscope.show(graphscope.record(x.sin))
    shown = capsys.readouterr().out
    assert "sin  SinBackward0" in shown
    assert "n0 x  input" in shown, "a recording knows the variables of the code that shows it"


def test_show_refuses_what_holds_no_tensor() -> None:
    with pytest.raises(InputError, match="A number has left autograd"):
        graphscope.show(3)


def test_show_displays_in_a_notebook() -> None:
    program = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.display_formatter.active_types = ["text/plain", "image/svg+xml"]
shell.display_pub.publish = lambda data, **_: print(sorted(data), ">w</" in data["image/svg+xml"])
shell.run_cell("import torch, graphscope; w = torch.ones(2, requires_grad=True); graphscope.show(w * 2)")
shell.displayhook.write_output_prompt = lambda: None
shell.displayhook.write_format_data = lambda data, md=None: print(sorted(data), "n0 w" in data["text/plain"])
shell.run_cell("graphscope.record(lambda: w * 3)")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines() == ["['image/svg+xml', 'text/plain'] True"] * 2


def test_module_does_not_load_ipython() -> None:
    code = "import sys, graphscope.notebook as n, tests.unit.graphs as g; n.mimebundle(g.addition()); "
    code += "assert not {'IPython', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
