"""The side-by-side picture as DOT: every position is given, Graphviz's ``nop2`` only draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import graphviz

from graphscope.bands import Band, hidden_rows
from graphscope.render.compare_layout import (
    SIGN_SIZE,
    TEXT_SIZE,
    TITLE_SIZE,
    Arrow,
    Box,
    Frame,
    Picture,
    lay_out,
)
from graphscope.render.dot import FONT, DotOptions, edge_attributes
from graphscope.render.escape import to_identifier, to_label, to_tooltip
from graphscope.render.legend import COLUMN_LIMIT, to_entries
from graphscope.render.palette import PALETTES, Palette
from graphscope.render.text_width import text_width
from graphscope.runs import Compared
from graphscope.style import FORMS, EdgeLook, visible
from graphscope.units import to_count_text

LAYOUT = "nop2"
"""The layout of Graphviz that takes positions as they are."""

_LEGEND_LINE, _LEGEND_COLUMN = 19.0, 300.0
_WIDE = 560.0
"""Points from which on the legend has room for two columns."""
_SIGNS = {False: ("=", "the same in every run"), True: ("≠", "differs, as the words beside it say")}


def compared_to_dot(compared: Compared, bands: Sequence[Band], options: DotOptions | None = None) -> graphviz.Digraph:
    """The picture as a ``graphviz.Digraph``; draw it with the layout ``nop2``."""
    options = options or DotOptions()
    palette = PALETTES[options.theme]
    picture = lay_out(compared, bands)
    legend = [*_legend_lines(picture, bands, palette)] if options.legend else []
    body = [*_default_lines(compared, palette), *_frame_lines(picture, palette)]
    framed = {identity for frame in picture.frames for identity in frame.boxes}
    body += [_box_line(box, palette, palette.background) for box in picture.boxes if box.id not in framed]
    body += [*legend, *(_arrow_line(arrow, palette) for arrow in picture.arrows)]
    return graphviz.Digraph("graphscope", body=body)


def describe(compared: Compared) -> str:
    """One sentence for each run, for somebody who cannot see the drawing."""
    differing = sum(1 for row in compared.rows if row.differs)
    parts = [f"{to_count_text(len(compared.rows), 'row')}, {differing:,} of them differ."]
    for run, figures in zip(compared.runs, compared.figures, strict=True):
        told = f"{to_count_text(figures.ops, 'operation')}, {to_count_text(figures.backward_nodes, 'backward node')}"
        parts.append(f"{visible(run.mode)}: {told}{', ended by ' + run.failure.type if run.failure else ''}.")
    return " ".join(parts)


def _default_lines(compared: Compared, palette: Palette) -> Iterator[str]:
    names = ", ".join(visible(run.mode) for run in compared.runs)
    tooltip = to_tooltip(f"comparison of {names}\n{describe(compared)}")
    yield (
        f'\tgraph [layout={LAYOUT} bgcolor="{palette.background}" fontcolor="{palette.text}" fontname={FONT}'
        f" fontsize={TEXT_SIZE} pad=0.2 outputorder=edgesfirst tooltip={tooltip}]\n"
    )
    yield (
        f'\tnode [shape=box fontname={FONT} fontsize={TEXT_SIZE} fontcolor="{palette.text}" fixedsize=true margin=0'
        ' tooltip=" "]\n'
    )
    yield f'\tedge [color="{palette.edges[EdgeLook.FLOWS]}" penwidth=1.1 arrowsize=0.7 tooltip=" "]\n'


def _at(x: float, y: float) -> str:
    """A position as Graphviz has it: upwards is more."""
    return f"{x:.1f},{-y + 0.0:.1f}"


def _box_line(box: Box, palette: Palette, ground: str) -> str:
    """``ground`` is what the box stands on; words without a box hide with it the arrow that goes on behind them."""
    tooltip = f" tooltip={to_tooltip(box.tooltip)}" if box.tooltip else ""
    size = f'pos="{_at(box.x, box.y)}" width={box.width / 72:.4f} height={box.height / 72:.4f}'
    return f"\t{to_identifier(box.id)} [{size}{_look(box, palette, ground)}{tooltip} label=<{_label(box, palette)}>]\n"


def _look(box: Box, palette: Palette, ground: str) -> str:
    if box.look is None:
        return f' class=words shape=none style=filled fillcolor="{ground}"'
    form, colours = FORMS[box.look], palette.looks[box.look]
    style = [*(["rounded"] if form.rounded else []), "filled", *([form.line] if form.line != "solid" else [])]
    return (
        f' class={box.look} style="{",".join(style)}" fillcolor="{colours.fill}" color="{colours.line}"'
        f' fontcolor="{colours.text}" penwidth={form.width:g} peripheries={2 if form.double or box.double else 1}'
    )


def _label(box: Box, palette: Palette) -> str:
    """Title and lines; a break after each line but the last keeps a centred text in the middle."""
    align = ' align="left"' if box.left else ""
    size = SIGN_SIZE if box.look is None else TITLE_SIZE
    muted = palette.looks[box.look].muted if box.look is not None else palette.muted
    colour = palette.alarm if box.alarm and box.look is None else muted
    parts = [f'<font point-size="{size}"><b>{to_label(box.title)}</b></font>'] if box.title else []
    parts += [f'<font color="{colour}">{to_label(line)}</font>' for line in box.lines]
    text = f"<br{align}/>".join(parts)
    return text + (f"<br{align}/>" if box.left and parts else "")


def _frame_lines(picture: Picture, palette: Palette) -> Iterator[str]:
    boxes = {box.id: box for box in picture.boxes}
    for frame in picture.frames:
        yield from _frame(frame, boxes, palette)


def _frame(frame: Frame, boxes: dict[str, Box], palette: Palette) -> Iterator[str]:
    first, *further = map(to_label, frame.lines)
    label = f'<b>{first}</b><br align="left"/>' + "".join(f'{line}<br align="left"/>' for line in further)
    corners = f"{_at(frame.left, frame.bottom)},{_at(frame.right, frame.top)}"
    height = 12.0 * len(frame.lines) + 4.0
    width = max(text_width(line, TEXT_SIZE, bold=not place) for place, line in enumerate(frame.lines))
    middle = _at(frame.left + 12.0 + width / 2, frame.top + 3.0 + height / 2)
    yield f"\tsubgraph {to_identifier(f'cluster {frame.id}')} {{\n"
    yield (
        f'\tgraph [class=region style="rounded,filled,dashed" peripheries=1 fillcolor="{palette.region}"'
        f' color="{palette.muted}" fontcolor="{palette.muted}" fontsize={TEXT_SIZE} labeljust=l bb="{corners}"'
        f' lp="{middle}" lwidth={width / 72:.3f} lheight={height / 72:.3f}'
        f" tooltip={to_tooltip(f'ran under {frame.lines[0]}')} label=<{label}>]\n"
    )
    yield from (_box_line(boxes[identity], palette, palette.region) for identity in frame.boxes)
    yield "\t}\n"


def _arrow_line(arrow: Arrow, palette: Palette) -> str:
    *line, tip = (_at(x, y) for x, y in arrow.points)
    ends = f"\t{to_identifier(arrow.source)} -> {to_identifier(arrow.target)}"
    attributes = [f'pos="e,{tip} {" ".join(line)}"', edge_attributes(arrow.look, palette)]
    return f"{ends} [{' '.join(filter(None, attributes))}]\n"


def _legend_lines(picture: Picture, bands: Sequence[Band], palette: Palette) -> Iterator[str]:
    entries = to_entries(picture.looks, {arrow.look for arrow in picture.arrows}, palette)
    differ = {band.differs for band in bands}
    entries += [_sign_entry(*_SIGNS[each]) for each in (False, True) if each in differ]
    hidden = hidden_rows(bands)
    columns = 2 if len(entries) > COLUMN_LIMIT and picture.width > _WIDE else 1
    high = -(-len(entries) // columns)
    gap = '<td width="10"></td>'
    rows = "".join(f"<tr>{gap.join(entries[place::high])}</tr>" for place in range(high))
    if hidden:
        folded = sum(1 for band in bands if len(band.rows) > 1)
        told = f"{to_count_text(hidden, 'row')} folded into {to_count_text(folded, 'box', 'boxes')}"
        rows += f'<tr><td align="left" colspan="{3 * columns}">{told}</td></tr>'
    height = _LEGEND_LINE * (high + bool(hidden)) + 8.0
    width = _LEGEND_COLUMN * columns
    table = f'<table border="0" cellborder="0" cellspacing="4" cellpadding="1">{rows}</table>'
    yield (
        f'\tlegend [pos="{_at(width / 2, picture.height + 16.0 + height / 2)}" width={width / 72:.4f}'
        f' height={height / 72:.4f} class=legend shape=none style="" fontsize=9 fontcolor="{palette.text}"'
        f" label=<{table}>]\n"
    )


def _sign_entry(sign: str, meaning: str) -> str:
    return f'<td><b>{to_label(sign)}</b></td><td align="left">{to_label(meaning)}</td>'
