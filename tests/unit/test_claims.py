"""Which op made which backward node where torch runs further ops in between."""

from __future__ import annotations

import pytest
import torch

import graphscope


def test_a_write_in_place_is_found_behind_the_clone_that_its_derivative_needs() -> None:
    w = torch.ones(3, requires_grad=True)
    with graphscope.recording() as rec:
        h = w * 2
        h.mul_(w)
        loss = h.sum()
    ops = [node for node in rec.graph(loss).check().nodes if node.op]
    assert [(node.op, node.backward) for node in ops] == [
        ("mul", "MulBackward0"),
        ("mul", "MulBackward0"),
        ("sum", "SumBackward0"),
    ]
    assert ops[1].writes == (ops[0].id,)


def test_a_write_into_a_view_is_the_copy_slices_of_its_base() -> None:
    w = torch.ones(3, requires_grad=True)
    with graphscope.recording() as rec:
        base = torch.zeros(2, 3)
        base[0].mul_(w)
        loss = base.sum()
    graph = rec.graph(loss).check()
    assert [(node.op, node.backward) for node in graph.nodes if node.backward] == [
        ("mul", "CopySlices"),
        ("sum", "SumBackward0"),
    ]
    loss.backward()
    assert w.grad is not None
    (leaf,) = [node for node in graph.nodes if node.names == ("w",)]
    assert leaf.reached


def test_a_named_result_off_the_way_keeps_its_node() -> None:
    w, v = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with graphscope.recording() as rec:
        fake = w * 2
        d = (fake.detach() * v).sum()
    nodes = {name: node for node in rec.graph(d, fake).nodes for name in node.names if node.op}
    assert nodes["fake"].backward == "MulBackward0"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_op_that_only_asks_for_a_size_takes_no_node_from_the_next() -> None:
    """A nested tensor is asked for its sizes after the node was made, and before the op runs and has a history."""
    n = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=torch.strided, requires_grad=True)
    with graphscope.recording() as rec:
        m = n * 2
        padded = torch.nested.to_padded_tensor(m, 0.0)
        loss = padded.sum()
    graph = rec.graph(loss, m, padded).check()
    for name, result in (("m", m), ("padded", padded), ("loss", loss)):
        (node,) = [node for node in graph.nodes if node.op and any(name in one.names for one in node.outputs)]
        assert result.grad_fn is not None
        assert (node.backward, node.outputs[0].requires_grad) == (result.grad_fn.name(), True)
    assert not any(edge.reason for edge in rec.graph(loss).edges)
