"""Run the same computation under several modes, each time from the same state.

A mode says whether gradients are recorded (``grad``, ``no_grad``, ``inference_mode``), in which state modules are
(``train``, ``eval``), or both (``eval+no_grad``). Every run starts from the same random numbers, buffers, parameters
and flags, and all of it is put back in the end (``state.py``). Modules that only the function itself knows are put into
the mode when they first run.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from graphscope.capture.comparing.randomness import synchronize
from graphscope.capture.comparing.sight import in_sight
from graphscope.capture.comparing.state import StateKeeper
from graphscope.capture.comparing.values import Copies, compare_values, copy_values
from graphscope.capture.merging.merge import Options, merge
from graphscope.capture.program.failures import to_failure
from graphscope.capture.program.given import gather_names, to_roots
from graphscope.capture.recording.run_recorder import RunRecorder
from graphscope.capture.walking.names import Names, flatten_tensors
from graphscope.errors import GraphscopeError, InputError
from graphscope.model import GraphData, Region
from graphscope.runs import Failure, Run, Seconds, Values

Call = Callable[[], Any]

DEFAULT_MODES = ("grad", "no_grad", "inference_mode", "eval")

_TIME_LIMIT = 2.0
"""Seconds for all timed repeats together where the caller names no number."""

_REPEATS = 7
"""Most repeats of each run where the caller names no number."""


def call_in_grad(call: Call) -> Any:
    """Record for backward, whatever the caller's own mode is."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        return call()


def call_in_no_grad(call: Call) -> Any:
    """Record nothing."""
    with torch.no_grad():
        return call()


def call_in_set_grad_enabled(call: Call) -> Any:
    """Record nothing, by the function that takes a flag."""
    with torch.set_grad_enabled(False):
        return call()


def call_in_inference_mode(call: Call) -> Any:
    """Record nothing, and make tensors that can never be recorded."""
    with torch.inference_mode():
        return call()


_GRADIENTS: dict[str, Callable[[Call], Any]] = {
    "grad": call_in_grad,
    "enable_grad": call_in_grad,
    "set_grad_enabled(True)": call_in_grad,
    "no_grad": call_in_no_grad,
    "set_grad_enabled(False)": call_in_set_grad_enabled,
    "inference_mode": call_in_inference_mode,
}
_TRAINING = {"train": True, "eval": False}


class Mode(NamedTuple):
    """What a run is under."""

    name: str
    call: Callable[[Call], Any]
    training: bool | None
    """Put modules into training or evaluation mode; ``None`` leaves them as they are."""


def parse_mode(given: str) -> Mode:
    """A word, or two joined by ``+``: one about gradients, one about modules.

    Raises:
        InputError: for any other word, and for two words about the same thing.
    """
    words = [word.strip() for word in given.split("+")]
    known = ", ".join([*_GRADIENTS, *_TRAINING])
    for word in words:
        if word not in _GRADIENTS and word not in _TRAINING:
            raise InputError(f"{word!r} is no mode. A mode is one of {known}, or two joined by +, as in eval+no_grad.")
    gradients = [word for word in words if word in _GRADIENTS]
    training = [word for word in words if word in _TRAINING]
    if len(gradients) > 1 or len(training) > 1:
        raise InputError(f"{given!r} says two things about the same. Join one word about gradients and train or eval.")
    call = _GRADIENTS[gradients[0]] if gradients else call_in_grad
    return Mode("+".join(words), call, _TRAINING[training[0]] if training else None)


def parse_modes(given: Sequence[str]) -> list[Mode]:
    """Every mode once.

    Raises:
        InputError: if there is none, one twice, or a word that is no mode.
    """
    if isinstance(given, str):
        given = [given]
    modes = [parse_mode(each) for each in given]
    names = [mode.name for mode in modes]
    if not modes:
        raise InputError(f"No modes were given. The usual ones are {', '.join(DEFAULT_MODES)}.")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"The mode {name!r} was given twice.")
    return modes


class Subject(NamedTuple):
    """What is run, and how its tensors are called."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: object
    frame: FrameType | None
    base: Path | None

    def run(self) -> Any:
        """Call it."""
        return self.function(*self.args, **self.kwargs)


def run_modes(subject: Subject, modes: Sequence[Mode], repeats: int | None) -> list[Run]:
    """One run for each mode.

    Args:
        subject: what is run.
        modes: under what.
        repeats: how often each run is timed; ``None`` for a few, as time allows.
    """
    beside = subject.names if isinstance(subject.names, Mapping) else None
    keeper = StateKeeper(subject.function, subject.args, subject.kwargs, beside)
    runs: list[Run] = []
    reference: Copies | None = None
    for mode in modes:
        run, copies = _record(subject, mode, keeper, reference)
        if reference is None and run.failure is None:
            reference = copies
        runs.append(run)
    timed = [mode for mode, run in zip(modes, runs, strict=True) if run.failure is None]
    seconds = _time(subject, timed, keeper, repeats)
    return [run._replace(seconds=seconds.get(run.mode)) for run in runs]


def _record(subject: Subject, mode: Mode, keeper: StateKeeper, reference: Copies | None) -> tuple[Run, Copies]:
    recorder = RunRecorder()
    result: object = None
    failure: Failure | None = None
    try:
        with keeper.active():
            keeper.met_modules = False
            _set_training(keeper.roots, mode)
            with _entering_modules(keeper, mode), recorder.active():
                try:
                    result = mode.call(subject.run)
                except GraphscopeError:
                    raise
                except Exception as error:  # noqa: BLE001  whatever it is, it is what this mode does to the program
                    failure = to_failure(error, subject.base)
        known = _names(subject, keeper)
        data = _graph(recorder, subject, known, result)
        copies = copy_values(result)
        run = Run(
            mode=mode.name,
            data=data,
            failure=failure,
            values=Values(equal=True, difference=0.0) if copies and failure is None else Values(None),
            dropout_active=recorder.dropout_active,
            random_numbers_drawn=keeper.random_numbers_drawn(),
            moved_buffers=tuple(known.best_name(each) or name for name, each in keeper.moved_buffers().items()),
            peak_bytes=recorder.memory.peak,
        )
    finally:
        keeper.restore()
        keeper.forget_made()
    if reference is not None and failure is None:
        run = run._replace(values=compare_values(reference, copies))
    return run, copies


def _set_training(modules: Sequence[nn.Module], mode: Mode) -> None:
    if mode.training is not None:
        for module in modules:
            module.train(mode.training)


@contextmanager
def _entering_modules(keeper: StateKeeper, mode: Mode) -> Iterator[None]:
    """Note modules that only the function knows, and put them into the mode, when they first run."""

    def before(module: nn.Module, _: object) -> None:
        if not torch.compiler.is_compiling() and keeper.add_module(module):
            keeper.met_modules = True
            _set_training([module], mode)

    hook = module_hooks.register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()


def _names(subject: Subject, keeper: StateKeeper) -> Names:
    known = gather_names(subject.names, subject.frame)
    if subject.names is None:
        known.search(in_sight(subject.function, subject.args, subject.kwargs))
    _name_unknown_modules(known, keeper.roots)
    return known


def _graph(recorder: RunRecorder, subject: Subject, known: Names, result: object) -> GraphData:
    wanted = result if flatten_tensors(result, "output") else recorder.log.ends()
    roots = to_roots(wanted, known) if flatten_tensors(wanted, "output") else []
    data = merge(recorder, roots, known, options=Options(base=subject.base))
    return dataclasses.replace(data, regions=tuple(_by_comparison(region, subject) for region in data.regions))


def _by_comparison(region: Region, subject: Subject) -> Region:
    """The mode that the comparison itself set has no line in the program."""
    called = subject.frame.f_lineno if subject.frame is not None else None
    where = region.location
    if region.entered == "library" and (where is None or where.line == called):
        return region._replace(entered="compare", location=None)
    return region


def _name_unknown_modules(known: Names, modules: Sequence[nn.Module]) -> None:
    """A module that the function made has no name outside; its class stands for it."""
    have = {id(module) for _, module in known.modules}
    taken: set[str] = {name for name, _ in known.modules}
    for module in modules:
        if id(module) not in have:
            name = type(module).__name__
            number = 2
            while name in taken:
                name, number = f"{type(module).__name__}_{number}", number + 1
            taken.add(name)
            known.search({name: module})


def _time(subject: Subject, modes: Sequence[Mode], keeper: StateKeeper, repeats: int | None) -> dict[str, Seconds]:
    """Run without any recorder, the modes in turn, so that a slow moment of the machine hits all of them."""
    times: dict[str, list[float]] = {mode.name: [] for mode in modes}
    started = time.perf_counter()
    for number in range(_REPEATS if repeats is None else repeats):
        if repeats is None and number and time.perf_counter() - started > _TIME_LIMIT * number / (number + 1):
            break
        for mode in modes:
            times[mode.name].append(_time_once(subject, mode, keeper))
    return {
        name: Seconds(statistics.median(found), min(found), max(found), len(found))
        for name, found in times.items()
        if found
    }


def _time_once(subject: Subject, mode: Mode, keeper: StateKeeper) -> float:
    try:
        _set_training(keeper.roots, mode)
        if mode.training is None or not keeper.met_modules:
            return _clock(subject, mode)
        with _entering_modules(keeper, mode):
            return _clock(subject, mode)
    finally:
        keeper.restore()
        keeper.forget_made(watched=False)


def _clock(subject: Subject, mode: Mode) -> float:
    synchronize()
    started = time.perf_counter()
    result = mode.call(subject.run)
    synchronize()
    seconds = time.perf_counter() - started
    del result  # what it takes to free the graph is not part of the run
    return seconds


def refuse_uncallable(function: object) -> None:
    """Check that there is something to run.

    Raises:
        InputError: if not; the message says what was probably meant.
    """
    if not callable(function):
        raise InputError(
            f"compare runs a function or module under each mode, and was given {type(function).__name__}. To compare "
            "two tensors, record what computes them: with graphscope.recording() as rec: …, then rec.compare(m, w)."
        )
    if isinstance(function, type):
        raise InputError(f"compare was given the class {function.__name__}. Give an instance of it, or a function.")
