"""Large drawings: layers from fast-sugiyama, columns and curves from here; how they are drawn."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphscope.errors import EngineError
from graphscope.model import GraphData, Role
from graphscope.render import layout, layout_child, picture
from graphscope.render.dot import DotOptions
from graphscope.render.engine import Engine, draw
from graphscope.render.layout import ARROW, GAP, Placement, place
from graphscope.render.measure import Size, text_size
from graphscope.render.picture import to_picture
from graphscope.render.placed import to_placed_dot
from tests.unit.graphs import SAMPLES, flow, graph, leaf, op, output

ROOT = Path(__file__).parents[2]
TIME = 60.0


def chain(length: int) -> GraphData:
    """Ops in a row, each with a parameter of its own."""
    nodes, edges = [leaf("n0", "x")], []
    for number in range(length):
        before = nodes[-1].id
        weight, mul = f"n{2 * number + 1}", f"n{2 * number + 2}"
        nodes += [leaf(weight, f"layers.{number}.weight", role=Role.PARAMETER), op(mul, "mul", "MulBackward0")]
        edges += [flow(before, mul), flow(weight, mul, 1)]
    mark = output(f"n{2 * length + 1}", "loss")
    return graph([*nodes, mark], [*edges, flow(nodes[-1].id, mark.id)])


def boxes_of(sizes: list[Size], placed: Placement) -> list[tuple[float, float, float, float]]:
    """Left, bottom, right and top of each box."""
    return [
        (point.x - size.width / 2, point.y - size.height / 2, point.x + size.width / 2, point.y + size.height / 2)
        for size, point in zip(sizes, placed.boxes, strict=True)
    ]


@st.composite
def drawings(draw: st.DrawFn) -> tuple[list[Size], list[tuple[int, int]]]:
    count = draw(st.integers(1, 12))
    lengths = st.floats(10, 300).map(round)
    sizes = [Size(draw(lengths), draw(lengths)) for _ in range(count)]
    numbers = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(numbers, numbers), max_size=20))
    return sizes, [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out without a child process for each example."""

    monkeypatch.setattr(layout, "_run", lambda parts, _: [layout_child.layers_of(part) for part in parts])


@pytest.mark.usefixtures("_in_this_process")
class TestPlacement:
    """Of any acyclic graph."""

    @pytest.mark.parametrize("is_down", [True, False])
    @given(drawing=drawings())
    def test_boxes_do_not_overlap_and_stand_after_what_they_read(
        self, *, drawing: tuple[list[Size], list[tuple[int, int]]], is_down: bool
    ) -> None:
        sizes, edges = drawing
        placed = place(sizes, edges, timeout=TIME, is_down=is_down)
        boxes = boxes_of(sizes, placed)
        for number, (left, bottom, right, top) in enumerate(boxes):
            assert left >= -0.01
            assert right <= placed.size.width + 0.01
            assert bottom >= -0.01
            assert top <= placed.size.height + 0.01
            for other in boxes[:number]:
                apart = left >= other[2] - 0.01 or other[0] >= right - 0.01
                assert apart or bottom >= other[3] - 0.01 or other[1] >= top - 0.01
        for source, target in edges:
            if is_down:
                assert boxes[target][3] < boxes[source][1]
            else:
                assert boxes[source][2] < boxes[target][0]

    @given(drawings())
    def test_a_curve_leads_from_box_to_box(self, drawing: tuple[list[Size], list[tuple[int, int]]]) -> None:
        sizes, edges = drawing
        placed = place(sizes, edges, timeout=TIME)
        boxes = boxes_of(sizes, placed)
        assert len(placed.curves) == len(edges)
        for (source, target), curve in zip(edges, placed.curves, strict=True):
            assert len(curve.points) % 3 == 1
            start, end = curve.points[0], curve.points[-1]
            assert start.y == pytest.approx(boxes[source][1])
            assert boxes[source][0] <= start.x <= boxes[source][2]
            assert curve.tip.y == pytest.approx(boxes[target][3])
            assert boxes[target][0] <= curve.tip.x <= boxes[target][2]
            assert end.y - curve.tip.y == pytest.approx(ARROW)
            downwards = [point.y for point in curve.points[::3]]
            assert all(lower <= upper + 0.01 for upper, lower in pairwise(downwards))

    @given(drawings())
    def test_the_same_drawing_is_the_same(self, drawing: tuple[list[Size], list[tuple[int, int]]]) -> None:
        sizes, edges = drawing
        assert place(sizes, edges, timeout=TIME) == place(sizes, list(edges), timeout=TIME)

    def test_a_chain_is_straight_and_its_leaves_stand_beside_it(self) -> None:
        """Two boxes of 100 points hang on each link; without weights the chain would drift towards them."""
        edges = []
        for link in range(0, 60, 3):
            edges += [(link + 1, link), (link + 2, link), (link, link + 3)]
        placed = place([Size(100, 40)] * 61, edges, timeout=TIME)
        links = [placed.boxes[link].x for link in range(3, 60, 3)]
        assert max(links) - min(links) < 30
        assert placed.size.width < 4 * (100 + GAP)

    def test_bends_of_a_second_part_are_no_boxes(self) -> None:
        edges = [(0, 1), (2, 3), (3, 4), (4, 5), (2, 5)]
        placed = place([Size(40, 20)] * 6, edges, timeout=TIME)
        assert len(set(placed.boxes)) == 6
        assert len({point.y for point in placed.boxes[2:]}) == 4

    def test_what_leads_to_nothing_stands_where_it_was_made(self) -> None:
        """Each link of a long chain has a result that nothing reads: pulled down to the end, all would be long."""
        edges = [*pairwise(range(200)), *((link, 200 + link) for link in range(200))]
        placed = place([Size(40, 20)] * 400, edges, timeout=TIME)
        assert all(len(curve.points) == 4 for curve in placed.curves)
        assert placed.size.width < 4 * (40 + GAP)

    def test_a_box_that_everything_reads_is_no_hindrance(self) -> None:
        """One weight, read by 1,000 steps in a row: half a million bends if all edges went around."""
        edges = [*pairwise(range(1, 1001)), *((0, step) for step in range(1, 1001))]
        placed = place([Size(60, 20)] * 1001, edges, timeout=TIME)
        assert len(placed.curves) == len(edges)
        assert placed.boxes[0].y > placed.boxes[1].y
        assert placed.size.width < 20_000

    def test_nothing_is_no_drawing(self) -> None:
        assert place([], [], timeout=TIME).size == Size(0, 0)

    def test_loose_boxes_form_a_block(self) -> None:
        placed = place([Size(100, 40)] * 100, [], timeout=TIME)
        assert 0.5 < placed.size.width / placed.size.height < 2

    def test_a_long_edge_is_short_enough_for_graphviz(self) -> None:
        """Every second link is wide, so that the edge from the first to the last must bend at each."""
        sizes = [Size(300 if number % 2 else 20, 20) for number in range(900)]
        edges = [*pairwise(range(900)), (0, 899), (0, 898), (0, 897)]
        curves = place(sizes, edges, timeout=TIME).curves
        assert max(len(curve.points) for curve in curves) <= 3 * 200 + 1


def test_room_is_left_for_what_is_drawn() -> None:
    """No box comes out larger than was reckoned with, whatever is written in it."""
    for make in SAMPLES.values():
        source = to_placed_dot(make(), timeout=TIME).source
        reckoned = _reckoned(make())
        drawn = _drawn_sizes(draw(source, "svg", layout="nop2"))
        for identity, (width, height) in drawn.items():
            strange = not "".join(make().by_id[identity].names).isascii()  # without a font for it: wider boxes
            assert width <= reckoned[identity].width + (12 if strange else 2), identity
            assert height <= reckoned[identity].height + 2, identity
            assert width > 0.6 * reckoned[identity].width or width < 60


def _reckoned(data: GraphData) -> dict[str, Size]:
    from graphscope.render.scene import _boxes

    return {node.id: box.size for node, box in zip(data.nodes, _boxes(data, frozenset()), strict=True)}


def _drawn_sizes(svg: bytes) -> dict[str, tuple[float, float]]:
    """Width and height of the outermost line of each box."""
    found = {}
    name = "{http://www.w3.org/2000/svg}"
    root = ET.fromstring(svg)  # noqa: S314 - written by our own engine
    for group in root.iter(f"{name}g"):
        if (group.get("class") or "").startswith("node ") and (group.get("data-id") or "").startswith("n"):
            sizes = [(float(rect.get("width", 0)), float(rect.get("height", 0))) for rect in group.iter(f"{name}rect")]
            for polygon in group.iter(f"{name}polygon"):
                points = [tuple(map(float, pair.split(","))) for pair in polygon.get("points", "").split()]
                across, down = zip(*points, strict=True)
                sizes.append((max(across) - min(across), max(down) - min(down)))
            found[str(group.get("data-id"))] = max(sizes)
    return found


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("direction", ["TB", "LR"])
def test_everything_is_drawn(name: str, direction: str) -> None:
    data = SAMPLES[name]()
    options = DotOptions(rankdir=direction, title="a title", show=frozenset({"stubs"}))  # type: ignore[arg-type]
    svg = to_picture(data, "svg", options, engine=Engine.FAST)
    ids = re.findall(rb'class="(?:node|edge)[^"]*" data-id="([^"]*)"', svg)
    assert {node.id.encode() for node in data.nodes} <= set(ids)
    assert sum(b"-&gt;" in found for found in ids) >= len(data.edges)
    assert b"a title" in svg


def test_words_of_edges_are_drawn() -> None:
    data = SAMPLES["no_grad_block"]()
    small, large = (to_picture(data, "svg", engine=engine) for engine in (Engine.DOT, Engine.FAST))
    for words in (b"not recorded: no_grad()", b"weight"):
        assert (words in small) == (words in large)


def test_a_large_drawing_is_laid_out_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """By size alone; the words of the engine decide otherwise."""
    drawn: list[str] = []

    def remember(*_: str, layout: str = "dot", **__: object) -> bytes:
        drawn.append(layout)
        return b""

    monkeypatch.setattr(picture, "draw", remember)
    for length, engine in ((10, "auto"), (picture.LARGE, "auto"), (picture.LARGE, "dot"), (10, "fast")):
        to_picture(chain(length // 2), "png", engine=Engine(engine))
    assert drawn == ["dot", "nop2", "dot", "nop2"]
    for engine in ("auto", "fast"):
        assert b"<svg" in to_picture(chain(picture.LARGE // 2), "svg", engine=Engine(engine))
    assert len(drawn) == 4, "a large SVG needs no Graphviz"
    for format in ("svg", "png"):
        to_picture(chain(picture.LARGE // 2), format, engine=Engine.BUNDLED)
    assert drawn[4:] == ["nop2", "nop2"], "but gets one that is asked for"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for format in ("svg", "png"):
        to_picture(chain(picture.LARGE // 2), format)
    assert drawn[6:] == ["dot", "dot"], "dot is tried where fast-sugiyama is missing"


def test_a_thousand_boxes_take_seconds() -> None:
    data = chain(600)
    start = time.monotonic()
    svg = to_picture(data, "svg")
    assert time.monotonic() - start < 15
    assert len(svg) < 1200 * len(data.nodes), "bytes a node"
    assert svg.count(b'class="edge') == len(data.edges)


def test_widths_are_those_of_the_font() -> None:
    """Arimo is as wide as Helvetica, letter for letter; a mark that is not ASCII is rather reckoned too wide."""
    texts = ["NativeLayerNormBackward0", "model.encoder.layers.0.weight", "2×8×24 · int64", "WMwi.,;|{}~"]
    for text in texts:
        dot = f'digraph {{ a [shape=box margin=0 width=0 height=0 fontname=Helvetica fontsize=10 label="{text}"] }}'
        drawn = _drawn_sizes(draw(dot.replace("a [", "n0 ["), "svg").replace(b'class="node"', b'class="node x"'))
        width = text_size(text, 10).width
        assert drawn["n0"][0] <= width + 1.5
        assert drawn["n0"][0] > 0.9 * width


# ---------------------------------------------------------------------------------------- faults and limits


def test_without_fast_sugiyama_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EngineError, match="pip install fast-sugiyama"):
        place([Size(1, 1)] * 2, [(0, 1)], timeout=TIME)


def test_the_time_limit_holds() -> None:
    edges = [*pairwise(range(9000)), *((number, number + 2) for number in range(8990))]
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"after 0\.02 s\. Fold it"):
        place([Size(10, 10)] * 9000, edges, timeout=0.02)  # starting Python alone takes longer
    assert time.monotonic() - start < 10


def test_a_failing_layout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_child, "__file__", os.devnull)
    with pytest.raises(EngineError):
        place([Size(1, 1)] * 2, [(0, 1)], timeout=TIME)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_ctrl_c_leaves_no_child() -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored below a shell's &
        "from graphscope.render.layout import place\nfrom graphscope.render.measure import Size\n"
        "edges = [(n, n + 1) for n in range(8999)] + [(n, n + 2) for n in range(8990)]\n"
        "place([Size(10, 10)] * 9000, edges, timeout=60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, env=environment) as process:
        until = time.monotonic() + 20
        while not (children := _children(process.pid)) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.wait(10)
        assert process.stderr is not None
        assert b"KeyboardInterrupt" in process.stderr.read()
    until = time.monotonic() + 5
    while any(map(_is_running, children)) and time.monotonic() < until:
        time.sleep(0.01)
    assert children
    assert not any(map(_is_running, children))


def _children(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            state = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except (OSError, IndexError):
            continue
        if len(state) > 1 and state[1] == str(parent):
            found.append(int(folder.name))
    return found


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_branches_stand_apart_below_what_is_their_own() -> None:
    """A hundred branches read one box, and each has a box of its own above: it stands there."""
    count = 100
    sizes = [Size(50.0, 30.0)] + [Size(100.0, 30.0)] * (2 * count) + [Size(40.0, 30.0)] * (count + 1)
    own = range(1 + count, 1 + 2 * count)
    edges = [(first, above) for first, above in zip(range(1, 1 + count), own, strict=True)]
    edges += [(above, above + count) for above in own] + [(0, above + count) for above in own]
    edges += [(above + count, 1 + 3 * count) for above in own]
    boxes = place(sizes, edges, timeout=TIME).boxes
    across = max(box.x for box in boxes) - min(box.x for box in boxes)
    assert max(abs(boxes[above].x - boxes[above + count].x) for above in own) < across / 10


def test_a_line_leaves_its_layer_before_it_goes_aside() -> None:
    """Beside a low box stands a high one: a line from the low one passes below that, and so it arrives."""
    sizes = [Size(60.0, 20.0), Size(60.0, 80.0), Size(60.0, 20.0), Size(60.0, 80.0)]
    placement = place(sizes, [(0, 2), (0, 3), (1, 2), (1, 3)], timeout=TIME)
    bottom, top = placement.boxes[1].y - 40.0, placement.boxes[3].y + 40.0
    for (source, target), curve in zip([(0, 2), (0, 3), (1, 2), (1, 3)], placement.curves, strict=True):
        for point in curve.points:
            assert point.y <= bottom + 0.01 or point.x == curve.points[0].x, (source, target)
            assert point.y >= top - 0.01 or point.x == curve.points[-1].x, (source, target)
        assert top < curve.middle.y < bottom
