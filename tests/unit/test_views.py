"""What a picture leaves out or puts together, so that the computation is what is seen."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphscope
from graphscope.errors import InputError
from graphscope.model import GraphData, Kind, Reason
from graphscope.render.legend import sentences
from graphscope.render.terminal import to_text
from graphscope.style import edge_words, is_alarming
from graphscope.style.details import details_of
from graphscope.style.groups import group_lines
from graphscope.transforms import ViewOptions, focus, fold, hide, path, view
from graphscope.transforms.select import keep
from tests.unit.networks import network


def drawn_ops(data: GraphData) -> list[str]:
    return [str(node.op) for node in data.check().nodes if node.kind in {Kind.OP, Kind.GROUP}]


class Rotary(nn.Module):
    """Its constructor computes a buffer, and fills a parameter."""

    frequencies: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        frequencies = 1.0 / (10.0 ** (torch.arange(0, 8, 2).float() / 8))
        self.register_buffer("frequencies", frequencies)
        self.scale = nn.Parameter(torch.empty(4))
        with torch.no_grad():
            self.scale.copy_(torch.arange(4).float().exp().log1p())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x * self.frequencies * self.scale
        return result


def test_what_constructors_compute_is_counted_and_not_drawn() -> None:
    with graphscope.recording() as rec:
        net = Rotary()
        loss = net(torch.ones(4)).sum()
    graph = rec.graph(loss)
    assert {"pow", "reciprocal", "exp"} <= {node.op for node in graph.nodes}
    drawn = view(graph.data)
    assert drawn_ops(drawn) == ["mul", "mul", "sum"]
    assert [note for note in drawn.view.notes if note.endswith("nodes not drawn: they made what modules hold")]
    assert len(graph.nodes) == len(drawn.nodes) + drawn.view.hidden
    hidden = len(graph.nodes) - len(drawn.nodes)
    assert " ".join(sentences(drawn)).replace("\n", " ") == f"{hidden} nodes not drawn: they made what modules hold"
    folded = view(graph.data, ViewOptions(depth=1))
    assert next(iter(sentences(folded))) == f"{folded.view.hidden} nodes of the graph not drawn here, in all"
    assert folded.view.hidden > hidden


def test_what_a_constructor_takes_from_elsewhere_is_drawn() -> None:
    """A teacher's weights that follow those of another model tell something."""
    with graphscope.recording() as rec:
        student, teacher = nn.Linear(2, 2), nn.Linear(2, 2)
        with torch.no_grad():
            for mine, other in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.mul_(0.9).add_(other.mul(2).exp().log().neg() * 0.1)
        loss = teacher(torch.ones(1, 2)).sum()
    assert "exp" in drawn_ops(view(rec.graph(loss).data))


def test_steps_by_hand_are_drawn() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with graphscope.recording() as rec:
        for _ in range(2):
            loss = net(torch.ones(1, 2)).sum()
            loss.backward(retain_graph=True)
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.sub_(0.1 * parameter.grad)  # type: ignore[operator]
    assert drawn_ops(view(rec.graph(loss).data)).count("sub") == 2 * 4


def test_a_root_is_drawn_although_a_module_holds_it() -> None:
    with graphscope.recording() as rec:
        net = nn.Module()
        net.table = torch.ones(2).exp().log().exp().log().neg()
        table = net.table
    assert drawn_ops(view(rec.graph(table).data)) == ["exp", "log", "exp", "log", "neg"]


def test_layers_made_by_deepcopy_are_drawn_as_layers() -> None:
    with graphscope.recording() as rec:
        net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), 5)
        loss = net(torch.ones(1, 3, 8, requires_grad=True)).sum()
    graph = rec.graph(loss)
    assert "clone" in {node.op for node in graph.nodes if node.module is None}
    drawn = view(graph.data)
    assert [frame.repeats for frame in drawn.view.frames if frame.repeats > 1] == [5]
    assert not drawn.view.missing


def test_counters_of_batches_are_counted_and_not_drawn() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    rec = graphscope.record(net, torch.ones(3, 2))
    drawn = view(rec.graph(rec.result, names={"net": net}).data)
    assert not [node for node in drawn.nodes if "num_batches_tracked" in str(node.names)]


def test_many_equal_blocks_are_drawn_once_although_all_would_fit() -> None:
    net = network(12)
    assert len(net.nodes) < 120
    assert len(view(net).nodes) < 15
    assert view(network(3)) == network(3)


def test_what_is_focused_on_is_seen() -> None:
    """What is around it is open; at a depth that was asked for, what lies deeper stays closed."""
    net = network(60)
    frames = [frame.title for frame in view(net, ViewOptions(focus="h.4.fc")).view.frames]
    assert frames == ["net", "h.0–h.3", "h.4", "h.5–h.59"]
    assert "h.0–h.4 ×5" in drawn_ops(view(net, ViewOptions(focus="h.4.fc", depth=2)))
    between = view(net, ViewOptions(path=("h.4.fc.weight", "h.50.fc")))
    assert [frame.title for frame in between.view.frames] == ["net", "h.4", "h.5–h.49"]


def test_few_such_ops_do_not_get_in_the_way() -> None:
    class Small(nn.Module):
        table: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(2).exp())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = x * self.table
            return result

    with graphscope.recording() as rec:
        net = Small()
        loss = net(torch.ones(2, requires_grad=True)).sum()
    assert drawn_ops(view(rec.graph(loss).data)) == ["exp", "mul", "sum"]


def test_a_mask_that_takes_a_shape_cuts_nothing() -> None:
    x = torch.ones(4, requires_grad=True)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    rec = graphscope.record(net, x)
    data = rec.graph(rec.result, names={"net": net, "x": x}).data
    assert Reason.NON_DIFFERENTIABLE in {edge.reason for edge in data.edges}
    drawn = fold(data, 2).check()
    assert Reason.NON_DIFFERENTIABLE not in {edge.reason for edge in drawn.edges}
    into = [edge for edge in drawn.edges if drawn.by_id[edge.target].op == "1"]
    assert [drawn.view.bundles[edge].tensors for edge in into] == [1]


def test_rounds_tell_what_each_keeps_and_what_all_keep() -> None:
    cell, frames = nn.LSTMCell(4, 8), torch.ones(50, 2, 4)
    with graphscope.recording() as rec:
        h = c = torch.zeros(2, 8)
        for frame in frames:
            h, c = cell(frame, (h, c))
        loss = h.sum()
    drawn = fold(rec.graph(loss).data, 1)
    node, group = next((drawn.by_id[key], group) for key, group in drawn.view.groups.items() if group.repeats > 1)
    assert group.shared_bytes == frames.nbytes, "a step keeps its frame, a view of all of them"
    assert "keeps 448 B each + 1.56 KiB shared" in list(group_lines(node, group))


def test_rounds_of_several_modules_are_called_after_them() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.LSTMCell(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = (x, x)
            for _ in range(6):
                state = self.second(self.first(state[0]).relu(), state)
            return state[0]

    net = Loop()
    rec = graphscope.record(net, torch.ones(2, 2))
    drawn = fold(rec.graph(rec.result, names={"net": net}).data, 2)
    assert [frame.title for frame in drawn.view.frames if frame.repeats > 1] == ["first, second"]


def test_a_reentrant_checkpoint_stands_in_one_box() -> None:
    x = torch.ones(2, requires_grad=True)
    rec = graphscope.record(lambda: checkpoint(torch.exp, x, use_reentrant=True).sum())
    dot = rec.graph(rec.result).to_dot().source
    assert dot.count("subgraph cluster_r") == 1
    assert "<b>a reentrant checkpoint</b>" in dot
    assert "custom_function" not in dot


def test_names_may_leave_out_what_stands_in_front() -> None:
    net = network(3)
    assert [node.id for node in focus(net, "h.1.fc").nodes] == [node.id for node in focus(net, "net.h.1.fc").nodes]
    assert path(net, "x", "h.0.fc").nodes == path(net, "x", "net.h.0.fc").nodes
    assert hide(net, ["head.weight"]).nodes == hide(net, ["net.head.weight"]).nodes
    with pytest.raises(InputError, match=r"'fc\.weight' could be net\.h\.0\.fc\.weight, net\.h\.1\.fc\.weight, net"):
        focus(net, "fc.weight")


def test_of_a_part_without_the_output_is_not_said_that_no_output_depends_on_it() -> None:
    x = torch.ones(3, requires_grad=True)
    recording = graphscope.record(lambda: (x.exp().sum(), x.log().sum()))
    graph = recording.graph(recording.result)
    ids = {node.op: node.id for node in graph.nodes if node.op}
    assert "depends on" not in str(graph.path("x", ids["exp"]).to("txt"))
    logged = keep(graph.data, {ids["log"], *(n.id for n in graph.nodes if n.op == "sum"), graph.roots[0]}, "some")
    assert "No output depends on" not in to_text(logged)
    assert "No output depends on" in to_text(dataclasses.replace(graph.data, roots=graph.roots[:1]))


def test_what_is_left_out_is_counted_once() -> None:
    x = torch.ones(3, requires_grad=True)
    data = graphscope.record(lambda: [x.exp(), x.log()]).graph().data
    (kept,) = [node.id for node in data.nodes if node.op == "exp"]
    count = f"{len(data.nodes) - 1} nodes"
    assert [*sentences(keep(data, {kept}, f"{count} not drawn: why"))] == [f"{count} not drawn: why"]
    assert [*sentences(keep(data, {kept}, "why"))] == [f"{count} of the graph not drawn here", "why"]


@pytest.mark.parametrize("depth", ["x", -1, None, 1.5])
def test_a_depth_that_is_none_is_refused(depth: object) -> None:
    graph = graphscope.walk(torch.ones(3, requires_grad=True).sum())
    with pytest.raises(InputError, match=r"is no depth\. Give a number of module levels"):
        graph.fold(depth)  # type: ignore[arg-type]


def lines_of(drawn: GraphData) -> dict[str, list[str]]:
    return {
        f"{group.title} {number}": list(group_lines(drawn.by_id[key], group))
        for number, (key, group) in enumerate(drawn.view.groups.items())
    }


def test_a_round_that_calls_a_module_twice_tells_which_calls() -> None:
    cell, head = nn.RNNCell(3, 4), nn.Linear(4, 1)
    with graphscope.recording() as rec:
        loss = torch.zeros(())
        for _ in range(5):
            h = cell(torch.ones(1, 3), cell(torch.ones(1, 3), torch.zeros(1, 4)).sin())
            loss = loss + head(h).sum()
    drawn = fold(rec.graph(loss).data, 1)
    groups = [group for group in drawn.view.groups.values() if group.calls > 1 and group.times > 1]
    cells = [(group.call, group.times, group.step) for group in groups if group.title == "cell"]
    assert len(cells) == 2
    assert all(step == 2 for _, _, step in cells)
    words = [words[0] for words in lines_of(drawn).values() if words[0].startswith("RNNCell · calls")]
    assert len(words) == 2
    assert all(", … " in line for line in words)


def test_rounds_of_modules_of_their_own_are_no_calls_of_one() -> None:
    """Each block of the net runs twice; that six of them are drawn as one makes no six calls."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4)) for _ in range(6)))
    with graphscope.recording() as rec:
        loss = net(torch.ones(2, 4)).sum() + net(torch.zeros(2, 4)).exp().sum()
    for depth in (1, 2, 3):
        for group in fold(rec.graph(loss).data, depth).view.groups.values():
            assert group.times <= group.calls <= 2
            assert group.call + (group.times - 1) * group.step <= group.calls


def test_what_all_rounds_keep_is_told_of_the_boxes_of_one_round() -> None:
    cell, frames = nn.LSTMCell(4, 8), torch.ones(50, 2, 4)
    with graphscope.recording() as rec:
        h = c = torch.zeros(2, 8)
        for number in range(50):
            h, c = cell(frames[number], (h, c))
        loss = h.sum()
    data = rec.graph(loss).data
    drawn = fold(data, 1)
    group = next(group for group in drawn.view.groups.values() if group.times == 49)
    assert (group.repeats, group.shared_bytes) == (1, frames.nbytes)
    members = [data.by_id[member] for member in group.members]
    sizes = {storage.id: storage.bytes for storage in data.storages if not storage.parameter}
    kept = {saved.storage for node in members for saved in node.saved if saved.storage in sizes}
    own = group.saved_bytes - group.shared_bytes
    assert sum(sizes[storage] for storage in kept if storage) == 49 * own + group.shared_bytes
    assert any("each + 1.56 KiB shared" in line for words in lines_of(drawn).values() for line in words)


def test_ops_are_said_to_be_in_equal_rounds_only_if_they_are() -> None:
    gru = nn.GRU(4, 4)
    rec = graphscope.record(gru, torch.ones(6, 1, 4))
    drawn = fold(rec.graph(rec.result[0], names={"gru": gru}).data, 1)
    (group,) = (group for group in drawn.view.groups.values() if group.rounds > 1)
    assert 0 < group.ops_in_rounds < group.ops
    assert group.ops_in_rounds % group.rounds == 0
    (words,) = (words for words in lines_of(drawn).values() if "equal rounds" in words[0])
    assert f"{group.ops} ops, {group.ops_in_rounds} in {group.rounds} equal rounds" in words[0]


def test_a_box_in_a_checkpoint_says_so() -> None:
    inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    outer = nn.Linear(4, 4)
    with graphscope.recording() as rec:
        loss = checkpoint(inner, outer(torch.ones(2, 4)).sin(), use_reentrant=False).sum()
    words = lines_of(fold(rec.graph(loss, names={"inner": inner, "outer": outer}).data, 1))
    (inside,) = (words[title] for title in words if title.startswith("inner"))
    (outside,) = (words[title] for title in words if title.startswith("outer"))
    assert "checkpointed: computed again in backward" in inside
    assert not any("checkpointed" in line for line in outside)


def test_of_equal_blocks_each_lacks_so_many_inputs() -> None:
    drawn = view(network(12), ViewOptions(focus="h.2.fc", depth=2))
    lines = {node.op: details_of(node, drawn) for node in drawn.nodes if node.kind is Kind.GROUP}
    (several,) = (lines[op] for op in lines if op and op.endswith("×9"))
    assert any(line.startswith("each ") and line.endswith(" not drawn") for line in several)
    for line in (line for told in lines.values() if told is not several for line in told):
        assert not (line.startswith("each ") and line.endswith(" not drawn"))


def test_what_rounds_share_is_only_told_where_the_sum_is_right() -> None:
    """Two branches read one value, and two of those another: no figure times eight is what all of them keep."""

    class Tree(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.w = nn.Linear(6, 6)
            self.branches = nn.ModuleList(Tree(depth - 1) for _ in range(2 if depth else 0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(self.w(x))
            if self.branches:
                left, right = self.branches
                y = y + left(y) * right(y)
            return y

    tree = Tree(4)
    rec = graphscope.record(tree, torch.ones(1, 6, requires_grad=True).exp())
    data = rec.graph(rec.result, names={"tree": tree}).data
    sizes = {storage.id: storage.bytes for storage in data.storages if not storage.parameter}
    for depth in range(1, 6):
        for group in fold(data, depth).view.groups.values():
            members = [data.by_id[member] for member in group.members]
            kept = {saved.storage for node in members for saved in node.saved if saved.storage in sizes}
            rounds = sum(node.kind is Kind.OP for node in members) // max(group.ops, 1)
            if group.shared_bytes:
                own = group.saved_bytes - group.shared_bytes
                assert sum(sizes[one] for one in kept if one) == rounds * own + group.shared_bytes


def test_a_round_of_one_module_and_its_frame_have_short_names() -> None:
    """The frame of the rounds is named after the module that the first round runs in; so is the frame in it."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for expert in self.experts:
                x = x + expert(x * 2)
            return x

    net = nn.Sequential(Mixture())
    rec = graphscope.record(net, torch.ones(1, 4))
    drawn = fold(rec.graph(rec.result, names={"net": net}).data, 4)
    titles = [frame.title for frame in drawn.view.frames]
    assert titles == ["net", "0", "experts.0", "experts.1–experts.5", "experts.1"]


def test_a_mask_reads_only_the_shape_of_what_it_is_for() -> None:
    x = torch.ones(3, requires_grad=True)
    rec = graphscope.record(lambda: torch.nn.functional.dropout(x.exp(), 0.5))
    data = rec.graph(rec.result).data
    told = {data.by_id[edge.target].op: (edge_words(edge, data), is_alarming(edge, data)) for edge in data.edges}
    assert told["empty_like"] == (("only its shape is read",), False)
    detached = graphscope.record(lambda: x.exp().detach() * 2)
    data = detached.graph(detached.result).data
    assert [edge_words(edge, data) for edge in data.edges if is_alarming(edge, data)] == [("detach() cut here",)]
