"""Tensors of one recording as runs to compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from graphscope.capture.comparing.values import compare_values, copy_values
from graphscope.capture.merging.merge import Options, merge
from graphscope.capture.program.choose import Places, pick_roots
from graphscope.capture.program.given import to_roots
from graphscope.capture.recording.record import Recorded, Recorder
from graphscope.capture.walking.names import Names, describe_mistake
from graphscope.capture.walking.tensors import is_tensor
from graphscope.errors import InputError
from graphscope.runs import Run, Values
from graphscope.transforms import behind_roots

_SIDES = 2


def runs_of_tensors(
    recorder: Recorder, tensors: Sequence[torch.Tensor], known: Names, *, base: Path | None, called: Sequence[str] = ()
) -> list[Run]:
    """One run for each tensor: the computation behind it, and whether it has the values of the first.

    Args:
        recorder: what was recorded.
        tensors: two or more.
        known: what tensors are called.
        base: folder that files are told from.
        called: names of the runs; by default those of the tensors.

    Raises:
        InputError: for fewer than two, and for what is no tensor.
    """
    if len(tensors) < _SIDES:
        raise InputError(f"{len(tensors)} tensor was given. Comparing takes two: recording.compare(m, w)")
    for tensor in tensors:
        if not is_tensor(tensor):
            raise InputError(describe_mistake(tensor))
    names = called or _distinct([known.best_name(tensor) or f"output {place}" for place, tensor in enumerate(tensors)])
    reference = copy_values(tensors[0])
    runs: list[Run] = []
    for name, tensor in zip(names, tensors, strict=True):
        data = behind_roots(merge(recorder, to_roots(tensor, known), known, options=Options(base=base)))
        values = Values(equal=True, difference=0.0) if not runs else compare_values(reference, copy_values(tensor))
        runs.append(Run(name, data, values=values))
    return runs


def runs_of_names(recorded: Recorded, places: Places, wanted: Sequence[str]) -> list[Run]:
    """As ``runs_of_tensors``, of tensors that variables hold.

    Args:
        recorded: what was recorded.
        places: variables with the place they live in, nearest first.
        wanted: names of two or more tensors.

    Raises:
        InputError: for a name that is not in sight, or that stands for several tensors.
    """
    known = Names()
    for _, variables in places:
        known.search(variables)
    found: dict[str, torch.Tensor] = {}
    for tensor in known.all_tensors():
        for name in known.of(tensor):
            found.setdefault(name, tensor)
    tensors = []
    for name in wanted:
        roots = pick_roots(found, [name])
        if len(roots) > 1 or roots[0].tensor is None:
            raise InputError(
                f"{name} holds {len(roots)} tensors. Name one of them: {', '.join(r.name for r in roots[:5])}."
            )
        tensors.append(roots[0].tensor)
    return runs_of_tensors(recorded.recorder, tensors, known, base=recorded.base, called=_distinct(wanted))


def _distinct(names: Sequence[str]) -> list[str]:
    """One tensor given twice has a number behind its name."""
    return [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]
