"""Take graphs from a target: at a script's backward calls, from its variables, from a name, from a file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from graphscope.errors import GraphscopeError, InputError
from graphscope.model import GraphData, Kind, Role
from graphscope.serialize import loads
from graphscope.units import to_count_text
from graphscope_cli.calling import call_function, is_module, make_inputs
from graphscope_cli.messages import Faults, say
from graphscope_cli.recording import LiveRecording
from graphscope_cli.script import Ending, Stopped, run_script, run_user_code
from graphscope_cli.targets import Name, SavedGraph, Script, Target, find_value, load_module

if TYPE_CHECKING:
    from graphscope.capture.program.backward import BackwardCall
    from graphscope.capture.program.choose import Choice
    from graphscope_cli.request import InputSpec, Request

OPS_KEPT = 300_000
"""Recorded operations after which a recording is not gone on with."""

Sink = Callable[[int | None, GraphData], None]
"""Gets every graph with the number of its backward, or with ``None`` if it is the only one."""

EndSink = Callable[[BaseException | None, LiveRecording], None]
"""Gets the error that ended the user's code, in place of a graph of what was left; ``None`` of a script that has run
to its end after its graph was taken."""


def take_graphs(
    target: Target,
    arguments: list[str],
    request: Request,
    sink: Sink,
    faults: Faults,
    end_sink: EndSink | None = None,
) -> Ending:
    """Run what the target says and give its graphs to ``sink``; the user's code has shown its own errors.

    Args:
        target: what to look at.
        arguments: ``sys.argv[1:]`` of a script.
        request: which graphs to take.
        sink: gets them; its faults are its own.
        faults: gets those that must not stop a running script.
        end_sink: gets the error that ended the user's code; by default ``sink`` gets the graph of what was left.

    Raises:
        InputError: if the target has no graph such as was asked for.
    """
    if isinstance(target, SavedGraph):
        sink(None, read_graph(target))
        return Ending()
    recording = LiveRecording(
        target.path.parent if target.path else Path.cwd(), wanted=request.record, fake=request.fake
    )
    if isinstance(target, Name):
        return _take_from_name(target, arguments, request, sink, recording, end_sink)
    return _take_from_script(target, arguments, request, _Taker(request, sink, faults, recording), end_sink)


def read_graph(target: SavedGraph) -> GraphData:
    """The graph in a file.

    Raises:
        InputError: if it cannot be read, or is none.
    """
    try:
        return loads(target.path.read_bytes())
    except OSError as error:
        raise InputError(f"{target.given} cannot be read: {error.strerror}.") from error
    except GraphscopeError as error:
        raise InputError(f"{target.given} is no saved graph: {error}") from error


class _Taker:
    """Takes the graphs that were asked for while a script runs; its faults never reach the script."""

    def __init__(self, request: Request, sink: Sink, faults: Faults, recording: LiveRecording) -> None:
        self.calls = 0
        self.sink = sink
        self.recording = recording
        self._request = request
        self._faults = faults
        self._watching = contextlib.ExitStack()

    def watch(self) -> None:
        """Begin; torch is imported, if that is what the script's folder has under this name."""
        if not has_torch():
            return
        with self._telling_faults():
            from graphscope.capture.program.backward import watch_backward

            self._watching.enter_context(watch_backward(self._tell, transforms=self._request.transforms))

    def close(self) -> None:
        """Leave torch as it was."""
        self._watching.close()

    def _tell(self, call: BackwardCall) -> None:
        self.calls = call.number
        wanted = self._request.at
        if wanted in {None, call.number}:
            with self._telling_faults():
                self._take(call)
        if wanted is not None and call.number >= wanted and not (self._request.keep_recording and self._is_short()):
            self.recording.rest()
        if self._request.stop and wanted is not None and call.number >= wanted:
            raise Stopped

    def _is_short(self) -> bool:
        """What was recorded still fits the memory beside a training that goes on."""
        recorded = self.recording.recorded
        return recorded is not None and len(recorded.recorder.log.ops) < OPS_KEPT

    def _take(self, call: BackwardCall) -> None:
        from graphscope.capture.program.choose import graph_of_call

        data = graph_of_call(call, self.recording.global_places(), _to_choice(self._request), self.recording.recorded)
        self.sink(call.number if self._request.at is None else None, data)

    @contextlib.contextmanager
    def _telling_faults(self) -> Iterator[None]:
        try:
            yield
        except GraphscopeError as error:
            self._faults.tell(str(error))
        except Exception:  # noqa: BLE001  a fault of ours, worth telling in full
            self._faults.tell("a fault in graphscope, please report it. The script goes on.")
            traceback.print_exc()


def _take_from_script(
    target: Script, arguments: list[str], request: Request, taker: _Taker, end_sink: EndSink | None
) -> Ending:
    process = os.getpid()
    try:
        with taker.recording.around(taker.watch):
            ending = run_script(target.path, target.given, arguments)
    finally:
        taker.close()
    ending = dataclasses.replace(ending, backward_calls=taker.calls)
    if os.getpid() != process:
        raise SystemExit(ending.status)  # a child that the script forked, and let run to the end
    if ending.status and ending.error is None:
        say(f"the script ended with exit status {ending.status}.")
    _tell_of_package(target, ending.error)
    if end_sink is not None and (ending.error is not None or taker.calls):
        end_sink(ending.error, taker.recording)
    if ending.error is not None and end_sink is not None:
        return ending
    if not taker.calls and request.at == 1:
        _take_what_is_left(target, request, taker.sink, ending, taker.recording)
    elif not taker.calls or (request.at or 0) > taker.calls:
        called = f"called backward() or autograd.grad() {to_count_text(taker.calls, 'time')}"
        raise InputError(f"--at {request.at or 'all'}: the script {called} in this process.")
    return ending


def _take_what_is_left(target: Target, request: Request, sink: Sink, ending: Ending, recording: LiveRecording) -> None:
    """The tensors in the script's variables, and in those of the functions that an error ended."""
    if not has_torch():
        if ending.status:
            return
        raise InputError(f"{target.given} never imported torch, so there is no graph.")
    from graphscope.capture.program.choose import graph_of_variables

    try:
        if ending.error is not None and recording.recorded is not None:
            data = _graph_of_error(ending.error, recording, request)
        else:
            places = [*variables_at(ending.error), *recording.global_places()]
            data = graph_of_variables(places, _to_choice(request), recording.recorded)
    except InputError as error:
        if ending.error is not None:
            say(f"there was nothing to draw yet. {error}")
        if ending.status:
            return
        raise InputError(f"The script never called backward() or autograd.grad() in this process. {error}") from None
    if ending.error is None:
        say(f"{target.given} had not called backward(): this is the graph of the tensors left in its variables.")
    else:
        ended = f"{target.given}:{target.name}" if isinstance(target, Name) else target.given
        say(f"{ended} ended with an error: this is the graph that there was. graphscope explain tells the story.")
    sink(None, recording.told(data))


def _tell_of_package(target: Script, error: BaseException | None) -> None:
    """A file of a package does not run as a script, neither here nor under Python."""
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        module = f"{target.path.resolve().parent.name}.{target.path.stem}"
        say(
            f"{target.given} belongs to a package, and imports from it as only a module of it can. Name a tensor, a "
            f"module or a function there, from the folder that holds the package: {module}:name."
        )


def _graph_of_error(error: BaseException, recording: LiveRecording, request: Request) -> GraphData:
    """The graph in which an error happened, with a note at the spot.

    Raises:
        InputError: if there was no graph yet.
    """
    from graphscope.analyze.failures import explain_failure
    from graphscope.analyze.mark import mark
    from graphscope.capture.program.failure import graph_of_failure, read_error

    recorded = recording.recorded
    data = graph_of_failure(error, recorded, recording.global_places(), _to_choice(request))
    if not data.nodes:
        raise InputError("The variables hold no tensor.")
    if all(node.kind is Kind.LEAF for node in data.nodes):
        raise InputError("No operation on tensors had run.")
    return mark(data, explain_failure(data, read_error(error, recorded.base if recorded is not None else None)))


class UserCodeEnded(Exception):  # noqa: N818  not always an error
    """The user's code raised or exited; what it raised has been shown."""

    def __init__(self, ending: Ending) -> None:
        """Take how it ended."""
        self.ending = ending


def run_or_end(function: Callable[[], object], recording: LiveRecording | None = None) -> object:
    """Call the user's code; of a fake run, tell in one line that it needs numbers.

    Raises:
        UserCodeEnded: if it raised or exited.
    """
    base = recording.base if recording is not None and recording.fake else None
    result, ending = run_user_code(function, lambda error: base is not None and _tell_need_of_numbers(error, base))
    if ending.error is not None or ending.exited:
        raise UserCodeEnded(ending)
    return result


def _tell_need_of_numbers(error: BaseException, base: Path) -> bool:
    """Say so, if an error came of fake tensors having no numbers."""
    from graphscope.capture.recording.fake import describe_need

    need = describe_need(error, base)
    if need is not None:
        say(need)
    return need is not None


def _take_from_name(
    target: Name,
    arguments: list[str],
    request: Request,
    sink: Sink,
    recording: LiveRecording,
    end_sink: EndSink | None,
) -> Ending:
    """Import, look up, call what is to be called; where the user's code fails, take what there was."""
    try:
        with recording.around():
            module = recording.module = load_module(target, arguments, run_or_end)
            data = _graph_of_name(module, target, request, recording)
        sink(None, data)
    except UserCodeEnded as ended:
        ending = ended.ending
        if ending.error is None:
            say(f"{target.given} called sys.exit({ending.status}) before {target.name} was there.")
            return Ending(status=ending.status or 1)
        with recording.naming():
            if end_sink is not None:
                end_sink(ending.error, recording)
            else:
                _take_what_is_left(target, request, sink, ending, recording)
        return ending
    return Ending()


def _graph_of_name(module: types.ModuleType, target: Name, request: Request, recording: LiveRecording) -> GraphData:
    from graphscope.capture.program.choose import graph_of_value

    found = find_value(module, target.name, target.given)
    with recording.calling(found):
        called = _call(found, target.name, request, recording)
    with recording.naming():
        data = graph_of_value(
            called.value,
            called.label,
            beside=called.beside,
            further=recording.global_places(),
            choice=_to_choice(request),
            recorded=recording.recorded,
        )
    _suggest_names(data)
    return recording.told(data)


def _suggest_names(data: GraphData) -> None:
    """A model that a function made and did not return names nothing."""
    parameters = [node for node in data.nodes if node.kind is Kind.LEAF and node.role is Role.PARAMETER]
    count = sum(not node.names and node.reached for node in parameters)
    if count and not any(node.names for node in parameters):
        told = "1 parameter has" if count == 1 else f"{count:,} parameters have"
        say(f'{told} no name. Return the model, too, to name them: return {{"loss": loss, "model": model}}')


class _Called(NamedTuple):
    value: object
    label: str
    beside: dict[str, object]
    """The module, and what it was called with."""


def _call(found: object, name: str, request: Request, recording: LiveRecording) -> _Called:
    """Call a function, and a module that it is or returns.

    Raises:
        InputError: if there is nothing to call where that is needed.
        UserCodeEnded: if the user's code raised or exited.
    """
    run = functools.partial(run_or_end, recording=recording)
    value = call_function(found, name, run)
    label = name if value is found else f"{name}()"
    if is_module(value):
        inputs = make_inputs(value, label, request.inputs)
        beside = {label: value, **({"input": inputs[0]} if len(inputs) == 1 else {"input": inputs})}
        try:
            result = run(functools.partial(value, *inputs))
        except UserCodeEnded as ended:
            if ended.ending.error is not None:
                _tell_of_inputs(label, request.inputs)
            raise
        return _Called(result, "output", beside)
    if request.inputs:
        raise InputError(f"--input is for modules, and {label} is {type(value).__name__}.")
    if request.fake and value is found:
        raise InputError(
            f"--fake has no use here: {name} is {type(value).__name__}, already computed. Name the function that "
            "computes it, or a module (with --input)."
        )
    return _Called(value, label, {})


def _tell_of_inputs(label: str, inputs: Sequence[InputSpec]) -> None:
    """What a module that raised was called with: a wrong size is not the script's fault."""
    given = " ".join(f"--input {','.join(map(str, spec.shape))}:{spec.dtype}" for spec in inputs)
    say(
        f"{label} raised that when called with {given}. If it expects other tensors, give one --input for each "
        "argument of its forward, as 1,3,224,224 or 1,16:int64."
    )


def has_torch() -> bool:
    """The program has imported torch, and not something else under that name."""
    return hasattr(sys.modules.get("torch"), "autograd")


def variables_at(error: BaseException | None) -> list[tuple[str, dict[str, object]]]:
    """Variables of the functions that an error ended, innermost first."""
    from graphscope.capture.program.backward import program_frames, variables_of

    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__ if error is not None else None)]
    return variables_of(program_frames(reversed(frames)))


def _to_choice(request: Request) -> Choice:
    from graphscope.capture.program.choose import Choice

    return Choice(roots=request.roots, namers=request.namers, every_module=request.every_module)
