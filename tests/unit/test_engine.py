"""Drawing: pictures without a system Graphviz and without fonts, a time limit, hostile names, several on one page."""

from __future__ import annotations

import os
import random
import re
import signal
import stat
import struct
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import pytest

from graphscope.errors import EngineError, FormatError
from graphscope.model import Location, Region
from graphscope.render import engine
from graphscope.render.dot import Direction, DotOptions, to_dot
from graphscope.render.engine import PNG_LIMIT, Engine, ScaledDownWarning, draw, report
from graphscope.render.fonts import bundled_folder, to_fontconfig
from graphscope.render.palette import Theme
from graphscope.render.svg import finish_svg, texts
from graphscope.style import elide, visible
from tests.unit import graphs
from tests.unit.graphs import SAMPLES, graph, leaf, output

ROOT = Path(__file__).parent.parent.parent
NO_FONTS = '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig></fontconfig>'
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a single program on PATH, and without fonts."""
    fonts = tmp_path / "no fonts & such.conf"
    fonts.write_text(NO_FONTS, encoding="utf-8")
    monkeypatch.setenv("FONTCONFIG_FILE", str(fonts))
    monkeypatch.setenv("PATH", str(tmp_path))


def slow_dot() -> str:
    """A graph that takes `dot` minutes."""
    chosen = random.Random(0)  # noqa: S311 - any tangle will do
    edges = (f"n{chosen.randrange(600)} -> n{chosen.randrange(600)}" for _ in range(6000))
    return f"digraph {{ {'; '.join(edges)} }}"


def first_pixel(png: bytes) -> bytes:
    """The upper left pixel: no filter of PNG changes it, as nothing stands left of it or above it."""
    data, position = b"", 8
    while position < len(png):
        length, name = struct.unpack(">I4s", png[position : position + 8])
        if name == b"IDAT":
            data += png[position + 8 : position + 8 + length]
        position += length + 12
    return zlib.decompress(data)[1:4]


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("format", ["svg", "png", "pdf"])
def test_draws_without_programs_and_fonts(format: str) -> None:
    start = {"svg": b"<svg ", "png": b"\x89PNG\r\n", "pdf": b"%PDF-"}[format]
    assert draw(to_dot(graphs.addition()).source, format).startswith(start)


@pytest.mark.usefixtures("bare")
def test_text_is_readable_without_fonts() -> None:
    """Boxes would all look alike: letters with and without a middle stroke give different pictures."""
    drawings = {draw(f'digraph {{ a [fontname=Helvetica label="{letter * 4}"] }}', "png") for letter in "OHQEF"}
    assert len(drawings) == 5
    pdf = draw("digraph { a [fontname=Helvetica label=readable] }", "pdf")
    assert re.search(rb"/BaseFont /[A-Z]{6}\+Arimo", pdf)


@pytest.mark.usefixtures("bare")
def test_letters_stand_as_wide_as_those_of_helvetica() -> None:
    """Adobe's Helvetica.afm: A 667, d 556, m 833, B 667, a 556, c 500, k 500, w 722, r 333, 0 556 of 1000."""
    widths = {"A": 667, "d": 556, "m": 833, "B": 667, "a": 556, "c": 500, "k": 500, "w": 722, "r": 333, "0": 556}
    word = "AddmmBackward0"
    svg = draw(
        f"digraph {{ a [fontname=Helvetica fontsize=100 shape=box margin=0 height=0 width=0 label={word}] }}", "svg"
    )
    box = ET.fromstring(svg).find(f".//{SVG}g[@class='node']/{SVG}polygon")  # noqa: S314
    assert box is not None
    across = [float(point.split(",")[0]) for point in (box.get("points") or "").split()]
    assert max(across) - min(across) == pytest.approx(sum(widths[letter] for letter in word) / 10, rel=0.01)


@pytest.mark.parametrize("theme", Theme)
@pytest.mark.parametrize("rankdir", Direction)
@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_drawn_whole(name: str, theme: Theme, rankdir: Direction) -> None:
    data = SAMPLES[name]()
    root = ET.fromstring(draw(to_dot(data, DotOptions(theme=theme, rankdir=rankdir)).source, "svg"))  # noqa: S314
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class", "").partition(" ")[0] in {"node", "edge"}]
    drawn = [group.get("data-id") for group in groups]
    assert {node.id for node in data.nodes} <= set(drawn)
    for edge in data.edges:
        assert f"{edge.source}->{edge.target}" in drawn


def test_an_svg_is_readable_aloud_and_has_ids_of_its_own() -> None:
    dot = to_dot(graphs.frozen_linear(), DotOptions(title="A <step> & more")).source
    one, same = draw(dot, "svg"), draw(dot, "svg")
    other = draw(to_dot(graphs.addition()).source, "svg")
    assert one == same
    root = ET.fromstring(one)  # noqa: S314
    assert root.get("role") == "img"
    title, description = (root.find(f"{SVG}{tag}") for tag in ("title", "desc"))
    assert title is not None
    assert description is not None
    assert title.text == "A <step> & more"
    assert (description.text or "").startswith("8 nodes: 1 leaf that gets a gradient, 1 frozen parameter")
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    ids = [{element.get("id") for element in ET.fromstring(each).iter()} - {None} for each in (one, other)]  # noqa: S314
    assert len(ids[0]) > 10
    assert not ids[0] & ids[1]
    every = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(every) == len(set(every))


def test_the_prefix_of_ids_may_be_given() -> None:
    svg = draw(to_dot(graphs.addition()).source, "svg", id_prefix="cell7")
    assert set(re.findall(rb' id="([^"-]+)-', svg)) == {b"cell7"}


def test_tooltips_are_titles_and_the_page_gets_no_links() -> None:
    svg = draw(to_dot(graphs.frozen_linear()).source, "svg")
    assert b"<title>train.py:12\nh = model.fc(x)</title>" in svg
    assert b"<a " not in svg
    assert b"xlink" not in svg
    assert b"<!" not in svg, "no comment tells the version that drew it"


def test_the_viewer_chooses_a_font() -> None:
    root = ET.fromstring(draw(to_dot(graphs.addition()).source, "svg"))  # noqa: S314
    families = (root.get("font-family") or "").split(", ")
    assert families[0] == "Arimo"
    assert families[-1] == "sans-serif"
    assert len(families) > 4
    assert not [text for text in root.iter(f"{SVG}text") if text.get("font-family")]


@pytest.mark.parametrize("name", graphs.HOSTILE_NAMES)
def test_hostile_names_are_shown_as_typed_wherever_they_stand(name: str) -> None:
    """As leaf, op, module note, argument, file and title: the same text is read back from the picture."""
    info = graphs.tensor((2,), name, name)
    place = Location(name, 1, name)
    nodes = (
        leaf("n0", name, (2,)),
        graphs.op("n1", name, "AddBackward0", info, location=place, note=name, region="r0"),
        output("n2", name, (2,)),
    )
    edges = (graphs.flow("n0", "n1", argument=name), graphs.flow("n0", "n1", 1), graphs.flow("n1", "n2"))
    region = Region("r0", name, "with", place)
    data = graph(nodes, edges, regions=(region,), notices=(name,))
    svg = draw(to_dot(data, DotOptions(title=name, show=frozenset({"source"}))).source, "svg")
    shown = [text.strip() for text in texts(svg)]
    expected = elide(visible(name)).strip()
    assert shown.count(expected) >= 5, shown
    root = ET.fromstring(svg)  # noqa: S314
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text == visible(name)
    tooltips = "\n".join(element.text or "" for element in root.iter(f"{SVG}title"))
    assert f"{visible(f'{name}:1')}\n{visible(name)}" in tooltips or (not name and ":1" in tooltips)


@pytest.mark.parametrize("format", ["png", "pdf"])
def test_hostile_names_do_not_break_other_formats(format: str) -> None:
    assert len(draw(to_dot(graphs.hostile()).source, format)) > 10_000


def test_a_png_shows_the_theme() -> None:
    for theme, corner in ((Theme.LIGHT, b"\xff\xff\xff"), (Theme.DARK, b"\x0d\x11\x17")):
        assert first_pixel(draw(to_dot(graphs.addition(), DotOptions(theme=theme)).source, "png")) == corner


def test_a_thousand_nodes() -> None:
    svg = draw(to_dot(graphs.chain(1000)).source, "svg")
    assert svg.count(b'class="node ') + svg.count(b'class="node"') == 1002


def test_a_long_picture_is_scaled_down_and_says_so() -> None:
    dot = to_dot(graphs.chain(400)).source
    with pytest.warns(ScaledDownWarning, match=r"too large for PNG: it was drawn at \d\d% of its size"):
        png = draw(dot, "png")
    assert PNG_LIMIT - 100 < max(struct.unpack(">II", png[16:24])) <= PNG_LIMIT
    with pytest.warns(ScaledDownWarning, match="too large for PDF"):
        pdf = draw(to_dot(graphs.chain(700)).source, "pdf")
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", pdf)
    assert box is not None
    assert 14_000 < float(box[2]) <= 14_400


def test_the_page_of_a_pdf_follows_the_drawing() -> None:
    boxes = [
        re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", draw(to_dot(graphs.chain(length)).source, "pdf"))
        for length in (2, 20)
    ]
    heights = [float(box[2]) for box in boxes if box is not None]
    assert heights[1] > heights[0] + 700


def living_children(parent: int) -> list[int]:
    """Process ids of drawings that a process has started; not those that are dead and wait to be noticed."""
    found = []
    for stat_file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent_id = stat_file.read_text().rpartition(")")[2].split()[:2]
            command = stat_file.with_name("cmdline").read_bytes()
        except OSError:  # it ended in this moment
            continue
        if int(parent_id) == parent and state != "Z" and b"engine_child" in command:
            found.append(int(stat_file.parent.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@needs_proc
def test_the_time_limit_holds_and_nothing_is_left() -> None:
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"after 0.5 s\. Fold it \(--depth 1\)"):
        draw(slow_dot(), "svg", timeout=0.5)
    assert time.monotonic() - start < 5
    assert living_children(os.getpid()) == []


@needs_proc
def test_ctrl_c_ends_the_drawing(tmp_path: Path) -> None:
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored below a shell's &
        "from graphscope.render.engine import draw; draw(sys.stdin.read(), 'svg')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        process.stdin.write(slow_dot())
        process.stdin.close()
        until = time.monotonic() + 20
        while not living_children(process.pid) and time.monotonic() < until:
            time.sleep(0.05)
        (child,) = living_children(process.pid)
        process.send_signal(signal.SIGINT)
        process.wait(10)
        assert process.stderr is not None
        assert "KeyboardInterrupt" in process.stderr.read()
    until = time.monotonic() + 5
    while is_running(child) and time.monotonic() < until:  # the kernel takes a moment
        time.sleep(0.01)
    assert not is_running(child)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_dot_text_is_an_error_with_the_reason() -> None:
    with pytest.raises(EngineError, match=r"Graphviz failed \(exit status 1\): .*this is no DOT text"):
        draw("digraph { a -> ", "svg")


def test_an_unknown_layout_is_an_error() -> None:
    with pytest.raises(EngineError, match="cannot lay this out with no-such-layout"):
        draw("digraph { a }", "svg", layout="no-such-layout")


def test_a_crash_of_the_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_child", lambda: [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"])
    with pytest.raises(EngineError, match="ended by signal SIGSEGV"):
        draw("digraph { a }", "svg")


def test_given_positions_are_drawn_as_they_are() -> None:
    svg = draw(
        'digraph { a [pos="0,0"]; b [pos="500,0"]; a -> b [pos="e,470,0 30,0 40,0 50,0 460,0"] }', "svg", layout="nop2"
    )
    width = re.search(rb'<svg [^>]*width="(\d+)pt"', svg)
    assert width is not None
    assert int(width[1]) > 500


@pytest.mark.parametrize(("format", "wanted"), [("gif", "auto"), ("svg", "circo"), ("../x", "auto")])
def test_unknown_words_are_refused(format: str, wanted: str) -> None:
    with pytest.raises(FormatError, match=r"is no (format|engine); choose one of "):
        draw("digraph { a }", format, engine=wanted)


def fake_dot(folder: Path, script: str) -> None:
    program = folder / "dot"
    program.write_text(f"#!{sys.executable}\nimport sys\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_the_system_engine_is_asked_as_dot_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments, its scale and its fonts."""
    script = """
import os
outputs = [argument[2:] for argument in sys.argv if argument.startswith("-o")]
open(outputs[0], "w").write(repr((sys.argv[1:], open(os.environ["FONTCONFIG_FILE"]).read())))
open(outputs[1], "w").write("graph 0.5 10 10\\nstop\\n")"""
    fake_dot(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(ScaledDownWarning, match="at 50% of its size"):
        told = draw("digraph { a }", "png", engine="system").decode()
    assert "'-Kdot', '-Tpng'" in told
    assert "'-Gdpi=144'" in told
    assert "fontpkg_arimo" in told


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_the_fault_of_the_system_engine_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_dot(tmp_path, 'sys.stderr.write("Fontconfig warning: x\\nsyntax error in line 3\\n"); sys.exit(3)')
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"^Graphviz failed \(exit status 3\): syntax error in line 3$"):
        draw("digraph { a }", "svg", engine=Engine.SYSTEM)
    fake_dot(tmp_path, "pass")
    with pytest.raises(EngineError, match="wrote no svg"):
        draw("digraph { a }", "svg", engine=Engine.SYSTEM)


def test_a_missing_engine_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineError, match=r"No `dot` on PATH\. Install Graphviz"):
        draw("digraph { a }", "svg", engine="system")
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    for wanted in ("auto", "bundled"):
        with pytest.raises(EngineError, match="`pip install pygraphviz` brings Graphviz with it"):
            draw("digraph { a }", "svg", engine=wanted)


def test_nothing_of_the_user_stands_in_the_way_of_the_child(tmp_path: Path) -> None:
    for name in ("pygraphviz", "signal", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')", encoding="utf-8")
    command = [*engine._child(), str(engine._bundled_folder())]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert re.fullmatch(r"\d+\.\d+\.\d+", done.stdout), done.stderr


def test_a_small_drawing_is_quick() -> None:
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        draw("digraph { a }", "svg")
        seconds.append(time.monotonic() - start)
    assert min(seconds) < 1


def test_a_broken_font_configuration_of_the_user_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.conf"
    broken.write_text("<fontconfig><dir>", encoding="utf-8")
    for given in (str(broken), str(tmp_path / "missing.conf"), ""):
        monkeypatch.setenv("FONTCONFIG_FILE", given)
        assert re.search(rb"\+Arimo", draw("digraph { a [fontname=Helvetica label=readable] }", "pdf"))


def test_the_bundled_font_comes_before_those_of_the_user(tmp_path: Path) -> None:
    own = tmp_path / "a & b.conf"
    own.write_text(NO_FONTS, encoding="utf-8")
    text = to_fontconfig({"FONTCONFIG_FILE": str(own)})
    root = ET.fromstring(text.partition("]>")[2] or text)  # noqa: S314
    sources = [(child.tag, child.text) for child in root if child.tag in {"dir", "include"}]
    assert sources == [("dir", str(bundled_folder())), ("include", str(own))]
    assert "/etc/fonts/fonts.conf" in to_fontconfig({})


def test_the_report_tells_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = report()
    assert re.fullmatch(r"1[4-9]\.\d+\.\d+", found.bundled or "")
    assert found.font == bundled_folder()
    assert (found.system, found.system_path) == (None, None)


@pytest.mark.usefixtures("bare")
def test_the_report_knows_that_chinese_has_no_font() -> None:
    assert report().chinese is None


def test_an_svg_without_tooltip_is_finished_too() -> None:
    plain = b'<svg xmlns="http://www.w3.org/2000/svg"><g id="graph0" class="graph"><title>G</title></g></svg>'
    root = ET.fromstring(finish_svg(plain, prefix="p"))  # noqa: S314
    assert [element.get("id") for element in root] == ["p-title", "p-description", "p-graph0"]
    assert root[0].text == "graph"


def test_a_colour_that_viewers_do_not_know_is_replaced() -> None:
    written = b'<svg xmlns="http://www.w3.org/2000/svg"><path stroke="transparent"/><text>="transparent"</text></svg>'
    finished = finish_svg(written.replace(b'>="t', b">=&quot;t").replace(b't"<', b"t&quot;<"), prefix="p")
    root = ET.fromstring(finished)  # noqa: S314
    assert [element.get("stroke") for element in root.iter(f"{SVG}path")] == ["none"]
    assert list(texts(finished)) == ['="transparent"']
