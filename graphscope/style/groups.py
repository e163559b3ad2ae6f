"""What folded boxes and the frames around open modules say."""

from __future__ import annotations

from collections.abc import Iterator

from graphscope.model import Frame, Gradient, Group, Node
from graphscope.style.words import MODE_WORDS, REASON_WORDS, tensor_words, visible
from graphscope.units import to_amount_text, to_bytes_text, to_count_text

GRADIENT_WORDS: dict[Gradient, str] = {
    Gradient.PASSES: "gradient passes through",
    Gradient.ENTERS: "gradient ends in its parameters",
    Gradient.DIES: "gradient dies inside",
    Gradient.NONE: "no gradient arrives",
}
"""Of a folded box."""


def group_lines(node: Node, group: Group) -> Iterator[str]:
    """What a folded box stands for: kind and size, parameters and memory, and what a gradient does."""
    each = "each " if group.repeats > 1 else ""
    words = [visible(group.type)] if group.type else []
    if group.calls > 1:
        words.append(call_words(group.call, group.calls, group.times, group.step))
    if not group.ops:
        yield " · ".join((*words, to_count_text(group.tensors, "tensor"), _parameter_words(group)))
        return
    rounds = f" in {to_count_text(group.rounds, 'equal round')}" if group.rounds > 1 else ""
    if rounds and group.ops_in_rounds < group.ops:
        rounds = f", {group.ops_in_rounds:,}{rounds}"
    words.append(each + to_count_text(group.ops, "op") + rounds)
    shapes = dict.fromkeys(map(tensor_words, node.outputs))
    words.extend(list(shapes)[:1] if len(shapes) == 1 else [])
    yield " · ".join(words)
    words = [each + _parameter_words(group)] if group.tensors else []
    if group.saved_bytes:
        words.append(f"keeps {_saved_words(group)}")
    if group.shared_bytes:  # too much for one line
        yield from words
    elif words:
        yield " · ".join(words)
    if group.checkpointed:
        part = f"{group.checkpointed:,} of {group.saved:,} saved tensors " if group.checkpointed < group.saved else ""
        yield f"{part}checkpointed: computed again in backward"
    yield from _group_gradient_lines(node, group)


def _saved_words(group: Group) -> str:
    """Of equal blocks, or of equal rounds around it, what each keeps for itself, and what several of them keep."""
    if group.repeats == 1 and not group.shared_bytes:
        return to_bytes_text(group.saved_bytes)
    own = group.saved_bytes - group.shared_bytes
    words = [f"{to_bytes_text(own)} each"] if own else []
    return " + ".join([*words, *([f"{to_bytes_text(group.shared_bytes)} shared"] if group.shared_bytes else [])])


def _group_gradient_lines(node: Node, group: Group) -> Iterator[str]:
    if group.untracked and group.gradient is not Gradient.PASSES:
        mode = f": {MODE_WORDS.get(node.mode, node.mode)}" if node.mode not in {None, "grad"} else ""
        yield ("none recorded" if group.untracked == group.ops else f"{group.untracked:,} not recorded") + mode
    yield GRADIENT_WORDS[group.gradient]
    if group.unreached:
        yield f"none for {group.unreached:,} of {to_count_text(group.tensors, 'parameter')}"
    if group.cuts:
        cuts = ", ".join(REASON_WORDS[reason] + (f" ×{count:,}" if count > 1 else "") for reason, count in group.cuts)
        yield cuts + (" on a branch" if group.gradient is Gradient.PASSES else "")


def call_words(call: int, calls: int, times: int = 1, step: int = 1) -> str:
    """Which of the calls of a module a box is; with ``times``, so many of them, each ``step`` after the one before.

    >>> call_words(2, 3), call_words(2, 1000, 999)
    ('call 2 of 3', 'calls 2–1,000')
    >>> call_words(1, 26, 2, 2), call_words(1, 26, 13, 2), call_words(1, 26, 13, 0)
    ('calls 1 and 3', 'calls 1, 3, … 25', '13 of 26 calls')
    """
    if times == 1:
        return f"call {call:,} of {calls:,}"
    if step == 0:
        return f"{times:,} of {calls:,} calls"
    last = call + (times - 1) * step
    if step == 1:
        return f"calls {call:,}–{last:,}"
    return f"calls {call:,} and {last:,}" if times == 2 else f"calls {call:,}, {call + step:,}, … {last:,}"  # noqa: PLR2004


def frame_words(frame: Frame) -> tuple[str, ...]:
    """What stands on a frame: its title, how often it repeats, what it is. Never empty."""
    times = f"×{frame.repeats:,}" if frame.repeats > 1 else ""
    title = " ".join(filter(None, (visible(frame.title) if frame.title else visible(frame.type or "in a row"), times)))
    words = [visible(frame.type)] if frame.type and frame.title else []
    if frame.calls > 1:
        words.append(call_words(frame.call, frame.calls, frame.times, frame.step))
    return title, *words


def _parameter_words(group: Group) -> str:
    trainable, frozen = to_amount_text(group.trainable), to_amount_text(group.frozen)
    if group.trainable and group.frozen:
        return f"{trainable} trainable, {frozen} frozen"
    word = "parameter" if group.trainable + group.frozen == 1 else "parameters"
    return f"{frozen} {word}, all frozen" if group.frozen else f"{trainable} {word}"
