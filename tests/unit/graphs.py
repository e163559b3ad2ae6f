"""Small graphs made by hand, so that renderers are tested without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphscope.model import (
    Edge,
    GraphData,
    Kind,
    Location,
    Node,
    Reason,
    Region,
    Role,
    SavedTensor,
    State,
    Storage,
    TensorInfo,
)

HOSTILE_NAMES = (
    'a"b',
    "<b>&amp;",
    "{|}",
    r"\n",
    r"\N \G \E \T \H \L \l \r",
    "a\\",
    "]]>",
    "<script>alert(1)</script>",
    "&#65;&lt;",
    "🙂 emoji 👩‍🔬",
    "权重.矩阵",
    "",
    "  ",
    " lead and  two ",
    "<not html>",
    "-->",
    "%s %d {0}",
    "$x_1$",
    "\u202eright to left",
    "a\tb\nc\x00\x1b[31m",
    "\ud800",
    "é" * 200,
)
"""Names that break careless renderers; the last one is too long to draw in full."""


def tensor(
    shape: Sequence[int] = (4, 2),
    *names: str,
    requires_grad: bool = True,
    is_leaf: bool = False,
    dtype: str = "float32",
) -> TensorInfo:
    return TensorInfo(tuple(shape), dtype, "cpu", names, requires_grad=requires_grad, is_leaf=is_leaf)


def leaf(id: str, name: str | None, shape: Sequence[int] = (4, 2), **facts: Any) -> Node:
    """A leaf; ``reached`` and ``role`` are facts that may be given."""
    requires_grad = bool(facts.pop("requires_grad", True))
    reached = bool(facts.pop("reached", requires_grad))
    dtype = str(facts.pop("dtype", "float32"))
    names = () if name is None else (name,)
    info = tensor(shape, *names, requires_grad=requires_grad, is_leaf=True, dtype=dtype)
    node = Node(id, Kind.LEAF, (info,), reached=reached, accumulate="AccumulateGrad" if reached else None)
    return node._replace(**facts)


def op(id: str, name: str | None, backward: str | None, *outputs: TensorInfo, **facts: Any) -> Node:
    """An op; reached where it has a backward node, unless told otherwise."""
    node = Node(id, Kind.OP, outputs or (tensor(),), reached=backward is not None, op=name, backward=backward)
    return node._replace(**facts)


def output(id: str, name: str | None, shape: Sequence[int] = (), **facts: Any) -> Node:
    requires_grad = bool(facts.pop("requires_grad", True))
    names = () if name is None else (name,)
    info = tensor(shape, *names, requires_grad=requires_grad)
    return Node(id, Kind.OUTPUT, (info,), reached=True)._replace(**facts)


def flow(source: str, target: str, slot: int = 0, number: int = 0, argument: str | None = None) -> Edge:
    return Edge(source, number, target, slot, gradient=True, argument=argument)


def cut(source: str, target: str, reason: Reason | None, slot: int = 0, argument: str | None = None) -> Edge:
    return Edge(source, 0, target, slot, gradient=False, reason=reason, argument=argument)


def graph(nodes: Sequence[Node], edges: Sequence[Edge], **facts: Any) -> GraphData:
    roots = tuple(node.id for node in nodes if node.kind is Kind.OUTPUT)
    data = GraphData(nodes=tuple(nodes), edges=tuple(edges), roots=roots, torch="2.13.0", **facts)
    return data.check()


def addition() -> GraphData:
    """``z = x + y`` with only ``x`` requiring grad, as a pure walk sees it."""
    nodes = (
        leaf("n0", "x", (3,), role=Role.INPUT),
        op("n1", "add", "AddBackward0", tensor((3,), "z"), without_gradient=(1,)),
        output("n2", "z", (3,)),
    )
    return graph(nodes, (flow("n0", "n1"), flow("n1", "n2")))


def frozen_linear() -> GraphData:
    """A recorded linear layer with a frozen weight, a trainable bias and a loss."""
    line = Location("train.py", 12, "h = model.fc(x)")
    nodes = (
        leaf("n0", "x", (4, 5), role=Role.INPUT, requires_grad=False),
        leaf("n1", "model.fc.weight", (2, 5), role=Role.PARAMETER, requires_grad=False),
        leaf("n2", "model.fc.bias", (2,), role=Role.PARAMETER),
        op("n3", "t", None, tensor((5, 2), requires_grad=False), module="model.fc", location=line, mode="grad"),
        op(
            "n4",
            "addmm",
            "AddmmBackward0",
            tensor((4, 2), "h"),
            module="model.fc",
            location=line,
            mode="grad",
            saved=(SavedTensor("mat1", State.LIVE, (4, 5), "float32", 80, "s0"),),
        ),
        op("n5", "mse_loss", "MseLossBackward0", tensor((), "loss"), location=Location("train.py", 13, "loss = f(h)")),
        leaf("n6", "target", (4, 2), role=Role.CONSTANT, requires_grad=False),
        output("n7", "loss"),
    )
    order = (*nodes[:3], nodes[6], *nodes[3:6], nodes[7])
    edges = (
        cut("n1", "n3", Reason.FROZEN, 0, "self"),
        flow("n2", "n4", 0, argument="self"),
        cut("n0", "n4", Reason.CONSTANT, 1, "mat1"),
        cut("n3", "n4", None, 2, "mat2"),
        flow("n4", "n5", 0, argument="self"),
        cut("n6", "n5", Reason.CONSTANT, 1, "target"),
        flow("n5", "n7"),
    )
    return graph(order, edges, recorded=True, storages=(Storage("s0", 80),))


def top_k() -> GraphData:
    """Both outputs of ``topk``: values carry gradient, indices are integers."""
    values, indices = tensor((4, 2), "best"), tensor((4, 2), "places", requires_grad=False, dtype="int64")
    nodes = (
        leaf("n0", "scores", (4, 9)),
        op("n1", "topk", "TopkBackward0", values, indices),
        op("n2", "sum", "SumBackward0", tensor((), "loss")),
        output("n3", "loss"),
        output("n4", "places", (4, 2), requires_grad=False),
    )
    indices_edge = Edge("n1", 1, "n4", 0, gradient=False, reason=Reason.INTEGER_DTYPE)
    # torch holds no edge from an integer output, so the mark is a root that gradient cannot start at
    return graph(nodes, (flow("n0", "n1"), flow("n1", "n2"), flow("n2", "n3"), indices_edge))


def no_grad_block() -> GraphData:
    """A teacher run under ``no_grad`` beside a student that learns; one recorded branch is never used."""
    quiet = Region("r0", "no_grad", "with", Location("distil.py", 20, "with torch.no_grad():"))
    facts = {"mode": "no_grad", "region": "r0"}
    nodes = (
        leaf("n0", "x", (8, 16), role=Role.INPUT, requires_grad=False),
        leaf("n1", "teacher.weight", (4, 16), role=Role.PARAMETER, reached=False),
        leaf("n2", "student.weight", (4, 16), role=Role.PARAMETER),
        op("n3", "linear", None, tensor((8, 4), requires_grad=False), **facts),
        op("n4", "softmax", None, tensor((8, 4), "goal", requires_grad=False), **facts),
        op("n5", "linear", "MmBackward0", tensor((8, 4), "y"), mode="grad"),
        op("n6", "relu", "ReluBackward0", tensor((8, 4), "unused"), reached=False, mode="grad"),
        op("n7", "detach", None, tensor((8, 4), requires_grad=False), mode="grad"),
        op("n8", "mse_loss", "MseLossBackward0", tensor((), "loss"), mode="grad"),
        output("n9", "loss"),
    )
    edges = (
        cut("n0", "n3", Reason.CONSTANT),
        cut("n1", "n3", Reason.NO_GRAD, 1),
        cut("n3", "n4", None),
        cut("n0", "n5", Reason.CONSTANT),
        flow("n2", "n5", 1),
        flow("n5", "n6"),
        cut("n6", "n7", Reason.DETACH),
        flow("n5", "n8"),
        cut("n4", "n8", None, 1),
        cut("n7", "n8", None, 2),
        flow("n8", "n9"),
    )
    return graph(nodes, edges, recorded=True, regions=(quiet,))


def square_diamond(levels: int = 3) -> GraphData:
    """``z = z + z``, again and again: parallel edges, two per level."""
    nodes = [leaf("n0", "z", (2,))]
    edges = []
    for level in range(1, levels + 1):
        nodes.append(op(f"n{level}", "add", "AddBackward0", tensor((2,))))
        edges += [flow(f"n{level - 1}", f"n{level}"), flow(f"n{level - 1}", f"n{level}", 1)]
    last = f"n{levels + 1}"
    return graph([*nodes, output(last, None, (2,))], [*edges, flow(f"n{levels}", last)])


def odd_nodes() -> GraphData:
    """Nodes whose torch names puzzle, an unnamed scalar, a tied weight and a walk that stopped."""
    tied = leaf("n1", "wte.weight", (50, 8), role=Role.PARAMETER)
    tied = tied._replace(outputs=(tied.outputs[0]._replace(names=("wte.weight", "lm_head.weight")),))
    nodes = (
        leaf("n0", None, ()),
        tied,
        op("n2", None, "CompiledFunctionBackward", tensor((4, 8))),
        op("n3", None, "torch::autograd::CopySlices", tensor((4, 8))),
        op("n4", "mul", "MulBackward0", tensor((4, 8)), stopped=True),
        output("n5", None, (4, 8)),
    )
    edges = (flow("n0", "n2"), flow("n1", "n2", 1), flow("n2", "n3"), flow("n3", "n4"), flow("n4", "n5"))
    return graph(nodes, edges, notices=("The walk stopped at a safe depth; what lies before n4 is not shown.",))


def hostile(names: Sequence[str] = HOSTILE_NAMES) -> GraphData:
    """One leaf for each hostile name, all added up."""
    leaves = [leaf(f"n{number}", name, (2,)) for number, name in enumerate(names)]
    total = f"n{len(names)}"
    mark = f"n{len(names) + 1}"
    edges = [flow(node.id, total, slot) for slot, node in enumerate(leaves)]
    nodes = (*leaves, op(total, "stack", "StackBackward0", tensor((2,))), output(mark, names[0], (2,)))
    return graph(nodes, (*edges, flow(total, mark)))


def chain(length: int) -> GraphData:
    """``length`` multiplications in a row."""
    nodes = [leaf("n0", "x", (2,))]
    nodes += [op(f"n{number}", "mul", "MulBackward0", tensor((2,))) for number in range(1, length + 1)]
    nodes.append(output(f"n{length + 1}", "y", (2,)))
    return graph(nodes, [flow(f"n{number}", f"n{number + 1}") for number in range(length + 1)])


SAMPLES = {
    "addition": addition,
    "frozen_linear": frozen_linear,
    "top_k": top_k,
    "no_grad_block": no_grad_block,
    "square_diamond": square_diamond,
    "odd_nodes": odd_nodes,
    "hostile": hostile,
}
