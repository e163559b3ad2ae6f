"""DOT text: golden files, every node and edge once, and nothing that depends on the process.

``UPDATE_GOLDEN=1 pytest tests/unit/test_dot.py`` writes the golden files anew: read the difference.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from graphscope.errors import FormatError
from graphscope.model import GraphData, Location, Reason, Region, Role, View
from graphscope.render.dot import Direction, DotOptions, to_dot
from graphscope.render.escape import to_identifier, to_label, to_tooltip
from graphscope.render.legend import LINE_LIMIT, wrap
from graphscope.render.palette import PALETTES, Theme
from graphscope.style import EDGE_MEANINGS, GLYPHS, MEANINGS, NAME_LIMIT, EdgeLook, Look
from tests.unit import graphs
from tests.unit.graphs import SAMPLES, cut, flow, graph, leaf, op, output, tensor

GOLDEN = Path(__file__).parent.parent / "golden" / "dot"
ROOT = Path(__file__).parent.parent.parent
_node = re.compile(r'^\t(n\d+) \[label=<(.*)>( class=.*)?( tooltip=".*")?\]$', re.MULTILINE)
_edge = re.compile(r"^\t(n\d+) -> (n\d+)(?: \[(.*)\])?$", re.MULTILINE)


def source(data: GraphData, **options: Any) -> str:
    return str(to_dot(data, DotOptions(**options)).source)


def line_of(text: str, node: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"\t{node} ["))


@pytest.mark.parametrize("name", SAMPLES)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.dot"
    text = source(SAMPLES[name]())
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("theme", Theme)
@pytest.mark.parametrize("rankdir", Direction)
def test_every_node_and_edge_stands_once(name: str, theme: Theme, rankdir: Direction) -> None:
    data = SAMPLES[name]()
    text = source(data, theme=theme, rankdir=rankdir)
    assert Counter(found[1] for found in _node.finditer(text)) == Counter(node.id for node in data.nodes)
    drawn = Counter((found[1], found[2]) for found in _edge.finditer(text))
    assert drawn == Counter((edge.source, edge.target) for edge in data.edges)
    assert f'rankdir={rankdir} bgcolor="{PALETTES[theme].background}"' in text


def test_parallel_edges_stay_parallel() -> None:
    assert source(graphs.square_diamond(60)).count("\tn0 -> n1\n") == 2


def test_output_is_a_graphviz_digraph() -> None:
    digraph = to_dot(graphs.addition())
    assert type(digraph).__module__.startswith("graphviz.")
    assert digraph.source.startswith("digraph graphscope {\n")
    assert digraph.source.endswith("}\n")


def test_edges_show_what_a_gradient_does() -> None:
    text = source(graphs.no_grad_block())
    edges = {(found[1], found[2]): found[3] or "" for found in _edge.finditer(text)}
    assert edges["n2", "n5"] == ""
    assert "style=dotted" in edges["n5", "n6"]
    assert "style=dashed" in edges["n6", "n7"]
    assert "detach() cut here" in edges["n6", "n7"]
    alarm = PALETTES[Theme.LIGHT].alarm
    assert alarm in edges["n6", "n7"], "a cut that may surprise stands out"
    assert alarm not in edges["n0", "n3"], "one that was to be expected does not"


def test_looks_differ_without_colour() -> None:
    """The line and the corners alone tell the parts of this graph apart, without fill and glyph."""
    forms = {}
    for make in (graphs.no_grad_block, graphs.frozen_linear):
        for line in source(make()).splitlines():
            look = re.match(r"\t(?:n\d+|node) \[.* class=(\w+) ", line)
            if look is not None:
                forms[look[1]] = tuple(re.findall(r' (style="[^"]*"|penwidth=[\d.]+|peripheries=\d)', line))
    assert set(forms) == {look for look in Look if "group" not in look}
    assert forms.pop("output") == forms["tracked"], "an output differs by glyph, and by light text on a dark ground"
    assert len(set(forms.values())) == len(forms)


def test_a_region_is_a_labelled_box_around_its_nodes() -> None:
    text = source(graphs.no_grad_block())
    box = re.search(r"\tsubgraph cluster_r0 \{\n(.*?)\n\t\}\n", text, re.DOTALL)
    assert box is not None
    inside = set(re.findall(r"^\t(n\d+) \[", box[1], re.MULTILINE))
    assert inside == {"n3", "n4"}
    assert "<b>no_grad()</b>  distil.py:20" in box[1]
    assert "with torch.no_grad():" in box[1]


def nested() -> GraphData:
    """A leaf and an op in an inner region, whose outer region has no node of its own, and an empty region."""
    regions = (
        Region("r0", "no_grad", "with"),
        Region("r1", "enable_grad", "with", Location('a"b.py', 3, 'with x("<b>"):'), parent="r0", left_on=True),
        Region("r2", "no_grad", "statement"),
    )
    nodes = (leaf("n0", "x"), op("n1", "mul", "MulBackward0", region="r1"), output("n2", "y", (4, 2)))
    return graph(nodes, (flow("n0", "n1"), flow("n1", "n2")), regions=regions)


@pytest.mark.parametrize("rankdir", Direction)
def test_regions_nest_and_empty_ones_are_not_drawn(rankdir: Direction) -> None:
    text = source(nested(), rankdir=rankdir)
    outer, inner = text.index("subgraph cluster_r0 {"), text.index("subgraph cluster_r1 {")
    assert outer < inner < text.index("\tn1 [") < text.index("\t}\n\t}\n")
    assert "cluster_r2" not in text
    assert "a&quot;b.py:3" in text
    assert "still in force at the end" in text
    assert text.count("<b>enable_grad()</b>") == 1


def test_regions_that_contain_each_other_do_not_swallow_nodes() -> None:
    regions = (Region("r0", "no_grad", "with", parent="r1"), Region("r1", "no_grad", "with", parent="r0"))
    nodes = (leaf("n0", "x"), op("n1", "mul", "MulBackward0", region="r1"), output("n2", None))
    text = source(graph(nodes, (flow("n0", "n1"), flow("n1", "n2")), regions=regions))
    assert text.count("\tn1 [") == 1


@pytest.mark.parametrize(("rankdir", "longest"), [(Direction.DOWN, 6), (Direction.RIGHT, 2)])
def test_leaves_that_no_edge_touches_stand_in_a_block(rankdir: Direction, longest: int) -> None:
    """Side by side they would make the drawing as wide as the model has parameters."""
    data = graphs.addition()
    apart = [leaf(f"m{number}", f"w{number}", requires_grad=False, role=Role.PARAMETER) for number in range(11)]
    text = source(graph((*apart, *data.nodes), data.edges), rankdir=rankdir)
    box = re.search(r'\tsubgraph "cluster unconnected" \{\n(.*?)\n\t\}\n', text, re.DOTALL)
    assert box is not None
    assert "named, but on no recorded path to a root" in box[1]
    assert set(re.findall(r"^\t(\w+) \[label", box[1], re.MULTILINE)) == {node.id for node in apart}
    chains = re.findall(r"^\t(m\d+(?: -> m\d+)+) \[style=invis\]$", box[1], re.MULTILINE)
    assert max(chain.count(" -> ") + 1 for chain in chains) == longest
    assert "cluster unconnected" not in source(data)


def test_inputs_without_gradient_are_stubs_on_request() -> None:
    data = graphs.addition()
    assert "no gradient needed here" not in source(data)
    text = source(data, show=frozenset({"stubs"}))
    assert '\t"n1 stub 1" -> n1 [' in text
    assert "input 1: no gradient needed here" in text
    assert EDGE_MEANINGS[EdgeLook.CUT] in text, "the legend tells what a stub's line means"
    assert EDGE_MEANINGS[EdgeLook.CUT] not in source(data)


def test_show_reaches_the_boxes() -> None:
    data = graphs.frozen_linear()
    assert "keeps mat1" not in source(data)
    assert "keeps mat1: 4×5 · 80 B" in source(data, show=frozenset({"saved"}))


def test_source_line_is_in_the_tooltip() -> None:
    assert r'tooltip="train.py:12\nh = model.fc(x)"' in line_of(source(graphs.frozen_linear()), "n4")


def test_the_legend_has_only_the_marks_in_use() -> None:
    text = source(graphs.addition())
    used = {Look.TRAINABLE, Look.TRACKED, Look.OUTPUT}
    assert {look for look in Look if to_label(MEANINGS[look]) in text} == used
    assert "no gradient comes back" not in text
    assert "data forward, gradient back" in text
    assert "<table" not in source(graphs.addition(), legend=False)


@pytest.mark.parametrize("legend", [True, False])
def test_what_is_hidden_is_told_in_the_picture(legend: bool) -> None:  # noqa: FBT001 - a parameter of a test
    data = graphs.addition()
    view = View(hidden=1234, notes=("Folded to depth 1.",))
    told = graph(data.nodes, data.edges, view=view, notices=("A <notice> with & marks.",))
    text = source(told, legend=legend)
    assert "1,234 nodes of the graph not drawn here" in text
    assert "Folded to depth 1." in text
    assert "A &lt;notice&gt; with &amp; marks." in text


def test_a_title_stands_above_the_graph() -> None:
    text = source(graphs.addition(), title=r'<z> & "\N"')
    assert r"labelloc=t fontsize=15 label=<<b>&lt;z&gt; &amp; &quot;\\N&quot;</b>>" in text
    assert r'tooltip="<z> &amp; \"\\\\N\"\n3 nodes: ' in text


def test_long_names_lose_their_middle_in_the_box_only() -> None:
    name = "encoder." * 20 + "weight"
    nodes = (leaf("n0", name), output("n1", None))
    line = line_of(source(graph(nodes, [flow("n0", "n1")])), "n0")
    label, _, tooltip = line.partition(" tooltip=")
    assert name not in label
    assert "…" in label
    assert len(re.sub(r"<[^>]*>", "", label.partition("<b>")[2].partition("</b>")[0])) == NAME_LIMIT
    assert name in tooltip


def test_hostile_names_cannot_leave_their_label() -> None:
    text = source(graphs.hostile())
    assert len(_node.findall(text)) == len(graphs.HOSTILE_NAMES) + 2
    body = re.sub(r"</?(b|font|table|tr|td|br)\b[^<>]*>", "", text)
    labels = re.findall(r"label=<(.*?)>(?: class| tooltip|\]$)", body, re.MULTILINE)
    assert not [label for label in labels if set(label) & set('<>"')]


def test_hostile_ids_are_quoted() -> None:
    nodes = (leaf('a" -> "b', "x"), leaf("node", "w"), op("sum\\", "add", "AddBackward0"), output("o]", None))
    edges = (flow('a" -> "b', "sum\\"), flow("node", "sum\\", 1), flow("sum\\", "o]"))
    text = source(graph(nodes, edges))
    assert r'"a\" -> \"b" -> "sum\\"' in text
    assert r'"node" -> "sum\\"' in text


@pytest.mark.parametrize(("field", "given"), [("theme", "pink"), ("rankdir", "BT")])
def test_an_unknown_word_is_refused_with_the_known_ones(field: str, given: str) -> None:
    with pytest.raises(FormatError, match=rf"'{given}' is no {field}; choose one of \w+, \w+\."):
        source(graphs.addition(), **{field: given})


def test_words_are_taken_for_members() -> None:
    options = DotOptions(theme="dark", rankdir="LR")  # type: ignore[arg-type]
    assert (options.theme, options.rankdir) == (Theme.DARK, Direction.RIGHT)


def test_the_same_text_in_every_process() -> None:
    program = "from tests.unit import graphs; from graphscope.render.dot import to_dot; import sys\n"
    program += "for make in graphs.SAMPLES.values(): sys.stdout.buffer.write(to_dot(make()).source.encode())"
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert texts == {"".join(source(make()) for make in SAMPLES.values()).encode()}


def test_a_renderer_loads_no_torch() -> None:
    program = "import sys; from graphscope.render import dot, engine; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_wrapped_lines_are_short_and_lose_no_word() -> None:
    text = "connected, but torch has no derivative: backward raises\nshort\n" + "word " * 40 + "\n" + "x" * 90
    lines = wrap(text).split("\n")
    assert " ".join(lines).split() == text.split()
    assert [line for line in lines if len(line) > LINE_LIMIT + 4] == ["x" * 90]
    assert "short" in lines


def test_quoting() -> None:
    assert to_label("plain 4×2") == "plain 4×2"
    assert to_tooltip("a\\") == '"a\\\\\\\\"'
    assert [to_identifier(name) for name in ("n0", "Graph", "1", "", "é")] == ["n0", '"Graph"', '"1"', '""', '"é"']


def test_a_frozen_leaf_says_so_three_times_over() -> None:
    """By its double line, by its glyph and on the edge."""
    nodes = (
        leaf("n0", "w", role=Role.PARAMETER, requires_grad=False),
        op("n1", "t", None, tensor(requires_grad=False)),
        output("n2", None, (4, 2), requires_grad=False),
    )
    text = source(graph(nodes, (cut("n0", "n1", Reason.FROZEN), cut("n1", "n2", None))))
    line = line_of(text, "n0")
    assert "peripheries=2" in line
    assert GLYPHS[Look.FROZEN] in line
    assert "label=<&#160;frozen>" in text
