"""Large drawings as SVG: the same as Graphviz draws of them, without Graphviz."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

from graphscope.model import GraphData, Location, Region
from graphscope.render.dot import Direction, DotOptions
from graphscope.render.engine import draw
from graphscope.render.palette import PALETTES, Theme
from graphscope.render.placed import to_placed_dot
from graphscope.render.scene import to_scene
from graphscope.render.scene_svg import to_svg
from graphscope.render.svg import texts
from graphscope.style import FORMS, GLYPHS, EdgeLook, Look, elide, look_of, visible
from graphscope.transforms import ViewOptions, view
from tests.unit import graphs
from tests.unit.graphs import HOSTILE_NAMES, SAMPLES, graph, leaf, output

ROOT = Path(__file__).parents[2]
TIME = 60.0
SVG = "{http://www.w3.org/2000/svg}"
OPTIONS = DotOptions(title="A <step> & more", show=frozenset({"stubs", "saved"}))


def read(data: GraphData, options: DotOptions = OPTIONS) -> ET.Element:
    return ET.fromstring(to_svg(data, options, timeout=TIME))  # noqa: S314


def parts(root: ET.Element) -> dict[str, ET.Element]:
    """The groups of boxes and lines, by the ids of the graph; of parallel edges the last one."""
    return {str(group.get("data-id")): group for group in root.iter(f"{SVG}g") if group.get("data-id")}


def words(element: ET.Element) -> str:
    """All that is written in a part; the space beside a mark is a matter of taste."""
    written = "".join("".join(text.itertext()) for text in element.iter(f"{SVG}text"))
    return re.sub(r"\s", "", written)


@pytest.mark.parametrize("theme", Theme)
@pytest.mark.parametrize("rankdir", Direction)
@pytest.mark.parametrize("name", SAMPLES)
def test_every_box_and_line_is_drawn_once(name: str, rankdir: Direction, theme: Theme) -> None:
    data = SAMPLES[name]()
    root = read(data, DotOptions(rankdir=rankdir, theme=theme))
    drawn = Counter(group.get("data-id") for group in root.iter(f"{SVG}g") if group.get("data-id"))
    expected = Counter(node.id for node in data.nodes) + Counter(f"{edge.source}->{edge.target}" for edge in data.edges)
    assert drawn == expected
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    ground = root.find(f"{SVG}g/{SVG}rect")
    assert ground is not None
    assert ground.get("fill") == PALETTES[theme].background


@pytest.mark.parametrize("theme", Theme)
@pytest.mark.parametrize("name", SAMPLES)
def test_it_says_what_graphviz_draws(name: str, theme: Theme) -> None:
    """Part by part the same words, classes and tooltips; title, description and legend too."""
    data = SAMPLES[name]()
    options = DotOptions(theme=theme, title="A <step> & more", show=OPTIONS.show)
    own = read(data, options)
    source = to_placed_dot(data, options, timeout=TIME).source
    other = ET.fromstring(draw(source, "svg", layout="nop2"))  # noqa: S314
    theirs = parts(other)
    legend, title = theirs.pop("legend"), theirs.pop("title")
    assert parts(own).keys() == theirs.keys()
    for identity, group in parts(own).items():
        assert words(group) == words(theirs[identity]), identity
        assert group.get("class") == theirs[identity].get("class")
        assert group.findtext(f"{SVG}title") == theirs[identity].findtext(f"{SVG}title")
    assert own.findtext(f"{SVG}title") == other.findtext(f"{SVG}title") == "A <step> & more"
    assert own.findtext(f"{SVG}desc") == other.findtext(f"{SVG}desc")
    assert sorted(words(own)) == sorted(words(other))
    below = own.find(f".//{SVG}g[@class='legend']")
    assert below is not None
    assert sorted(words(below)) == sorted(words(legend))
    assert words(title) == "Astep&more".replace("step", "<step>")
    for fact in ("role", "font-family", "style"):
        assert own.get(fact) == other.get(fact)


@pytest.mark.parametrize("name", SAMPLES)
def test_everything_stands_on_the_page(name: str) -> None:
    """Boxes where the scene has them, with their size; all of it inside the view box."""
    data = SAMPLES[name]()
    root = read(data)
    scene = to_scene(data, OPTIONS, timeout=TIME)
    left, top, width, height = map(float, (root.get("viewBox") or "").split())
    assert root.get("width") == f"{width:.0f}pt"
    for box, point in zip(scene.boxes, scene.placement.boxes, strict=True):
        outermost = parts(root)[box.id].findall(f"{SVG}rect")[-1]
        x, y, wide, high = (float(outermost.get(fact, "nan")) for fact in ("x", "y", "width", "height"))
        assert (wide, high) == pytest.approx(box.size, abs=0.1)
        assert x + wide / 2 == pytest.approx(point.x, abs=0.15)
        assert y + high / 2 == pytest.approx(scene.placement.size.height - point.y, abs=0.15)
        assert left < x < x + wide < left + width
        assert top < y < y + high < top + height
        for text in parts(root)[box.id].iter(f"{SVG}text"):
            assert y < float(text.get("y", "nan")) < y + high


def test_looks_are_told_without_colour() -> None:
    """Dashes, double and round lines, and a mark; an op that autograd recorded needs none."""
    for name in ("frozen_linear", "no_grad_block", "odd_nodes"):
        data = SAMPLES[name]()
        groups = parts(read(data))
        for node in data.nodes:
            form, look = FORMS[look_of(node)], look_of(node)
            group = groups[node.id]
            boxes = group.findall(f"{SVG}rect")
            assert len(boxes) == 1 + form.double
            assert {box.get("stroke-dasharray") for box in boxes} == {
                {"solid": None, "dashed": "5,2", "dotted": "1,5"}[form.line]
            }
            assert all((box.get("rx") is not None) == form.rounded for box in boxes)
            assert words(group).startswith(GLYPHS[look]) == (look is not Look.TRACKED)


def test_edges_are_told_without_colour() -> None:
    data = graphs.no_grad_block()
    groups = parts(read(data))
    dashes = {EdgeLook.FLOWS: None, EdgeLook.DEAD: "1,5", EdgeLook.CUT: "5,2"}
    for name, look in (("n2->n5", EdgeLook.FLOWS), ("n5->n6", EdgeLook.DEAD), ("n6->n7", EdgeLook.CUT)):
        line, head = groups[name].findall(f"{SVG}path")
        assert line.get("stroke-dasharray") == dashes[look]
        assert line.get("stroke") == head.get("fill") == PALETTES[Theme.LIGHT].edges[look]
        assert head.get("stroke-dasharray") is None
    alarming = groups["n6->n7"].find(f"{SVG}text")
    assert alarming is not None
    assert alarming.get("fill") == PALETTES[Theme.LIGHT].alarm


def test_an_arrow_ends_at_its_box() -> None:
    data = graphs.addition()
    for rankdir, fact in ((Direction.DOWN, "y"), (Direction.RIGHT, "x")):
        groups = parts(read(data, DotOptions(rankdir=rankdir)))
        head, box = groups["n0->n1"].findall(f"{SVG}path")[1], groups["n1"].find(f"{SVG}rect")
        assert box is not None
        tip = re.findall(r"[-\d.]+", head.get("d") or "")[:2][fact == "y"]
        assert float(tip) == pytest.approx(float(box.get(fact, "nan")), abs=0.2)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_shown_as_typed(name: str) -> None:
    """As leaf, op, module note, argument, file and title."""
    info = graphs.tensor((2,), name, name)
    place = Location(name, 1, name)
    nodes = (
        leaf("n0", name, (2,)),
        graphs.op("n1", name, "AddBackward0", info, location=place, note=name, region="r0"),
        output("n2", name, (2,)),
    )
    edges = (graphs.flow("n0", "n1", argument=name), graphs.flow("n0", "n1", 1), graphs.flow("n1", "n2"))
    data = graph(nodes, edges, regions=(Region("r0", name, "with", place),), notices=(name,))
    options = DotOptions(title=name, show=frozenset({"source"}))
    svg = to_svg(data, options, timeout=TIME)
    marks = "".join(GLYPHS.values())
    shown = [re.sub(f"^[{marks}]  ", "", text).strip() for text in texts(svg)]
    assert shown.count(elide(visible(name)).strip()) >= 5, shown
    root = ET.fromstring(svg)  # noqa: S314
    assert root.findtext(f"{SVG}title") == visible(name)
    source = to_placed_dot(data, options, timeout=TIME).source
    assert sorted(words(root)) == sorted(words(ET.fromstring(draw(source, "svg", layout="nop2"))))  # noqa: S314


def test_spaces_in_names_are_kept() -> None:
    """Without this, viewers make one space of two."""
    root = read(graphs.hostile())
    assert root.get("{http://www.w3.org/XML/1998/namespace}space") == "preserve"


def test_what_is_hidden_is_told() -> None:
    data = view(SAMPLES["no_grad_block"](), ViewOptions(focus="goal"))
    assert data.view.hidden
    assert f"{data.view.hidden} nodes of the graph not drawn here" in list(texts(to_svg(data, timeout=TIME)))
    quiet = DotOptions(legend=False)
    assert "operation that autograd recorded" not in list(texts(to_svg(data, quiet, timeout=TIME)))


def test_nothing_is_an_empty_page() -> None:
    root = read(graph([], []), DotOptions())
    assert not parts(root)
    assert (root.findtext(f"{SVG}desc") or "").startswith("0 nodes")


def test_the_same_graph_gives_the_same_bytes_in_every_process() -> None:
    program = (
        "import sys; from tests.unit import graphs; from graphscope.render.scene_svg import to_svg\n"
        "sys.stdout.buffer.write(to_svg(graphs.no_grad_block(), timeout=60))"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert written == {to_svg(graphs.no_grad_block(), timeout=TIME)}


def test_drawings_on_one_page_have_ids_of_their_own() -> None:
    one, other = (
        {element.get("id") for element in read(make()).iter()} - {None} for make in (graphs.addition, graphs.top_k)
    )
    assert len(one) > 5
    assert not one & other


def test_words_beside_a_line_hide_what_is_below_them() -> None:
    data = graphs.no_grad_block()
    for theme in Theme:
        for group in parts(read(data, DotOptions(theme=theme))).values():
            if str(group.get("class")).startswith("edge") and group.find(f"{SVG}text") is not None:
                ground, first = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
                assert ground is not None
                assert first is not None
                assert ground.get("fill") == PALETTES[theme].background
                assert float(ground.get("x", "nan")) == pytest.approx(float(first.get("x", "nan")), abs=0.1)
                top, high = float(ground.get("y", "nan")), float(ground.get("height", "nan"))
                assert all(top < float(text.get("y", "nan")) < top + high for text in group.iter(f"{SVG}text"))
