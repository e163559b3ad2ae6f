"""Hypothesis strategies for graphs: sound by their edges and ``reached``, arbitrary in every other fact."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from graphscope.model import (
    Clue,
    Edge,
    Evidence,
    GraphData,
    Kind,
    Location,
    Module,
    Node,
    Reason,
    Region,
    Role,
    SavedTensor,
    State,
    Storage,
    TensorInfo,
    View,
    reached_from,
)

CHARACTERS = st.characters() | st.characters(categories=["Cs"], min_codepoint=0xDC80, max_codepoint=0xDCFF)
"""Any character, and the lone surrogates by which Python writes undecodable bytes of file names."""

NAMES = st.text(CHARACTERS, max_size=6)
COUNTS = st.integers(min_value=0, max_value=2**63)
FLAGS = st.none() | st.booleans()
TEXTS = st.none() | NAMES
SHAPES = st.none() | st.lists(st.integers(0, 2**40) | st.sampled_from(["j1", "2*s0"]), max_size=3).map(tuple)
MANY_NAMES = st.lists(NAMES, max_size=2).map(tuple)

TENSORS = st.builds(
    TensorInfo,
    shape=SHAPES,
    dtype=TEXTS,
    device=TEXTS,
    names=MANY_NAMES,
    requires_grad=FLAGS,
    is_leaf=FLAGS,
    is_inference=FLAGS,
    is_view=FLAGS,
    version=st.none() | COUNTS,
    layout=TEXTS,
    subclass=TEXTS,
)
LOCATIONS = st.builds(Location, file=NAMES, line=COUNTS, code=NAMES, function=TEXTS)
MODULES = st.builds(Module, path=NAMES, type=NAMES, training=st.booleans(), parameters=COUNTS, trainable=COUNTS)
VIEWS = st.tuples(COUNTS, MANY_NAMES).map(lambda facts: View(*facts))


@st.composite
def saved_tensors(draw: st.DrawFn, storages: list[str]) -> SavedTensor:
    return SavedTensor(
        name=draw(NAMES),
        state=draw(st.sampled_from(State)),
        shape=draw(SHAPES),
        dtype=draw(TEXTS),
        bytes=draw(st.none() | COUNTS),
        storage=draw(st.none() | st.sampled_from(storages)) if storages else None,
        modified=draw(FLAGS),
    )


@st.composite
def nodes(draw: st.DrawFn, index: int, kind: Kind, storages: list[str], regions: list[str]) -> Node:
    size = st.integers(0, 3) if kind is Kind.OP else st.just(1)
    node = Node(
        id=f"n{index}",
        kind=kind,
        outputs=tuple(draw(TENSORS) for _ in range(draw(size))),
        role=draw(st.none() | st.sampled_from(Role)),
        accumulate=draw(NAMES.filter(bool)) if kind is Kind.LEAF else draw(TEXTS),
        grad=draw(st.none() | TENSORS),
        retains_grad=draw(st.booleans()),
        hooks=draw(COUNTS),
        saved=tuple(draw(st.lists(saved_tensors(storages), max_size=2))),
        without_gradient=tuple(draw(st.lists(COUNTS, max_size=2))),
        stopped=draw(st.booleans()),
        mode=draw(TEXTS),
        module=draw(TEXTS),
        location=draw(st.none() | LOCATIONS),
        region=draw(st.none() | st.sampled_from(regions)) if regions else None,
        writes=tuple(f"n{draw(st.integers(0, index))}" for _ in range(draw(st.integers(0, 2)))),
        note=draw(TEXTS),
    )
    return node._replace(op=draw(TEXTS), backward=draw(TEXTS)) if kind is Kind.OP else node


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 6) -> GraphData:
    """A graph that ``check()`` accepts."""
    storages = draw(st.lists(NAMES, unique=True, max_size=2))
    regions = draw(st.lists(NAMES, unique=True, max_size=2))
    kinds = draw(st.lists(st.sampled_from([Kind.LEAF, Kind.OP]), min_size=1, max_size=max_nodes))
    made = [draw(nodes(index, kind, storages, regions)) for index, kind in enumerate(kinds)]
    edges = [
        draw(edge_into(made[:index], node))
        for index, node in enumerate(made)
        for _ in range(_inputs(draw, made[:index], node))
    ]
    sources = [node for node in made if node.outputs]
    marks = [
        draw(nodes(len(made) + index, Kind.OUTPUT, storages, regions))
        for index in range(draw(st.integers(0, 2)) if sources else 0)
    ]
    edges += [draw(edge_into(sources, mark)) for mark in marks]
    data = GraphData(
        nodes=(*made, *marks),
        edges=tuple(edges),
        roots=tuple(mark.id for mark in marks),
        torch=draw(NAMES),
        recorded=draw(st.booleans()),
        storages=tuple(Storage(id, draw(COUNTS), draw(st.booleans())) for id in storages),
        modules=tuple(draw(st.lists(MODULES, max_size=2))),
        regions=tuple(draw(region(id, regions)) for id in regions),
        notices=draw(MANY_NAMES),
        view=draw(VIEWS),
        evidence=tuple(draw(st.lists(evidence([node.id for node in (*made, *marks)]), max_size=2))),
    )
    return _with_reached(data).check()


@st.composite
def edge_into(draw: st.DrawFn, earlier: list[Node], target: Node) -> Edge:
    source = draw(st.sampled_from([node for node in earlier if node.outputs]))
    gradient = draw(st.booleans())
    return Edge(
        source=source.id,
        output=draw(st.integers(0, len(source.outputs) - 1)),
        target=target.id,
        slot=draw(COUNTS),
        gradient=gradient,
        reason=None if gradient else draw(st.none() | st.sampled_from(Reason)),
        argument=draw(TEXTS),
    )


def evidence(ids: list[str]) -> st.SearchStrategy[Evidence]:
    return st.builds(
        Evidence,
        clue=st.sampled_from(Clue),
        subject=NAMES,
        nodes=st.lists(st.sampled_from(ids), max_size=2).map(tuple),
        location=st.none() | LOCATIONS,
        also=st.lists(LOCATIONS, max_size=1).map(tuple),
        words=MANY_NAMES,
        numbers=st.lists(st.integers(-1, 2**63), max_size=2).map(tuple),
    )


@st.composite
def region(draw: st.DrawFn, id: str, regions: list[str]) -> Region:
    parent = draw(st.none() | st.sampled_from(regions))
    return Region(id, draw(NAMES), draw(NAMES), draw(st.none() | LOCATIONS), parent, draw(st.booleans()))


def _inputs(draw: st.DrawFn, earlier: list[Node], node: Node) -> int:
    possible = node.kind is Kind.OP and any(one.outputs for one in earlier)
    return draw(st.integers(0, 3)) if possible else 0


def _with_reached(data: GraphData) -> GraphData:
    reached = reached_from(data, data.roots)
    changed = tuple(node._replace(reached=node.id in reached) for node in data.nodes)
    return dataclasses.replace(data, nodes=changed)
