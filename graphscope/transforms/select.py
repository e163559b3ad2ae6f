"""Part of a graph: what has to do with one tensor, what lies between two, what is left when something is hidden.

Ids stay those of the whole graph; what is left out is counted in ``data.view``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from graphscope.errors import InputError
from graphscope.garbage import collection_paused
from graphscope.model import Edge, GraphData, Kind, Node, Reason, Role, View
from graphscope.transforms.links import Links
from graphscope.transforms.names import known_names, nodes_called, unknown
from graphscope.units import to_count_text

_ROLES = {word: role for role in Role for word in (role.value, f"{role.value}s")}


def focus(data: GraphData, name: str) -> GraphData:
    """What a tensor, module or node depends on, and what depends on it.

    Raises:
        InputError: if nothing has that name; the message tells the nearest ones.
    """
    ends = nodes_called(data, name)
    return keep(data, _sources_of(data, ends) | _readers_of(data, ends), f"only what {name} has to do with")


def path(data: GraphData, start: str, end: str) -> GraphData:
    """Everything that lies between two tensors, modules or nodes, in either direction.

    Raises:
        InputError: if nothing has one of the names, or no path leads from one to the other.
    """
    one, other = nodes_called(data, start), nodes_called(data, end)
    for first, last in ((one, other), (other, one)):
        between = _readers_of(data, first) & _sources_of(data, last)
        if between:
            return keep(data, between, f"only what lies between {start} and {end}")
    raise InputError(
        f"No path leads from {start!r} to {end!r}, nor back: neither depends on the other. "
        f"What one of them depends on is shown by focus ({start!r})."
    )


def truncate(data: GraphData, limit: int) -> GraphData:
    """At most ``limit`` nodes: those nearest to the roots, or to the last results if there is no root."""
    if len(data.nodes) <= limit:
        return data
    ends = list(data.roots) or [node.id for node in data.nodes if not data.outgoing[node.id]]
    near = dict.fromkeys(ends[: max(limit, 0)])
    waiting = list(near)
    for identity in waiting:  # goes on into what is appended below
        if len(near) >= limit:
            break
        for edge in data.incoming[identity]:
            if edge.source not in near and len(near) < limit:
                near[edge.source] = None
                waiting.append(edge.source)
    return keep(data, near, f"only the {to_count_text(len(near), 'box', 'boxes')} nearest to the result")


def keep(data: GraphData, wanted: Collection[str], note: str) -> GraphData:
    """The nodes that are wanted and the edges between them; an output goes with what it marks.

    Args:
        data: a graph or a view.
        wanted: ids.
        note: what they are, in words, for the picture.
    """
    shown = {node.id for node in data.nodes if node.id in wanted}
    lonely = {edge.target for edge in data.edges if edge.source not in shown}
    shown -= {identity for identity in lonely if data.by_id[identity].kind is Kind.OUTPUT}
    if len(shown) == len(data.nodes):
        return data
    return _narrowed(data, shown, data.edges, note)


def _narrowed(data: GraphData, shown: set[str], edges: Iterable[Edge], note: str) -> GraphData:
    view = data.view
    missing = dict(view.missing)
    inside = []
    for edge in edges:
        if edge.source in shown and edge.target in shown:
            inside.append(edge)
        elif edge.target in shown:
            missing[edge.target] = missing.get(edge.target, 0) + 1
    hidden = sum(node.id not in shown and node.id not in view.groups for node in data.nodes)
    bundles = {edge: view.bundles[edge] for edge in inside if edge in view.bundles} if view.bundles else {}
    frames = (frame._replace(nodes=tuple(one for one in frame.nodes if one in shown)) for frame in view.frames)
    return dataclasses.replace(
        data,
        nodes=tuple(_with_writes(node, shown) for node in data.nodes if node.id in shown),
        edges=tuple(inside),
        roots=tuple(root for root in data.roots if root in shown),
        evidence=(),
        calls=tuple(call._replace(nodes=tuple(one for one in call.nodes if one in shown)) for call in data.calls),
        view=View(
            view.hidden + hidden,
            (*view.notes, note),
            {identity: group for identity, group in view.groups.items() if identity in shown},
            tuple(frames),
            bundles,
            missing,
            view.whole or data,
        ),
    )


def _with_writes(node: Node, shown: Collection[str]) -> Node:
    if not node.writes:
        return node
    return node._replace(writes=tuple(written for written in node.writes if written in shown))


def _sources_of(data: GraphData, ends: Iterable[str]) -> set[str]:
    return _spread(ends, lambda identity: (edge.source for edge in data.incoming[identity]))


def _readers_of(data: GraphData, ends: Iterable[str]) -> set[str]:
    return _spread(ends, lambda identity: (edge.target for edge in data.outgoing[identity]))


def _spread(ends: Iterable[str], neighbours: Callable[[str], Iterable[str]]) -> set[str]:
    found = set(ends)
    stack = list(found)
    while stack:
        for identity in neighbours(stack.pop()):
            if identity not in found:
                found.add(identity)
                stack.append(identity)
    return found


# -------------------------------------------------------------------------------------------------- hiding


class _Way(NamedTuple):
    """How a value gets through hidden ops."""

    gradient: bool
    reason: Reason | None


_Origin = tuple[str, int]
"""A drawn node and one of its outputs."""


@collection_paused()
def hide(data: GraphData, words: Iterable[str]) -> GraphData:
    """Leave nodes out; what goes through hidden ops is drawn as an edge past them.

    Args:
        data: a whole graph, or a part of one.
        words: a role (``constants``, ``parameters``), an op (``view``), a module, a tensor, or a node.

    Raises:
        InputError: for a word that means nothing in this graph, or if the graph is a folded view.
    """
    if not data.view.is_whole:
        raise InputError("This graph is folded already. Hide things first, then fold.")
    wanted = list(words)
    hidden = set().union(*(_meant(data, word) for word in wanted))
    marked = {edge.source for edge in data.edges if data.by_id[edge.target].kind is Kind.OUTPUT}
    hidden -= {node.id for node in data.nodes if node.kind is Kind.OUTPUT} | marked
    if not hidden:
        return data
    shown = {node.id for node in data.nodes if node.id not in hidden}
    return _narrowed(data, shown, _edges_past(data, hidden), f"without {', '.join(wanted)}")


def _meant(data: GraphData, word: str) -> set[str]:
    role = _ROLES.get(word)
    if role is not None:
        return {node.id for node in data.nodes if node.kind is Kind.LEAF and node.role is role}
    found = {node.id for node in data.nodes if node.kind is Kind.OP and word in {node.op, node.backward}}
    if found:
        return found
    try:
        return nodes_called(data, word)
    except InputError:
        ops = (node.op for node in data.nodes if node.op)
        raise unknown("role, op, module, tensor or node", word, [*_ROLES, *ops, *known_names(data)]) from None


def _edges_past(data: GraphData, hidden: Collection[str]) -> list[Edge]:
    """Edges between what is shown; one past hidden ops carries a gradient if some way through them does."""
    edges: list[Edge] = []
    through: dict[str, dict[_Origin, _Way]] = {}
    links = Links(data)
    for edge in map(data.edges.__getitem__, links.number):  # by target, and targets are in order
        if edge.source not in hidden and edge.target not in hidden:
            edges.append(edge)
            continue
        ways = _ways_along(edge, through.get(edge.source, {}), is_hidden=edge.source in hidden)
        if edge.target in hidden:
            known = through.setdefault(edge.target, {})
            known.update({origin: way for origin, way in ways.items() if way.gradient or origin not in known})
            continue
        edges += [
            edge._replace(source=source, output=output, gradient=way.gradient, reason=way.reason)
            for (source, output), way in ways.items()
        ]
    return edges


def _ways_along(edge: Edge, before: Mapping[_Origin, _Way], *, is_hidden: bool) -> dict[_Origin, _Way]:
    """What comes along an edge: from its own source, or from what stands before it."""
    if not is_hidden:
        return {(edge.source, edge.output): _Way(edge.gradient, edge.reason)}
    return {
        origin: _Way(
            way.gradient and edge.gradient, None if way.gradient and edge.gradient else way.reason or edge.reason
        )
        for origin, way in before.items()
    }
