"""The public names: which there are, and what importing them costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import graphscope

CONTRACT = [
    *("walk", "record", "recording", "load", "compare", "explain", "memory", "show"),
    *("Graph", "Node", "Edge", "TensorInfo", "GraphscopeError", "__version__"),
]
"""All names that will ever be there; they arrive one by one."""

HEAVY = ("torch", "rich", "IPython", "pygraphviz", "graphviz", "numpy", "typer")


def loaded_after(program: str) -> list[str]:
    """Which of the heavy packages a program has loaded."""
    report = f"{program}\nimport sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, encoding="utf-8", check=True)
    return done.stdout.split()


def test_importing_loads_nothing_heavy() -> None:
    assert loaded_after("import graphscope; graphscope.__version__; dir(graphscope)") == []


def test_the_records_and_errors_load_nothing_heavy() -> None:
    assert loaded_after("from graphscope import Edge, Graph, GraphscopeError, Node, TensorInfo") == []


def test_the_measure_sees_a_load() -> None:
    assert "rich" in loaded_after("import rich")


def test_the_public_names_are_of_the_contract() -> None:
    assert set(graphscope.__all__) <= set(CONTRACT)
    assert graphscope.__all__ == sorted(graphscope.__all__)


def test_every_public_name_of_the_api_is_given() -> None:
    """What ``api`` defines under a name of the contract can be imported from the package itself."""
    import graphscope.api

    assert {name for name in CONTRACT if name in vars(graphscope.api)} <= set(graphscope.__all__)


@pytest.mark.parametrize("name", graphscope.__all__)
def test_a_public_name_is_there(name: str) -> None:
    value = getattr(graphscope, name)
    assert value is not None
    assert getattr(graphscope, name) is value
    assert name in dir(graphscope)


def test_type_checkers_see_what_runs() -> None:
    """The imports behind TYPE_CHECKING and the table of lazy names say the same."""
    tree = ast.parse(Path(graphscope.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == graphscope._HOMES
    assert {*imported, "__version__"} == set(graphscope.__all__)


def test_a_star_import_gives_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from graphscope import *", namespace)  # noqa: S102 - a star import may not stand in a function
    assert set(graphscope.__all__) <= namespace.keys()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'graphscope' has no attribute 'wlak'"):
        _ = graphscope.wlak  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "shown",
    [
        "graphscope.show(x.exp())",
        "render(graphscope.walk(x.exp()).data, TerminalOptions(color=True))",
        "print(graphscope.record(x.exp), graphscope.explain(x.exp()), graphscope.memory(x.exp()))",
        "graphscope.compare(x.exp).to('svg')",
    ],
)
def test_showing_draws_no_random_number_though_rich_does_when_first_loaded(shown: str) -> None:
    program = f"""
import random, torch, graphscope
from graphscope.render.terminal import TerminalOptions, render
x = torch.ones(2, requires_grad=True)
before = random.getstate()
{shown}
assert random.getstate() == before
"""
    subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
