"""The lines of the terminal output: which words and marks stand where, fitted to the width."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphscope.model import Frame, GraphData, Kind, Location, Node, Region
from graphscope.render.terminal_summary import summarize
from graphscope.render.terminal_text import Line, Span, cells, elide_cells, fit_rail, fitted, pack
from graphscope.render.terminal_tree import CONNECTORS, Row, Tree, plan
from graphscope.style import (
    EDGE_MEANINGS,
    GLYPHS,
    MEANINGS,
    MODE_WORDS,
    EdgeLook,
    Look,
    details_of,
    edge_look,
    edge_words,
    frame_words,
    is_alarming,
    look_of,
    short_backward,
    title_of,
    visible,
)
from graphscope.units import to_count_text

MINIMUM_WIDTH = 40
"""Cells that a line may take however narrow the terminal is."""
NODE_LIMIT = 200
"""Most rows of a tree in a terminal; what is left out is counted."""

UP, DOWN, HIDDEN = "↑", "↓", "…"
"""Where the node stands that a line refers to."""
CUT_RAIL = "┊"
"""Between two nodes in one column where no gradient comes back."""

# The hues of ``palette.py``, from those of the 256-colour table that are legible on black and on white.
_GREEN, _AMBER, _ORANGE, _BLUE, _PURPLE = "color(36)", "color(136)", "color(166)", "color(32)", "color(98)"
LOOK_STYLES: dict[Look, str] = {
    Look.TRAINABLE: f"bold {_GREEN}",
    Look.UNREACHED: f"bold {_ORANGE}",
    Look.FROZEN: f"bold {_BLUE}",
    Look.CONSTANT: "",
    Look.TRACKED: _AMBER,
    Look.DEAD: "dim",
    Look.UNTRACKED: "dim",
    Look.OUTPUT: "bold",
    Look.GROUP: f"bold {_PURPLE}",
    Look.FROZEN_GROUP: f"bold {_BLUE}",
    Look.CUT_GROUP: f"bold {_ORANGE}",
    Look.SILENT_GROUP: "dim",
}
ALARM_STYLE = _ORANGE
"""Of a cut that may surprise."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LineOptions:
    """What the lines hold and where they must fit."""

    width: int = 80
    """Cells of a line."""
    show: tuple[str, ...] = ()
    """Any of ``saved hooks versions accumulate source``."""
    limit: int | None = NODE_LIMIT
    """Most rows of the tree; ``None`` for all."""
    legend: bool = True
    summary: bool = True
    encoding: str = "utf-8"
    """What the stream can write."""


def to_lines(data: GraphData, options: LineOptions) -> Iterator[Line]:
    """Write tree, legend and table, with a blank line between them."""
    writer = _Writer(data, options)
    yield from writer.tree()
    if options.legend:
        yield []
        yield from writer.legend()
    if options.summary:
        yield []
        yield from writer.summary()


class _Shown(NamedTuple):
    """Which rows are shown, and how many nodes only the others have."""

    head: range
    tail: range
    place: dict[str, int]
    """Row of each node that is shown."""
    hidden: int


class _Writer:
    """Writes the lines of one graph, and remembers which marks it used."""

    def __init__(self, data: GraphData, options: LineOptions) -> None:
        self._data = data
        self._options = options
        self._width = max(options.width, MINIMUM_WIDTH)
        self._ellipsis = fitted("…", options.encoding)
        self._regions = {region.id: region for region in data.regions}
        self._frames = _repeating_frames(data)
        self._looks: set[Look] = set()
        self._edges: set[EdgeLook] = set()
        self._references: set[str] = set()
        self._repeated = False

    def tree(self) -> Iterator[Line]:
        """Write the rows; where they are too many, the first and the last."""
        tree = plan(self._data)
        shown = _choose(tree, self._options.limit)
        for number in shown.head:
            yield from self._row(tree, number, shown)
        if shown.tail:
            text = f"… {to_count_text(shown.hidden, 'more node')} not shown (--depth full shows all)"
            yield from self._wrapped([Span(text, "bold")])
        for number in shown.tail:
            yield from self._row(tree, number, shown)

    def _row(self, tree: Tree, number: int, shown: _Shown) -> Iterator[Line]:
        row = tree.rows[number]
        if not row.uses:
            yield from self._above_top(tree, number)
        edge = edge_look(row.uses[0], self._data) if row.uses else EdgeLook.FLOWS
        words = self._use_words(row)
        if row.branch:
            self._edges.add(edge)
        elif edge is EdgeLook.CUT and (row.uses[0].reason or self._data.by_id[row.uses[0].target].backward):
            self._edges.add(edge)
            cut = Span(f"{CUT_RAIL} ", self._edge_style(row))
            yield from self._wrapped(words, rail=row.rail, head=[cut], below=f"{row.rail}{CUT_RAIL} ")
            words = []
        branch = Span(row.branch, self._edge_style(row))
        if row.reference:
            yield from self._reference(row, branch, words, self._whereabouts(row.node, number, shown))
        else:
            yield from self._node(row, branch, words)

    def _above_top(self, tree: Tree, number: int) -> Iterator[Line]:
        """Set a tree off from the one before; single leaves form a list."""
        pair = tree.rows[max(number - 1, 0) : number + 1]
        listed = number != tree.aside and all(row.node.kind is Kind.LEAF and not row.uses for row in pair)
        if number and not listed:
            yield []
        if number == tree.aside and (heading := self._heading_aside()):
            yield from self._wrapped([Span(heading, "bold")])

    def _heading_aside(self) -> str:
        """What is said of all that stands under no output; nothing of a part of a graph that shows none."""
        whole = self._data.view.whole
        is_part = whole is not None and len(self._data.roots) < len(whole.roots)
        if is_part:  # an output that is left out may depend on all of it
            return "No output shown here depends on:" if self._data.roots else ""
        # A pure walk sees what autograd holds; data may have come this way all the same.
        return "No output depends on:" if self._data.recorded else "Not reached from any output:"

    def _node(self, row: Row, branch: Span, words: Sequence[Span]) -> Iterator[Line]:
        look = look_of(row.node, self._data.view)
        self._looks.add(look)
        head = [branch, Span(f"{GLYPHS[look]} ", LOOK_STYLES[look]), Span(f"{row.node.id} ", "dim")]
        room = self._width - min(len(row.rail), self._width // 2) - sum(cells(span.text) for span in head)
        title = elide_cells(fitted(title_of(row.node), self._options.encoding), room, self._ellipsis)
        parts = [Span(title, LOOK_STYLES[look]), *words, *self._details(row.node)]
        yield from self._wrapped(parts, rail=row.rail, head=head, below=row.below)
        for text in self._asked_for(row.node):
            yield from self._wrapped([Span(text, "dim")], rail=row.below, below=f"{row.below}  ")

    def _reference(self, row: Row, branch: Span, words: Sequence[Span], whereabouts: tuple[str, str]) -> Iterator[Line]:
        mark, where = whereabouts
        self._references.add(mark)
        head = [branch, Span(f"{mark} {row.node.id} ", "dim")]
        parts = [Span(f"{title_of(row.node)}, {where}", "dim"), *words]
        yield from self._wrapped(parts, rail=row.rail, head=head, below=row.below)

    @staticmethod
    def _whereabouts(node: Node, number: int, shown: _Shown) -> tuple[str, str]:
        place = shown.place.get(node.id)
        if place is None:
            return HIDDEN, "not shown"
        return (UP, "above") if place < number else (DOWN, "below")

    def _use_words(self, row: Row) -> list[Span]:
        """How often and as what the reader reads it, and why no gradient comes back."""
        words = []
        if len(row.uses) > 1:
            self._repeated = True
            words.append(Span(f"×{len(row.uses)}", "bold"))
        said = dict.fromkeys(word for edge in row.uses for word in edge_words(edge, self._data))
        if said:
            words.append(Span(f"({', '.join(said)})", self._edge_style(row)))
        return words

    def _edge_style(self, row: Row) -> str:
        return ALARM_STYLE if row.uses and is_alarming(row.uses[0], self._data) else "dim"

    def _details(self, node: Node) -> Iterator[Span]:
        backward = short_backward(node.backward) if node.op is not None and node.backward is not None else None
        for number, text in enumerate(details_of(node, self._data)):
            yield Span(text, "dim" if number == 0 and text == backward else "")
        if node.module is not None:
            yield Span(f"in {visible(node.module)}", "dim")
        if node.id in self._frames:
            yield Span(f"in {frame_words(self._frames[node.id])[0]}", LOOK_STYLES[Look.GROUP])
        if node.region is not None:
            yield Span(_region_words(self._regions[node.region]), "dim")
        if node.location is not None and "source" not in self._options.show:
            yield Span(_location_words(node.location), "dim")

    def _asked_for(self, node: Node) -> tuple[str, ...]:
        if not self._options.show:
            return ()
        plain = details_of(node, self._data)
        return details_of(node, self._data, self._options.show)[len(plain) :]

    def legend(self) -> Iterator[Line]:
        """Write the marks in use and what they mean, side by side where there is room."""
        entries = [f"{GLYPHS[look]} {MEANINGS[look]}" for look in Look if look in self._looks]
        entries += [f"{CONNECTORS[look]} {EDGE_MEANINGS[look]}" for look in EdgeLook if look in self._edges]
        if self._references:
            marks = "/".join(mark for mark in (UP, DOWN, HIDDEN) if mark in self._references)
            entries.append(f"{marks} the same node, drawn on another line")
        if self._repeated:
            entries.append("×2 read twice by the op above")
        entries = [fitted(entry, self._options.encoding) for entry in entries]
        column = max((cells(entry) for entry in entries), default=0) + 3
        beside = max((self._width + 3) // column, 1)
        for start in range(0, len(entries), beside):
            side_by_side = "".join(entry.ljust(column) for entry in entries[start : start + beside])
            yield from self._wrapped([Span(side_by_side.rstrip(), "dim")], below="  ")

    def summary(self) -> Iterator[Line]:
        """Write the table of totals."""
        facts = summarize(self._data)
        column = max(len(fact.label) for fact in facts) + 2
        for fact in facts:
            label = Span(fact.label.ljust(column), "bold")
            yield from self._wrapped([Span(fact.text)], head=[label], below=" " * column)

    def _wrapped(
        self, parts: Sequence[Span], *, rail: str = "", head: Sequence[Span] = (), below: str = ""
    ) -> Iterator[Line]:
        encoding, most = self._options.encoding, self._width // 2
        left, further = (Span(fitted(fit_rail(text, most), encoding), "dim") for text in (rail, below))
        marks = [Span(fitted(span.text, encoding), span.style) for span in head]
        safe = [Span(fitted(visible(span.text), encoding), span.style) for span in parts]
        yield from pack([left, *marks], [further], safe, self._width, self._ellipsis)


def _repeating_frames(data: GraphData) -> dict[str, Frame]:
    """For each node that is drawn once for several equal ones the innermost frame that says so."""
    around: dict[str | None, Frame] = {}
    found = {}
    for frame in data.view.frames:
        if frame.repeats > 1:
            around[frame.id] = frame
        elif frame.parent in around:
            around[frame.id] = around[frame.parent]
        if frame.id in around:
            found.update(dict.fromkeys(frame.nodes, around[frame.id]))
    return found


def _choose(tree: Tree, limit: int | None) -> _Shown:
    """Take all rows, or the first and the last: the outputs and the beginning of the program."""
    count = len(tree.rows)
    if limit is None or count <= limit:
        head, tail = range(count), range(0)
    else:
        first = max(limit * 3 // 4, 1)
        head, tail = range(first), range(count - max(limit - first, 1), count)
    place = {tree.rows[row].node.id: row for rows in (head, tail) for row in rows if not tree.rows[row].reference}
    nodes = sum(1 for row in tree.rows if not row.reference)
    return _Shown(head, tail, place, nodes - len(place))


def _region_words(region: Region) -> str:
    words = f"inside {MODE_WORDS.get(region.mode, visible(region.mode))}"
    return words if region.location is None else f"{words} at {_location_words(region.location)}"


def _location_words(location: Location) -> str:
    return visible(f"{location.file}:{location.line}")
