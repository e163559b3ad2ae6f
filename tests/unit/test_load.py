from __future__ import annotations

from pathlib import Path

import pytest
import torch

import graphscope
from graphscope.errors import FormatError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    weight = torch.ones(3, requires_grad=True)
    return graphscope.walk({"loss": (weight * 2).sum()}, names={"weight": weight}).save(tmp_path / "graph.json")


def test_a_saved_graph_is_the_same_graph(saved: Path) -> None:
    graph = graphscope.load(saved)
    assert [node.names for node in graph.nodes if node.kind == "leaf"] == [("weight",)]
    again = graph.save(saved.with_name("again.json"))
    assert again.read_bytes() == saved.read_bytes()
    assert graphscope.load(str(again)).data == graph.data


def test_what_was_edited_is_checked(saved: Path) -> None:
    saved.write_text(saved.read_text(encoding="utf-8").replace('"n0"', '"n1"'), encoding="utf-8")
    with pytest.raises(FormatError, match="two nodes share an id"):
        graphscope.load(saved)


def test_an_error_names_the_file(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:100])
    with pytest.raises(FormatError) as caught:
        graphscope.load(saved)
    assert str(caught.value).startswith(f"{saved}: the JSON stops in the middle")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        graphscope.load(tmp_path / "none.json")
