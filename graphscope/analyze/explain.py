"""Who gets a gradient, who does not, and which line is to blame.

torch says who is reached; that is read from the graph as it is. Why one is not reached is worked out from where values
went: on every way from a tensor to a root there is a step that hands on a value and takes no gradient back, and
the nearest to the root is told first. What cannot be told is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphscope.analyze.causes import CAUSES, say
from graphscope.analyze.flow import Flow
from graphscope.analyze.hazards import find_hazards
from graphscope.analyze.sight import Sight
from graphscope.findings import Because, Cause, Explanation, Verdict, to_place
from graphscope.model import GraphData, Kind, Node, Role, TensorInfo

_RECORD = "A recording would tell why: graphscope explain script.py, or graphscope.record(function)."


def explain(data: GraphData, *, starts_backward: bool = False) -> Explanation:
    """Verdicts on all tensors in sight, and the hazards of the graph.

    Args:
        data: best everything that was recorded; of a pure walk only what is reached can be told.
        starts_backward: the roots are what a backward was started from, not just results.
    """
    return explain_sight(Sight(data=data, flow=Flow(data=data), starts_backward=starts_backward))


def explain_sight(sight: Sight) -> Explanation:
    """As ``explain``, of a graph that is already looked at."""
    verdicts = tuple(_verdicts(sight))
    return Explanation(
        roots=sight.root_names,
        tensors=verdicts,
        hazards=find_hazards(sight, verdicts),
        recorded=sight.data.recorded,
    )


def _verdicts(sight: Sight) -> Iterator[Verdict]:
    """One for every parameter, and for every other tensor with a name, in the order of the graph."""
    told: set[str] = set()
    for node in sight.data.nodes:
        if node.kind is Kind.OUTPUT:
            continue
        for info in node.outputs:
            named = bool(info.names) or (node.role is Role.PARAMETER and node.kind is Kind.LEAF and not _is_made(node))
            if not named or (info.names and info.names[0] in told):
                continue
            told.update(info.names[:1])
            yield _verdict(sight, node, info)


def _is_made(node: Node) -> bool:
    """A parameter without a name was made on the way: no module in sight has it."""
    return not node.names


def _verdict(sight: Sight, node: Node, info: TensorInfo) -> Verdict:
    place = sight.flow.position[node.id]
    is_leaf = node.kind is Kind.LEAF
    receives = bool(info.requires_grad) and bool(sight.flow.reached[place]) and (is_leaf or node.retains_grad)
    name = info.names[0] if info.names else "unnamed parameter"
    verdict = Verdict(
        name=name,
        kind=node.role.value if is_leaf and node.role is not None else "input" if is_leaf else "result",
        requires_grad=info.requires_grad,
        is_leaf=info.is_leaf,
        shape=info.shape,
        dtype=info.dtype,
        receives_grad=receives,
        aliases=info.names[1:],
        node=node.id,
    )
    if receives:
        return verdict
    causes = _causes(sight, node, info)
    first = causes[0]
    words = _words(sight, verdict, node, first)
    entry = CAUSES[first.cause]
    return verdict._replace(
        cause=first.cause,
        location=first.location,
        also=tuple(causes[1:]),
        message=str(words.pop("instead", "")) or say(entry.message, **words),
        remedy=say(entry.remedy, **words),
        nodes=first.nodes,
    )


def _causes(sight: Sight, node: Node, info: TensorInfo) -> list[Because]:
    """Why a tensor gets no gradient; never empty."""
    if info.requires_grad:
        if node.kind is Kind.LEAF or info.is_leaf:
            return _causes_of_trainable(sight, node)
        return [Because(Cause.NON_LEAF, node.location, (node.id,))]
    if node.kind is Kind.LEAF:
        if node.role is Role.PARAMETER:
            return [Because(Cause.FROZEN, sight.frozen_at(info), (node.id,))]
        return [Because(Cause.CONSTANT, None, (node.id,))]
    place = sight.flow.position[node.id]
    lost = sight.flow.because(sight.flow.lost[place])
    return lost or [Because(Cause.CONSTANT, None, (node.id,))]


def _causes_of_trainable(sight: Sight, node: Node) -> list[Because]:
    """Of a leaf that wants a gradient and is not reached."""
    place = sight.flow.position[node.id]
    cuts = sight.flow.cuts[place]
    if cuts is not None:
        found = sight.flow.because([cut.step for cut in cuts])
        return found or [Because(Cause.UNKNOWN, None, (node.id,))]
    if not sight.data.recorded or any(one.stopped for one in sight.data.nodes):
        return [Because(Cause.UNKNOWN, None, (node.id,))]
    return _causes_of_dropped(sight, node)


def _causes_of_dropped(sight: Sight, node: Node) -> list[Because]:
    """No value that came of it went into a root."""
    replaced = sight.replacements.of(node)
    ends = sight.dead_ends(node)
    if replaced is not None:
        return [replaced]
    if not ends:
        return [Because(Cause.UNUSED, None, (node.id,))]
    left = [
        cut
        for number in sight.steps_into_dead_ends(node)
        if (cut := sight.flow.steps[number].cut) is not None and cut.cause is Cause.LEFT_PYTORCH
    ]
    marked = sight.statements("once_differentiable")
    if any(one.reached and one.backward == "Error" for one in sight.data.nodes):
        return [Because(Cause.CUSTOM_FUNCTION, marked[0].location if len(marked) == 1 else None, (node.id,))]
    back = sight.came_back(node)
    dropped = [Because(Cause.UNUSED, sight.data.nodes[ends[-1]].location, (sight.data.nodes[ends[-1]].id,))]
    if back and not left:
        return [*sight.flow.unique(back), *dropped]
    if not left:
        return dropped
    unique = sight.flow.unique(left[::-1])
    only = len(left) == len(ends)
    return [*unique, *dropped] if only or sight.reenters_after(left[-1]) else [*dropped, *unique]


def _words(sight: Sight, verdict: Verdict, node: Node, because: Because) -> dict[str, object]:
    """What fills the braces of a cause's sentences."""
    words: dict[str, object] = {"name": verdict.name, "root": sight.root_words}
    if because.location is not None:
        words["where"] = to_place(because.location)
    target = sight.data.by_id.get(because.nodes[-1]) if because.nodes else None
    if because.cause is Cause.NON_LEAF:
        words["leaf"] = sight.leaves_behind(node)
    elif because.cause in {Cause.NO_GRAD, Cause.INFERENCE_MODE}:
        words["switch"] = sight.switch_words(because, target)
    elif because.cause in {Cause.INTEGER_DTYPE, Cause.NON_DIFFERENTIABLE}:
        words["op"] = target.op if target is not None and target.op else "an operation"
    elif because.cause is Cause.NOT_IN_GRAPH:
        words["other"] = sight.replacements.words_of(because)
    elif because.cause is Cause.UNUSED:
        words |= _words_of_unused(sight, verdict, because, target)
    elif because.cause is Cause.UNKNOWN and not sight.data.recorded:
        words["advice"] = _RECORD
    elif because.cause is Cause.CUSTOM_FUNCTION and because.nodes == (node.id,):
        words["instead"] = (
            f"{sight.root_words} is made of a gradient whose Function is marked @once_differentiable: "
            f"it has no way back to {verdict.name}."
        )
    if because.cause is Cause.CONSTANT and verdict.kind == "result":
        words["instead"] = f"{verdict.name} depends on nothing that requires grad."
    return words


def _words_of_unused(sight: Sight, verdict: Verdict, because: Because, target: Node | None) -> dict[str, object]:
    if target is not None and target.kind is Kind.OP:
        what = target.names[0] if target.names else f"the result of {target.op}"
        end = f"{what} at {to_place(because.location)} never came into {sight.root_words}"
        return {"instead": f"{verdict.name} was used, but {end}."}
    owner = sight.uncalled_module(verdict)
    if owner is None:
        return {}
    return {"instead": f"{owner} was not called while the program ran, so nothing read {verdict.name}."}
