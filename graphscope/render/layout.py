"""Where things stand in a large drawing: layers and order by fast-sugiyama, the rest here.

``dot`` is worse than linear: it takes 34 s for 3,300 boxes. fast-sugiyama (github.com/austinorr/fast-sugiyama) finds
layers and an order with few crossings in a fraction of a second, but takes all boxes for equally wide; so columns are
found here, from the sizes of the boxes. Edges go through the gaps that the order leaves for them, as curves.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from graphscope.errors import EngineError
from graphscope.render import layout_child
from graphscope.render.measure import Size

GAP = 20.0
"""Points between two boxes side by side."""
LANE = 9.0
"""Points between an edge that passes and what stands beside it."""
LAYER_GAP = 32.0
"""Points between two layers."""
ARROW = 7.0
_STRAIGHT = 8.0
"""How much more a long edge wants to be straight than a box wants to stand in the middle of its neighbours."""
_HANGING = 0.001
"""How much of a pull what hangs on one edge has: a parameter comes to its op, the op does not go to meet it."""
_HUB = 6
"""Lines at one side of a box beyond which each pulls less: not all of hundreds of branches come to what they share."""
_AT_REST = 0.00001
"""How much something without neighbours wants to stay where it is."""
_ONE_CURVE = 4
"""Points of a single curve."""
_SHALLOW = 3.0
"""Points by which a box may be lower than its layer without its lines having to leave that first."""
_NOTHING = 0.5
"""Points to the side that nobody sees."""
_MOST_BENDS_IN_ALL = 20_000
"""Of a drawing. An LSTM over 40 steps, with 1,251 boxes, has that many and takes a second; most have few."""
_MOST_BENDS = 200
"""Of one edge; Graphviz reads no text of more than 16,384 characters."""
_BEND = 0.5
"""How far a curve keeps its direction at both ends, as a share of the way between two layers."""


class Point(NamedTuple):
    """Points of 1/72 inch, from the left and from below."""

    x: float
    y: float


class Curve(NamedTuple):
    """An edge: control points of Bézier curves, three for each curve after the first one; then the tip of its arrow."""

    points: tuple[Point, ...]
    tip: Point
    is_stub: bool = False
    """The first curve only leads out of the layer of its box."""

    @property
    def middle(self) -> Point:
        """Where words may stand: on the first curve; if that only leads out of the layer, on the next."""
        start = 3 if self.is_stub else 0
        first, last = self.points[start], self.points[start + 3]
        return Point((first.x + last.x) / 2, (first.y + last.y) / 2)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where everything stands."""

    boxes: Sequence[Point]
    """Middle of each box."""
    curves: Sequence[Curve]
    size: Size


def place(
    sizes: Sequence[Size], edges: Sequence[tuple[int, int]], *, timeout: float, is_down: bool = True
) -> Placement:
    """Place boxes in layers, each box after what it reads.

    Args:
        sizes: of the boxes.
        edges: numbers of the boxes at the ends of each edge, of an acyclic graph.
        timeout: seconds.
        is_down: the layers are rows, from above; else columns, from the left.

    Raises:
        EngineError: if fast-sugiyama is missing, fails, or takes too long.
    """
    turned = sizes if is_down else [Size(size.height, size.width) for size in sizes]
    parts = _parts(edges, timeout)
    drawing = _Drawing(turned, parts)
    placement = drawing.place(edges)
    return placement if is_down else _turned(placement)


def _turned(placement: Placement) -> Placement:
    """What went down goes to the right."""
    height = placement.size.width

    def turn(point: Point) -> Point:
        return Point(placement.size.height - point.y, height - point.x)

    curves = [Curve(tuple(map(turn, curve.points)), turn(curve.tip), curve.is_stub) for curve in placement.curves]
    size = Size(placement.size.height, placement.size.width)
    return Placement(boxes=list(map(turn, placement.boxes)), curves=curves, size=size)


# ---------------------------------------------------------------------------------------- layers and order


class _Part(NamedTuple):
    """A connected part of a graph."""

    layers: list[list[int]]
    """From above, each from the left; what is not among the boxes is a bend of an edge."""
    chains: dict[tuple[int, int], list[int]]
    """The bends of each edge."""


def _parts(edges: Sequence[tuple[int, int]], timeout: float) -> list[_Part]:
    """Layers of every box that has edges.

    Each part is asked for on its own: fast-sugiyama 0.5 gives bends of a second part numbers of its boxes.
    """
    asked = []
    for connected in _connected(_without_longest(sorted(set(edges)))):
        boxes = sorted({end for edge in connected for end in edge})
        number = {box: place for place, box in enumerate(boxes)}
        asked.append((boxes, [(number[source], number[target]) for source, target in connected]))
    parts = []
    bends = 0
    told = _run([numbered for _, numbered in asked], timeout)
    for (boxes, _), (layers, split) in zip(asked, told, strict=True):
        names = [*boxes, *range(-1 - bends, -2 - bends - max(map(max, layers)), -1)]
        bends += len(names)
        named = ((names[source], names[target]) for source, target in split)
        parts.append(_Part([[names[vertex] for vertex in layer] for layer in layers], dict(_chains(named))))
    return parts


def _connected(edges: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The edges of each connected part."""
    leader = {end: end for edge in edges for end in edge}

    def lead(box: int) -> int:
        while leader[box] != box:
            leader[box] = box = leader[leader[box]]
        return box

    for source, target in edges:
        leader[lead(target)] = lead(source)
    parts: dict[int, list[tuple[int, int]]] = {}
    for edge in edges:
        parts.setdefault(lead(edge[0]), []).append(edge)
    return list(parts.values())


def _without_longest(edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The edges without the longest ones, as far as there would be too many bends.

    A weight that every step of a long loop reads has an edge of every length. What is left out is drawn straight
    across; the shortest edge of each box stays, so that it finds its place. Edges come sorted by their source.
    """
    depth = [0] * (1 + max((max(edge) for edge in edges), default=0))
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        depth[target] = max(depth[target], depth[source] + 1)
    height = [depth[-1] + 1] * len(depth)
    for source, target in reversed(edges):
        height[source] = min(height[source], depth[target] - 1)
    rise = [depth[box] or height[box] for box in range(len(depth))]

    def length(edge: tuple[int, int]) -> int:
        return depth[edge[1]] - rise[edge[0]] - 1

    spare = sum(map(length, edges)) - _MOST_BENDS_IN_ALL
    if spare <= 0:
        return edges
    shortest: dict[int, tuple[int, int]] = {}
    for edge in sorted(edges, key=length):
        for end in edge:
            shortest.setdefault(end, edge)
    needed = set(shortest.values())
    dropped: set[tuple[int, int]] = set()
    for edge in sorted(edges, key=length, reverse=True):
        if spare <= 0:
            break
        if edge not in needed:
            dropped.add(edge)
            spare -= length(edge)
    return [edge for edge in edges if edge not in dropped]


def _chains(split: Iterator[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """The bends of each edge; a bend has a number below zero, one edge in and one out."""
    onward = {}
    starts = []
    for source, target in split:
        if source < 0:
            onward[source] = target
        else:
            starts.append((source, target))
    for source, first in starts:
        bends, end = [], first
        while end < 0:
            bends.append(end)
            end = onward[end]
        yield (source, end), bends


_Told = tuple[list[list[int]], list[tuple[int, int]]]
"""Of a connected part: its layers, and its edges, split at bends."""


def _run(parts: list[list[tuple[int, int]]], timeout: float) -> list[_Told]:
    if not parts:
        return []
    found = importlib.util.find_spec("fast_sugiyama")
    if found is None or found.origin is None:
        raise EngineError("fast-sugiyama, which lays out large drawings, is not installed: pip install fast-sugiyama")
    folder = str(Path(found.origin).parent.parent)
    command = [sys.executable, "-I", "-S", layout_child.__file__, folder, str(math.ceil(timeout) + 5)]
    try:
        done = subprocess.run(  # noqa: S603 - our own child
            command, input=json.dumps(parts).encode(), capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"The drawing had not been laid out after {timeout:g} s. Fold it (--depth 1), look at a part of it "
            "(--focus NAME), or give it more time."
        ) from None
    if done.returncode != 0 or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise EngineError(f"fast-sugiyama failed ({done.returncode}): {said[-1] if said else 'it gave no reason'}")
    told: list[_Told] = json.loads(done.stdout)
    return told


# -------------------------------------------------------------------------------------------------- columns


class _Drawing:
    """Finds columns, and draws the curves."""

    def __init__(self, sizes: Sequence[Size], parts: Sequence[_Part]) -> None:
        self._sizes = sizes
        self._parts = parts
        self._x: dict[int, float] = {}
        self._y: dict[int, float] = {}
        self._span: dict[int, tuple[float, float]] = {}
        """Top and bottom of the layer of everything that is in one."""

    def place(self, edges: Sequence[tuple[int, int]]) -> Placement:
        left = height = 0.0
        for part in self._parts:
            columns = _Columns(part, self._width_of).find()
            shift = left - min(
                columns[vertex] - self._width_of(vertex) / 2 for layer in part.layers for vertex in layer
            )
            self._x.update({vertex: x + shift for vertex, x in columns.items()})
            height = max(height, self._stack(part))
            left = 2 * GAP + max(
                self._x[vertex] + self._width_of(vertex) / 2 for layer in part.layers for vertex in layer
            )
        size = self._place_loose(left, height)
        self._turn_over(size.height)
        boxes = [Point(self._x[box], self._y[box]) for box in range(len(self._sizes))]
        return Placement(boxes=boxes, curves=list(self._curves(edges)), size=size)

    def _turn_over(self, height: float) -> None:
        """Until here heights were counted from above; from here on, as Graphviz does, from below."""
        self._y = {vertex: height - y for vertex, y in self._y.items()}
        self._span = {vertex: (height - top, height - bottom) for vertex, (top, bottom) in self._span.items()}

    def _width_of(self, vertex: int) -> float:
        return self._sizes[vertex].width if vertex >= 0 else 0.0

    def _stack(self, part: _Part) -> float:
        """Put layers below one another; how high they are."""
        top = 0.0
        for layer in part.layers:
            height = max((self._sizes[vertex].height for vertex in layer if vertex >= 0), default=0.0)
            for vertex in layer:
                self._y[vertex] = top + height / 2
                self._span[vertex] = top, top + height
            top += height + LAYER_GAP
        return top - LAYER_GAP

    def _place_loose(self, left: float, height: float) -> Size:
        """What no edge touches stands in a block beside the rest, about as wide as high."""
        loose = [box for box in range(len(self._sizes)) if box not in self._x]
        if not loose:
            return Size(max(left - 2 * GAP, 0.0), height)
        widest = max(self._sizes[box].width for box in loose) + GAP
        highest = max(self._sizes[box].height for box in loose) + GAP
        rows = math.ceil(math.sqrt(len(loose) * widest / highest))
        for number, box in enumerate(loose):
            self._x[box] = left + widest * (number // rows) + widest / 2
            self._y[box] = highest * (number % rows) + highest / 2
        return Size(left + widest * math.ceil(len(loose) / rows), max(height, highest * rows))

    def _curves(self, edges: Sequence[tuple[int, int]]) -> Iterator[Curve]:
        chains = {edge: bends for part in self._parts for edge, bends in part.chains.items()}
        ports = self._ports(edges, chains)
        for number, (source, target) in enumerate(edges):
            start, end = ports[number]
            way = [Point(start, self._y[source] - self._sizes[source].height / 2)]
            if way[0].y - self._span[source][1] > _SHALLOW:  # else it would run across higher boxes beside this one
                way.append(Point(start, self._span[source][1]))
            for bend in chains.get((source, target), ()):
                top, bottom = self._span[bend]
                way += [Point(self._x[bend], top), Point(self._x[bend], bottom)]
            tip = Point(end, self._y[target] + self._sizes[target].height / 2)
            if self._span[target][0] - tip.y - ARROW > _SHALLOW:
                way.append(Point(end, self._span[target][0]))
            way.append(Point(end, tip.y + ARROW))
            points = tuple(_smooth(way))
            yield Curve(points, tip, is_stub=len(points) > _ONE_CURVE and points[0].x == points[3].x)

    def _ports(
        self, edges: Sequence[tuple[int, int]], chains: Mapping[tuple[int, int], list[int]]
    ) -> list[tuple[float, float]]:
        """Where each edge leaves its source and arrives at its target: side by side, by where the other ends are."""
        leaving: dict[int, list[tuple[float, int]]] = {}
        arriving: dict[int, list[tuple[float, int]]] = {}
        for number, edge in enumerate(edges):
            source, target = edge
            bends = chains.get(edge, [])
            leaving.setdefault(source, []).append((self._x[bends[0] if bends else target], number))
            arriving.setdefault(target, []).append((self._x[bends[-1] if bends else source], number))
        starts, ends = self._side_by_side(leaving), self._side_by_side(arriving)
        return [(starts[number], ends[number]) for number in range(len(edges))]

    def _side_by_side(self, lines: Mapping[int, list[tuple[float, int]]]) -> dict[int, float]:
        found = {}
        for box, ends in lines.items():
            step = min(14.0, 0.8 * self._sizes[box].width / len(ends))
            for place, (_, number) in enumerate(sorted(ends)):
                found[number] = self._x[box] + step * (place - (len(ends) - 1) / 2)
        return found


def _smooth(way: Sequence[Point]) -> Iterator[Point]:
    """Curves through the points of a way that goes down, straight down at each of them."""
    tolerance = _NOTHING
    straight = _straightened(way, tolerance)
    while len(straight) > _MOST_BENDS:
        tolerance *= 2
        straight = _straightened(way, tolerance)
    yield straight[0]
    for before, point in pairwise(straight):
        bend = (point.y - before.y) * _BEND
        yield Point(before.x, before.y + bend)
        yield Point(point.x, point.y - bend)
        yield point


def _straightened(way: Sequence[Point], tolerance: float) -> list[Point]:
    """The points of a way without those where it hardly leaves the line from one to the next."""
    kept = [way[0]]
    for point, following in pairwise(way[1:]):
        if max(abs(point.x - kept[-1].x), abs(point.x - following.x)) >= tolerance:
            kept.append(point)
    return [*kept, way[-1]]


_Pulls = dict[int, list[tuple[int, float]]]
"""Of everything: what it wants to stand below or above of, and how much."""


class _Columns:
    """Finds for each box a column near its neighbours, and for each long edge one that is straight.

    Layer by layer everything moves to the middle of its neighbours, as far as the order and the widths allow: an
    isotonic regression, solved by pooling adjacent violators. A way down, where neighbours are those above, makes long
    lines straight, but leans further to one side with each fork; so does a way up. Their mean stands upright (as the
    mean of four ways does for Brandes and Köpf, 2001), and keeps order and widths. From there, neighbours on both sides
    count.
    """

    def __init__(self, part: _Part, width_of: Callable[[int], float]) -> None:
        self._layers = [(layer, _offsets(layer, width_of)) for layer in part.layers]
        self._above: _Pulls = {vertex: [] for layer in part.layers for vertex in layer}
        self._below: _Pulls = {vertex: [] for vertex in self._above}
        ends = Counter(end for edge in part.chains for end in edge)
        readers, sources = (Counter(edge[side] for edge in part.chains) for side in (0, 1))
        for (source, target), bends in part.chains.items():
            hanging = _HANGING if ends[source] == 1 or ends[target] == 1 else 1.0
            for one, other in pairwise([source, *bends, target]):
                weight = hanging * _STRAIGHT if one < 0 and other < 0 else hanging
                self._below[one].append((other, weight * min(1.0, _HUB / max(sources[other], 1))))
                self._above[other].append((one, weight * min(1.0, _HUB / max(readers[one], 1))))
        for pulls in (self._above, self._below):
            for vertex, neighbours in pulls.items():
                if not neighbours:
                    neighbours.append((vertex, _AT_REST))

    def find(self) -> dict[int, float]:
        """The middle of everything, in points."""
        down = {
            vertex: offset - offsets[-1] / 2
            for layer, offsets in self._layers
            for vertex, offset in zip(layer, offsets, strict=True)
        }
        up = dict(down)
        self._settle(down, self._above, self._layers)
        self._settle(up, self._below, reversed(self._layers))
        between = (sum(up.values()) - sum(down.values())) / len(up)
        x = {vertex: (down[vertex] + up[vertex] - between) / 2 for vertex in up}
        around = {vertex: above + self._below[vertex] for vertex, above in self._above.items()}
        self._settle(x, around, self._layers)
        self._settle(x, around, reversed(self._layers))
        return x

    @staticmethod
    def _settle(x: dict[int, float], pulls: _Pulls, layers: Iterable[tuple[list[int], list[float]]]) -> None:
        """Move layer after layer as near to its neighbours as order and widths allow."""
        for layer, offsets in layers:
            wanted = []
            for vertex, offset in zip(layer, offsets, strict=True):
                total = moment = 0.0
                for neighbour, weight in pulls[vertex]:
                    total += weight
                    moment += weight * x[neighbour]
                wanted.append((moment / total - offset, total))
            for vertex, offset, column in zip(layer, offsets, _ascending(wanted), strict=True):
                x[vertex] = column + offset


def _offsets(layer: Sequence[int], width_of: Callable[[int], float]) -> list[float]:
    """How far from the first of a layer everything must at least stand."""
    offsets = [0.0]
    for left, right in pairwise(layer):
        gap = GAP if left >= 0 and right >= 0 else LANE
        offsets.append(offsets[-1] + (width_of(left) + width_of(right)) / 2 + gap)
    return offsets


def _ascending(wanted: Sequence[tuple[float, float]]) -> list[float]:
    """The ascending numbers nearest to those that are wanted, each with its weight, by least squares.

    >>> _ascending([(1, 1), (5, 1), (3, 1)])
    [1.0, 4.0, 4.0]
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in wanted:
        count = 1
        while pools and pools[-1][0] > value:
            before, heavy, many = pools.pop()
            value = (before * heavy + value * weight) / (heavy + weight)  # noqa: PLW2901 - the pool's value
            weight += heavy  # noqa: PLW2901
            count += many
        pools.append((value, weight, count))
    return [float(value) for value, _, count in pools for _ in range(count)]
