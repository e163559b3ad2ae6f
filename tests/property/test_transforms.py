"""Views lose nothing that they do not count: edges and ways through the graph, for any graph and any choice."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphscope.errors import InputError
from graphscope.model import Edge, GraphData, Kind
from graphscope.style import edge_look
from graphscope.transforms import (
    FoldedInsteadWarning,
    ViewOptions,
    focus,
    fold,
    fold_auto,
    hide,
    path,
    related,
    roll,
    truncate,
    view,
)
from tests.programs import programs
from tests.strategies import graphs

DEPTHS = st.integers(0, 5)

Ways = Mapping[str, set[str]]


def ways(edges: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """For each node everything that it leads to, itself included."""
    onward: dict[str, set[str]] = {}
    for source, target in edges:
        onward.setdefault(source, set()).add(target)
        onward.setdefault(target, set())
    found = {}
    for start in onward:
        seen, stack = {start}, [start]
        while stack:
            fresh = onward[stack.pop()] - seen
            seen |= fresh
            stack += fresh
        found[start] = seen
    return found


def drawn_for(whole: GraphData, drawn: GraphData) -> dict[str, str]:
    """For each node of the whole graph the node or box that is drawn for it; fails if there are several, or none."""
    box = {member: identity for identity, group in drawn.view.groups.items() for member in group.members}
    assert sum(len(group.members) for group in drawn.view.groups.values()) == len(box), "a node is in two boxes"
    stands_for = {}
    for frame in drawn.view.frames:
        length = len(frame.members) // frame.repeats
        assert length * frame.repeats == len(frame.members)
        for place, member in enumerate(frame.members):
            if place >= length:
                assert member not in stands_for
                stands_for[member] = frame.members[place % length]
    found = {}
    for node in whole.nodes:
        identity = node.id
        while identity not in box and identity in stands_for:
            identity = stands_for[identity]
        found[node.id] = box.get(identity, identity)
        assert found[node.id] in drawn.by_id, f"nothing is drawn for {node.id}"
    return found


def assert_accounts_for(whole: GraphData, drawn: GraphData) -> dict[str, str]:
    """Every node is drawn, in one box, or in a round that another is drawn for; the view says how many are not."""
    drawn.check()
    stands = drawn_for(whole, drawn)
    alone = [node for node in drawn.nodes if node.kind is not Kind.GROUP]
    assert drawn.view.hidden == whole.view.hidden + len(whole.nodes) - len(alone)
    assert all(whole.by_id[node.id].outputs == node.outputs for node in alone)
    assert {identity for group in drawn.view.groups.values() for identity in group.members}.isdisjoint(drawn.by_id)
    return stands


def look(edge: Edge, data: GraphData) -> tuple[object, ...]:
    return edge_look(edge, data), edge.reason


@given(programs() | graphs(), DEPTHS)
def test_folding_keeps_every_edge_and_every_way(whole: GraphData, depth: int) -> None:
    drawn = fold(whole, depth, roll=False)
    stands = assert_accounts_for(whole, drawn)
    assert not any(frame.repeats > 1 for frame in drawn.view.frames)
    expected = Counter(
        (stands[edge.source], stands[edge.target], *look(edge, whole))
        for edge in whole.edges
        if stands[edge.source] != stands[edge.target]
    )
    counted: Counter[tuple[object, ...]] = Counter()
    for edge in drawn.edges:
        bundle = drawn.view.bundles.get(edge)
        counted[edge.source, edge.target, *look(edge, drawn)] += bundle.edges if bundle is not None else 1
        assert bundle is None or 1 <= bundle.tensors <= bundle.edges
    assert counted == expected
    before, after = (ways((edge.source, edge.target) for edge in data.edges) for data in (whole, drawn))
    for source, targets in before.items():
        for target in targets:
            assert stands[source] == stands[target] or stands[target] in after[stands[source]]


@given(programs(), DEPTHS)
def test_rolling_keeps_what_goes_in_and_out(whole: GraphData, depth: int) -> None:
    drawn = fold(whole, depth)
    stands = assert_accounts_for(whole, drawn)
    shown = {(edge.source, edge.target, *look(edge, drawn)) for edge in drawn.edges}
    for edge in whole.edges:
        ends = stands[edge.source], stands[edge.target]
        if ends[0] == ends[1] or _goes_round(edge, drawn):
            continue
        assert (*ends, *look(edge, whole)) in shown, edge
    sources = {(stands[edge.source], stands[edge.target]) for edge in whole.edges}
    assert {(edge.source, edge.target) for edge in drawn.edges} <= sources


def _goes_round(edge: Edge, drawn: GraphData) -> bool:
    """Leads from one round of something to another one of the same, at any level."""
    source, target = edge.source, edge.target
    for frame in drawn.view.frames:
        length = len(frame.members) // frame.repeats
        place = {member: number for number, member in enumerate(frame.members)}
        if source in place and target in place and place[source] // length != place[target] // length:
            return True
        source, target = (frame.members[place[one] % length] if one in place else one for one in (source, target))
    return False


@given(programs(), DEPTHS, st.integers(2, 30))
def test_equal_rounds_are_equal(whole: GraphData, depth: int, limit: int) -> None:
    """What is drawn for another node is equal to it in all but name, id, and where it stands."""
    for drawn in (fold(whole, depth), fold_auto(whole, limit), roll(whole)):
        for frame in drawn.view.frames:
            length = len(frame.members) // frame.repeats
            for place, member in enumerate(frame.members):
                node, first = whole.by_id[member], whole.by_id[frame.members[place % length]]
                assert (node.kind, node.op, node.backward, node.reached, node.mode) == (
                    first.kind, first.op, first.backward, first.reached, first.mode,
                )  # fmt: skip
                inputs, expected = (
                    [(edge.slot, edge.gradient, edge.reason) for edge in whole.incoming[one.id]]
                    for one in (node, first)
                )
                assert inputs == expected


@given(programs() | graphs(), st.integers(1, 40))
def test_a_drawing_of_any_size_accounts_for_all(whole: GraphData, limit: int) -> None:
    drawn = fold_auto(whole, limit)
    if drawn is whole:
        return
    assert_accounts_for(whole, drawn)


@given(programs(), st.data())
def test_what_is_expanded_is_drawn(whole: GraphData, data: st.DataObject) -> None:
    inside = [node for node in whole.nodes if node.kind is Kind.OP and node.module in {"model.a.1", "model.b"}]
    if not inside or not whole.modules:
        return
    node = data.draw(st.sampled_from(inside))
    drawn = fold(whole, 1, expand=[str(node.module)], roll=False)
    stands = assert_accounts_for(whole, drawn)
    box = drawn.view.groups.get(stands[node.id])
    assert box is None or box.module != node.module
    assert all(stands[other.id] != stands[node.id] for other in whole.nodes if other.module == "other")


@given(graphs(), st.data())
def test_focus_is_what_leads_there_and_what_it_leads_to(whole: GraphData, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from(whole.nodes))
    drawn = focus(whole, node.id).check()
    reach = ways([*((edge.source, edge.target) for edge in whole.edges), *((one.id, one.id) for one in whole.nodes)])
    expected = {one for one in reach if one in reach[node.id] or node.id in reach[one]}
    assert set(drawn.by_id) == expected
    assert_is_part(whole, drawn)


@given(graphs(), st.data())
def test_a_path_is_what_lies_between(whole: GraphData, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(whole.nodes)).id for _ in range(2))
    reach = ways([*((edge.source, edge.target) for edge in whole.edges), *((node.id, node.id) for node in whole.nodes)])
    start, end = (one, other) if other in reach[one] else (other, one)
    if end not in reach[start]:
        with pytest.raises(InputError, match="No path leads"):
            path(whole, one, other)
        return
    drawn = path(whole, one, other).check()
    assert_is_part(whole, drawn)
    between = {node for node in reach[start] if end in reach[node]}
    lonely = {node for node in between if whole.by_id[node].kind is Kind.OUTPUT and node == start}
    assert set(drawn.by_id) == between - lonely


@given(graphs(), st.integers(1, 6))
def test_a_budget_keeps_what_is_nearest(whole: GraphData, limit: int) -> None:
    drawn = truncate(whole, limit).check()
    assert len(drawn.nodes) <= limit
    assert_is_part(whole, drawn)


def assert_is_part(whole: GraphData, drawn: GraphData) -> None:
    """The drawn nodes as they are, all edges between them, and a count of the rest."""
    assert [node._replace(writes=()) for node in drawn.nodes] == [
        node._replace(writes=()) for node in whole.nodes if node.id in drawn.by_id
    ]
    inside = [edge for edge in whole.edges if edge.source in drawn.by_id and edge.target in drawn.by_id]
    assert list(drawn.edges) == inside
    assert drawn.view.hidden == whole.view.hidden + len(whole.nodes) - len(drawn.nodes)
    lost = Counter(edge.target for edge in whole.edges if edge.target in drawn.by_id and edge.source not in drawn.by_id)
    assert dict(drawn.view.missing) == dict(lost)


@given(programs(), st.lists(st.sampled_from(("mul", "relu", "parameters", "inputs", "model.b", "add")), min_size=1))
def test_hiding_keeps_the_ways_past_what_is_hidden(whole: GraphData, words: list[str]) -> None:
    try:
        drawn = hide(whole, words).check()
    except InputError:
        return
    for only_gradients in (False, True):
        before, after = (
            ways((edge.source, edge.target) for edge in data.edges if edge.gradient or not only_gradients)
            for data in (whole, drawn)
        )
        for node in drawn.by_id:
            expected = before.get(node, {node}) & set(drawn.by_id)
            assert after.get(node, {node}) == expected
    assert drawn.view.hidden == len(whole.nodes) - len(drawn.nodes)


OPTIONS = st.builds(
    ViewOptions,
    depth=st.sampled_from(("auto", "full", 1, 2, 3)),
    roll=st.none() | st.booleans(),
    limit=st.integers(3, 40),
    expand=st.just(()),
    focus=st.none(),
    path=st.none(),
    hide=st.just(()),
    force=st.just(value=False),
)


@given(programs(), OPTIONS)
def test_any_choice_gives_a_sound_view(whole: GraphData, options: ViewOptions) -> None:
    drawn = view(whole, options).check()
    assert len(drawn.nodes) + drawn.view.hidden >= len(related(whole).nodes) or drawn.view.groups
    if options.depth == "auto":
        assert len(drawn.nodes) <= options.limit
    if options.depth == "full" and not options.roll:
        assert drawn.nodes == related(whole).nodes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FoldedInsteadWarning)
        limited = view(whole, options, flat_limit=2).check()
    assert len(limited.nodes) <= max(2, options.limit)
