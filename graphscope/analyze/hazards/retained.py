"""Graphs that stay alive longer than they are needed: kept losses, running totals, states, attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from graphscope.analyze.causes import make_hazard
from graphscope.analyze.sight import Sight
from graphscope.findings import Hazard, Severity, Verdict, to_place
from graphscope.model import Clue, Evidence, Kind, Location, Node
from graphscope.units import to_bytes_text, to_count_text

_MEMBER = re.compile(r"(?P<holder>.+)\[[^\[\]]+\]$")
_ROUNDS = 2
"""Equal results in one container from which on it is a history and not a pair of outputs."""


def detect(sight: Sight, _: tuple[Verdict, ...]) -> Iterator[Hazard]:
    """Every graph that a name, and not the roots, keeps."""
    if not sight.data.recorded:
        return
    yield from _histories(sight)
    yield from _totals(sight)
    yield from _attributes(sight)
    yield from _growing(sight)


def _tracked(sight: Sight) -> list[Node]:
    return [
        node
        for node in sight.data.nodes
        if node.kind is Kind.OP and node.names and any(info.requires_grad and not info.is_leaf for info in node.outputs)
    ]


def behind(sight: Sight, ends: list[str]) -> set[str]:
    """Ids of the ops that tensors keep alive by their history, themselves included."""
    seen, waiting = set(ends), list(ends)
    while waiting:
        for edge in sight.data.incoming[waiting.pop()]:
            if edge.gradient and edge.source not in seen:
                seen.add(edge.source)
                waiting.append(edge.source)
    return {identity for identity in seen if sight.data.by_id[identity].kind is Kind.OP}


def kept_bytes(sight: Sight, ids: set[str]) -> int:
    """Bytes of the storages that ops keep for backward, parameters left out, each once."""
    storages = {storage.id: storage for storage in sight.data.storages if not storage.parameter}
    kept = {saved.storage for identity in ids for saved in sight.data.by_id[identity].saved if saved.storage}
    return sum(storages[identity].bytes for identity in kept if identity in storages)


def _histories(sight: Sight) -> Iterator[Hazard]:
    """``history[0]``, ``history[1]`` …: scalars made at one line, each with a graph of its own."""
    holders: dict[tuple[str, Location | None], list[Node]] = {}
    for node in _tracked(sight):
        for name in node.names:
            found = _MEMBER.match(name)
            if found is not None and node.outputs[0].shape in {(), (1,)}:
                holders.setdefault((found["holder"], node.location), []).append(node)
    for (holder, place), nodes in holders.items():
        extra = [node for node in nodes if not node.reached]
        if len(nodes) < _ROUNDS or not extra:
            continue
        ids = behind(sight, [node.id for node in extra])
        own = {identity for identity in ids if not sight.data.by_id[identity].reached}
        if own:
            where = _statement(sight, "keep", holder) or place
            yield make_hazard(
                "graph_retained",
                where,
                (place,),
                name=f"{holder} ({len(nodes)} results kept at {to_place(where)})",
                operations=to_count_text(len(own), "operation"),
                bytes=to_bytes_text(kept_bytes(sight, own)),
                root=sight.root_words,
                how="Each is kept with the graph that made it.",
                advice="Keep numbers: append(loss.item()), or loss.detach().",
                tensors=(holder,),
            )


def _totals(sight: Sight) -> Iterator[Hazard]:
    """``total += loss`` in a loop: one addition after the other at one line, each with a graph of its own."""
    for node in _tracked(sight):
        if node.op not in {"add", "sub"} or node.outputs[0].shape != ():
            continue
        rounds = _rounds(sight, node)
        if len(rounds) < _ROUNDS:
            continue
        ids = behind(sight, [node.id])
        name = next((name for name in node.names if _statement(sight, "add", name) == node.location), node.names[0])
        yield make_hazard(
            "running_total",
            node.location,
            name=name,
            rounds=len(rounds),
            operations=to_count_text(len(ids), "operation"),
            bytes=to_bytes_text(kept_bytes(sight, ids)),
            severity=Severity.NOTE if node.reached else Severity.WARNING,
            tensors=(name,),
        )


def _rounds(sight: Sight, node: Node) -> list[Node]:
    """Additions at one line of which each reads the one before."""
    found = [node]
    while True:
        before = [
            source
            for edge in sight.data.incoming[found[-1].id]
            if (source := sight.data.by_id[edge.source]).kind is Kind.OP
            and source.op == node.op
            and source.location == node.location
            and source.location is not None
        ]
        if not before:
            return found
        found.append(before[0])


def _attributes(sight: Sight) -> Iterator[Hazard]:
    """A result that a module keeps as an attribute."""
    modules = {module.path for module in sight.data.modules}
    told: set[str] = set()
    for node in _tracked(sight):
        for name in node.names:
            base = name.partition("[")[0]
            owner, dot, attribute = base.rpartition(".")
            if dot and owner in modules and base not in told:
                ids = behind(sight, [node.id])
                yield make_hazard(
                    "attribute_keeps_graph",
                    _statement(sight, "attribute", attribute) or node.location,
                    (node.location,),
                    name=name,
                    operations=to_count_text(len(ids), "operation"),
                    bytes=to_bytes_text(kept_bytes(sight, ids)),
                    tensors=(name,),
                )
                told.add(base)
                break


def _growing(sight: Sight) -> Iterator[Hazard]:
    """Backward after backward with ``retain_graph`` at one line, each through what the ones before ran through."""
    kept: dict[Location | None, list[Evidence]] = {}
    for one in sight.evidence[Clue.BACKWARD]:
        if "retain_graph" in one.words and "create_graph" not in one.words:
            kept.setdefault(one.location, []).append(one)
    for place, calls in kept.items():
        if len(calls) <= _ROUNDS or len(calls[-1].nodes) < 2:  # noqa: PLR2004  the op before it, and a root
            continue
        ends = [sight.flow.position[call.nodes[0]] for call in calls[:-1]]
        ids = behind(sight, list(calls[-1].nodes[1:]))
        places = [sight.flow.position[identity] for identity in ids]
        rounds = {sum(end < one for end in ends) for one in places}
        if len(rounds) <= _ROUNDS:
            continue
        crossing = next(
            (
                sight.data.by_id[edge.source]
                for edge in sight.data.edges
                if edge.gradient
                and edge.target in ids
                and edge.source in ids
                and sight.flow.position[edge.source] <= ends[-1] < sight.flow.position[edge.target]
            ),
            None,
        )
        state = crossing.location if crossing is not None else None
        yield make_hazard(
            "graph_grows",
            place,
            (state,),
            where=to_place(place),
            state_where=None if state is None else to_place(state),
            operations=to_count_text(len(ids), "operation"),
        )


def _statement(sight: Sight, kind: str, word: str) -> Location | None:
    """The one line that does this with a name."""
    found = {
        one.location
        for one in sight.statements(kind)
        if one.words[0] in {word, word.rpartition(".")[2]} and not one.words[1].endswith("= None")
    }
    return found.pop() if len(found) == 1 else None
