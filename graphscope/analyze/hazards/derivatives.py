"""Derivatives that are zero, infinite or missing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from graphscope.analyze.causes import make_hazard
from graphscope.analyze.sight import Sight, listed
from graphscope.findings import Hazard, Verdict, to_place
from graphscope.model import Clue, Kind, Location, Node, Role
from graphscope.units import to_count_text

_ZERO = frozenset(
    {"round", "sign", "floor", "ceil", "trunc", "sgn", "fix", "heaviside", "floor_divide", "bernoulli", "poisson"}
)
ASSIGNED_FROM_GRAD = re.compile(r"^\s*([^=(]*(?:\([^=()]*\))?[^=(]*?)\s*=(?!=).*\bgrad\(")
"""``(dx,) = torch.autograd.grad(…)``"""
_NAME = re.compile(r"[^\W\d]\w*")
_BACKWARD_OF_COMPILED = "CompiledFunctionBackwardBackward"


def detect(sight: Sight, _: tuple[Verdict, ...]) -> Iterator[Hazard]:
    """What torch will hand back without saying anything, or refuse to hand back."""
    yield from _zero(sight)
    yield from _infinite(sight)
    yield from _none(sight)
    yield from _missing(sight)
    for gradient, where in constant_gradients(sight):
        if any(sight.data.by_id[root].outputs[0].requires_grad for root in sight.data.roots):
            yield make_hazard(
                "gradient_without_graph",
                None,
                name=to_gradient(gradient, where),
                root=sight.root_words,
                where=to_place(where),
                tensors=gradient.names,
                nodes=(gradient.id,),
            )


def to_gradient(gradient: Node, where: Location) -> str:
    """What a gradient is called, to begin a sentence with."""
    assigned = ASSIGNED_FROM_GRAD.search(where.code)
    return next(iter(gradient.names), None) or (assigned[1].strip() if assigned is not None else "") or "A tensor"


def constant_gradients(sight: Sight) -> list[tuple[Node, Location]]:
    """Results of ``autograd.grad`` without ``create_graph`` that a root is computed of, with the line of the call.

    torch keeps no trace of where they come from: they are leaves that nothing made, of the shape of what the gradient
    was asked for, read after the call, with the name that its line gives.
    """
    asked = [
        (sight.flow.position[one.nodes[0]], one.location, match[1])
        for one in sight.evidence[Clue.BACKWARD]
        if "create_graph" not in one.words
        and one.location is not None
        and (match := ASSIGNED_FROM_GRAD.search(one.location.code)) is not None
    ]
    if not asked:
        return []
    shapes = {node.outputs[0].shape for node in sight.data.nodes if node.kind is not Kind.OUTPUT and node.outputs}
    found: list[tuple[Node, Location]] = []
    for place, node in enumerate(sight.data.nodes):
        if (
            node.kind is not Kind.LEAF
            or node.location is not None
            or node.role not in {Role.INPUT, Role.CONSTANT}
            or node.outputs[0].requires_grad
            or node.outputs[0].shape not in shapes
            or not _is_computed_with(sight, node)
        ):
            continue
        for time, where, names in asked:
            known = set(_NAME.findall(names))
            if time < place and (not node.names or known.intersection(name.partition("[")[0] for name in node.names)):
                found.append((node, where))
                break
    return found


def _is_computed_with(sight: Sight, leaf: Node) -> bool:
    """A root is computed of it with gradients on."""
    seen, waiting = {leaf.id}, [leaf.id]
    while waiting:
        for edge in sight.data.outgoing[waiting.pop()]:
            target = sight.data.by_id[edge.target]
            if target.kind is Kind.OUTPUT:
                return True
            if target.mode == "grad" and target.id not in seen and not sight.flow.is_bookkeeping(target):
                seen.add(target.id)
                waiting.append(target.id)
    return False


def _zero(sight: Sight) -> Iterator[Hazard]:
    """Leaves that a gradient reaches only through an op whose derivative is zero."""
    zeros = [node for node in sight.data.nodes if node.reached and node.op in _ZERO and node.backward is not None]
    if not zeros:
        return
    stops = {node.id for node in zeros}
    alive, waiting = set(sight.data.roots), list(sight.data.roots)
    while waiting:
        identity = waiting.pop()
        if identity in stops:
            continue
        for edge in sight.data.incoming[identity]:
            if edge.gradient and edge.source not in alive:
                alive.add(edge.source)
                waiting.append(edge.source)
    dead = [
        node
        for node in sight.data.nodes
        if node.kind is Kind.LEAF and node.reached and node.accumulate and node.names and node.id not in alive
    ]
    first = next((node for node in reversed(zeros) if node.id in alive), None)
    if dead and first is not None:
        yield make_hazard(
            "zero_derivative",
            first.location,
            op=f"{first.op} at {to_place(first.location)}",
            names=listed([node.names[0] for node in dead], "and"),
            tensors=tuple(node.names[0] for node in dead),
            nodes=(first.id,),
        )


def _infinite(sight: Sight) -> Iterator[Hazard]:
    for one in sight.evidence[Clue.SINGULAR]:
        node = sight.data.by_id[one.nodes[0]]
        if node.reached:
            yield make_hazard(
                "infinite_derivative",
                one.location,
                op=node.op,
                count=to_count_text(one.numbers[0], "value"),
                nodes=one.nodes,
                tensors=node.names,
            )


def _none(sight: Sight) -> Iterator[Hazard]:
    """Where the source is only reached through such an input, and somebody waits for its gradient."""
    for one in sight.evidence[Clue.NO_GRADIENT]:
        function, source = (sight.data.by_id[identity] for identity in one.nodes[:2])
        name = source.names[0] if source.names else f"the result of {source.op}" if source.op else "an input"
        if function.reached:
            yield make_hazard(
                "gradient_is_none",
                one.location,
                (function.location,),
                op=function.op or function.backward,
                name=name,
                tensors=source.names,
                nodes=one.nodes,
            )


def _missing(sight: Sight) -> Iterator[Hazard]:
    """Nodes that stand for a derivative that torch does not have."""
    for node in sight.data.nodes:
        if not node.reached or node.backward is None:
            continue
        name = node.backward.rpartition("::")[2]
        if name == "Error":
            yield _once_differentiable(sight, node)
        elif name == "NotImplemented":
            yield _not_implemented(sight, node)
        elif name == _BACKWARD_OF_COMPILED:
            yield _compiled(sight, node)


def _once_differentiable(sight: Sight, node: Node) -> Hazard:
    marks = sight.statements("once_differentiable")
    place = marks[0].location if len(marks) == 1 else node.location or reading_line(sight, node)
    return make_hazard(
        "double_backward_unsupported",
        place,
        (reading_line(sight, node),),
        root=sight.root_words,
        why="the backward of a custom Function is marked @once_differentiable.",
        advice="Remove @once_differentiable and write backward with differentiable operations.",
        nodes=(node.id,),
    )


def _not_implemented(sight: Sight, node: Node) -> Hazard:
    forward = forward_of(sight, node)
    place = forward.location if forward is not None else node.location or reading_line(sight, node)
    second = any("create_graph" in one.words for one in sight.evidence[Clue.BACKWARD])
    if forward is None or not second:
        op = forward.op if forward is not None else "this operation"
        return make_hazard("derivative_not_implemented", place, op=op, where=to_place(place), nodes=(node.id,))
    return make_hazard(
        "double_backward_unsupported",
        place,
        (reading_line(sight, node),),
        root=sight.root_words,
        why=f"torch has no second derivative of {forward.op}.",
        advice="Use a form of the operation that has one; for attention: "
        "with torch.nn.attention.sdpa_kernel(SDPBackend.MATH):",
        nodes=(node.id, forward.id),
    )


def _compiled(sight: Sight, node: Node) -> Hazard:
    marks = sight.statements("compile")
    return make_hazard(
        "double_backward_unsupported",
        marks[0].location if len(marks) == 1 else node.location or reading_line(sight, node),
        (reading_line(sight, node),),
        root=sight.root_words,
        why="torch.compile gives its functions no second derivative.",
        advice="Call the function uncompiled where its gradient is differentiated.",
        nodes=(node.id,),
    )


def forward_of(sight: Sight, node: Node) -> Node | None:
    """The forward op whose derivative, first or second, a node stands for that has none.

    The recording has the op itself beside the node: what reads the node reads its result too, without gradient.
    """
    beside = [
        sight.data.by_id[edge.source]
        for reader in sight.data.outgoing[node.id]
        for edge in sight.data.incoming[reader.target]
        if not edge.gradient and edge.source != node.id
    ]
    twin = next((one for one in beside if one.kind is Kind.OP and one.op is not None), None)
    if twin is None or twin.op is None or not twin.op.endswith("_backward"):
        return twin
    wanted = twin.op.removesuffix("_backward")
    return next((one for one in sight.data.nodes if one.op == wanted and one.location is not None), twin)


def reading_line(sight: Sight, node: Node) -> Location | None:
    """The nearest line on the way from a node to the roots."""
    seen, waiting = {node.id}, [node.id]
    for identity in waiting:
        place = sight.data.by_id[identity].location
        if place is not None:
            return place
        for edge in sight.data.outgoing[identity]:
            if edge.gradient and edge.target not in seen:
                seen.add(edge.target)
                waiting.append(edge.target)
    return None
