"""DOT: the graph as Graphviz reads it.

``to_dot`` composes text and runs nothing; ``render.engine`` turns the text into SVG, PNG or PDF, and so
does any ``dot``. Lines are composed by hand, because a graph may have tens of thousands of nodes and the
``graphviz`` package quotes every attribute anew; its ``Digraph`` holds the finished lines.

Data flows downwards (or to the right): leaves first, roots last. Labels are HTML-like, so that the forward
op can stand out from the backward node. The same graph gives the same text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from enum import StrEnum

import graphviz

from graphscope.errors import FormatError
from graphscope.model import GraphData, Kind, Node
from graphscope.render.clusters import cluster_lines, module_around, paths_of, place_of, unconnected, unconnected_lines
from graphscope.render.escape import to_identifier, to_label, to_tooltip
from graphscope.render.legend import UNMARKED, legend_entries, to_caption, wrap
from graphscope.render.palette import PALETTES, Palette, Theme
from graphscope.style import (
    EDGE_LINES,
    FORMS,
    GLYPHS,
    EdgeLook,
    Look,
    describe,
    details_of,
    edge_look,
    edge_words,
    elide,
    is_alarming,
    look_of,
    stub_slots,
    stub_words,
    title_of,
    visible,
)

FONT = "Helvetica"
"""Known to every Graphviz; the engine answers with the bundled Arimo, whose letters are as wide."""


class Direction(StrEnum):
    """Which way data flows in the drawing."""

    DOWN = "TB"
    RIGHT = "LR"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DotOptions:
    """How a graph is drawn; what is drawn is a matter of ``transforms``."""

    theme: Theme = Theme.LIGHT
    rankdir: Direction = Direction.DOWN
    show: frozenset[str] = frozenset()
    """Of ``saved hooks versions accumulate source stubs``: what boxes tell beyond the usual."""
    legend: bool = True
    title: str | None = None
    """Drawn above the graph if given."""

    def __post_init__(self) -> None:
        """Take the words for the members.

        Raises:
            FormatError: if the theme or the direction is not one of the known words.
        """
        for field, kind in (("theme", Theme), ("rankdir", Direction)):
            given = getattr(self, field)
            try:
                object.__setattr__(self, field, kind(given))
            except ValueError:
                known = ", ".join(kind)
                raise FormatError(f"{given!r} is no {field}; choose one of {known}.") from None


def to_dot(data: GraphData, options: DotOptions | None = None) -> graphviz.Digraph:
    """A graph as a ``graphviz.Digraph``; ``.source`` is the DOT text.

    The same graph and options give the same text, in every process. Any name is shown as typed.

    Example:
        ``to_dot(data, DotOptions(theme="dark", rankdir="LR")).source``
    """
    options = options or DotOptions()
    palette = PALETTES[options.theme]
    stubs = [*stub_lines(data, palette)] if "stubs" in options.show else []
    inner = [*node_lines(data, options, palette), *edge_lines(data, palette), *stubs]
    entries = legend_entries(data, palette, stubs=bool(stubs)) if options.legend else []
    caption = to_caption(data, palette, entries, wide=options.rankdir is Direction.RIGHT)
    body = [*default_lines(data, options, palette), *_framed(inner, caption, options.title)]
    return graphviz.Digraph("graphscope", body=body)


def page_title(options: DotOptions) -> str:
    """What a drawing is called, whether that stands above it or not."""
    return visible("autograd graph" if options.title is None else options.title)


def default_lines(data: GraphData, options: DotOptions, palette: Palette) -> Iterator[str]:
    """What holds for all boxes and edges that say nothing else."""
    tooltip = to_tooltip(f"{page_title(options)}\n{describe(data)}")
    yield (
        f'\tgraph [rankdir={options.rankdir} bgcolor="{palette.background}" fontcolor="{palette.text}" fontname={FONT}'
        f" fontsize=9 nodesep=0.3 ranksep=0.35 pad=0.2 tooltip={tooltip}]\n"
    )
    yield (
        f"\tnode [shape=box fontname={FONT} fontsize=12 height=0.3 width=0.4"
        f' margin="0.13,0.06"{_look_attributes(Look.TRACKED, palette)}]\n'
    )
    yield (
        f'\tedge [color="{palette.edges[EdgeLook.FLOWS]}" fontcolor="{palette.muted}" fontname={FONT} fontsize=9'
        " penwidth=1.1 arrowsize=0.7]\n"
    )


def _look_attributes(look: Look, palette: Palette) -> str:
    form, colours = FORMS[look], palette.looks[look]
    style = [*(["rounded"] if form.rounded else []), "filled", *([form.line] if form.line != "solid" else [])]
    return (
        f' class={look} style="{",".join(style)}" fillcolor="{colours.fill}" color="{colours.line}"'
        f' fontcolor="{colours.text}" penwidth={form.width:g} peripheries={2 if form.double else 1}'
    )


def _framed(inner: Sequence[str], caption: str, title: str | None) -> Iterator[str]:
    """Graphviz gives a graph one label: with a title above, the caption below needs a frame of its own."""
    if title is None:
        if caption:
            yield f"\tgraph [labelloc=b label=<{caption}>]\n"
        yield from inner
        return
    yield f"\tgraph [labelloc=t fontsize=15 label=<<b>{to_label(visible(title))}</b>>]\n"
    yield "\tsubgraph cluster_frame {\n"
    yield f'\tgraph [peripheries=0 labelloc=b fontsize=9 tooltip=" " label=<{caption or " "}>]\n'
    yield from inner
    yield "\t}\n"


def node_lines(data: GraphData, options: DotOptions, palette: Palette) -> Iterator[str]:
    """Nodes outside all clusters, then the clusters with theirs, then what no edge leads to or from."""
    frames = {look: label_frame(look, palette) for look in Look}
    paths = paths_of(data)
    lines = {
        node.id: node_line(node, data, options.show, frames, module_around(paths.get(node.id, ())))
        for node in data.nodes
    }
    apart = unconnected(data)
    clustered = paths.keys() | apart
    yield from (lines[node.id] for node in data.nodes if node.id not in clustered)
    is_down = options.rankdir is Direction.DOWN
    yield from cluster_lines(data, paths, lines, palette, is_down=is_down)
    yield from unconnected_lines(apart, lines, palette, is_down=is_down)


def label_frame(look: Look, palette: Palette) -> tuple[str, str, str]:
    """What stands before the title, between title and details, and after them."""
    mark = "" if look in UNMARKED else f"{GLYPHS[look]}  "
    attributes = "" if look is Look.TRACKED else _look_attributes(look, palette)
    font = f'<font point-size="10" color="{palette.looks[look].muted}">'
    return f"label=<{mark}<b>", f"</b><br/>{font}", f"</font>>{attributes}"


def box_text(node: Node, data: GraphData, show: frozenset[str], module: str = "") -> tuple[str, str]:
    """The title of a box and the lines below it, inside the frame of a module."""
    title = title_of(node)
    if module and node.kind is Kind.LEAF:
        title = title.removeprefix(f"{module}.")
    return elide(title), wrap("\n".join(details_of(node, data, show)))


def tooltip_of(node: Node, title: str) -> str:
    """The whole title, if what is drawn is shorter, and the line of source; may be empty."""
    whole = title_of(node)
    lines = [whole] if title != whole else []
    if node.location is not None:
        lines.append(place_of(node.location))
    return "\n".join(lines)


def node_line(
    node: Node, data: GraphData, show: frozenset[str], frames: dict[Look, tuple[str, str, str]], module: str
) -> str:
    """One box; ``frames`` holds ``label_frame`` of each look."""
    before, between, after = frames[look_of(node, data.view)]
    title, details = box_text(node, data, show, module)
    tooltip = tooltip_of(node, title)
    if tooltip:
        after = f"{after} tooltip={to_tooltip(tooltip)}"
    lines = to_label(details).replace("\n", "<br/>")
    return f"\t{to_identifier(node.id)} [{before}{to_label(title)}{between}{lines}{after}]\n"


def stub_lines(data: GraphData, palette: Palette) -> Iterator[str]:
    """Inputs without gradient that the graph knows nothing else of."""
    colour, line = palette.edges[EdgeLook.CUT], edge_attributes(EdgeLook.CUT, palette)
    for node in data.nodes:
        for slot in stub_slots(node, data):
            stub = to_identifier(f"{node.id} stub {slot}")
            yield (
                f'\t{stub} [class=stub style=dashed color="{colour}" fontcolor="{palette.muted}" fontsize=9'
                f' penwidth=0.8 tooltip="input {slot}" label=<{stub_words(slot)}>]\n'
            )
            yield f"\t{stub} -> {to_identifier(node.id)} [{line}]\n"


def _on_ground(label: str, palette: Palette) -> str:
    """A label that covers the border of a box where it happens to stand on it."""
    return (
        f'<table border="0" cellborder="0" cellspacing="0" cellpadding="0" bgcolor="{palette.background}">'
        f"<tr><td>{label}</td></tr></table>"
    )


def edge_attributes(look: EdgeLook, palette: Palette) -> str:
    """How an edge is drawn; empty of one that is drawn as most are."""
    if look is EdgeLook.FLOWS:
        return ""
    return f'class={look} style={EDGE_LINES[look]} color="{palette.edges[look]}"'


def edge_lines(data: GraphData, palette: Palette) -> Iterator[str]:
    """Edges in order; two uses of one tensor are two edges."""
    paths = paths_of(data)
    looks = {look: edge_attributes(look, palette) for look in EdgeLook}
    for edge in data.edges:
        attributes = [looks[edge_look(edge, data)]]
        words = edge_words(edge, data)
        if words:
            colour = f' fontcolor="{palette.alarm}"' if is_alarming(edge, data) else ""
            label = f"&#160;{'<br/>&#160;'.join(map(to_label, words))}"
            if paths.get(edge.source) != paths.get(edge.target):
                label = _on_ground(label, palette)
            attributes.append(f"label=<{label}>{colour}")
        text = " ".join(filter(None, attributes))
        ends = f"\t{to_identifier(edge.source)} -> {to_identifier(edge.target)}"
        yield f"{ends} [{text}]\n" if text else f"{ends}\n"
