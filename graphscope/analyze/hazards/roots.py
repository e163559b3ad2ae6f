"""Roots that a backward cannot start from, or that it starts from in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphscope.analyze.causes import HAZARDS, make_hazard, say
from graphscope.analyze.hazards.derivatives import constant_gradients, to_gradient
from graphscope.analyze.sight import Sight, listed
from graphscope.findings import Because, Cause, Hazard, Severity, Verdict, to_place
from graphscope.model import Clue, Kind, Node, Role

_LOSS_WORDS = ("loss", "objective", "cost", "criterion")


def detect(sight: Sight, verdicts: tuple[Verdict, ...]) -> Iterator[Hazard]:
    """A loss without history, made a leaf, complex; everything frozen; a checkpoint that cut."""
    frozen = list(_everything_frozen(sight))
    yield from frozen
    for name, node, root in zip(sight.root_names, sight.made, sight.data.roots, strict=True):
        info = sight.data.by_id[root].outputs[0]
        if node.kind is Kind.LEAF and node.role is not Role.PARAMETER and info.requires_grad:
            yield from _loss_is_leaf(sight, name, node, verdicts)
        elif not info.requires_grad and not frozen and _is_loss(sight, name, node):
            yield from _loss_without_history(sight, name, node, verdicts)
        if info.dtype is not None and info.dtype.startswith("complex") and info.shape == () and info.requires_grad:
            yield make_hazard("complex_loss", node.location, root=name, tensors=(name,), nodes=(node.id,))
    yield from _checkpoints(sight, verdicts)


def _is_loss(sight: Sight, name: str, node: Node) -> bool:
    """Called one, or a backward was started from it."""
    if sight.starts_backward or any(word in name.lower() for word in _LOSS_WORDS):
        return True
    return any(node.id in one.nodes[1:] for one in sight.evidence[Clue.BACKWARD])


def main_cause(sight: Sight, node: Node, verdicts: tuple[Verdict, ...]) -> Because | None:
    """What cost a root its history: the cause of most parameters that it depends on, else of what it was made of."""
    place = sight.flow.position[node.id]
    wanted = [
        Because(row.cause, row.location, row.nodes)
        for row in verdicts
        if row.is_missing and row.cause not in {None, Cause.UNUSED, Cause.NOT_IN_GRAPH, Cause.UNKNOWN} and row.cause
    ]
    if wanted:
        counted = Counter((one.cause, one.location) for one in wanted)
        return max(wanted, key=lambda one: counted[one.cause, one.location])
    lost = sight.flow.because(sight.flow.lost[place])
    return lost[0] if lost else None


def _loss_without_history(sight: Sight, name: str, node: Node, verdicts: tuple[Verdict, ...]) -> Iterator[Hazard]:
    trainable = any(row.is_missing for row in verdicts) or sight.flow.lost[sight.flow.position[node.id]]
    constant = next(iter(constant_gradients(sight)), None)
    cause = main_cause(sight, node, verdicts) if constant is None else None
    if cause is None and constant is None and not trainable:
        return
    where = cause.location if cause is not None else node.location
    if constant is not None:
        yield make_hazard(
            "loss_without_history",
            constant[1],
            (node.location,),
            root=name,
            why=say(
                HAZARDS["gradient_without_graph"].message,
                root=name,
                name=to_gradient(*constant),
                where=to_place(constant[1]),
            ),
            advice=say(HAZARDS["gradient_without_graph"].remedy, root=name),
            tensors=(name,),
            nodes=(node.id, constant[0].id),
        )
        return
    yield make_hazard(
        "loss_without_history",
        where,
        (node.location,),
        root=name,
        why=_why(cause),
        advice=_advice(sight, name, cause),
        tensors=(name,),
        nodes=(node.id,),
    )


def _advice(sight: Sight, root: str, cause: Because | None) -> str:
    """What to do about a root whose history was lost."""
    if cause is None:
        return ""
    leaf = sight.data.by_id[cause.nodes[0]] if cause.nodes else None
    return say(sight.template(cause).remedy, root=root, name=leaf.names[0] if leaf is not None and leaf.names else None)


def _loss_is_leaf(sight: Sight, name: str, node: Node, verdicts: tuple[Verdict, ...]) -> Iterator[Hazard]:
    if not sight.data.recorded or not any(row.is_missing for row in verdicts) or not _is_loss(sight, name, node):
        return
    cause = main_cause(sight, node, verdicts)
    made = [one.location for one in sight.statements("require") if one.words[0] == name]
    yield make_hazard(
        "loss_is_leaf",
        cause.location if cause is not None else (made or [node.location])[0],
        tuple(made),
        root=name,
        why=_why(cause),
        advice=_advice(sight, name, cause),
        tensors=(name,),
        nodes=(node.id,),
    )


def _why(cause: Because | None) -> str:
    if cause is None or cause.location is None:
        return ""
    words = {
        Cause.NO_GRAD: "gradients were off there",
        Cause.INFERENCE_MODE: "inference mode was on there",
        Cause.DETACH: "detach() cut it there",
        Cause.DATA: ".data cut it there",
        Cause.INTEGER_DTYPE: "integers and truth values carry no gradient",
        Cause.NON_DIFFERENTIABLE: "that operation has no derivative",
        Cause.LEFT_PYTORCH: "the values left PyTorch there",
        Cause.CUSTOM_FUNCTION: "autograd records nothing inside a custom Function",
    }.get(cause.cause)
    return f"Its history was lost at {to_place(cause.location)}: {words}." if words else ""


def _everything_frozen(sight: Sight) -> Iterator[Hazard]:
    """All parameters are frozen and the loss is to be trained on."""
    parameters = [node for node in sight.data.nodes if node.kind is Kind.LEAF and node.role is Role.PARAMETER]
    if not parameters or any(node.outputs[0].requires_grad for node in parameters):
        return
    untracked = [
        (name, node)
        for name, node, root in zip(sight.root_names, sight.made, sight.data.roots, strict=True)
        if not sight.data.by_id[root].outputs[0].requires_grad and _is_loss(sight, name, node)
    ]
    if untracked:
        frozen = (sight.frozen_at(node.outputs[0]) for node in parameters)
        place = next((one for one in frozen if one is not None), None)
        yield make_hazard(
            "everything_frozen",
            place,
            count=len(parameters),
            where=None if place is None else to_place(place),
            tensors=tuple(name for node in parameters for name in node.names[:1]),
            nodes=tuple(node.id for node in parameters),
        )


def _checkpoints(sight: Sight, verdicts: tuple[Verdict, ...]) -> Iterator[Hazard]:
    """Blocks of a reentrant checkpoint that will not be run again with gradients on."""
    regions = {region.id: region for region in sight.data.regions if region.mode == "checkpoint"}
    if not regions:
        return
    inside: dict[str, list[Verdict]] = {}
    for row in verdicts:
        if row.is_missing and row.cause is Cause.NO_GRAD:
            target = sight.data.by_id[row.nodes[-1]]
            if target.region in regions:
                inside.setdefault(str(target.region), []).append(row)
    told: dict[object, list[Verdict]] = {}
    for region, rows in inside.items():
        told.setdefault(regions[region].location, []).extend(rows)
    for rows in told.values():
        first = regions[str(sight.data.by_id[rows[0].nodes[-1]].region)]
        yield make_hazard(
            "reentrant_checkpoint_cut",
            first.location or rows[0].location,
            where=to_place(first.location or rows[0].location),
            names=listed([row.name for row in rows], "and"),
            severity=Severity.ERROR,
            tensors=tuple(row.name for row in rows),
            nodes=tuple(row.node for row in rows),
        )
