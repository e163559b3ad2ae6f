"""What backward keeps in memory: by op, module, source line and storage.

A storage that several tensors share is one piece of memory and is counted once, for the first op that saved it.
Parameters and buffers exist anyway and stand apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from graphscope.findings import Kept, KeptStorage, Share
from graphscope.garbage import collection_paused
from graphscope.model import GraphData, Kind, Location, Node, SavedTensor, State

_CHECKPOINTS_TOLD = 12


class _Holding(NamedTuple):
    """A storage, and who keeps it, the first first."""

    id: str
    bytes: int
    parameter: bool
    savers: list[tuple[Node, SavedTensor]]


@collection_paused()
def measure_memory(data: GraphData) -> Kept:
    """Everything that the backward nodes of a graph keep alive."""
    holdings = _holdings(data)
    own = [one for one in holdings if not one.parameter]
    roots = [data.by_id[root] for root in data.roots]
    return Kept(
        roots=tuple(root.names[0] if root.names else "output" for root in roots),
        bytes=sum(one.bytes for one in own),
        parameter_bytes=sum(one.bytes for one in holdings if one.parameter),
        states=dict(Counter(saved.state.value for node in data.nodes for saved in node.saved)),
        by_op=_shares(own, _word),
        by_module=tuple(sorted(_shares(own, _paths), key=lambda share: share.name)),
        by_line=_line_shares(own),
        storages=tuple(map(_told, sorted(holdings, key=lambda one: -one.bytes))),
        checkpoint_saves=tuple(_checkpoint_shares(data, own)),
        recorded=data.recorded,
    )


def _holdings(data: GraphData) -> list[_Holding]:
    """In the order in which the storages were first saved."""
    storages = {storage.id: storage for storage in data.storages}
    found: dict[str, _Holding] = {}
    for node in data.nodes:
        for saved in node.saved:
            if saved.storage is None or saved.state not in {State.LIVE, State.PACKED}:
                continue
            storage = storages[saved.storage]
            holding = found.setdefault(storage.id, _Holding(storage.id, storage.bytes, storage.parameter, []))
            holding.savers.append((node, saved))
    return list(found.values())


def _told(holding: _Holding) -> KeptStorage:
    first = holding.savers[0][1]
    savers = tuple((*_word(node), saved.name, node.location) for node, saved in holding.savers)
    return KeptStorage(holding.id, holding.bytes, holding.parameter, savers, first.shape, first.dtype)


def _shares(holdings: Iterable[_Holding], keys: Callable[[Node], Sequence[str]]) -> tuple[Share, ...]:
    """What each key of the first saver keeps, largest first."""
    size: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    nodes: dict[str, set[str]] = {}
    for holding in holdings:
        for owner in keys(holding.savers[0][0]):
            size[owner] += holding.bytes
        for node, _ in holding.savers:
            for name in keys(node):
                tensors[name] += 1
                nodes.setdefault(name, set()).add(node.id)
    ordered = sorted(tensors, key=lambda name: (-size[name], name))
    return tuple(Share(name, size[name], tensors[name], None, len(nodes[name])) for name in ordered)


def _word(node: Node) -> tuple[str]:
    return (node.op or node.backward or "unknown",)


def _paths(node: Node) -> tuple[str, ...]:
    """The module of an op and all modules around it; an empty path for ops of none."""
    path = node.module or ""
    found = [path]
    while "." in path:
        path = path.rpartition(".")[0]
        found.append(path)
    return tuple(found)


def _line_shares(holdings: list[_Holding]) -> tuple[Share, ...]:
    places: dict[str, Location] = {}

    def keys(node: Node) -> tuple[str, ...]:
        if node.location is None:
            return ()
        name = f"{node.location.file}:{node.location.line}"
        places.setdefault(name, node.location)
        return (name,)

    return tuple(share._replace(location=places[share.name]) for share in _shares(holdings, keys))


def _checkpoint_shares(data: GraphData, holdings: list[_Holding]) -> Iterator[Share]:
    """What is kept by nothing outside of a module, its own inputs left out: they would be kept by the checkpoint."""
    entering = _entering(data)
    inside: dict[str, list[_Holding]] = {}
    for holding in holdings:
        around = [set(_paths(node)) - {""} for node, _ in holding.savers]
        for path in sorted(set.intersection(*around)):
            if not any((node.id, saved.shape) in entering.get(path, ()) for node, saved in holding.savers):
                inside.setdefault(path, []).append(holding)
    seen: set[frozenset[str]] = set()
    found: list[Share] = []
    for path in sorted(inside, key=lambda path: (path.count("."), path)):
        same = frozenset(one.id for one in inside[path])
        if same not in seen:  # a module that only wraps another is told once
            seen.add(same)
            found.append(Share(path, sum(one.bytes for one in inside[path]), len(same)))
    yield from sorted(found, key=lambda share: -share.bytes)[:_CHECKPOINTS_TOLD]


def _entering(data: GraphData) -> dict[str, set[tuple[str, object]]]:
    """By module: ops inside that read something from outside, with the shape of what they read."""
    found: dict[str, set[tuple[str, object]]] = {}
    for edge in data.edges:
        source, target = data.by_id[edge.source], data.by_id[edge.target]
        if target.module is None or edge.output >= len(source.outputs):
            continue
        made_inside = source.module if source.kind is Kind.OP else None
        for path in _paths(target):
            if made_inside is None or not (made_inside == path or made_inside.startswith(path + ".")):
                found.setdefault(path, set()).add((target.id, source.outputs[edge.output].shape))
    return found
