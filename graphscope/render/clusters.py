"""Boxes around nodes: modules that are drawn open, stretches of code that ran under one grad mode, loose tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from graphscope.model import Frame, GraphData, Kind, Location, Region
from graphscope.render.escape import to_identifier, to_label, to_tooltip
from graphscope.render.palette import Palette
from graphscope.style import MODE_WORDS, Look, elide, frame_words, visible

UNCONNECTED_WORDS = "named, but on no recorded path to a root"

Around = Frame | Region
"""What a box is drawn for."""

Path = tuple[Around, ...]
"""The boxes around a node, from outside to inside."""


def place_of(location: Location) -> str:
    """File and line, and below it the code if it is known."""
    return visible(f"{location.file}:{location.line}") + (f"\n{visible(location.code)}" if location.code else "")


def paths_of(data: GraphData) -> dict[str, Path]:
    """The boxes around each node that is in some.

    Modules and grad modes need not be nested: a mode that holds in a part of a module, and beyond it, is drawn
    in pieces; one that holds in all of a module is drawn around it.
    """
    frames, regions = _frame_paths(data), _region_paths(data)
    shared: dict[str, set[str]] = {}
    """Ids of the regions that hold in all of a frame."""
    for node in data.nodes if frames and regions else ():
        inside = {region.id for region in regions.get(node.id, ())}
        for frame in frames.get(node.id, ()):
            shared[frame.id] = shared[frame.id] & inside if frame.id in shared else inside
    paths: dict[str, Path] = {}
    for node in data.nodes:
        around: list[Around] = list(regions.get(node.id, ()))
        place = 0
        for frame in frames.get(node.id, ()):
            while place < len(around) and around[place].id in shared.get(frame.id, ()):
                place += 1
            around.insert(place, frame)
            place += 1
        if around:
            paths[node.id] = tuple(around)
    return paths


def module_around(path: Path) -> str:
    """The innermost module that is drawn open around something; empty if there is none."""
    return next((visible(one.module) for one in reversed(path) if isinstance(one, Frame) and one.module), "")


def _frame_paths(data: GraphData) -> dict[str, tuple[Frame, ...]]:
    paths: dict[str | None, tuple[Frame, ...]] = {None: ()}
    found = {}
    for frame in data.view.frames:
        paths[frame.id] = (*paths[frame.parent], frame)
        found.update(dict.fromkeys(frame.nodes, paths[frame.id]))
    return found


def _region_paths(data: GraphData) -> dict[str, tuple[Region, ...]]:
    """A region stands in ``data.regions`` after the one around it; one that does not is not taken as being inside."""
    doubled = _doubled(data)
    paths: dict[str | None, tuple[Region, ...]] = {None: ()}
    for region in data.regions:
        around = paths.get(region.parent, ())
        paths[region.id] = around if region.id in doubled else (*around, region)
    return {node.id: paths[node.region] for node in data.nodes if node.region is not None}


def _doubled(data: GraphData) -> set[str | None]:
    """Ids of the custom Functions that run nothing but a checkpoint: that is how torch makes a reentrant one."""
    inside: dict[str | None, list[Region | None]] = {}
    for region in data.regions:
        inside.setdefault(region.parent, []).append(region)
    for node in data.nodes:
        inside.setdefault(node.region, []).append(None)
    return {
        region.id
        for region in data.regions
        if region.mode == "custom_function"
        and all(
            one is not None and (one.mode, one.location) == ("checkpoint", region.location)
            for one in inside.get(region.id, (None,))
        )
    }


def cluster_lines(
    data: GraphData, paths: Mapping[str, Path], lines: Mapping[str, str], palette: Palette, *, is_down: bool
) -> Iterator[str]:
    """Boxes in boxes with the lines of their nodes; one without nodes is not drawn."""
    inside: dict[Path, dict[Path, None]] = {(): {}}
    within: dict[Path, list[str]] = {}
    for node in data.nodes:
        path = paths.get(node.id)
        if path is not None:
            within.setdefault(path, []).append(node.id)
            for depth in range(len(path), 0, -1):
                inside.setdefault(path[: depth - 1], {})[path[:depth]] = None
    pieces: dict[str, int] = {}
    stack: list[Path | None] = list(reversed(inside[()]))
    while stack:
        path = stack.pop()
        if path is None:
            yield "\t}\n"
            continue
        around = path[-1]
        pieces[around.id] = pieces.get(around.id, 0) + 1
        own = within.get(path, [])
        if isinstance(around, Frame):
            yield from _frame_head(around, pieces[around.id], palette)
        else:
            first = own[0] if own else _first_inside(path, inside, within)
            yield from _region_head(around, pieces[around.id], first, palette, is_down=is_down)
        yield from (lines[node] for node in own)
        stack.append(None)
        stack.extend(reversed(inside.get(path, {})))


def _first_inside(path: Path, inside: Mapping[Path, Mapping[Path, None]], within: Mapping[Path, list[str]]) -> str:
    while path not in within:
        path = next(iter(inside[path]))
    return within[path][0]


def _piece(id: str, piece: int) -> str:
    return id if piece == 1 else f"{id} {piece}"


def _frame_head(frame: Frame, piece: int, palette: Palette) -> Iterator[str]:
    """The box of a module that is drawn open, or of rounds that are drawn once."""
    title, *more = frame_words(frame)
    if frame.repeats > 1:
        colours = palette.looks[Look.GROUP]
        look = f'style="rounded,filled" penwidth=2 color="{colours.line}" fontcolor="{colours.line}"'
    else:
        look = f'style="rounded,filled" penwidth=0.8 color="{palette.muted}" fontcolor="{palette.muted}"'
    label = f'<font point-size="12"><b>{to_label(elide(title))}</b></font>  {to_label("  ".join(more))}'
    yield f"\tsubgraph {to_identifier(f'cluster_{_piece(frame.id, piece)}')} {{\n"
    yield (
        f'\tgraph [class=frame {look} peripheries=1 fillcolor="{palette.region}" margin=10 labelloc=t labeljust=l'
        f" fontsize=10 tooltip={to_tooltip(visible(frame.module or title))} label=<{label}>]\n"
    )


def _region_head(region: Region, piece: int, first: str, palette: Palette, *, is_down: bool) -> Iterator[str]:
    """The box of a region and its title: downwards a node, since edges run across the label of a cluster."""
    words = MODE_WORDS.get(region.mode, visible(region.mode))
    place, _, code = place_of(region.location).partition("\n") if region.location is not None else ("", "", "")
    lines = [f"<b>{to_label(words)}</b>  {to_label(elide(place))}".rstrip(), to_label(elide(code))]
    lines.append("still in force at the end" if region.left_on else "")
    label = "".join(f'{line}<br align="left"/>' for line in lines if line)
    name = _piece(region.id, piece)
    yield from _box(f"cluster_{name}", f"ran under {words}", "" if is_down else label, "region", palette)
    if is_down:
        title = to_identifier(f"{name} title")
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
