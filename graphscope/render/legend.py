"""What stands below a drawing: the marks it uses and what it leaves out, as an HTML-like label of Graphviz.

A label of the graph, rather than nodes of its own, takes no part in the layout.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from graphscope.model import GraphData
from graphscope.render.escape import to_label
from graphscope.render.palette import Palette
from graphscope.style import EDGE_MEANINGS, FORMS, GLYPHS, MEANINGS, EdgeLook, Look, edge_look, look_of, visible
from graphscope.units import to_count_text

LINE_LIMIT = 46
"""Longest line of a box; longer sentences are broken at a space."""

COLUMN_LIMIT = 5
"""Most entries in one column; more stand in two, and a wide drawing has one more."""

UNMARKED = frozenset({Look.TRACKED})
"""Looks of most boxes of a graph, which need no mark."""

EDGE_SAMPLES = {EdgeLook.FLOWS: "───►", EdgeLook.DEAD: "· · · ►", EdgeLook.CUT: "– – ►"}


def wrap(text: str) -> str:
    r"""Lines of more than ``LINE_LIMIT`` characters broken at spaces, where they have some, into lines about as long.

    >>> wrap("connected, but torch has no derivative: backward raises")
    'connected, but torch has no\nderivative: backward raises'
    """
    if len(text) <= LINE_LIMIT:
        return text
    return "\n".join(line if len(line) <= LINE_LIMIT else _broken(line) for line in text.split("\n"))


def _broken(line: str) -> str:
    width = -(-len(line) // -(-len(line) // LINE_LIMIT)) + 4
    return re.sub(rf"(?=.{{{width + 1}}})(.{{12,{width}}}) ", r"\1\n", line)


def to_caption(data: GraphData, palette: Palette, entries: Sequence[str], *, wide: bool) -> str:
    """The inside of a label: the entries of the legend, what is hidden, what must be known. May be empty."""
    columns = column_count(len(entries), wide=wide)
    rows = [*_rows(entries, columns)]
    span = f'<td align="left" colspan="{3 * columns}">'
    rows += [f'<tr>{span}<font color="{palette.muted}">{_lines(told)}</font></td></tr>' for told in sentences(data)]
    if not rows:
        return ""
    space = f'<tr><td height="8" colspan="{3 * columns}"></td></tr>'
    return f'<table border="0" cellborder="0" cellspacing="4" cellpadding="1">{space}{"".join(rows)}</table>'


def column_count(entries: int, *, wide: bool) -> int:
    """How many columns that many entries stand in."""
    return 1 + (entries > COLUMN_LIMIT) + wide


def sentences(data: GraphData) -> Iterator[str]:
    """What is hidden, and what must be known, in lines fit to be seen."""
    told = [*data.view.notes, *data.notices]
    count = to_count_text(data.view.hidden, "node")
    if data.view.hidden and not any(note.startswith(f"{count} not drawn: ") for note in data.view.notes):
        in_all = ", in all" if any("not drawn" in note for note in data.view.notes) else ""
        told.insert(0, f"{count} of the graph not drawn here{in_all}")
    yield from (wrap(visible(sentence)) for sentence in told)


def _lines(sentence: str) -> str:
    return to_label(sentence).replace("\n", '<br align="left"/>') + '<br align="left"/>'


def _rows(entries: Sequence[str], columns: int) -> Iterator[str]:
    """Entries in columns, to be read downwards; each takes two cells and a gap."""
    height = -(-len(entries) // columns)
    for row in range(height):
        yield "<tr>" + '<td width="10"></td>'.join(entries[row::height]) + "</tr>"


def legend_entries(data: GraphData, palette: Palette, *, stubs: bool) -> list[str]:
    """A mark and its meaning for each look of a node and of an edge that the drawing uses."""
    return to_entries(*used_looks(data, stubs=stubs), palette, unmarked=UNMARKED)


def used_looks(data: GraphData, *, stubs: bool) -> tuple[set[Look], set[EdgeLook]]:
    """The looks of nodes and of edges that a drawing uses."""
    edge_looks = {edge_look(edge, data) for edge in data.edges} | ({EdgeLook.CUT} if stubs else set())
    return {look_of(node, data.view) for node in data.nodes}, edge_looks


def to_entries(
    looks: Collection[Look],
    edge_looks: Collection[EdgeLook],
    palette: Palette,
    *,
    unmarked: Collection[Look] = (),
) -> list[str]:
    """The cells of a table row for each: a mark, and what it means; ``unmarked`` are told by their boxes alone."""
    boxes = [
        f'{_box(look, palette, marked=look not in unmarked)}<td align="left">{to_label(MEANINGS[look])}</td>'
        for look in Look
        if look in looks
    ]
    arrows = [
        f'<td><font color="{palette.edges[kind]}">{EDGE_SAMPLES[kind]}</font></td>'
        f'<td align="left">{to_label(EDGE_MEANINGS[kind])}</td>'
        for kind in EdgeLook
        if kind in edge_looks
    ]
    return boxes + arrows


def _box(look: Look, palette: Palette, *, marked: bool) -> str:
    """A small box that looks as the nodes do; the double line is a box in a box."""
    form, colours = FORMS[look], palette.looks[look]
    style = ",".join([*(["rounded"] if form.rounded else []), *([form.line] if form.line != "solid" else [])])
    border = f'border="{round(form.width)}" color="{colours.line}"' + (f' style="{style}"' if style else "")
    glyph = f'<font color="{colours.text}">{GLYPHS[look] if marked else " "}</font>'
    size = 'cellpadding="0" fixedsize="true" width="26" height="17"'
    if not form.double:
        return f'<td {border} bgcolor="{colours.fill}" {size}>{glyph}</td>'
    inner = f'<table {border} bgcolor="{colours.fill}" cellborder="0" cellspacing="0" cellpadding="0"><tr>'
    return f'<td {border} cellpadding="2">{inner}<td width="20" height="12">{glyph}</td></tr></table></td>'
