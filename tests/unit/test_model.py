from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from graphscope.errors import GraphCheckError, GraphscopeError
from graphscope.model import (
    Bundle,
    Edge,
    Frame,
    GraphData,
    Group,
    Kind,
    Node,
    Reason,
    Region,
    SavedTensor,
    State,
    Storage,
    TensorInfo,
    View,
    reached_from,
)
from tests.strategies import graphs

TENSOR = TensorInfo((2,), "float32", "cpu")
WEIGHT = Node("n0", Kind.LEAF, (TENSOR._replace(names=("w",)),), reached=True, accumulate="AccumulateGrad")
DATA = Node("n1", Kind.LEAF, (TENSOR._replace(names=("x",)),))
PRODUCT = Node(
    "n2",
    Kind.OP,
    (TENSOR,),
    reached=True,
    op="mul",
    backward="MulBackward0",
    saved=(SavedTensor("self", State.LIVE, storage="s0"), SavedTensor("other", State.LIVE, storage="s1")),
    region="r0",
    writes=("n1",),
)
LOSS = Node("n3", Kind.OUTPUT, (TENSOR._replace(names=("loss",)),), reached=True)
EDGES = (
    Edge("n0", 0, "n2", 0, True),
    Edge("n1", 0, "n2", 1, False, Reason.CONSTANT),
    Edge("n2", 0, "n3", 0, True),
)
SOUND = GraphData(
    nodes=(WEIGHT, DATA, PRODUCT, LOSS),
    edges=EDGES,
    roots=("n3",),
    torch="2.13.0",
    storages=(Storage("s0", 8), Storage("s1", 8)),
    regions=(Region("r0", "enable_grad", "with"),),
)


def with_node(node: Node) -> GraphData:
    """The sound graph with one node in the place of its namesake."""
    return dataclasses.replace(SOUND, nodes=tuple(node if one.id == node.id else one for one in SOUND.nodes))


def with_edges(*edges: Edge) -> GraphData:
    return dataclasses.replace(SOUND, edges=edges)


BROKEN = {
    "doubled id": (
        dataclasses.replace(SOUND, nodes=(*SOUND.nodes, DATA)),
        "two nodes share an id",
    ),
    "edge from nowhere": (with_edges(*EDGES, Edge("n9", 0, "n2", 2, False)), "edge n9→n2 ends nowhere"),
    "edge to nowhere": (with_edges(*EDGES, Edge("n1", 0, "n9", 0, False)), "edge n1→n9 ends nowhere"),
    "against the order": (
        dataclasses.replace(SOUND, nodes=(PRODUCT, WEIGHT, DATA, LOSS)),
        "edge n0→n2 runs against the order",
    ),
    "edge to itself": (with_edges(*EDGES, Edge("n2", 0, "n2", 2, True)), "edge n2→n2 runs against the order"),
    "no such output": (
        with_edges(EDGES[0]._replace(output=1), *EDGES[1:]),
        "edge n0→n2 leaves output 1 of 1",
    ),
    "reason on a gradient": (
        with_edges(EDGES[0]._replace(reason=Reason.DETACH), *EDGES[1:]),
        "edge n0→n2 carries a gradient and a reason for none",
    ),
    "output without source": (with_edges(*EDGES[:2]), "output n3 has 0 sources"),
    "output with two sources": (with_edges(*EDGES, Edge("n1", 0, "n3", 1, False)), "output n3 has 2 sources"),
    "unknown root": (dataclasses.replace(SOUND, roots=("n9",)), "root n9 is no output node"),
    "root is an op": (dataclasses.replace(SOUND, roots=("n2",)), "root n2 is no output node"),
    "leaf with two tensors": (with_node(DATA._replace(outputs=(TENSOR, TENSOR))), "leaf n1 has 2 tensors"),
    "leaf with a backward node": (with_node(DATA._replace(backward="MulBackward0")), "leaf n1 has an op"),
    "leaf with an op": (with_node(DATA._replace(op="mul")), "leaf n1 has an op"),
    "no accumulator": (with_node(WEIGHT._replace(accumulate=None)), "leaf n0 is reached without an accumulator"),
    "unknown region": (with_node(PRODUCT._replace(region="r9")), "n2 stands in unknown region r9"),
    "unknown storage": (
        with_node(PRODUCT._replace(saved=(SavedTensor("self", State.LIVE, storage="s9"),))),
        "n2 saves unknown storage s9",
    ),
    "unknown write": (with_node(PRODUCT._replace(writes=("n9",))), "n2 writes unknown node n9"),
    "reached, says not": (with_node(PRODUCT._replace(reached=False)), "n2 says reached=False, the edges say True"),
    "not reached, says so": (
        with_node(DATA._replace(reached=True, accumulate="AccumulateGrad")),
        "n1 says reached=True, the edges say False",
    ),
}


def test_a_sound_graph_passes_and_is_returned() -> None:
    assert SOUND.faults() == []
    assert SOUND.check() is SOUND


@pytest.mark.parametrize(("data", "fault"), BROKEN.values(), ids=BROKEN)
def test_each_fault_is_found(data: GraphData, fault: str) -> None:
    assert fault in data.faults()
    with pytest.raises(GraphCheckError, match=r"breaks .* of its own rules") as caught:
        data.check()
    assert fault in str(caught.value)


def test_an_output_without_its_tensor_is_a_fault() -> None:
    data = dataclasses.replace(SOUND, nodes=(*SOUND.nodes[:3], LOSS._replace(outputs=())))
    assert "output n3 has 0 tensors" in data.faults()


def test_a_check_error_is_an_error_of_graphscope_and_an_assertion() -> None:
    with pytest.raises(GraphscopeError):
        with_edges(*EDGES[:2]).check()
    with pytest.raises(AssertionError):
        with_edges(*EDGES[:2]).check()


def test_many_faults_are_counted_and_ten_are_told() -> None:
    lost = [Edge(f"m{index}", 0, "n2", index, False) for index in range(50)]
    with pytest.raises(GraphCheckError) as caught:
        with_edges(*EDGES, *lost).check()
    assert "breaks 50 of its own rules" in str(caught.value)
    assert str(caught.value).count("ends nowhere") == 10


def test_a_root_that_is_a_leaf_needs_no_accumulator() -> None:
    leaf = WEIGHT._replace(accumulate=None)
    mark = LOSS._replace(id="n1")
    GraphData(nodes=(leaf, mark), edges=(Edge("n0", 0, "n1", 0, True),), roots=("n1",), torch="2.13.0").check()


def test_a_folded_view_may_hold_no_ring() -> None:
    group = PRODUCT._replace(kind=Kind.GROUP, outputs=())
    view = View(groups={"n2": Group("product", ("n2",))})
    folded = dataclasses.replace(with_node(group), view=view).check()
    with pytest.raises(GraphCheckError, match="n2→n0 runs against the order"):
        dataclasses.replace(folded, edges=(*EDGES, Edge("n2", 5, "n0", 0, False))).check()


VIEW_FAULTS = [
    (View(groups={"n9": Group("lost", ())}), "group n9 is not there"),
    (View(bundles={Edge("n0", 0, "n1", 0, True): Bundle(2, 1, reached=True)}), "bundle Edge.* is not there"),
    (View(frames=(Frame("f1", "inner", (), "f0"), Frame("f0", "outer", ()))), "frame f1 stands before its parent f0"),
    (View(frames=(Frame("f0", "model", ("n9",)),)), "frame f0 holds unknown n9"),
    (View(frames=(Frame("f0", "a", ("n2",)), Frame("f1", "b", ("n2",)))), "n2 is in two frames"),
]


@pytest.mark.parametrize(("view", "fault"), VIEW_FAULTS)
def test_a_view_must_fit_its_graph(view: View, fault: str) -> None:
    with pytest.raises(GraphCheckError, match=fault):
        dataclasses.replace(SOUND, view=view).check()


def test_a_group_must_say_what_it_stands_for() -> None:
    with pytest.raises(GraphCheckError, match="group n2 stands for nothing"):
        with_node(PRODUCT._replace(kind=Kind.GROUP, outputs=())).check()


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        WEIGHT.id = "n7"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        SOUND.torch = "1.0"  # type: ignore[misc]


def test_lookups() -> None:
    assert SOUND.by_id["n2"] is PRODUCT
    assert SOUND.incoming == {"n0": [], "n1": [], "n2": [*EDGES[:2]], "n3": [EDGES[2]]}
    assert SOUND.outgoing == {"n0": [EDGES[0]], "n1": [EDGES[1]], "n2": [EDGES[2]], "n3": []}


def test_a_storage_lists_each_owner_once() -> None:
    twice = PRODUCT._replace(saved=(*PRODUCT.saved, SavedTensor("result", State.FREED), PRODUCT.saved[0]))
    other = PRODUCT._replace(id="n4", saved=PRODUCT.saved[:1])
    data = dataclasses.replace(SOUND, nodes=(WEIGHT, DATA, twice, other, LOSS))
    assert data.owners == {"s0": ["n2", "n4"], "s1": ["n2"]}


def test_names_of_a_node_are_those_of_all_its_outputs() -> None:
    values, indices = TENSOR._replace(names=("top", "best")), TENSOR._replace(names=("where",))
    assert PRODUCT._replace(outputs=(values, TENSOR, indices)).names == ("top", "best", "where")
    assert PRODUCT._replace(outputs=()).names == ()
    assert WEIGHT.names == ("w",)


def test_parallel_edges_are_two() -> None:
    square = PRODUCT._replace(saved=(), region=None, writes=())
    edges = (Edge("n0", 0, "n2", 0, True), Edge("n0", 0, "n2", 1, True), EDGES[2])
    data = dataclasses.replace(SOUND, nodes=(WEIGHT, square, LOSS), edges=edges).check()
    assert [edge.slot for edge in data.incoming["n2"]] == [0, 1]


def test_a_deep_chain_is_checked_without_recursion() -> None:
    depth = 50_000
    ops = [PRODUCT._replace(id=f"m{index}", saved=(), region=None, writes=()) for index in range(depth)]
    edges = [Edge(f"m{index}", 0, f"m{index + 1}", 0, True) for index in range(depth - 1)]
    mark = Edge(ops[-1].id, 0, "n3", 0, True)
    data = GraphData(nodes=(*ops, LOSS), edges=(*edges, mark), roots=("n3",), torch="2.13.0").check()
    assert len(reached_from(data, ["n3"])) == depth + 1


@given(graphs())
def test_reached_is_what_a_search_forwards_finds(data: GraphData) -> None:
    """The same by the opposite way: from each node, along gradient edges, to a root."""
    for node in data.nodes:
        ahead, seen = [node.id], {node.id}
        while ahead:
            fresh = {edge.target for edge in data.outgoing[ahead.pop()] if edge.gradient} - seen
            seen |= fresh
            ahead += fresh
        assert node.reached == bool(seen & set(data.roots))
