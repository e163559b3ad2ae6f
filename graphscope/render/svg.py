"""What Graphviz writes as SVG, made fit for a page: readable aloud, several on one page, any font.

Graphviz gives every drawing the same ids, shows DOT names as tooltips and names one font. Here a drawing
gets ids of its own, a title and a description, its tooltips, and a list of fonts for the viewer to choose from.
"""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping

from graphscope.render.fonts import FAMILIES
from graphscope.render.measure import text_size

_SVG = "http://www.w3.org/2000/svg"
_XLINK_TITLE = "{http://www.w3.org/1999/xlink}title"
_XML_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_group = f"{{{_SVG}}}g"
_path = f"{{{_SVG}}}path"
_rounded_box = re.compile(r"M[-\d.]+,[-\d.]+C(?:[-\d.]+,[-\d.]+ ?){24}").fullmatch
_number = re.compile(r"-?[\d.]+").findall
_rect = f"{{{_SVG}}}rect"
_title = f"{{{_SVG}}}title"
_text = f"{{{_SVG}}}text"


def finish_svg(written: bytes, *, prefix: str | None = None) -> bytes:
    """The SVG of Graphviz with title, description, ids of its own, tooltips and fonts.

    Args:
        written: what Graphviz wrote. The graph's ``tooltip`` holds the title, and below it the description.
        prefix: begins every id. By default it is made of the content, so that different drawings
            on one page do not collide and the same drawing is always the same text.
    """
    prefix = prefix or f"g{hashlib.sha256(written).hexdigest()[:10]}"
    # Graphviz before 3.0 wrote a colour that SVG 1.1 does not know, and some viewers draw it black.
    root = ET.fromstring(written.replace(b'="transparent"', b'="none"'))  # noqa: S314 - written by our own engine
    title, description = "graph", ""
    for group in root.iter(_group):
        kind = (group.get("class") or "").partition(" ")[0]
        if not kind:
            continue
        tooltip = _unwrap_tooltip(group)
        if kind == "graph":
            title, _, description = (tooltip or title).partition("\n")
        _name(group, kind, prefix, tooltip)
    _raise_titles(root)
    _slim(root)
    _introduce(root, prefix, title, description)
    ET.register_namespace("", _SVG)
    return f"{ET.tostring(root, encoding='unicode')}\n".encode()


def _unwrap_tooltip(group: ET.Element) -> str | None:
    """Graphviz puts what has a tooltip into a link without an address; take it out and return the tooltip.

    Of two spaces Graphviz makes the second one non-breaking.
    """
    for position, child in enumerate(group):
        if child.tag == _group and (child.get("id") or "").startswith("a_") and len(child):
            tooltip = child[0].get(_XLINK_TITLE, "")
            group[position : position + 1] = list(child[0])
            return tooltip.replace("\u00a0", " ")
    return None


def _name(group: ET.Element, kind: str, prefix: str, tooltip: str | None) -> None:
    group.set("id", f"{prefix}-{group.get('id')}")
    name = group.find(_title)
    if name is None:
        return
    if kind in {"node", "edge"}:
        group.set("data-id", name.text or "")
    if kind == "node":
        name.text = tooltip or name.text
    elif kind == "cluster" and tooltip and tooltip.strip():
        name.text = tooltip
    else:
        group.remove(name)


def _raise_titles(root: ET.Element) -> None:
    """Titles of the frames of modules above the lines that run into the frames, each on ground of its own.

    Graphviz draws boxes around others first, with their titles, and all lines over them.
    """
    drawing = root.find(_group)
    titles = ET.Element(_group, {"class": "titles"})
    for group in root.iter(_group):
        frame = group.find(_path)
        words = group.findall(_text) if group.get("class") == "cluster frame" else []
        if frame is None or not words:
            continue
        left, base = float(words[0].get("x", 0)), float(words[0].get("y", 0))
        last, highest = words[-1], max(float(text.get("font-size", 0)) for text in words)
        end = float(last.get("x", 0)) + text_size(last.text or "", float(last.get("font-size", 0))).width
        within = max(float(number) for number in _number(frame.get("d", ""))[::2]) - float(frame.get("stroke-width", 1))
        ground = {"x": left, "y": base - 0.8 * highest, "width": min(end, within) - left, "height": 1.05 * highest}
        facts = {fact: f"{value:.2f}" for fact, value in ground.items()}
        ET.SubElement(titles, _rect, {"fill": frame.get("fill", "none"), "stroke": "none", **facts})
        for text in words:
            group.remove(text)
            titles.append(text)
    if drawing is not None and len(titles):
        drawing.append(titles)


def _slim(root: ET.Element) -> None:
    """Say the same with fewer letters: a large drawing is a third shorter then."""
    texts = list(root.iter(_text))
    for text in texts:
        text.attrib.pop("font-family", None)
        if text.get("text-anchor") == "start":
            del text.attrib["text-anchor"]
        if not re.search(r"^\s|\s\s|\s$", text.text or ""):
            text.attrib.pop(_XML_SPACE, None)
    for fact, default in (("font-size", "14"), ("fill", "#000000")):
        usual = Counter(text.get(fact, default) for text in texts).most_common(1)
        for value, _ in usual:
            root.set(fact, value)
        for text in texts:
            if text.get(fact, default) == root.get(fact):
                text.attrib.pop(fact, None)
            else:
                text.set(fact, text.get(fact, default))
    for path in root.iter(_path):
        if _rounded_box(path.get("d", "")):
            _make_rectangle(path)


def _make_rectangle(path: ET.Element) -> None:
    """A box with round corners. Graphviz draws curves whose control points stand half a radius from the edge."""
    numbers = [float(number) for number in _number(path.attrib.pop("d"))]
    across, down = numbers[::2], numbers[1::2]
    left, top = min(across), min(down)
    radius = 2 * min(x - left for x in across if x > left)
    facts = left, top, max(across) - left, max(down) - top, radius
    path.tag = f"{{{_SVG}}}rect"
    path.attrib.update(zip(("x", "y", "width", "height", "rx"), (f"{fact:.2f}" for fact in facts), strict=True))


def open_svg(attributes: Mapping[str, str], prefix: str, title: str, description: str) -> str:
    """The beginning of an SVG that is written by hand, up to its description: as ``finish_svg`` makes it."""
    root = ET.Element(f"{{{_SVG}}}svg", dict(attributes))
    _introduce(root, prefix, title, description)
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode").removesuffix("</svg>")


def _introduce(root: ET.Element, prefix: str, title: str, description: str) -> None:
    root.set("role", "img")
    root.set("aria-labelledby", f"{prefix}-title {prefix}-description")
    root.set("font-family", FAMILIES)
    root.set("style", "max-width: 100%; height: auto")
    for name, text, position in (("title", title, 0), ("desc", description, 1)):
        element = ET.Element(f"{{{_SVG}}}{name}", {"id": f"{prefix}-{'title' if position == 0 else 'description'}"})
        element.text, element.tail = text, "\n"
        root.insert(position, element)


def texts(written: bytes) -> Iterator[str]:
    """Every line of text that an SVG shows, with ordinary spaces."""
    root = ET.fromstring(written)  # noqa: S314 - written by our own engine
    for element in root.iter(_text):
        yield re.sub("\u00a0", " ", "".join(element.itertext()))
