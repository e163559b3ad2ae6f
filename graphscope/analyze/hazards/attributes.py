"""Parameters that will not change although a gradient arrives, and attributes that say nothing to torch."""

from __future__ import annotations

from collections.abc import Iterator

from graphscope.analyze.causes import make_hazard
from graphscope.analyze.sight import Sight, listed
from graphscope.findings import Hazard, Severity, Verdict
from graphscope.model import Clue, Evidence, Kind, Node, Role

_CONVERSIONS = frozenset(
    {"to_copy", "clone", "mul", "div", "sub", "neg", "view", "t", "transpose", "reshape", "unsqueeze"}
)
"""Ops that make a new tensor of one that was just created: ``torch.rand(…, requires_grad=True).to(device)``."""


def detect(sight: Sight, verdicts: tuple[Verdict, ...]) -> Iterator[Hazard]:
    """Optimizers, attributes, unregistered layers, leaves whose name was given away."""
    yield from _optimizers(sight, verdicts)
    yield from _attributes(sight)
    yield from _unregistered(sight)
    yield from _rebound(sight)


def _optimizers(sight: Sight, verdicts: tuple[Verdict, ...]) -> Iterator[Hazard]:
    optimizers = sight.evidence[Clue.OPTIMIZER]
    held = {identity for one in optimizers for identity in one.nodes}
    tops = {row.name.partition(".")[0] for row in verdicts if row.node in held}
    every = [
        row
        for row in verdicts
        if row.kind == "parameter" and row.requires_grad and row.receives_grad and row.node not in held
    ]
    outside = [row for row in every if row.name.partition(".")[0] in tops]
    for one in optimizers:
        if not one.nodes and one.numbers[0] == one.numbers[1] > 0 and (twins := _twins(one, every)):
            yield _strangers(sight, one, twins)
            return
        if len(one.numbers) > 1 and one.numbers[1] and outside:
            same_shape = [row for row in outside if _shape(row) in one.words[1:]]
            yield _strangers(sight, one, same_shape or outside)
            return
    outside = outside or (every if held else [])
    if outside:
        whole = {row.name.split(".")[1] for row in outside} - {
            row.name.split(".")[1] for row in verdicts if row.node in held and row.name.count(".") > 1
        }
        is_whole = all(row.name.split(".")[1] in whole or row.name.partition(".")[0] not in tops for row in outside)
        severity = Severity.NOTE if is_whole else Severity.WARNING
        yield make_hazard(
            "not_in_optimizer",
            None,
            severity=severity,
            names=listed([row.name for row in outside], "and"),
            it="them" if len(outside) > 1 else "it",
            it_short="they" if len(outside) > 1 else "it",
            tensors=tuple(row.name for row in outside),
            nodes=tuple(row.node for row in outside),
        )


def _twins(one: Evidence, rows: list[Verdict]) -> list[Verdict]:
    """Parameters of a module with just the shapes that an optimizer holds, none of which is in sight any more."""
    tops = dict.fromkeys(row.name.partition(".")[0] for row in rows)
    for top in tops:
        own = [row for row in rows if row.name.partition(".")[0] == top]
        shapes = [_shape(row) for row in own]
        if len(own) == one.numbers[0] and sorted(shapes[: len(one.words) - 1]) == sorted(one.words[1:]):
            return own
    return []


def _strangers(sight: Sight, one: Evidence, rows: list[Verdict]) -> Hazard:
    """An optimizer whose parameters are no longer the model's."""
    made = {mark.location for mark in sight.statements("optimizer") if mark.words[0] == one.subject}
    return make_hazard(
        "optimizer_holds_strangers",
        made.pop() if len(made) == 1 else one.location,
        optimizer=one.subject,
        count=f"{one.numbers[1]} parameter{'s' * (one.numbers[1] > 1)}",
        shapes=", ".join(one.words[1:4]),
        names=listed([row.name for row in rows], "and"),
        are="are" if len(rows) > 1 else "is",
        they="they were" if len(rows) > 1 else "it was",
        tensors=tuple(row.name for row in rows),
        nodes=tuple(row.node for row in rows),
    )


def _shape(row: Verdict) -> str:
    return "×".join(map(str, row.shape or ())) or "scalar"


def _attributes(sight: Sight) -> Iterator[Hazard]:
    for one in sight.evidence[Clue.ATTRIBUTE]:
        names = [name for identity in one.nodes for name in sight.data.by_id[identity].names[:1]]
        meant, value = one.words
        yield make_hazard(
            "suspicious_attribute",
            one.location,
            one.also,
            attribute=one.subject,
            value=value,
            names=listed(names, "and"),
            meant=f"{meant}({value})" if meant.endswith("_") else f"{meant} = {value}",
            tensors=tuple(names),
            nodes=one.nodes,
        )


def _unregistered(sight: Sight) -> Iterator[Hazard]:
    """What ``parameters()`` does not find, put together by the line that keeps it."""
    kept: dict[object, list[Evidence]] = {}
    for one in sight.evidence[Clue.UNREGISTERED]:
        nodes = [node for identity in one.nodes if (node := sight.data.by_id[identity]).kind is Kind.LEAF]
        if any(node.outputs[0].requires_grad for node in nodes):
            kept.setdefault((one.location, one.words[1]), []).append(one)
    for same in kept.values():
        ids = tuple(identity for one in same for identity in one.nodes)
        several = len(same) > 1
        yield make_hazard(
            "unregistered_module",
            same[0].location,
            name=listed([one.subject for one in same], "and"),
            owner=same[0].words[1],
            are="are" if several else "is",
            it="them" if several else "it",
            tensors=tuple(name for identity in ids for name in sight.data.by_id[identity].names[:1]),
            nodes=ids,
        )


def _rebound(sight: Sight) -> Iterator[Hazard]:
    """A name that went from a leaf to what was made of it, so that nothing names the leaf any more."""
    if not sight.data.recorded:
        return
    for node in sight.data.nodes:
        if node.kind is not Kind.OP or not node.names or node.op not in _CONVERSIONS or not node.reached:
            continue
        leaf = _unnamed_leaf(sight, node)
        if leaf is not None:
            yield make_hazard(
                "leaf_rebound",
                node.location,
                (leaf.location,),
                name=node.names[0],
                op="to" if node.op == "to_copy" else node.op,
                first="Convert" if node.op in {"to_copy", "clone"} else "Compute it",
                how="tensor.to(…).requires_grad_()" if node.op in {"to_copy", "clone"} else "(…).requires_grad_()",
                tensors=(node.names[0],),
                nodes=(node.id, leaf.id),
            )


def _unnamed_leaf(sight: Sight, node: Node) -> Node | None:
    """The leaf without a name that a tensor was converted from."""
    for _ in range(3):
        sources = [sight.data.by_id[edge.source] for edge in sight.data.incoming[node.id] if edge.gradient]
        if len(sources) != 1:
            return None
        (source,) = sources
        if source.kind is Kind.LEAF:
            made_here = source.role is not Role.BUFFER and source.location is not None
            return source if made_here and not source.names and len(sight.data.outgoing[source.id]) == 1 else None
        if source.names or source.op not in _CONVERSIONS:
            return None
        node = source
    return None
