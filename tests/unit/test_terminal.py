"""The terminal renderer: golden texts, widths in cells, and that every node is shown exactly once.

``UPDATE_GOLDEN=1 pytest tests/unit/test_terminal.py`` writes the golden files anew: read the difference.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from graphscope.model import Edge, GraphData, Kind, Location, Node, Reason, Role, SavedTensor, State, Storage, View
from graphscope.render.terminal import TerminalOptions, render, renderable, to_text
from graphscope.render.terminal_lines import NODE_LIMIT
from graphscope.render.terminal_summary import depth_of, summarize
from graphscope.render.terminal_text import cells, elide_cells, fitted
from graphscope.render.terminal_tree import plan
from graphscope.style import GLYPHS, Look
from tests.strategies import graphs as any_graph
from tests.unit import graphs
from tests.unit.graphs import cut, flow, graph, leaf, op, output, tensor

GOLDEN = Path(__file__).parent.parent / "golden" / "terminal"
ROOT = Path(__file__).parent.parent.parent
ENCODINGS = ("utf-8", "ascii", "latin-1", "cp437", "gbk", "no-such-codec")
TRAINABLE = GLYPHS[Look.TRAINABLE]
_mark = re.compile(rf"^[│├╰─╌┈┊⋯ ]*[{''.join(GLYPHS.values())}] (n\d+) ")


def residual(blocks: int) -> GraphData:
    """``x = x + relu(x * weight)``, again and again."""
    nodes: list[Node] = [leaf("n0", "x")]
    edges: list[Edge] = []
    last = "n0"
    for block in range(blocks):
        weight, mul, relu, add = (f"n{4 * block + number}" for number in range(1, 5))
        nodes += [leaf(weight, f"block.{block}.weight", role=Role.PARAMETER), op(mul, "mul", "MulBackward0")]
        nodes += [op(relu, "relu", "ReluBackward0"), op(add, "add", "AddBackward0")]
        edges += [flow(last, mul), flow(weight, mul, 1), flow(mul, relu), flow(last, add), flow(relu, add, 1)]
        last = add
    mark = f"n{4 * blocks + 1}"
    return graph([*nodes, output(mark, "y")], [*edges, flow(last, mark)])


def binary_tree(levels: int) -> GraphData:
    """Sums of sums: every op is a fork."""
    nodes: list[Node] = [op(f"n{number}", "exp", "ExpBackward0") for number in range(2**levels)]
    edges: list[Edge] = []
    level = [node.id for node in nodes]
    while len(level) > 1:
        above = []
        for left, right in zip(level[::2], level[1::2], strict=True):
            nodes.append(op(f"n{len(nodes)}", "add", "AddBackward0"))
            edges += [flow(left, nodes[-1].id), flow(right, nodes[-1].id, 1)]
            above.append(nodes[-1].id)
        level = above
    mark = output(f"n{len(nodes)}", "total")
    return graph([*nodes, mark], [*edges, flow(level[0], mark.id)])


def fan_in(count: int) -> GraphData:
    """One op that stacks ``count`` leaves."""
    leaves = [leaf(f"n{number}", f"x{number}") for number in range(count)]
    stack, mark = f"n{count}", f"n{count + 1}"
    edges = [flow(node.id, stack, slot) for slot, node in enumerate(leaves)]
    return graph([*leaves, op(stack, "stack", "StackBackward0"), output(mark, "y")], [*edges, flow(stack, mark)])


def wide_names() -> GraphData:
    """Long names, of wide and of combined characters."""
    names = (
        "encoder." * 40 + "weight",
        "权重" * 60,
        "👩‍🔬" * 40,
        "e\u0301" * 90,
        "two words " * 30,
        "\uff57\uff49\uff44\uff45",
    )
    return graphs.hostile(names)


def training_step() -> GraphData:
    """A detached copy that is longer than the gradient's way, a logged value, unused and tied parameters."""
    here = Location("train.py", 7, "loss = (y * keep).sum()")
    kept = SavedTensor("self", State.LIVE, (4, 2), "float32", 32, "s0")
    nodes = (
        leaf("n0", "x", role=Role.INPUT),
        op("n1", "mul", "MulBackward0", tensor((4, 2), "y"), saved=(kept, kept._replace(name="other", storage="s1"))),
        op("n2", "detach", None, tensor((4, 2), requires_grad=False)),
        op("n3", "exp", None, tensor((4, 2), "keep", requires_grad=False)),
        op("n4", "mul", "MulBackward0", saved=(kept._replace(modified=True),), location=here),
        op("n5", "sum", "SumBackward0", tensor((), "loss"), saved=(SavedTensor("self", State.FREED),)),
        output("n6", "loss"),
        op("n7", "item", None, tensor((), requires_grad=False)),
        leaf("n8", "unused.weight", (3, 5), role=Role.PARAMETER, reached=False),
        leaf("n9", "unused.bias", (3,), role=Role.PARAMETER, requires_grad=False),
    )
    edges = (
        flow("n0", "n1"),
        flow("n0", "n1", 1),
        cut("n1", "n2", Reason.DETACH),
        cut("n2", "n3", None),
        flow("n1", "n4"),
        cut("n3", "n4", None, 1, "other"),
        flow("n4", "n5"),
        flow("n5", "n6"),
        cut("n5", "n7", Reason.LEFT_PYTORCH),
    )
    facts = {"storages": (Storage("s0", 32), Storage("s1", 128, parameter=True)), "notices": ("Read the manual.",)}
    return graph(nodes, edges, recorded=True, view=View(3, ("equal blocks are drawn once",)), **facts)


SAMPLES = {**graphs.SAMPLES, "training_step": training_step, "residual": lambda: residual(3), "wide_names": wide_names}
LARGE = {
    "chain": lambda: graphs.chain(20_000),
    "diamond": lambda: graphs.square_diamond(60),
    "fan_in": lambda: fan_in(1_000),
    "residual": lambda: residual(5_000),
    "binary_tree": lambda: binary_tree(12),
}


def lines_of(data: GraphData, **options: object) -> list[str]:
    return render(data, TerminalOptions(**options)).splitlines()  # type: ignore[arg-type]


def shown(text: str) -> list[str]:
    """Ids of the nodes that stand behind their own mark."""
    return [match[1] for line in text.splitlines() if (match := _mark.match(line))]


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SAMPLES)
def test_text_as_agreed(name: str) -> None:
    check_golden(name, render(SAMPLES[name](), TerminalOptions()))


def test_text_in_ascii_as_agreed() -> None:
    check_golden("no_grad_block_ascii", render(graphs.no_grad_block(), TerminalOptions(encoding="ascii")))


def test_wide_text_with_everything_as_agreed() -> None:
    show = ("saved", "hooks", "versions", "accumulate", "source")
    check_golden("training_step_200", render(training_step(), TerminalOptions(width=200, show=show)))


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_wider_than_asked(name: str, width: int) -> None:
    for encoding in ENCODINGS:
        lines = lines_of(SAMPLES[name](), width=width, encoding=encoding, show=("saved", "source"))
        assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("name", LARGE)
def test_large_graphs_stay_narrow_and_complete(name: str) -> None:
    data = LARGE[name]()
    text = to_text(data)
    assert Counter(shown(text)) == Counter(node.id for node in data.nodes)
    assert max(map(cells, text.splitlines())) <= 100
    assert max(len(row.rail) for row in plan(data).rows) <= 2 * 14


@settings(max_examples=60)
@given(any_graph())
def test_any_graph_has_each_node_once_and_fits(data: GraphData) -> None:
    rows = plan(data).rows
    assert sorted(row.node.id for row in rows if not row.reference) == sorted(node.id for node in data.nodes)
    assert sum(len(row.uses) for row in rows) == len(data.edges)
    for encoding in ("utf-8", "ascii"):
        text = render(
            data, TerminalOptions(width=60, show=("saved", "hooks", "accumulate", "source"), encoding=encoding)
        )
        assert max(map(cell_len, text.splitlines())) <= 60
        assert all(character.isprintable() or character in "\n\u200d" or ord(character) > 0x9F for character in text)
        text.encode(encoding)


def test_every_node_stands_behind_its_mark_once() -> None:
    for make in SAMPLES.values():
        data = make()
        assert sorted(shown(to_text(data))) == sorted(node.id for node in data.nodes)


def test_chain_goes_straight_down() -> None:
    rows = plan(graphs.chain(300)).rows
    assert {row.rail for row in rows} == {""}
    assert [row.node.id for row in rows] == [f"n{number}" for number in range(301, -1, -1)]


def test_residual_network_is_one_line_with_references_down() -> None:
    data = residual(40)
    rows = plan(data).rows
    assert max(len(row.rail) for row in rows) <= 2
    references = [row.node.id for row in rows if row.reference]
    assert references == [f"n{4 * block}" for block in range(39, 0, -1)] + ["n0"]
    text = render(data, TerminalOptions(limit=None))
    assert text.count(", below") == 39
    assert text.count(", above") == 1


def test_small_fork_is_a_tree_in_slot_order() -> None:
    rows = plan(binary_tree(2)).rows
    assert [row.rail + row.branch + row.node.id for row in rows] == [
        "n7",
        "n6",
        "├─n4",
        "│ ├─n0",
        "│ ╰─n1",
        "╰─n5",
        "  ├─n2",
        "  ╰─n3",
    ]


def test_parallel_edges_are_counted() -> None:
    text = to_text(graphs.square_diamond(1))
    assert f"╰─{TRAINABLE} n0 z  ×2" in text
    assert "×2 read twice by the op above" in text
    assert "×2" not in to_text(graphs.addition())


def test_same_source_in_two_ways_is_two_lines() -> None:
    nodes = (leaf("n0", "x"), op("n1", "where", "WhereBackward0"), output("n2", "y"))
    data = graph(nodes, (flow("n0", "n1"), cut("n0", "n1", Reason.NON_DIFFERENTIABLE, 1), flow("n1", "n2")))
    text = to_text(data)
    assert f"├─{TRAINABLE} n0 x" in text
    assert "╰╌↑ n0 x, above  (not differentiable)" in text


def test_cut_in_a_column_is_dashed_with_its_reason() -> None:
    lines = lines_of(graphs.no_grad_block())
    place = lines.index("  ┊ (detach() cut here)")
    assert "n7 detach" in lines[place - 1]
    assert lines[place + 1].startswith(f"  {GLYPHS[Look.DEAD]} n6 relu")


def test_logged_value_does_not_pull_the_loss_aside() -> None:
    lines = lines_of(training_step())
    aside = lines.index("No output depends on:")
    assert any("n5 sum" in line for line in lines[:aside])
    assert "╰╌↑ n5 sum, above  (left PyTorch: numpy, item, tolist)" in lines[aside:]
    assert any("unused.weight" in line for line in lines[aside:])


def test_trees_are_set_apart_and_lists_are_not() -> None:
    lines = lines_of(graphs.top_k(), legend=False, summary=False)
    assert lines[lines.index("") + 1].startswith(f"{GLYPHS[Look.OUTPUT]} n4 places")
    spare = [leaf(f"n{number}", f"spare{number}", reached=False) for number in range(2, 5)]
    data = graph((leaf("n0", "x"), output("n1", "x"), *spare), (flow("n0", "n1"),))
    lines = lines_of(data, legend=False, summary=False)
    mark = GLYPHS[Look.UNREACHED]
    assert lines[-4:] == [
        "Not reached from any output:",
        *(f"{mark} n{number} spare{number}  4×2" for number in range(2, 5)),
    ]
    assert lines[-5] == ""


def test_limit_counts_what_it_leaves_out() -> None:
    text = render(graphs.chain(5_000), TerminalOptions())
    ids = shown(text)
    assert len(ids) == NODE_LIMIT
    assert ids[0] == "n5001"
    assert ids[-1] == "n0"
    assert "… 4,802 more nodes not shown (--depth full shows all)" in text
    assert "not shown" not in render(graphs.chain(198), TerminalOptions())
    assert len(shown(render(graphs.chain(5_000), TerminalOptions(limit=None)))) == 5_002


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_limit_shows_at_least_both_ends(limit: int) -> None:
    ids = shown(render(graphs.chain(100), TerminalOptions(limit=limit)))
    assert len(ids) == max(limit, 2)
    assert (ids[0], ids[-1]) == ("n101", "n0")


def test_reference_into_the_gap_says_so() -> None:
    text = render(residual(40), TerminalOptions(limit=8))
    assert re.search(r"├─… n\d+ add, not shown", text)


def test_a_folded_box_is_drawn() -> None:
    box = Node("n1", Kind.GROUP, (tensor(),), reached=True, module="encoder")
    nodes = (leaf("n0", "x"), box, op("n2", "relu", "ReluBackward0"), output("n3", "y"))
    edges = (flow("n0", "n1"), flow("n1", "n2"), flow("n2", "n3"))
    text = to_text(GraphData(nodes=nodes, edges=edges, roots=("n3",), torch="2.13.0"))
    assert sorted(shown(text)) == ["n0", "n1", "n2", "n3"]
    assert f"{GLYPHS[Look.GROUP]} n1 encoder" in text


def test_empty_graph_is_a_text() -> None:
    lines = lines_of(GraphData(nodes=(), edges=(), roots=(), torch="2.13.0"))
    assert lines == ["", "", "nodes  0", "depth  0 ops on the longest way from a leaf to an output"]


def test_marks_differ_in_every_encoding() -> None:
    for encoding in ENCODINGS:
        marks = {fitted(GLYPHS[look], encoding) for look in Look}
        assert len(marks) == len(Look)
        assert {len(mark) for mark in marks} == {1}
        strokes = {fitted(stroke, encoding) for stroke in "─┈╌"}
        assert len(strokes) == 3


@pytest.mark.parametrize("encoding", ENCODINGS[:-1])
def test_stream_can_write_every_name(encoding: str) -> None:
    text = render(graphs.hostile(), TerminalOptions(encoding=encoding))
    assert text.encode(encoding).decode(encoding) == text


def test_hostile_names_stand_as_typed() -> None:
    text = render(graphs.hostile(), TerminalOptions(width=500))
    for name in ('a"b', "<b>&amp;", "{|}", r"\n", "🙂 emoji 👩‍🔬", "权重.矩阵", '""', " lead and  two "):
        assert f" {name}  [2]" in text
    assert r"a\tb\nc\x00\x1b[31m" in text
    assert "\x1b" not in text


def rich_text(data: GraphData, **options: object) -> str:
    stream = io.StringIO()
    environment = {"TERM": "xterm-256color", "COLUMNS": "90"}
    console = Console(file=stream, width=90, _environ=environment, **options)  # type: ignore[arg-type]
    console.print(renderable(data, TerminalOptions()))
    return stream.getvalue()


def without_ansi(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def test_rich_shows_markup_in_names_as_typed() -> None:
    data = graphs.hostile(("[red]danger[/red]", "[/]", ":smile:", "\x1b[31mred", "https://example.org"))
    for text in (rich_text(data), without_ansi(rich_text(data, force_terminal=True))):
        for name in ("[red]danger[/red]", "[/]", ":smile:", r"\x1b[31mred", "https://example.org"):
            assert f" {name}  " in text


def test_colour_adds_nothing_but_colour() -> None:
    for make in SAMPLES.values():
        plain = render(make(), TerminalOptions(width=90))
        coloured = render(make(), TerminalOptions(width=90, color=True))
        assert "\x1b[" not in plain
        assert "38;5;" in coloured
        assert without_ansi(coloured) == plain
        assert without_ansi(rich_text(make(), force_terminal=True)) == plain


def test_pipe_and_no_color_have_no_colours() -> None:
    data = graphs.no_grad_block()
    assert "\x1b" not in rich_text(data)
    bare = rich_text(data, force_terminal=True, no_color=True)
    assert not re.search(r"\x1b\[[\d;]*\b(3\d|38;5;\d+)m", bare)
    assert without_ansi(bare) == rich_text(data)


def test_console_that_writes_ascii_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Console(file=stream, width=80).print(renderable(graphs.hostile(), TerminalOptions()))
    stream.flush()
    assert b"|-* n10 \\u6743\\u91cd.\\u77e9\\u9635" in raw.getvalue()


def test_fits_into_other_rich_layouts() -> None:
    from rich.panel import Panel

    stream = io.StringIO()
    Console(file=stream, width=70).print(Panel(renderable(graphs.frozen_linear(), TerminalOptions())))
    assert max(map(cell_len, stream.getvalue().splitlines())) <= 70


def test_legend_has_only_marks_in_use() -> None:
    legend = lines_of(graphs.addition(), summary=False)[4:]
    assert [line[0] for line in legend] == [GLYPHS[Look.TRAINABLE], GLYPHS[Look.TRACKED], GLYPHS[Look.OUTPUT], "─"]
    wide = lines_of(graphs.addition(), summary=False, width=200)[4:]
    assert len(wide) == 2
    assert not any("leaf, requires_grad" in line for line in lines_of(graphs.addition(), legend=False))


def test_saved_tensors_are_listed_when_asked_for() -> None:
    assert "keeps" not in to_text(graphs.frozen_linear())
    assert "keeps mat1: 4×5 · 80 B" in render(graphs.frozen_linear(), TerminalOptions(show=("saved",)))


def facts_of(data: GraphData) -> dict[str, str]:
    return {fact.label: fact.text for fact in summarize(data)}


def test_summary_counts() -> None:
    facts = facts_of(training_step())
    assert facts == {
        "nodes": "10: 6 ops, 3 leaves, 1 output",
        "depth": "5 ops on the longest way from a leaf to an output",
        "ops": "3 recorded by autograd, 3 not recorded",
        "leaves": "1 trainable, 1 trainable but not reached, 1 frozen (2 parameters, 1 input)",
        "parameters": "18 elements: 15 trainable, 3 frozen",
        "saved": "32 B in 1 storage kept for backward; 128 B more are parameters or buffers",
        "saved tensors": "1 freed by a backward, 1 overwritten since (of 4)",
        "not reached": "1: unused.weight",
        "notice": "Read the manual.",
        "hidden": "3 nodes of the whole graph",
        "view": "equal blocks are drawn once",
    }


def test_summary_of_unknown_and_many() -> None:
    spare = [leaf(f"n{number}", f"p{number}", role=Role.PARAMETER, reached=False) for number in range(2, 22)]
    unknown = spare[0]._replace(outputs=(spare[0].outputs[0]._replace(shape=("s0", 4)),))
    data = graph((leaf("n0", "x"), output("n1", "x"), unknown, *spare[1:]), (flow("n0", "n1"),))
    facts = facts_of(data)
    assert facts["parameters"] == "152 elements: 152 trainable, 0 frozen, 1 of unknown size"
    assert facts["not reached"] == "20: p2, p3, p4, p5, p6, p7, p8, p9 … and 12 more"


def test_depth_is_the_longest_way() -> None:
    assert depth_of(graphs.chain(20_000)) == 20_000
    assert depth_of(residual(5)) == 15
    assert depth_of(binary_tree(3)) == 4


@given(st.text(max_size=60), st.integers(1, 30))
def test_elided_text_fits(text: str, width: int) -> None:
    short = elide_cells(text, width)
    assert cell_len(short) <= width
    assert short == text or "…" in short


def test_same_text_in_every_process() -> None:
    code = (
        "import sys; sys.stdout.reconfigure(encoding='utf-8', newline='')\n"
        "from tests.unit import graphs; from graphscope.render.terminal import to_text\n"
        "sys.stdout.write(''.join(to_text(make()) for make in graphs.SAMPLES.values()))"
    )
    texts = set()
    for seed in ("0", "1", "31337"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "COLUMNS": seed}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        texts.add(run.stdout)
    assert texts == {"".join(to_text(make()) for make in graphs.SAMPLES.values()).encode()}


def test_module_loads_neither_rich_nor_torch() -> None:
    code = "import sys, graphscope.render.terminal; assert not {'rich', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
