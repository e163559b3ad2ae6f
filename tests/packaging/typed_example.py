"""The public API as a typed program uses it; checked by mypy --strict, and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import torch

import graphscope
from graphscope import Edge, Graph, GraphscopeError, Node, TensorInfo


def leaves_with_gradient(graph: Graph) -> list[str]:
    return [name for node in graph.nodes if node.kind == "leaf" and node.reached for name in node.names]


def shapes(node: Node) -> list[tuple[int | str, ...] | None]:
    return [output.shape for output in node.outputs]


def main(folder: Path) -> list[str]:
    weight = torch.ones(2, 3, requires_grad=True)
    data = torch.ones(4, 2)
    loss = (data @ weight).sum()
    graph = graphscope.walk(loss, names={"weight": weight, "data": data, "loss": loss})
    assert_type(graph, Graph)
    assert_type(graph.check(), Graph)
    assert_type(graph.nodes, tuple[Node, ...])
    assert_type(graph.edges, tuple[Edge, ...])
    assert_type(graph.roots, tuple[str, ...])
    assert_type(graph.nodes[0].outputs, tuple[TensorInfo, ...])
    assert_type(graph.to_json(), dict[str, Any])
    saved: Path = graph.save(folder / "graph.json")
    assert_type(graphscope.load(saved), Graph)
    assert_type(graphscope.__version__, str)
    try:
        graphscope.walk(3)
    except GraphscopeError as error:
        return [*leaves_with_gradient(graphscope.load(saved)), type(error).__name__]
    return []
