"""What a recording is held against: the walk over the same tensors, and the flags that torch shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import graphscope
from graphscope.model import Edge, GraphData, Kind, Node, Region


def same_as_walk(graph: graphscope.Graph, walked: graphscope.Graph) -> list[str | None]:
    """Fail unless both have the same reached nodes between the same edges; return the nodes that no op claims.

    The graphs are compared node by node from the roots, along torch's edges, slot by slot.
    """
    recorded, walk = graph.check().data, walked.check().data
    assert len(recorded.roots) == len(walk.roots)
    partner: dict[str, str] = {}
    waiting = list(zip(recorded.roots, walk.roots, strict=True))
    while waiting:
        here, there = waiting.pop()
        if here in partner:
            assert partner[here] == there
            continue
        partner[here] = there
        node, other = recorded.by_id[here], walk.by_id[there]
        assert (node.reached, node.backward, node.accumulate) == (True, other.backward, other.accumulate), (node, other)
        mine, theirs = torch_edges(recorded, here), torch_edges(walk, there)
        assert [edge.slot for edge in mine] == [edge.slot for edge in theirs], (node, other)
        waiting += [(edge.source, twin.source) for edge, twin in zip(mine, theirs, strict=True)]
    assert len(set(partner.values())) == len(partner), "two nodes for one of torch's"
    assert {node.id for node in recorded.nodes if node.reached} == set(partner)
    assert {node.id for node in walk.nodes if node.reached} == set(partner.values())
    return [recorded.by_id[one].backward for one in partner if is_unclaimed(recorded.by_id[one])]


def torch_edges(data: GraphData, target: str) -> list[Edge]:
    return sorted((edge for edge in data.incoming[target] if edge.gradient), key=lambda edge: edge.slot)


def is_unclaimed(node: Node) -> bool:
    return node.kind is Kind.OP and node.op is None


def ops(graph: graphscope.Graph) -> list[Node]:
    return [node for node in graph.nodes if node.kind is Kind.OP]


def the_op(graph: graphscope.Graph, name: str) -> Node:
    (found,) = [node for node in graph.nodes if node.op == name]
    return found


def region_of(graph: graphscope.Graph, node: Node) -> Region:
    (found,) = [region for region in graph.data.regions if region.id == node.region]
    return found


def op_names(recording: graphscope.api.Recording) -> list[str]:
    """Every op that the recorder saw, by torch's full name."""
    return [getattr(op.func, "_schema", op.func).name for op in recording._recorder.log.ops]


def apply(function: Any, *given: Any) -> Any:
    """``function.apply``, which has no annotations."""
    return function.apply(*given)


def assert_same(one: Any, other: Any) -> None:
    """Equal to the bit: values, flags, kinds of nodes, in any nesting."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.requires_grad, one.is_leaf, one.dtype) == (other.requires_grad, other.is_leaf, other.dtype)
        assert type(one.grad_fn) is type(other.grad_fn)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for part, twin in zip(one, other, strict=True):
            assert_same(part, twin)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_same(list(one.values()), list(other.values()))
    else:
        assert one == other


def record_twice(program: Callable[[], Any]) -> tuple[graphscope.api.Recording, Any]:
    """Run a program without and with a recording, and fail unless both did the same to the bit."""
    torch.manual_seed(0)
    expected = program()
    expected_random = torch.get_rng_state()
    torch.manual_seed(0)
    with graphscope.recording() as recording:
        result = program()
    assert torch.equal(torch.get_rng_state(), expected_random)
    assert recording._recorder.puzzles == []
    assert_same(expected, result)
    return recording, result
