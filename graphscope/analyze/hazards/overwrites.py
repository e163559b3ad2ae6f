"""Memory that backward will want and that something has written or freed in the meantime."""

from __future__ import annotations

from collections.abc import Iterator

from graphscope.analyze.causes import make_hazard
from graphscope.analyze.sight import Sight
from graphscope.findings import Hazard, Severity, Verdict, to_place
from graphscope.model import Clue, Evidence, Kind, Location, Node, State

_CARRIED = "Detach what is carried from round to round, before it is used again: state = state.detach()."
_SHARED = (
    "Run the forward pass again for the second loss, or add the losses and call backward once. "
    "What the first loss need not train can be given to it detached."
)


def detect(sight: Sight, _: tuple[Verdict, ...]) -> Iterator[Hazard]:
    """Saved tensors modified, aloud or silently, and graphs that a backward has freed."""
    yield from _modified(sight)
    yield from _freed(sight)


def _modified(sight: Sight) -> Iterator[Hazard]:
    told: set[str] = set()
    by_writer: dict[Location | None, list[Evidence]] = {}
    for one in sight.evidence[Clue.OVERWRITE]:
        if len(one.nodes) == 2 and sight.data.by_id[one.nodes[0]].reached:  # noqa: PLR2004  saver and writer
            told.add(one.nodes[0])
            by_writer.setdefault(one.location, []).append(one)
    for same in by_writer.values():
        yield _overwritten(sight, same)
    for node in sight.data.nodes:
        if node.reached and node.id not in told and any(saved.modified for saved in node.saved):
            slot = next(saved.name for saved in node.saved if saved.modified)
            yield make_hazard(
                "saved_tensor_modified",
                node.location,
                writer="Something",
                where="a line that is not known",
                saver=saver_words(node),
                saved_where=to_place(node.location),
                slot=slot,
                nodes=(node.id,),
            )


def _overwritten(sight: Sight, same: list[Evidence]) -> Hazard:
    first = same[0]
    saver, writer = (sight.data.by_id[identity] for identity in first.nodes)
    kind = "silent_overwrite" if "silent" in first.words else "saved_tensor_modified"
    if kind == "saved_tensor_modified" and sight.flow.is_bookkeeping(writer):
        kind = "saved_tensor_modified_by_optimizer"
    before, after = first.numbers[:2] if len(first.numbers) > 1 else (None, None)
    return make_hazard(
        kind,
        first.location,
        tuple(sight.data.by_id[one.nodes[0]].location for one in same[:4]),
        writer=writer.op or "an operation",
        where=to_place(first.location),
        saver=saver_words(saver),
        saved_where=to_place(saver.location),
        slot=first.subject,
        before=before,
        after=after,
        nodes=(writer.id, saver.id),
        tensors=saver.names,
    )


def saver_words(node: Node) -> str:
    """An op by its name; a custom Function by its class."""
    return node.op or node.backward or "an operation"


def _freed(sight: Sight) -> Iterator[Hazard]:
    """Parts of the graph that a backward has freed, below parts that none has run through."""
    freed = [
        node
        for node in sight.data.nodes
        if node.reached and node.saved and any(saved.state is State.FREED for saved in node.saved)
    ]
    if not freed:
        return
    backward = _freeing(sight, freed[0])
    after = -1 if backward is None else sight.flow.position[backward.nodes[0]]
    again = [
        node
        for place, node in enumerate(sight.data.nodes)
        if node.reached
        and node.kind is Kind.OP
        and node.backward is not None
        and (place > after if backward is not None else any(saved.state is State.LIVE for saved in node.saved))
        and any(sight.data.by_id[edge.source].reached and edge.gradient for edge in sight.data.incoming[node.id])
    ]
    again = [node for node in again if _reads_older(sight, node, after) or backward is None]
    where = backward.location if backward is not None else None
    if again and _depends(sight, again[0], freed):
        yield make_hazard(
            "graph_freed",
            again[0].location,
            (where,),
            root=sight.root_words,
            where=to_place(again[0].location),
            freed_where=to_place(where) if where is not None else "an earlier backward",
            advice=_CARRIED if _is_carried(sight, again[0], after) else _SHARED,
            nodes=(again[0].id, freed[-1].id),
        )
    else:
        yield make_hazard("graph_already_run", where, root=sight.root_words, severity=Severity.NOTE)


def _freeing(sight: Sight, node: Node) -> Evidence | None:
    """The backward that freed a node: the first that started from something behind which it lies, and kept nothing."""
    place = sight.flow.position[node.id]
    candidates = [
        one
        for one in sight.evidence[Clue.BACKWARD]
        if "retain_graph" not in one.words and sight.flow.position[one.nodes[0]] >= place
    ]
    for one in candidates:
        if any(_is_behind(sight, root, node.id) for root in one.nodes[1:]):
            return one
    return candidates[0] if candidates else None


def _is_behind(sight: Sight, root: str, wanted: str) -> bool:
    seen, waiting = {root}, [root]
    while waiting:
        identity = waiting.pop()
        if identity == wanted:
            return True
        for edge in sight.data.incoming[identity]:
            if edge.gradient and edge.source not in seen:
                seen.add(edge.source)
                waiting.append(edge.source)
    return False


def _reads_older(sight: Sight, node: Node, after: int) -> bool:
    """It reads, with gradient, the result of an op from before the backward."""
    return any(
        edge.gradient and sight.flow.position[edge.source] <= after and sight.data.by_id[edge.source].kind is Kind.OP
        for edge in sight.data.incoming[node.id]
    )


def _is_carried(sight: Sight, node: Node, after: int) -> bool:
    """What it reads was made at its own line, a round earlier."""
    older = (sight.data.by_id[edge.source] for edge in sight.data.incoming[node.id] if edge.gradient)
    return any(one.location == node.location is not None for one in older if sight.flow.position[one.id] <= after)


def _depends(sight: Sight, node: Node, freed: list[Node]) -> bool:
    """Something freed lies behind a node."""
    wanted = {one.id for one in freed}
    seen, waiting = {node.id}, [node.id]
    while waiting:
        for edge in sight.data.incoming[waiting.pop()]:
            if edge.gradient and edge.source not in seen:
                if edge.source in wanted:
                    return True
                seen.add(edge.source)
                waiting.append(edge.source)
    return False
