"""What nodes and edges say: one place for all renderers, so it is tested once."""

from __future__ import annotations

import itertools
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphscope.model import (
    Edge,
    Gradient,
    Group,
    Kind,
    Location,
    Node,
    Reason,
    Role,
    SavedTensor,
    State,
    Storage,
    TensorInfo,
    View,
)
from graphscope.render.palette import PALETTES, Theme
from graphscope.style import (
    EDGE_MEANINGS,
    FORMS,
    GLYPHS,
    MEANINGS,
    ODD_NODES,
    REASON_WORDS,
    EdgeLook,
    Look,
    describe,
    details_of,
    edge_look,
    edge_words,
    elide,
    look_of,
    node_note,
    stub_slots,
    tensor_words,
    title_of,
    visible,
)
from tests.unit import graphs
from tests.unit.graphs import flow, graph, leaf, op, output, tensor

LOOKS = [
    (leaf("n0", "w", role=Role.PARAMETER), Look.TRAINABLE),
    (leaf("n0", "x", role=Role.INPUT), Look.TRAINABLE),
    (leaf("n0", "w", role=Role.PARAMETER, reached=False), Look.UNREACHED),
    (leaf("n0", "w", role=Role.PARAMETER, requires_grad=False), Look.FROZEN),
    (leaf("n0", "x", role=Role.INPUT, requires_grad=False), Look.CONSTANT),
    (leaf("n0", "b", role=Role.BUFFER, requires_grad=False), Look.CONSTANT),
    (leaf("n0", None, requires_grad=False), Look.CONSTANT),
    (op("n0", "add", "AddBackward0"), Look.TRACKED),
    (op("n0", "add", "AddBackward0", reached=False), Look.DEAD),
    (op("n0", "add", None), Look.UNTRACKED),
    (op("n0", None, "CompiledFunctionBackward"), Look.TRACKED),
    (output("n0", "loss"), Look.OUTPUT),
    (Node("n0", Kind.GROUP, module="encoder"), Look.GROUP),
]
GROUP = Group("encoder", ("n0", "n1"), ops=2, tensors=1, trainable=4, gradient=Gradient.PASSES)
GROUP_LOOKS = [
    (GROUP, Look.GROUP),
    (GROUP._replace(gradient=Gradient.ENTERS, frozen=3), Look.GROUP),
    (GROUP._replace(trainable=0, frozen=4), Look.FROZEN_GROUP),
    (GROUP._replace(trainable=0, frozen=4, gradient=Gradient.NONE), Look.FROZEN_GROUP),
    (GROUP._replace(gradient=Gradient.NONE), Look.SILENT_GROUP),
    (GROUP._replace(unreached=1), Look.CUT_GROUP),
    (GROUP._replace(cuts=((Reason.DETACH, 1),)), Look.CUT_GROUP),
    (GROUP._replace(ops=0), Look.TRAINABLE),
    (GROUP._replace(ops=0, unreached=1), Look.UNREACHED),
    (GROUP._replace(ops=0, trainable=0, frozen=4), Look.FROZEN),
]


@pytest.mark.parametrize(("node", "look"), LOOKS)
def test_look(node: Node, look: Look) -> None:
    assert look_of(node) is look


@pytest.mark.parametrize(("group", "look"), GROUP_LOOKS)
def test_look_of_a_folded_box(group: Group, look: Look) -> None:
    assert look_of(Node("g0", Kind.GROUP), View(groups={"g0": group})) is look


def test_every_look_has_a_mark_a_meaning_and_a_form_of_its_own() -> None:
    assert {look for _, look in (*LOOKS, *GROUP_LOOKS)} == set(Look)
    assert set(GLYPHS) == set(MEANINGS) == set(FORMS) == set(Look)
    assert len({(FORMS[look], GLYPHS[look]) for look in Look}) == len(set(MEANINGS.values())) == len(Look)
    assert set(EDGE_MEANINGS) == set(EdgeLook)
    assert set(REASON_WORDS) == set(Reason)


def luminance(colour: str) -> float:
    """Relative luminance of ``#RRGGBB`` (WCAG 2.2)."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", Theme)
def test_text_stands_out_from_every_ground(theme: Theme) -> None:
    palette = PALETTES[theme]
    grounds = [palette.background, palette.region]
    pairs = [(text, ground) for text in (palette.text, palette.muted, palette.alarm) for ground in grounds]
    pairs += [(text, look.fill) for look in palette.looks.values() for text in (look.text, look.muted)]
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}
    assert set(palette.looks) == set(Look)
    assert set(palette.edges) == set(EdgeLook)


@pytest.mark.parametrize("theme", Theme)
def test_lines_stand_out_from_the_ground(theme: Theme) -> None:
    """Lines carry meaning, so WCAG 1.4.11 asks for 3 to 1."""
    palette = PALETTES[theme]
    lines = [look.line for look in palette.looks.values()] + list(palette.edges.values())
    assert {line: contrast(line, palette.background) for line in lines if contrast(line, palette.background) < 3} == {}


def seen_by(colour: str, kind: str) -> tuple[float, ...]:
    """Linear RGB as a dichromat sees it (Viénot, Brettel and Mollon 1999), for protanopia and deuteranopia."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    matrix = {
        "protan": ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1)),
        "deutan": ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1)),
    }[kind]
    return tuple(row[0] * red + row[1] * green + row[2] * blue for row in matrix)


@pytest.mark.parametrize("theme", Theme)
@pytest.mark.parametrize("kind", ["protan", "deutan"])
def test_lines_of_neighbouring_parts_differ_for_colour_blind_eyes(theme: Theme, kind: str) -> None:
    looks = PALETTES[theme].looks
    told_apart = (Look.TRAINABLE, Look.UNREACHED, Look.FROZEN, Look.CONSTANT, Look.TRACKED)
    for one, other in itertools.combinations(told_apart, 2):
        pairs = [(seen_by(looks[one].fill, kind), seen_by(looks[other].fill, kind))]
        pairs += [(seen_by(looks[one].line, kind), seen_by(looks[other].line, kind))]
        distance = max(sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) ** 0.5 for pair in pairs)
        assert distance > 0.05, (one, other, distance)


@given(st.text())
def test_visible_text_can_be_seen_encoded_and_put_into_xml(text: str) -> None:
    shown = visible(text)
    assert shown.strip()
    shown.encode("utf-8")
    assert not any(ord(character) < 32 or character in "\x7f\u2028\u2029\u202e\ufffe\uffff" for character in shown)


@given(st.text(alphabet=string.ascii_letters + string.punctuation, min_size=1))
def test_visible_text_is_as_typed(text: str) -> None:
    assert visible(text) == text


def test_what_cannot_be_seen_is_written_out() -> None:
    assert visible("") == '""'
    assert visible("  ") == '"  "'
    assert visible("\u200b") == r'"\u200b"'
    assert visible("a\nb\x1b[31m") == r"a\nb\x1b[31m"
    assert visible("\ud800") == r'"\ud800"'
    assert visible("👩‍🔬") == "👩‍🔬", "a joiner inside an emoji stays"


@given(st.text(max_size=200), st.integers(min_value=8, max_value=60))
def test_elided_text_keeps_both_ends(text: str, limit: int) -> None:
    short = elide(text, limit)
    assert len(short) == min(len(text), limit)
    head, _, tail = short.partition("…") if len(text) > limit else (text, "", "")
    assert text.startswith(head)
    assert text.endswith(tail)


@pytest.mark.parametrize(
    ("node", "title"),
    [
        (op("n0", "addmm", "AddmmBackward0"), "addmm"),
        (op("n0", None, "torch::autograd::CopySlices"), "CopySlices"),
        (op("n0", "", None), '""'),
        (leaf("n0", "model.fc.weight"), "model.fc.weight"),
        (leaf("n0", None, ()), "unnamed tensor"),
        (leaf("n0", None, role=Role.PARAMETER), "unnamed parameter"),
        (output("n0", "loss"), "loss"),
        (output("n0", None), "output"),
        (Node("n0", Kind.GROUP, module="encoder.layers.0"), "encoder.layers.0"),
        (Node("n0", Kind.GROUP), "group"),
    ],
)
def test_title(node: Node, title: str) -> None:
    assert title_of(node) == title


def test_forward_op_first_backward_node_second() -> None:
    data = graphs.frozen_linear()
    node = data.by_id["n4"]
    assert title_of(node) == "addmm"
    assert details_of(node, data) == ("AddmmBackward0", "h: 4×2")


def test_a_backward_node_without_op_is_named_once() -> None:
    data = graphs.odd_nodes()
    assert details_of(data.by_id["n3"], data) == ("4×8", ODD_NODES["CopySlices"])


def test_untracked_op_says_why() -> None:
    data = graphs.no_grad_block()
    assert details_of(data.by_id["n3"], data)[0] == "not recorded: no_grad()"
    assert details_of(data.by_id["n7"], data)[0] == "no backward node"


def test_outputs_of_an_op_are_numbered() -> None:
    data = graphs.top_k()
    assert details_of(data.by_id["n1"], data)[1:] == ("output 0: best: 4×2", "output 1: places: 4×2 · int64")


def test_inputs_without_gradient_are_counted_where_no_edge_stands_for_them() -> None:
    data = graphs.addition()
    assert details_of(data.by_id["n1"], data)[-1] == "1 input without gradient"
    node = op("n2", "add", "AddBackward0", without_gradient=(0, 2))
    nodes = (leaf("n0", "x", requires_grad=False), leaf("n1", "w"), node, output("n3", None))
    edges = (graphs.cut("n0", "n2", Reason.CONSTANT, 0), flow("n1", "n2", 1), flow("n2", "n3"))
    recorded = graph(nodes, edges)
    assert stub_slots(node, recorded) == (2,)
    assert "1 input without gradient" in details_of(node, recorded)


def test_tensor_words_leave_out_the_usual() -> None:
    assert tensor_words(TensorInfo((4, 2), "float32", "cpu")) == "4×2"
    unusual = TensorInfo(None, "bfloat16", "cuda:1", layout="jagged", subclass="DTensor", is_inference=True)
    assert tensor_words(unusual) == "shape unknown · bfloat16 · cuda:1 · jagged · DTensor · inference tensor"


def test_all_names_of_a_tied_weight_are_listed() -> None:
    data = graphs.odd_nodes()
    assert details_of(data.by_id["n1"], data) == ("parameter · 50×8", "also lm_head.weight")


def test_a_root_that_backward_cannot_start_from_says_so() -> None:
    data = graphs.top_k()
    assert details_of(data.by_id["n4"], data)[-1] == "requires_grad=False: backward cannot start here"
    assert details_of(data.by_id["n3"], data) == ("output · scalar",)


SHOWN = op(
    "n1",
    "mul",
    "MulBackward0",
    tensor((4, 2))._replace(version=3),
    hooks=2,
    location=Location("train.py", 7, "y = x * x"),
    saved=(
        SavedTensor("self", State.LIVE, (4, 2), "float32", 32, "s0", modified=True),
        SavedTensor("other", State.FREED),
        SavedTensor("mask", State.CHECKPOINTED, (4,)),
    ),
)


@pytest.mark.parametrize(
    ("word", "lines"),
    [
        ("hooks", ("2 hooks",)),
        ("versions", ("version 3",)),
        ("source", ("train.py:7", "y = x * x")),
        (
            "saved",
            (
                "keeps self: 4×2 · 32 B · overwritten since",
                "kept other · freed",
                "keeps mask: [4] · checkpointed: computed again in backward",
            ),
        ),
        ("accumulate", ()),
        ("no such word", ()),
    ],
)
def test_show_adds_lines(word: str, lines: tuple[str, ...]) -> None:
    nodes = (leaf("n0", "x"), SHOWN, output("n2", None))
    data = graph(nodes, (flow("n0", "n1"), flow("n1", "n2")), storages=(Storage("s0", 32),))
    usual = details_of(SHOWN, data)
    assert details_of(SHOWN, data, {word}) == (*usual, *lines)


def test_show_accumulate_tells_of_the_grad() -> None:
    node = leaf("n0", "w", retains_grad=True)
    filled = leaf("n1", "v", grad=tensor((4, 2)))
    frozen = leaf("n2", "c", requires_grad=False)
    stack = op("n3", "stack", "StackBackward0")
    data = graph(
        (node, filled, frozen, stack, output("n4", None)), [flow("n0", "n3"), flow("n1", "n3"), flow("n3", "n4")]
    )
    assert details_of(node, data, {"accumulate", "hooks"})[1:] == (
        "AccumulateGrad",
        ".grad is None",
        "retain_grad(): keeps its .grad",
    )
    assert details_of(filled, data, {"accumulate"})[1:] == ("AccumulateGrad", ".grad: 4×2")
    assert details_of(frozen, data, {"accumulate"})[1:] == ()


def test_a_storage_kept_by_two_ops_is_marked() -> None:
    saved = (SavedTensor("result", State.LIVE, (4, 2), "float32", 32, "s0"),)
    nodes = (
        leaf("n0", "x"),
        op("n1", "exp", "ExpBackward0", saved=saved),
        op("n2", "sigmoid", "SigmoidBackward0", saved=saved),
        output("n3", None),
    )
    data = graph(nodes, (flow("n0", "n1"), flow("n1", "n2"), flow("n2", "n3")), storages=(Storage("s0", 32),))
    assert details_of(nodes[1], data, {"saved"})[-1] == "keeps result: 4×2 · 32 B · shared as s0"


def test_a_note_of_the_node_comes_before_the_table() -> None:
    assert node_note(op("n0", None, "CompiledFunctionBackward")) == ODD_NODES["CompiledFunctionBackward"]
    assert node_note(op("n0", None, "CompiledFunctionBackward", note="seen before")) == "seen before"
    assert node_note(op("n0", "add", "AddBackward0")) is None
    assert node_note(op("n0", "add", None)) is None


def test_edge_looks() -> None:
    data = graphs.no_grad_block()
    looks = {(edge.source, edge.target): edge_look(edge, data) for edge in data.edges}
    assert looks["n2", "n5"] is EdgeLook.FLOWS
    assert looks["n5", "n6"] is EdgeLook.DEAD
    assert looks["n6", "n7"] is EdgeLook.CUT


def test_edge_words() -> None:
    data = graphs.no_grad_block()
    words = {(edge.source, edge.target): edge_words(edge, data) for edge in data.edges}
    assert words["n6", "n7"] == ("detach() cut here",)
    assert words["n8", "n9"] == words["n3", "n4"] == ()
    linear = graphs.frozen_linear()
    arguments = {edge.source: edge_words(edge, linear) for edge in linear.edges if edge.target == "n4"}
    assert arguments == {"n2": (), "n0": ("mat1", "needs no gradient"), "n3": ("mat2",)}
    top_k = graphs.top_k()
    assert edge_words(top_k.edges[1], top_k) == ("output 0",)
    assert edge_words(Edge("n1", 1, "n4", 0, gradient=False), top_k) == ("output 1",)


def test_description_counts_everything_and_names_the_roots() -> None:
    data = graphs.no_grad_block()
    assert describe(data) == (
        "10 nodes: 1 leaf that gets a gradient, 1 trainable leaf that gets none, 1 leaf without gradient, "
        "2 recorded operations, 1 recorded operation that backward does not reach, 3 operations that were not "
        "recorded, 1 root. Computes loss."
    )
    nodes = (leaf("n0", "x"), *(output(f"n{number}", f"y{number}", (4, 2)) for number in range(1, 6)))
    many = graph(nodes, [flow("n0", node.id) for node in nodes[1:]], view=View(hidden=3))
    assert describe(many).endswith("5 roots. Computes y1, y2, y3, …. 3 nodes not drawn.")


def test_very_many_outputs_are_told_by_stretches() -> None:
    shapes = [tensor((2, 4)) for _ in range(1000)]
    node = op("n0", "unbind", "UnbindBackward0", *shapes[:400], tensor((2, 4), "h"), *shapes[401:], reached=False)
    lines = details_of(node, graph([node], []))
    assert lines == ("UnbindBackward0", "outputs 0–399: 2×4", "output 400: h: 2×4", "outputs 401–999: 2×4")
    few = op("n0", "split", "SplitBackward0", *shapes[:6], reached=False)
    assert len(details_of(few, graph([few], []))) == 7
