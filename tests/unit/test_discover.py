"""Which nodes are found, in which order, and where discovery stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import graphscope
from graphscope.capture.walking import budget
from graphscope.capture.walking.discover import Trace, discover
from graphscope.model import GraphData, Kind


def leaf(value: float = 1.0) -> torch.Tensor:
    return torch.full((2,), value, requires_grad=True)


def chain(length: int) -> torch.Tensor:
    z = leaf()
    for _ in range(length):
        z = z * 1.5
    return z


def in_order(trace: Trace) -> list[str]:
    return [trace.kinds[position].op for position in trace.order()]


def assert_inputs_come_first(data: GraphData) -> None:
    data.check()
    place = {node.id: rank for rank, node in enumerate(data.nodes)}
    assert all(place[edge.source] < place[edge.target] for edge in data.edges)


def test_parallel_edges_are_kept() -> None:
    x = leaf()
    data = graphscope.walk(x * x, names={"x": x}).data
    assert [(edge.source, edge.target, edge.slot) for edge in data.edges] == [
        ("n0", "n1", 0),
        ("n0", "n1", 1),
        ("n1", "n2", 0),
    ]


def test_a_diamond_of_sixty_levels_is_walked_once() -> None:
    z = leaf()
    for _ in range(60):
        z = z + z
    data = graphscope.walk(z).data
    assert len(data.nodes) == 62
    assert len(data.edges) == 121


def test_order_is_that_of_creation_and_leaves_stand_before_their_first_reader() -> None:
    a, b = leaf(), leaf()
    first = a.sin()
    second = b.cos()
    trace = discover([(second * first).grad_fn], [])
    assert in_order(trace) == ["accumulate_grad", "sin", "accumulate_grad", "cos", "mul"]


def test_leaves_of_one_op_stand_in_the_order_of_its_slots() -> None:
    names = {name: leaf() for name in "abc"}
    data = graphscope.walk(torch.stack([names["c"], names["a"], names["b"]]), names=names).data
    assert [node.names[0] for node in data.nodes if node.kind is Kind.LEAF] == ["c", "a", "b"]


def test_outputs_of_earlier_ops_may_be_read_late() -> None:
    x = leaf()
    early = x.exp()
    late = x.sin().cos() * early
    assert [node.op for node in graphscope.walk(late).nodes] == [None, "exp", "sin", "cos", "mul", None]


def test_another_thread_counts_from_its_own_start() -> None:
    """Nodes made there have small numbers, so that sorting by number would put them before what they read."""
    for _ in range(50):
        leaf().sin()
    x = leaf().exp()
    made: list[torch.Tensor] = []
    worker = threading.Thread(target=lambda: made.append(x.cos().sin()))
    worker.start()
    worker.join()
    root = made[0] * x
    assert made[0].grad_fn is not None
    assert made[0].grad_fn._sequence_nr() < x.grad_fn._sequence_nr()  # type: ignore[union-attr]
    data = graphscope.walk(root).data
    assert_inputs_come_first(data)
    assert [node.op for node in data.nodes] == [None, "exp", "cos", "sin", "mul", None]


def test_two_nodes_of_one_number_keep_inputs_first() -> None:
    results: list[torch.Tensor] = []

    def work(x: torch.Tensor) -> None:
        results.append(x.sin())

    x = leaf()
    for _ in range(3):  # each in a thread of its own, so that all three have the same number
        worker = threading.Thread(target=work, args=(results[-1] if results else x,))
        worker.start()
        worker.join()
    numbers = {result.grad_fn._sequence_nr() for result in results}  # type: ignore[union-attr]
    assert len(numbers) == 1
    assert_inputs_come_first(graphscope.walk(results[-1]).data)


def test_history_of_a_view_made_anew_is_in_order() -> None:
    base = leaf() * 1
    view = base[:1]
    base.mul_(2)
    later = base.sin()
    data = graphscope.walk([later, view]).data  # the view's node is made now, after ``sin``
    assert_inputs_come_first(data)
    assert [node.backward for node in data.nodes if node.op][-1] == "AsStridedBackward0"


def test_a_node_made_for_an_error_has_no_number() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return grads[0] * ctx.saved_tensors[0]

    once: Any = Once.apply
    x = leaf()
    (grad,) = torch.autograd.grad(once(x * 2).pow(2).sum(), x, create_graph=True)
    data = graphscope.walk(grad.sum()).data
    assert_inputs_come_first(data)
    assert "Error" in {node.backward for node in data.nodes}
    note = next(node.note for node in data.nodes if node.backward == "Error")
    assert note is not None
    assert "raises" in note


def test_further_tensors_are_there_but_not_reached() -> None:
    x = leaf()
    shared = x.exp()
    loss, other = shared.sum(), shared.sin()
    trace = discover([loss.grad_fn], [other.grad_fn, None, shared.grad_fn])
    reached = {trace.kinds[position].op for position in range(trace.reached)}
    assert reached == {"sum", "exp", "accumulate_grad"}
    assert {kind.op for kind in trace.kinds[trace.reached :]} == {"sin"}


def test_nothing_to_walk() -> None:
    trace = discover([None], [])
    assert (trace.order(), trace.nodes, trace.stopped) == ([], [], [])


@pytest.fixture
def small_stack(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make discovery believe that so many nodes can be freed, and that no more stack is to be had."""

    def believe(depth: int) -> None:
        monkeypatch.setattr(budget, "safe_depth", lambda: depth)
        monkeypatch.setattr(budget, "reserve_depth", lambda _: depth)
        monkeypatch.setattr(budget, "has_fixed_limit", lambda: True)
        monkeypatch.setattr(budget, "_touched", set())
        monkeypatch.setattr(budget, "_followed", set())

    return believe


def test_discovery_stops_at_a_safe_depth(small_stack: Callable[[int], None]) -> None:
    small_stack(400)
    z = chain(2000)
    trace = discover([z.grad_fn], [])
    assert 350 <= len(trace.nodes) <= 400
    assert len(trace.stopped) == 1
    data = graphscope.walk(z).data
    data.check()
    assert [node.stopped for node in data.nodes].count(True) == 1
    assert data.nodes[0].stopped
    assert not data.nodes[0].without_gradient
    (notice,) = data.notices
    assert f"stopped after {len(data.nodes) - 1} nodes" in notice


def test_the_stack_is_grown_before_discovery_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def reserve(depth: int) -> int:
        asked.append(depth)
        return depth

    monkeypatch.setattr(budget, "safe_depth", lambda: 100)
    monkeypatch.setattr(budget, "has_fixed_limit", lambda: False)
    monkeypatch.setattr(budget, "reserve_depth", reserve)
    trace = discover([chain(1000).grad_fn], [])
    assert len(trace.nodes) == 1001
    assert not trace.stopped
    assert 1 <= len(asked) <= 3
    assert asked == sorted(asked)


def test_a_list_of_inputs_too_long_is_not_touched(small_stack: Callable[[int], None]) -> None:
    """Reading ``next_functions`` would touch all of a list at once; how long it is can be told before."""
    small_stack(400)
    states = [leaf()]
    for _ in range(500):
        states.append(states[-1] * 1.5)
    for gathered in (torch.stack(states), torch.cat(states)):
        trace = discover([gathered.sum().grad_fn], [])
        assert [kind.op for kind in trace.kinds] in (["sum", "stack"], ["sum", "cat"])
        assert trace.stopped == [1]


def test_a_custom_function_of_many_inputs_is_not_touched(small_stack: Callable[[int], None]) -> None:
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, *xs: torch.Tensor) -> torch.Tensor:
            return sum(xs)  # type: ignore[return-value]

        @staticmethod
        def backward(_: Any, *grads: torch.Tensor) -> Any:
            return grads * 500

    small_stack(400)
    gather: Any = Gather.apply
    many = gather(*[chain(1) for _ in range(500)])
    trace = discover([many.grad_fn], [])
    assert len(trace.nodes) == 1
    assert trace.stopped == [0]
    few = gather(*[chain(1) for _ in range(3)])  # held: in torch 2.4 the node of a custom Function ends with its tensor
    assert len(discover([few.grad_fn], []).nodes) == 7


def test_short_lists_beside_a_stop_are_still_followed(small_stack: Callable[[int], None]) -> None:
    small_stack(400)
    wide = torch.stack([chain(1) for _ in range(500)]).sum()
    narrow = torch.stack([chain(1), chain(1)]).sum()
    trace = discover([(wide + narrow).grad_fn], [])
    assert [trace.kinds[position].op for position in trace.stopped] == ["stack"]
    assert len(trace.nodes) == 1 + 2 + 2 + 4


def test_what_earlier_walks_touched_counts(small_stack: Callable[[int], None]) -> None:
    small_stack(400)
    z = chain(300)
    assert not discover([z.grad_fn], []).stopped
    for _ in range(300):
        z = z * 1.5
    trace = discover([z.grad_fn], [])
    assert 350 - 301 <= len(trace.nodes) <= 400 - 301
    assert len(trace.stopped) == 1


def test_the_same_graph_is_walked_as_often_as_one_likes(small_stack: Callable[[int], None]) -> None:
    small_stack(400)
    z = chain(300)
    for _ in range(5):
        trace = discover([z.grad_fn], [])
        assert (len(trace.nodes), trace.stopped) == (301, [])


def test_what_was_touched_and_is_gone_does_not_count(small_stack: Callable[[int], None]) -> None:
    small_stack(400)
    for _ in range(10):
        trace = discover([chain(300).grad_fn], [])
        assert (len(trace.nodes), trace.stopped) == (301, [])
        del trace


def test_a_walk_that_stopped_can_be_repeated(small_stack: Callable[[int], None]) -> None:
    small_stack(400)
    z = chain(2000)
    found = [len(discover([z.grad_fn], []).nodes) for _ in range(5)]
    assert found[1:] == found[1:2] * 4
    assert 350 <= found[0] <= found[1] <= 400
