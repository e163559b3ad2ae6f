"""Boxes around nodes: the stretches of code that ran under one grad mode, and the tensors that no edge touches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from graphscope.model import GraphData, Kind, Location, Region
from graphscope.render.escape import to_identifier, to_label, to_tooltip
from graphscope.render.palette import Palette
from graphscope.style import MODE_WORDS, elide, visible

UNCONNECTED_WORDS = "named, but on no recorded path to a root"


def place_of(location: Location) -> str:
    """File and line, and below it the code if it is known."""
    return visible(f"{location.file}:{location.line}") + (f"\n{visible(location.code)}" if location.code else "")


def region_lines(data: GraphData, lines: Mapping[str, str], palette: Palette, *, is_down: bool) -> list[str]:
    """Regions as nested clusters with the lines of their nodes; one without nodes is not drawn.

    A region stands in ``data.regions`` after the one around it.
    """
    if not data.regions:
        return []
    within: dict[str | None, list[str]] = {region.id: [] for region in data.regions}
    for node in data.nodes:
        if node.region is not None:
            within[node.region].append(lines[node.id])
    first = {node.region: node.id for node in reversed(data.nodes)}
    inside: dict[str | None, list[list[str]]] = {region.id: [] for region in data.regions}
    inside[None] = []
    finished: set[str] = set()
    for region in reversed(data.regions):
        content = [*within[region.id], *(line for block in reversed(inside[region.id]) for line in block)]
        finished.add(region.id)
        if content:
            parent = region.parent if region.parent in inside and region.parent not in finished else None
            first.setdefault(parent, first[region.id])
            head = _region_head(region, first[region.id], palette, is_down=is_down)
            inside[parent].append([*head, *content, "\t}\n"])
    return [line for block in reversed(inside[None]) for line in block]


def _region_head(region: Region, first: str, palette: Palette, *, is_down: bool) -> Iterator[str]:
    """The box of a region and its title: downwards a node, since edges run across the label of a cluster."""
    words = MODE_WORDS.get(region.mode, visible(region.mode))
    place, _, code = place_of(region.location).partition("\n") if region.location is not None else ("", "", "")
    lines = [f"<b>{to_label(words)}</b>  {to_label(elide(place))}".rstrip(), to_label(elide(code))]
    lines.append("still in force at the end" if region.left_on else "")
    label = "".join(f'{line}<br align="left"/>' for line in lines if line)
    yield from _box(f"cluster_{region.id}", f"ran under {words}", "" if is_down else label, "region", palette)
    if is_down:
        title = to_identifier(f"{region.id} title")
        yield (
            f'\t{title} [class="region-title" shape=plain peripheries=0 style="" fontsize=10'
            f' fontcolor="{palette.muted}" tooltip={to_tooltip(f"ran under {words}")} label=<{label}>]\n'
        )
        yield f"\t{title} -> {to_identifier(first)} [style=invis]\n"


def _box(name: str, tooltip: str, label: str, kind: str, palette: Palette) -> Iterator[str]:
    style = "rounded,filled,dashed" if kind == "region" else "rounded,filled"
    yield f"\tsubgraph {to_identifier(name)} {{\n"
    yield (
        f'\tgraph [class={kind} style="{style}" peripheries=1 fillcolor="{palette.region}" color="{palette.muted}"'
        f' margin=10 labelloc=t labeljust=l fontsize=10 fontcolor="{palette.muted}"'
        f" tooltip={to_tooltip(tooltip)} label=<{label}>]\n"
    )


def unconnected(data: GraphData) -> list[str]:
    """Ids of the leaves that no edge touches: named, yet not part of what led to a root."""
    touched = {edge.source for edge in data.edges}
    touched.update(edge.target for edge in data.edges)
    return [node.id for node in data.nodes if node.id not in touched and node.kind is Kind.LEAF and node.region is None]


def unconnected_lines(
    apart: Sequence[str], lines: Mapping[str, str], palette: Palette, *, is_down: bool
) -> Iterator[str]:
    """A block about as wide as high: Graphviz alone would put them all side by side."""
    if not apart:
        return
    high = math.ceil(math.sqrt(3 * len(apart)))
    length = high if is_down else math.ceil(len(apart) / high)
    yield from _box("cluster unconnected", UNCONNECTED_WORDS, UNCONNECTED_WORDS, "unconnected", palette)
    starts = range(0, len(apart), length)
    for start in starts if is_down else reversed(starts):  # Graphviz stacks rows from below
        column = apart[start : start + length]
        yield from (lines[node] for node in column)
        if len(column) > 1:
            yield f"\t{' -> '.join(map(to_identifier, column))} [style=invis]\n"
    yield "\t}\n"
