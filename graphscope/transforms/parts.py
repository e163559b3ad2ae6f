"""Parts of a graph: what lies behind its roots, and what has nothing to do with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator

from graphscope.kinds import RAISED_NOTE
from graphscope.model import GraphData, Kind, Node, Role
from graphscope.transforms.select import keep
from graphscope.units import to_count_text

_FEW = 12
"""So many further nodes do not get in the way of a picture."""
_FEW_MAKERS = 4
"""Nor do so many that made a buffer."""
_COPYING = frozenset({"detach", "clone", "alias", "to_copy"})


def behind(data: GraphData, ends: Iterable[str]) -> set[str]:
    """Ids of everything that the values of ``ends`` depend on, tracked or not, themselves included.

    What wrote into a leaf in place counts where it brought a value of some op.
    """
    writers: dict[str, list[str]] = {}
    for node in data.nodes:
        for written in node.writes:
            writers.setdefault(written, []).append(node.id)
    by_library = {region.id for region in data.regions if region.entered == "library"}
    found = set(ends)
    stack = list(found)
    while stack:
        identity = stack.pop()
        sources = [edge.source for edge in data.incoming[identity]]
        if data.by_id[identity].kind is Kind.LEAF:
            sources += [writer for writer in writers.get(identity, ()) if _brings_a_value(data, writer, by_library)]
        for source in sources:
            if source not in found:
                found.add(source)
                stack.append(source)
    return found


def behind_roots(data: GraphData, others: Iterable[str] = ()) -> GraphData:
    """The computation that leads to the roots (and to ``others``), with the parameters that nothing there read."""
    keep = behind(data, [*data.roots, *others])
    keep |= {node.id for node in data.nodes if node.kind is Kind.LEAF and node.role is Role.PARAMETER and node.names}
    return restrict(data, keep)


def behind_names(data: GraphData) -> GraphData:
    """As ``behind_roots``, with what leads to any other tensor that has a name, and to the op that ended it all."""
    return behind_roots(data, [*_ends(data), *(node.id for node in data.nodes if node.names)])


def _ends(data: GraphData) -> list[str]:
    """The roots, and the op at which the program ended."""
    return [*data.roots, *(node.id for node in data.nodes if node.note is not None and RAISED_NOTE in node.note)]


def related(data: GraphData) -> GraphData:
    """A view of a recording without what leads to no root, and without what made a module; unless that is little."""
    ends = _ends(data)
    if not data.recorded or not ends:
        return data
    wanted = behind(data, ends)
    wanted |= {node.id for node in data.nodes if _is_parameter(node)}
    making = making_of_modules(data)
    if len(making) > _FEW_MAKERS:
        shown = [node.id for node in data.nodes if node.id not in making]
        data = keep(data, shown, f"{to_count_text(len(making), 'node')} not drawn: they made what modules hold")
        wanted -= making
    rest = [node for node in data.nodes if node.id not in wanted]
    if len(rest) <= _FEW:
        wanted |= {node.id for node in rest if node.role is not Role.BUFFER or data.outgoing[node.id]}
    hidden = len(data.nodes) - len(wanted)
    if not hidden:
        return data
    why = "it leads" if hidden == 1 else "they lead"
    return keep(data, wanted, f"{to_count_text(hidden, 'node')} not drawn: {why} to no root")


def making_of_modules(data: GraphData) -> set[str]:
    """Ids of what filled parameters and buffers from constants, or made them copies of others, outside of all modules.

    An initialisation, a table of frequencies, layers made by ``deepcopy``: code of constructors, which a picture of the
    computation has no use for.
    """
    constant, copied = _made_of_constants(data), _copied(data)
    if not constant and not copied:
        return set()
    paths = {module.path for module in data.modules}
    found: set[str] = set()
    for node in reversed(data.nodes):
        if (node.id in constant or node.id in copied) and _ends_in_modules(data, node, found, paths):
            found.add(node.id)
    for node in data.nodes:
        if _is_loose(node) or (_is_own(node) and not node.names and not node.reached):
            readers = {edge.target for edge in data.outgoing[node.id]}
            if readers and readers <= found:
                found.add(node.id)
    return found


def _candidates(data: GraphData) -> Iterator[Node]:
    return (node for node in data.nodes if node.kind is Kind.OP and node.module is None and node.backward is None)


def _made_of_constants(data: GraphData) -> set[str]:
    """Ops that bring nothing but constants."""
    made: set[str] = set()
    for node in _candidates(data):
        sources = {edge.source for edge in data.incoming[node.id]}.difference(node.writes)
        if sources and all(source in made or _is_loose(data.by_id[source]) for source in sources):
            made.add(node.id)
    return made


def _copied(data: GraphData) -> set[str]:
    """Ops that copy parameters and buffers as they are."""
    copied: set[str] = set()
    for node in _candidates(data):
        sources = {edge.source for edge in data.incoming[node.id]}
        if node.op in _COPYING and all(source in copied or _is_own(data.by_id[source]) for source in sources):
            copied.add(node.id)
    return copied


def _ends_in_modules(data: GraphData, node: Node, found: Collection[str], paths: Collection[str]) -> bool:
    """All that becomes of what an op made is in modules; ``found`` holds such ops that come later."""
    readers = {edge.target for edge in data.outgoing[node.id]}
    if any(data.by_id[reader].kind is Kind.OUTPUT for reader in readers):
        return False
    written = [data.by_id[one] for one in node.writes if data.by_id[one].kind is Kind.LEAF]
    if not all(map(_is_own, written)):
        return False
    if _is_held(node, paths) or (not readers and any(map(_is_parameter, written))):
        return True
    return bool(readers) and all(reader in found or _is_own(data.by_id[reader]) for reader in readers)


def _is_parameter(node: Node) -> bool:
    return node.kind is Kind.LEAF and node.role is Role.PARAMETER


def _is_own(node: Node) -> bool:
    return node.kind is Kind.LEAF and node.role in {Role.PARAMETER, Role.BUFFER}


def _is_loose(node: Node) -> bool:
    """A constant that nobody holds; what came from outside of the recording, as ``.grad`` does, is none."""
    return node.kind is Kind.LEAF and node.role is Role.CONSTANT and not node.names


def _is_held(node: Node, paths: Collection[str]) -> bool:
    """Some module holds what the op made."""
    return any(
        name.rpartition(".")[0] in paths for output in node.outputs for name in output.names if name.rpartition(".")[1]
    )


def _brings_a_value(data: GraphData, writer: str, by_library: Collection[str]) -> bool:
    if data.by_id[writer].region in by_library:
        return False  # an optimizer's step, or the filling of a parameter
    written = set(data.by_id[writer].writes)
    return any(edge.source not in written and data.by_id[edge.source].kind is Kind.OP for edge in data.incoming[writer])


def restrict(data: GraphData, keep: Collection[str]) -> GraphData:
    """The graph of the nodes in ``keep`` alone, numbered anew, with only the storages and regions that they use."""
    kept = [node for node in data.nodes if node.id in keep]
    if len(kept) == len(data.nodes):
        return data
    ids = {node.id: f"n{place}" for place, node in enumerate(kept)}
    storages = {saved.storage for node in kept for saved in node.saved}
    regions = {node.region for node in kept}
    for region in reversed(data.regions):
        if region.id in regions:
            regions.add(region.parent)
    return dataclasses.replace(
        data,
        nodes=tuple(_renamed(node, ids) for node in kept),
        edges=tuple(
            edge._replace(source=ids[edge.source], target=ids[edge.target])
            for edge in data.edges
            if edge.source in ids and edge.target in ids
        ),
        roots=tuple(ids[root] for root in data.roots if root in ids),
        storages=tuple(storage for storage in data.storages if storage.id in storages),
        regions=tuple(region for region in data.regions if region.id in regions),
        calls=tuple(call._replace(nodes=tuple(ids[node] for node in call.nodes if node in ids)) for call in data.calls),
        evidence=tuple(
            evidence._replace(nodes=tuple(ids[node] for node in evidence.nodes if node in ids))
            for evidence in data.evidence
            if not evidence.nodes or any(node in ids for node in evidence.nodes)
        ),
    )


def _renamed(node: Node, ids: dict[str, str]) -> Node:
    return node._replace(id=ids[node.id], writes=tuple(ids[written] for written in node.writes if written in ids))
