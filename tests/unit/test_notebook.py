"""What a graph offers to a notebook, and that nothing is drawn for nobody."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from graphscope import notebook
from graphscope.errors import EngineError
from graphscope.notebook import PLAIN, SVG, mimebundle
from tests.unit import graphs


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Prefixes of the pictures asked for; none is really drawn."""
    asked: list[str] = []

    def draw(source: str, format: str, *, timeout: float, layout: str, id_prefix: str) -> bytes:
        assert source.startswith("digraph")
        assert (format, layout) == ("svg", "dot")
        assert 0 < timeout <= 60
        asked.append(id_prefix)
        return b"<svg/>"

    monkeypatch.setattr(notebook, "draw", draw)
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

    monkeypatch.setattr(notebook, "draw", fail)
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


def test_module_does_not_load_ipython() -> None:
    code = "import sys, graphscope.notebook as n, tests.unit.graphs as g; n.mimebundle(g.addition()); "
    code += "assert not {'IPython', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
