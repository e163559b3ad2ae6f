"""Folding, rolling, focus, path, hide: what is drawn of small networks, and what is told of the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import pairwise

import pytest

from graphscope.errors import FormatError, InputError
from graphscope.model import Gradient, GraphData, Group, Kind, Location, Module, Reason, Role
from graphscope.serialize import to_json
from graphscope.style import edge_words
from graphscope.transforms import (
    FLAT_LIMIT,
    FoldedInsteadWarning,
    ViewOptions,
    focus,
    fold,
    fold_auto,
    hide,
    path,
    roll,
    truncate,
    view,
)
from tests.unit.graphs import cut, flow, graph, leaf, op, output, tensor
from tests.unit.networks import network


def titles(drawn: GraphData) -> list[str]:
    """What is written on boxes and ops, in order."""
    return [str(node.op or node.names[0]) for node in drawn.check().nodes if node.kind is not Kind.OUTPUT]


def groups(drawn: GraphData) -> Mapping[str, Group]:
    return {group.title: group for group in drawn.view.groups.values()}


# ----------------------------------------------------------------------------------------- folding by module


def test_depth_is_counted_in_modules_that_are_called() -> None:
    net = network(3)
    assert titles(fold(net, 1)) == ["x", "net", "mean"]
    assert titles(fold(net, 2)) == ["x", "h.0–h.2 ×3", "head", "mean"]
    assert titles(fold(net, 2, roll=False)) == ["x", "h.0", "h.1", "h.2", "head", "mean"]
    assert titles(fold(net, 3)) == ["x", "fc", "relu", "add", "head", "mean"]
    assert [(frame.title, frame.repeats) for frame in fold(net, 3).view.frames] == [("net", 1), ("h.0–h.2", 3)]


def test_the_deepest_depth_draws_every_op() -> None:
    net = network(3)
    assert len(fold(net, 9, roll=False).nodes) == len(net.nodes)
    assert fold(net, 9, roll=False).view.hidden == 0
    assert fold(net, 9, roll=False).view.frames, "but tells the modules"


def test_a_group_says_what_it_stands_for() -> None:
    net = network(2)
    box = groups(fold(net, 2, roll=False))["h.1"]
    assert (box.module, box.type, box.ops, box.untracked) == ("net.h.1", "Block", 3, 0)
    assert (box.tensors, box.trainable, box.frozen, box.unreached) == (1, 16, 0, 0)
    assert (box.saved_bytes, box.gradient, box.cuts) == (64, Gradient.PASSES, ())
    assert [net.by_id[member].op for member in box.members if net.by_id[member].op] == ["addmm", "relu", "add"]


def test_a_storage_that_two_ops_keep_is_counted_once() -> None:
    net = network(2)
    twice = tuple(node._replace(saved=node.saved * 2) for node in net.nodes)
    assert groups(fold(dataclasses.replace(net, nodes=twice), 1))["net"].saved_bytes == 128


def test_parameters_go_with_what_reads_them_and_inputs_stay() -> None:
    drawn = fold(network(2), 1)
    assert [node.names for node in drawn.nodes if node.kind is Kind.LEAF] == [("x",)]
    assert groups(drawn)["net"].tensors == 3


def test_a_tied_parameter_stays_in_sight() -> None:
    net = network(2)
    tied = next(node.id for node in net.nodes if "net.h.0.fc.weight" in node.names)
    other = next(node.id for node in net.nodes if "net.head.weight" in node.names)
    edges = tuple(edge._replace(source=tied) if edge.source == other else edge for edge in net.edges)
    nodes = tuple(node for node in net.nodes if node.id != other)
    drawn = fold(dataclasses.replace(net, nodes=nodes, edges=edges), 2)
    assert "net.h.0.fc.weight" in titles(drawn)
    assert {edge.target for edge in drawn.edges if edge.source == tied} == {"g2", "n10"}, (
        "of the head nothing else is left"
    )


def test_the_parameters_of_a_shared_module_are_one_box() -> None:
    nodes = [
        leaf("n0", "x"),
        leaf("n1", "m.cell.weight", role=Role.PARAMETER),
        leaf("n2", "m.cell.bias", role=Role.PARAMETER),
        op("n3", "mm", "MmBackward0", module="m.cell"),
        op("n4", "add", "AddBackward0", module="m.cell"),
        op("n5", "relu", "ReluBackward0", module="m"),
        op("n6", "mm", "MmBackward0", module="m.cell"),
        op("n7", "add", "AddBackward0", module="m.cell"),
        output("n8", "y"),
    ]
    pairs = [("n0", "n3"), ("n1", "n3"), ("n3", "n4"), ("n2", "n4"), ("n4", "n5"), ("n5", "n6"), ("n1", "n6")]
    pairs += [("n6", "n7"), ("n2", "n7"), ("n7", "n8")]
    data = graph(nodes, [flow(source, target) for source, target in pairs], recorded=True)
    drawn = fold(data, 1, roll=False)
    assert titles(drawn) == ["x", "parameters of m.cell", "m.cell", "relu", "m.cell"]
    calls = [group.call for group in drawn.view.groups.values() if group.ops]
    assert calls == [1, 2]
    assert [edge.target for edge in drawn.edges if edge.source == "g1"] == ["g3", "g6"]


def test_code_outside_of_modules_goes_by_its_function() -> None:
    places = [Location("train.py", line, "", name) for line, name in ((1, "load"), (2, "load"), (7, "<lambda>"))]
    nodes = [
        leaf("n0", "x"),
        *(op(f"n{n + 1}", "mul", "MulBackward0", location=place) for n, place in enumerate(places)),
    ]
    data = graph([*nodes, output("n4", "y")], [flow(f"n{n}", f"n{n + 1}") for n in range(4)], recorded=True)
    assert titles(fold(data, 1)) == ["x", "load()", "mul"]
    assert titles(fold(data, 2)) == ["x", "mul", "mul", "mul"]


def test_a_box_in_a_frame_of_its_own_is_no_frame() -> None:
    nodes = [leaf("n0", "x"), op("n1", "mm", "MmBackward0", module="net.only"), op("n2", "add", "A", module="net.only")]
    data = graph([*nodes, output("n3", "y")], [flow(f"n{n}", f"n{n + 1}") for n in range(3)], recorded=True)
    modules = (Module("net", "Net", training=True), Module("net.only", "Block", training=True))
    named = dataclasses.replace(data, modules=modules)
    assert titles(fold(named, 2)) == ["x", "net"]
    assert not fold(named, 2).view.frames
    assert [frame.title for frame in fold(named, 3).view.frames] == ["net", "only"]


# ------------------------------------------------------------------------------------------------- gradients


def test_a_frozen_layer_stands_alone() -> None:
    drawn = fold(network(12, frozen={7}), 2)
    assert titles(drawn) == ["x", "h.0–h.6 ×7", "h.7", "h.8–h.11 ×4", "head", "mean"]
    assert (groups(drawn)["h.7"].trainable, groups(drawn)["h.7"].frozen) == (0, 16)


def test_frozen_layers_in_a_pattern_all_stand_alone() -> None:
    """Every third is frozen: that three layers repeat is no reason to hide which ones are."""
    drawn = fold(network(9, frozen={2, 5, 8}), 2)
    assert titles(drawn)[1:-2] == ["h.0–h.1 ×2", "h.2", "h.3–h.4 ×2", "h.5", "h.6–h.7 ×2", "h.8"]


def test_a_cut_inside_is_told() -> None:
    drawn = fold(network(5, detached={2}), 2)
    assert titles(drawn)[1:-2] == ["h.0–h.1 ×2", "h.2", "h.3–h.4 ×2"]
    box = groups(drawn)["h.2"]
    assert (box.gradient, box.cuts, box.unreached) == (Gradient.PASSES, ((Reason.DETACH, 1),), 1)


def test_what_a_gradient_does_in_a_box() -> None:
    """It passes to ``x``; without it, it ends in the parameters; where all is cut, it dies; elsewhere none arrives."""
    x_needs_none = _with_constant_input(network(2))
    assert groups(fold(network(2), 1))["net"].gradient is Gradient.PASSES
    assert groups(fold(x_needs_none, 1))["net"].gradient is Gradient.ENTERS
    unread = dataclasses.replace(network(2), roots=())
    nodes = tuple(node._replace(reached=node.kind is Kind.OUTPUT, accumulate=None) for node in unread.nodes)
    assert groups(fold(dataclasses.replace(unread, nodes=nodes), 1))["net"].gradient is Gradient.NONE


def _with_constant_input(net: GraphData) -> GraphData:
    first = net.nodes[0]
    nodes = (first._replace(outputs=(first.outputs[0]._replace(requires_grad=False),), reached=False), *net.nodes[1:])
    edges = tuple(edge._replace(gradient=False) if edge.source == first.id else edge for edge in net.edges)
    return dataclasses.replace(net, nodes=nodes, edges=edges)


def test_edges_that_look_the_same_are_one() -> None:
    """The input is read by the layer and by the sum around it, and goes no further than the box."""
    net = network(1)
    (edge,) = [edge for edge in fold(net, 2).edges if edge.source == "n0"]
    bundle = fold(net, 2).view.bundles[edge]
    assert (bundle.edges, bundle.tensors, bundle.reached) == (2, 1, True)


def test_a_cut_edge_is_not_merged_with_one_that_carries() -> None:
    net = network(1)
    add = next(node.id for node in net.nodes if node.op == "add")
    edges = tuple(
        edge._replace(gradient=False, reason=Reason.DETACH) if (edge.source, edge.target) == ("n0", add) else edge
        for edge in net.edges
    )
    drawn = fold(dataclasses.replace(net, edges=edges), 2)
    assert [edge.reason for edge in drawn.edges if edge.source == "n0"] == [None, Reason.DETACH]


# ---------------------------------------------------------------------------------------------------- rolling


def test_what_reads_one_layer_more_ends_the_row() -> None:
    assert titles(fold(network(12, watched={5}), 2))[1:-2] == ["h.0–h.5 ×6", "h.6–h.11 ×6"]


def test_a_loop_in_plain_code_is_rolled() -> None:
    drawn = roll(_loop(1000))
    assert titles(drawn) == ["x", "w", "mul", "add", "sum"]
    (frame,) = drawn.view.frames
    assert (frame.title, frame.repeats, len(frame.members)) == ("rnn.py:4–5", 1000, 2000)
    assert drawn.view.hidden == 1998
    assert ("w", "add") not in {(edge.source, edge.target) for edge in drawn.edges}


def test_rounds_begin_at_the_first_line_of_the_loop() -> None:
    """The first op of the first round differs, so that the rounds could also begin in the middle."""
    data = _loop(50)
    nodes = list(data.nodes)
    nodes[2] = nodes[2]._replace(op="div")
    drawn = roll(dataclasses.replace(data, nodes=tuple(nodes)))
    (frame,) = drawn.view.frames
    assert titles(drawn) == ["x", "w", "div", "add", "mul", "add", "sum"]
    assert [drawn.by_id[identity].op for identity in frame.nodes] == ["mul", "add"]
    assert frame.repeats == 49


def test_a_few_equal_ops_are_no_loop() -> None:
    assert roll(_loop(2)).view.frames == ()


def _loop(rounds: int) -> GraphData:
    """``x = x * w + 1`` so many times, and a sum."""
    lines = [Location("rnn.py", line, "", "run") for line in (4, 5)]
    nodes = [leaf("n0", "x"), leaf("n1", "w")]
    edges = []
    for number in range(rounds):
        mul, add, before = f"n{2 * number + 2}", f"n{2 * number + 3}", nodes[-1].id if number else "n0"
        nodes += [op(mul, "mul", "M", location=lines[0]), op(add, "add", "A", location=lines[1])]
        edges += [flow(before, mul), flow("n1", mul, 1), flow(mul, add)]
    last = 2 * rounds + 2
    nodes += [op(f"n{last}", "sum", "S", tensor(())), output(f"n{last + 1}", "y")]
    edges += [flow(f"n{last - 1}", f"n{last}"), flow(f"n{last}", f"n{last + 1}")]
    return graph(nodes, edges, recorded=True)


def test_leaves_of_their_own_are_part_of_a_round() -> None:
    """Each round reads a leaf of its own in two ops; it stands in the round, and what all share stands outside."""
    nodes, edges = [leaf("n0", "h0", role=Role.INPUT), leaf("n1", "w", role=Role.PARAMETER)], []
    before = "n0"
    for number in range(20):
        x, mul, add = (f"n{3 * number + place}" for place in (2, 3, 4))
        nodes += [leaf(x, f"x[{number}]", role=Role.INPUT), op(mul, "mul", "M"), op(add, "add", "A")]
        edges += [flow(x, mul), flow("n1", mul, 1), flow(mul, add), flow(x, add, 1), flow(before, add, 2)]
        before = add
    nodes.append(output("n62", "y"))
    drawn = roll(graph(nodes, [*edges, flow(before, "n62")], recorded=True))
    (frame,) = drawn.view.frames
    assert frame.nodes == ("n2", "n3", "n4")
    assert set(titles(drawn)) == {"h0", "w", "x[0]", "mul", "add"}


# -------------------------------------------------------------------------------------------------- inference


def test_a_walk_is_folded_as_a_recording_is() -> None:
    """What reads no parameter belongs to the block that it ends; a frozen layer is the one between its neighbours."""
    for frozen in (set[int](), {7}):
        recorded, walked = network(12, frozen=frozen), network(12, frozen=frozen, recorded=False)
        assert titles(fold(walked, 2)) == titles(fold(recorded, 2))
        assert [(g.title, g.ops, g.frozen) for g in fold(walked, 2).view.groups.values()] == [
            (g.title, g.ops, g.frozen) for g in fold(recorded, 2).view.groups.values()
        ]
        assert any("record() knows it exactly" in note for note in fold(walked, 2).view.notes)
        assert not any("record() knows it exactly" in note for note in fold(recorded, 2).view.notes)


def test_a_module_that_nobody_holds_is_drawn_where_it_ran() -> None:
    net = network(2)
    place = next(number for number, node in enumerate(net.nodes) if node.op == "relu")
    nodes = list(net.nodes)
    nodes[place] = nodes[place]._replace(module="SiLU")
    drawn = fold(dataclasses.replace(net, nodes=tuple(nodes)), 2, roll=False)
    assert groups(drawn)["h.0"].ops == 3
    assert groups(drawn)["h.0"].calls == 1


# --------------------------------------------------------------------------------------------- automatic depth


def test_a_small_graph_is_drawn_as_it_is() -> None:
    net = network(3)
    assert fold_auto(net) is net
    assert view(net) is net


def test_a_large_one_is_folded_until_it_is_easy_to_take_in() -> None:
    drawn = fold_auto(network(60))
    assert titles(drawn) == ["x", "net.h.0.fc.weight", "addmm", "relu", "add", "net.head.weight", "mm", "mean"]
    assert titles(fold_auto(network(60), roll=False))[1:-2] == [f"h.{number}" for number in range(60)]
    assert titles(fold_auto(network(200), roll=False)) == ["x", "net", "mean"], "more boxes than the limit"


def test_plain_code_is_drawn_by_lines_and_then_by_stretches() -> None:
    nodes = [leaf("n0", "x")]
    ops = [f"op{number}" for number in range(300)]
    nodes += [
        op(f"n{number + 1}", name, "B", location=Location("a.py", number // 10, "", None))
        for number, name in enumerate(ops)
    ]
    data = graph([*nodes, output("n301", "y")], [flow(f"n{n}", f"n{n + 1}") for n in range(301)], recorded=True)
    by_line = fold_auto(data)
    assert len(by_line.check().nodes) == 32
    assert titles(by_line)[1:3] == ["a.py:0", "a.py:1"]
    unplaced = dataclasses.replace(data, nodes=tuple(node._replace(location=None) for node in data.nodes))
    assert len(fold_auto(unplaced).check().nodes) == 3


def test_expanding_opens_one_path_and_leaves_the_rest() -> None:
    drawn = fold(network(12), 2, expand=["net.h.3"])
    opened = ["net.h.3.fc.weight", "addmm", "relu", "add"]
    assert titles(drawn) == ["x", "h.0–h.2 ×3", *opened, "h.4–h.11 ×8", "head", "mean"]
    assert titles(fold(network(12), 1, expand=["h.3"])) == titles(drawn), "all modules around it are open"
    assert [frame.title for frame in drawn.view.frames] == ["net", "h.3"]


def test_folding_twice_is_refused() -> None:
    drawn = fold(network(2), 1)
    with pytest.raises(InputError, match="folded already"):
        fold(drawn, 1)
    with pytest.raises(InputError, match="folded already"):
        fold_auto(drawn, 1)
    with pytest.raises(InputError, match="folded already"):
        roll(drawn)
    with pytest.raises(InputError, match="folded already"):
        hide(drawn, ["x"])


def test_json_is_the_whole_graph() -> None:
    for drawn in (fold(network(2), 1), fold(network(2), 9)):
        with pytest.raises(FormatError, match="JSON is the whole graph"):
            to_json(drawn)


# ------------------------------------------------------------------------------------------------------ parts


def test_names_are_those_of_nodes_tensors_and_modules() -> None:
    net = network(3)
    assert titles(path(net, "x", "net.h.0.fc")) == ["x", "addmm"]
    assert titles(focus(net, "net.head.weight")) == ["net.head.weight", "mm", "mean"]
    assert len(focus(net, "net.h.1").nodes) < len(net.nodes)
    assert titles(path(net, "n2", "x")) == ["x", "addmm"]


@pytest.mark.parametrize(
    ("name", "near"), [("net.h.9", "net.h.0"), ("net.hed.weight", "net.head.weight"), ("y", None), ("", None)]
)
def test_an_unknown_name_gets_the_nearest_ones(name: str, near: str | None) -> None:
    net = network(3)
    with pytest.raises(InputError, match="There is no tensor, module or node") as caught:
        focus(net, name) if name else path(net, "x", "nowhere")
    assert near is None or repr(near) in str(caught.value)


def test_an_unknown_module_cannot_be_expanded() -> None:
    with pytest.raises(InputError, match=r"There is no module 'net\.g\.1'.*'net\.h\.1'"):
        fold(network(3), 1, expand=["net.g.1"])


def test_no_path_is_told() -> None:
    net = network(1)
    with pytest.raises(InputError, match=r"No path leads from 'x' to 'net\.head\.weight', nor back"):
        path(net, "x", "net.head.weight")


def test_hiding_draws_edges_past_what_is_hidden() -> None:
    net = network(1)
    drawn = hide(net, ["relu", "parameters"]).check()
    assert titles(drawn) == ["x", "addmm", "add", "mm", "mean"]
    addmm, add = (next(node.id for node in drawn.nodes if node.op == name) for name in ("addmm", "add"))
    assert (addmm, add) in {(edge.source, edge.target) for edge in drawn.edges}
    assert drawn.view.notes == ("without relu, parameters",)
    with pytest.raises(InputError, match="Did you mean 'relu'"):
        hide(net, ["relus"])


def test_a_gradient_does_not_come_past_a_hidden_cut() -> None:
    net = network(1, detached={0})
    drawn = hide(net, ["detach", "relu"]).check()
    addmm, add = (next(node.id for node in drawn.nodes if node.op == name) for name in ("addmm", "add"))
    (edge,) = [edge for edge in drawn.edges if (edge.source, edge.target) == (addmm, add)]
    assert (edge.gradient, edge.reason) == (False, Reason.DETACH)


def test_what_is_marked_as_output_is_not_hidden() -> None:
    assert "mean" in titles(hide(network(1), ["mean", "mm"]))


def test_a_part_says_what_it_lacks() -> None:
    net = network(3)
    drawn = path(net, "net.h.1.fc", "net.h.1.act")
    assert drawn.view.missing == {drawn.nodes[0].id: 2}
    assert drawn.view.whole is net
    folded = fold(path(net, "net.h.1", "net.h.2"), 2, roll=False)
    assert folded.view.missing == {"g6": 3, "g10": 1}
    assert groups(folded)["h.1"].gradient is Gradient.PASSES, "to what is left out"


def test_a_budget_is_kept_and_counted() -> None:
    drawn = truncate(network(5), 4).check()
    assert titles(drawn) == ["add", "mm", "mean"]
    assert drawn.view.notes == ("only the 4 boxes nearest to the result",)
    assert truncate(drawn, 9) is drawn


# ------------------------------------------------------------------------------------------------- one record


def test_one_record_says_it_all() -> None:
    net = network(12)
    options = ViewOptions(depth=2, focus="net.h.4.fc.weight", hide=("relu",), expand=("net.h.9",))
    drawn = view(net, options).check()
    assert {"h.4", "h.5–h.8 ×4", "h.10–h.11 ×2"} <= set(titles(drawn))
    assert "relu" not in titles(drawn)
    assert drawn.view.notes[:2] == ("only what net.h.4.fc.weight has to do with", "without relu")
    assert drawn.view.whole is net
    assert drawn.view.hidden + sum(node.kind is not Kind.GROUP for node in drawn.nodes) == len(net.nodes)


def test_a_flat_drawing_that_is_too_large_is_folded_and_says_so() -> None:
    net = network(12)
    with pytest.warns(FoldedInsteadWarning, match="53 boxes are too many for one picture: folded instead"):
        drawn = view(net, ViewOptions(depth="full"), flat_limit=20)
    assert "53 boxes are too many for one picture: folded instead (--force draws them all)" in drawn.view.notes
    assert view(net, ViewOptions(depth="full", force=True), flat_limit=20) is net
    assert view(net, ViewOptions(depth="full"), flat_limit=None) is net
    assert FLAT_LIMIT == 5_000


def test_what_leads_to_no_root_is_left_out_unless_asked_for() -> None:
    net = network(3)
    first = len(net.nodes)
    extra = [leaf(f"n{first}", "z", reached=False)]
    extra += [op(f"n{first + number}", "exp", None) for number in range(1, 16)]
    edges = [cut(one.id, other.id, None) for one, other in pairwise(extra)]
    data = dataclasses.replace(net, nodes=(*net.nodes, *extra), edges=(*net.edges, *edges)).check()
    assert "z" not in titles(view(data))
    assert titles(view(data, ViewOptions(focus="z")))[0] == "z"


def test_an_edge_that_stands_for_others_in_each_round_counts_them() -> None:
    """Each round reads another output of one op: what is drawn is no edge from its first output."""
    nodes = [leaf("n0", "x"), op("n1", "unbind", "U", *(tensor((2,)) for _ in range(12)))]
    edges = [flow("n0", "n1")]
    for number in range(12):
        mul, add = f"n{2 * number + 2}", f"n{2 * number + 3}"
        nodes += [op(mul, "mul", "M"), op(add, "add", "A")]
        edges += [flow("n1", mul, 0, number), flow(mul, add), flow(f"n{2 * number + 1}" if number else "n0", add, 1)]
    data = graph([*nodes, output("n26", "y")], [*edges, flow("n25", "n26")], recorded=True)
    drawn = roll(data).check()
    (edge,) = [edge for edge in drawn.edges if edge.source == "n1"]
    assert (drawn.view.bundles[edge].edges, drawn.view.bundles[edge].tensors) == (12, 12)
    assert edge_words(edge, drawn) == ("×12",)
