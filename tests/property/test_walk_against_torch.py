"""Random programs, walked, against torch itself: its own edges, its own tensors, and what ``backward()`` fills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import graphscope
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.walk import Walked, to_root, walk_linked
from graphscope.model import Kind, Role, State

Tensor = torch.Tensor


def no_grad(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return (a * b,)


def write_to_view(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    base = a * 1
    base[0].mul_(b[1])
    return (base,)


OPS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "add": lambda a, b: (a + b,),
    "multiply": lambda a, b: (a * b,),
    "square": lambda a, _: (a * a,),
    "sine": lambda a, _: (a.sin(),),
    "exponential": lambda a, _: (a.clamp(max=1).exp(),),
    "stack": lambda a, b: (torch.stack([a, b, a]).sum(0),),
    "parts": lambda a, b: (a[:1].expand(2), b.chunk(2)[1].expand(2)),
    "largest": lambda a, _: a.topk(2),
    "choice": lambda a, b: (torch.where(a > 0, a, b),),
    "detached": lambda a, _: (a.detach(),),
    "untracked": no_grad,
    "rounded": lambda a, _: (a.round(),),
    "in place": lambda a, b: ((a * 1).add_(b),),
    "write to a view": write_to_view,
    "leaf": lambda _a, _b: (torch.ones(2, requires_grad=True),),
    "constant": lambda _a, _b: (torch.ones(2),),
}


STEPS = st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 30), st.integers(0, 30)), max_size=12)


def run(steps: list[tuple[str, int, int]]) -> list[Tensor]:
    """Floating tensors of two elements, each made from earlier ones."""
    made = [torch.tensor([0.5, -0.25], requires_grad=True), torch.tensor([1.5, 0.75])]
    for op, first, second in steps:
        results = OPS[op](made[first % len(made)], made[second % len(made)])
        made += [result for result in results if result.is_floating_point()]
    return made


def walked(roots: list[Tensor], names: dict[str, Tensor] | None = None) -> Walked:
    known = Names()
    known.search(names or {})
    given_roots = [to_root(f"root{place}", root) for place, root in enumerate(roots)]
    return walk_linked(given_roots, known, others=(), every_module=False)


def nodes_behind(roots: list[Tensor]) -> list[Any]:
    """The plainest traversal there is."""
    found: list[Any] = []
    waiting = [root.grad_fn for root in roots]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.append(node)
            waiting += [source for source, _ in node.next_functions]
    return found


@given(STEPS, st.sets(st.integers(0, 30), min_size=1, max_size=3))
def test_nodes_and_edges_are_those_of_torch(steps: list[tuple[str, int, int]], picks: set[int]) -> None:
    made = run(steps)
    roots = [made[pick % len(made)] for pick in sorted(picks)]
    graph = walked(roots)
    graph.data.check()
    nodes = nodes_behind(roots)

    def name_of(node: Any) -> str:
        return graph.leaves[id(node.variable)] if hasattr(node, "variable") else graph.numbers[node._sequence_nr()]

    reached = [node for node in graph.data.nodes if node.reached and (node.backward or node.accumulate)]
    assert {node.id for node in reached} == {name_of(node) for node in nodes}
    types = Counter(type(node).__name__ for node in nodes)
    assert Counter(node.backward or node.accumulate for node in reached) == types
    edges = [
        (name_of(source), output, name_of(node), slot)
        for node in nodes
        for slot, (source, output) in enumerate(node.next_functions)
        if source is not None
    ]
    outputs = set(graph.data.roots)
    told = [edge[:4] for edge in graph.data.edges if edge.target not in outputs]
    assert Counter(told) == Counter(edges)
    for node in nodes:
        if not hasattr(node, "variable"):
            without = [slot for slot, (source, _) in enumerate(node.next_functions) if source is None]
            assert list(graph.data.by_id[name_of(node)].without_gradient) == without


@given(STEPS, st.integers(0, 30))
def test_facts_of_tensors_are_those_of_torch(steps: list[tuple[str, int, int]], pick: int) -> None:
    made = run(steps)
    root = made[pick % len(made)]
    bare = walked([root])
    named = walked([root], {f"t{place}": tensor for place, tensor in enumerate(made)})
    for place, tensor in enumerate(made):
        if tensor.grad_fn is None or tensor.grad_fn not in nodes_behind([root]):
            continue
        number: int = tensor.grad_fn._sequence_nr()
        from_node = bare.data.by_id[bare.numbers[number]].outputs[tensor.output_nr]
        in_hand = named.data.by_id[named.numbers[number]].outputs[tensor.output_nr]
        for told in (from_node, in_hand):
            expected = tuple(tensor.shape), "float32", "cpu", True, False
            assert (told.shape, told.dtype, told.device, told.requires_grad, told.is_leaf) == expected
        assert f"t{place}" in in_hand.names
        assert (in_hand.version, in_hand.is_view) == (tensor._version, tensor._is_view())


@given(STEPS, st.integers(0, 30))
def test_reached_leaves_are_those_that_backward_fills(steps: list[tuple[str, int, int]], pick: int) -> None:
    made = run(steps)
    root = made[pick % len(made)]
    names = {f"t{place}": tensor for place, tensor in enumerate(made)}
    reached = {
        name
        for node in graphscope.walk(root, names=names).nodes
        if node.kind is Kind.LEAF and node.reached
        for name in node.names
    }
    if root.requires_grad:
        root.sum().backward()
    assert reached == {name for name, tensor in names.items() if tensor.is_leaf and tensor.grad is not None}


@given(STEPS, st.integers(0, 30))
def test_bytes_kept_are_those_of_the_saved_tensors(steps: list[tuple[str, int, int]], pick: int) -> None:
    root = run(steps)[pick % (len(steps) + 2)]
    data = graphscope.walk(root, names={}).data
    storages: dict[int, int] = {}
    count = 0
    for node in nodes_behind([root]):
        for attribute in dir(node):
            value = getattr(node, attribute, None) if attribute.startswith("_saved_") else None
            for tensor in value if isinstance(value, tuple) else (value,):
                if isinstance(tensor, Tensor):
                    count += 1
                    storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    assert sum(storage.bytes for storage in data.storages) == sum(storages.values())
    saved = [saved for node in data.nodes for saved in node.saved]
    assert len(saved) == count
    assert all(one.state is State.LIVE and one.modified is False for one in saved)


@given(STEPS, st.integers(0, 30))
def test_after_backward_every_saved_tensor_is_freed(steps: list[tuple[str, int, int]], pick: int) -> None:
    root = run(steps)[pick % (len(steps) + 2)]
    before = graphscope.walk(root, names={})
    if root.requires_grad:
        root.sum().backward()
    after = graphscope.walk(root, names={})
    assert [node.op for node in before.nodes] == [node.op for node in after.nodes]
    assert not after.data.storages
    for old, new in zip(before.nodes, after.nodes, strict=True):
        assert {saved.state for saved in new.saved} <= {State.FREED}
        assert bool(old.saved) == bool(new.saved)


@given(STEPS, st.integers(0, 30))
def test_same_graph_same_data(steps: list[tuple[str, int, int]], pick: int) -> None:
    first, second = run(steps), run(steps)
    data = graphscope.walk(first[pick % len(first)], names={}).data
    assert data == graphscope.walk(first[pick % len(first)], names={}).data
    assert data == graphscope.walk(second[pick % len(second)], names={}).data
    roles = {node.role for node in data.nodes if node.kind is Kind.LEAF}
    assert roles <= {Role.INPUT}
