"""Who gets a gradient, who does not, and which line is to blame.

torch says who is reached; that is read from the graph as it is. Why one is not reached is worked out from where values
went: on every way from a tensor to a root there is a step that hands on a value and takes no gradient back, and
the nearest to the root is told first. What cannot be told is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from graphscope.analyze.causes import (
    DROPPED,
    ELSEWHERE,
    MARKED_ONCE,
    NEVER_CALLED,
    NONE_RETURNED,
    WITHOUT_HISTORY,
    Words,
    say,
)
from graphscope.analyze.collapse import collapse
from graphscope.analyze.flow import Flow
from graphscope.analyze.hazards import find_hazards
from graphscope.analyze.sight import Sight, listed, to_op_words
from graphscope.findings import Because, Cause, Explained, Group, Verdict, to_place
from graphscope.garbage import collection_paused
from graphscope.model import GraphData, Kind, Node, Role, TensorInfo

_RECORD = "A recording would tell: run graphscope explain on the script, or graphscope.record(function)."


class _Said(NamedTuple):
    """A verdict, and of what its words were made."""

    verdict: Verdict
    template: Words
    words: tuple[tuple[str, object], ...]
    """Without the name, which is the only difference between parameters that are told together."""


def explain(data: GraphData, *, starts_backward: bool = False) -> Explained:
    """Verdicts on all tensors in sight, and the hazards of the graph.

    Args:
        data: best everything that was recorded; of a pure walk only what is reached can be told.
        starts_backward: the roots are what a backward was started from, not just results.
    """
    return explain_sight(Sight(data=data, flow=Flow(data=data), starts_backward=starts_backward))


@collection_paused()
def explain_sight(sight: Sight) -> Explained:
    """As ``explain``, of a graph that is already looked at."""
    said = list(_verdicts(sight))
    verdicts = tuple(one.verdict for one in said)
    return Explained(
        roots=sight.root_names,
        tensors=verdicts,
        hazards=find_hazards(sight, verdicts),
        recorded=sight.data.recorded,
        groups=tuple(_groups(said)),
    )


def _verdicts(sight: Sight) -> Iterator[_Said]:
    """One for every tensor with a name, in the order of the graph: each parameter of a module in sight has one."""
    told: set[str] = set()
    for node in sight.data.nodes:
        if node.kind is not Kind.OUTPUT:
            for info in node.outputs:
                if info.names and info.names[0] not in told:
                    told.add(info.names[0])
                    yield _verdict(sight, node, info)


def _verdict(sight: Sight, node: Node, info: TensorInfo) -> _Said:
    is_leaf = node.kind is Kind.LEAF
    reached = bool(info.requires_grad) and bool(sight.flow.reached[sight.flow.position[node.id]])
    receives = reached and (is_leaf or node.retains_grad)
    verdict = Verdict(
        name=info.names[0],
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
        return _Said(verdict, Words(""), ())
    first, *further = _causes(sight, node, info)
    verdict = verdict._replace(cause=first.cause, location=first.location, also=tuple(further), nodes=first.nodes)
    template, words = _words(sight, verdict, node, first)
    said = verdict._replace(
        message=say(template.message + ELSEWHERE, name=verdict.name, **words),
        remedy=say(template.remedy, name=verdict.name, **words),
    )
    return _Said(said, template, tuple(words.items()))


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
    lost = sight.flow.because(sight.flow.lost[sight.flow.position[node.id]])
    return lost or [Because(Cause.CONSTANT, None, (node.id,))]


def _causes_of_trainable(sight: Sight, node: Node) -> list[Because]:
    """Of a leaf that wants a gradient and is not reached."""
    cuts = sight.flow.cuts[sight.flow.position[node.id]]
    if cuts is not None:
        steps = [cut.step for cut in cuts]
        if any(
            sight.flow.steps[step].gradient for step in steps
        ):  # a backward answers with None: no need to look inside
            steps = [step for step in steps if sight.flow.steps[step].gradient or not sight.flow.is_inside(step)]
        found = sight.flow.because(steps)
        return found or [Because(Cause.UNKNOWN, None, (node.id,))]
    if not sight.data.recorded or sight.is_stopped:
        return [Because(Cause.UNKNOWN, None, (node.id,))]
    return _causes_of_dropped(sight, node)


def _causes_of_dropped(sight: Sight, node: Node) -> list[Because]:
    """No value that came of it went into a root."""
    replaced = sight.replacements.of(node)
    if replaced is not None:
        return [replaced]
    ends = sight.dead_ends(node)
    if not ends:
        return [Because(Cause.UNUSED, None, (node.id,))]
    if sight.is_marked_once:
        marked = sight.statements("once_differentiable")
        return [Because(Cause.CUSTOM_FUNCTION, marked[0].location if len(marked) == 1 else None, (node.id,))]
    last = sight.data.nodes[ends[-1]]
    dropped = [Because(Cause.UNUSED, last.location, (last.id,))]
    left, back = sight.leaving(ends), sight.came_back(node)
    unique = sight.flow.unique([*left, *back])
    if back or len(left) == len(ends) or last.location in {one.location for one in left}:
        return unique
    if not left:
        return dropped
    return [*unique, *dropped] if sight.reenters_after(left[0]) else [*dropped, *unique]


def _words(sight: Sight, verdict: Verdict, node: Node, because: Because) -> tuple[Words, dict[str, object]]:
    """The sentences for a cause and what fills their braces, the name left out."""
    template = sight.template(because)
    words: dict[str, object] = {"root": sight.root_words}
    if because.location is not None:
        words["where"] = to_place(because.location)
    if verdict.requires_grad and verdict.is_leaf:
        words["elsewhere"] = sight.backward_reaching(node) if template is not NONE_RETURNED else None
    target = sight.data.by_id.get(because.nodes[-1]) if because.nodes else None
    if because.cause is Cause.NON_LEAF:
        words["leaf"] = sight.leaves_behind(node)
    elif because.cause in {Cause.NO_GRAD, Cause.INFERENCE_MODE}:
        words["switch"] = sight.switch_words(because, target)
    elif because.cause in {Cause.INTEGER_DTYPE, Cause.NON_DIFFERENTIABLE}:
        words["op"] = to_op_words(target)
    elif because.cause is Cause.NOT_IN_GRAPH:
        words["other"] = sight.replacements.words_of(because)
    elif because.cause is Cause.CUSTOM_FUNCTION:
        words["op"] = to_op_words(target)
        template = MARKED_ONCE if because.nodes == (node.id,) else template
    elif because.cause is Cause.CONSTANT and verdict.kind == "result":
        template = WITHOUT_HISTORY
    elif because.cause is Cause.UNKNOWN and not sight.data.recorded:
        words["advice"] = _RECORD
    elif because.cause is Cause.UNUSED and target is not None and target.kind is Kind.OP:
        template = DROPPED
        words["end"] = target.names[0] if target.names else f"the result of {target.op}"
    elif because.cause is Cause.UNUSED:
        words["owner"] = sight.uncalled_module(verdict)
        template = NEVER_CALLED if words["owner"] else template
    return template, words


def _groups(said: list[_Said]) -> Iterator[Group]:
    """Parameters that miss their gradient, by cause, line and words, most first."""
    together: dict[object, list[_Said]] = {}
    for one in said:
        if one.verdict.is_missing:
            verdict = one.verdict
            key = (verdict.cause, verdict.location, verdict.also, one.template, one.words)
            together.setdefault(key, []).append(one)
    every = [one.verdict.name for one in said if one.verdict.kind == "parameter"]
    for members in sorted(together.values(), key=len, reverse=True):
        names = collapse([one.verdict.name for one in members], every)
        template, words = members[0].template, dict(members[0].words)
        yield Group(
            names,
            tuple(one.verdict for one in members),
            say(template.message + ELSEWHERE, name=listed(names, "and"), **words),
            say(template.remedy, name=listed(names, "and"), **words),
        )
