"""``graphscope explain``: who gets a gradient, who does not, why, at which line."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphscope.errors import GraphscopeError, InputError
from graphscope.findings import Explained, Severity, Verdict
from graphscope.model import Clue, GraphData
from graphscope.render.formats import RenderOptions
from graphscope.render.terminal import TEXT_WIDTH, TerminalOptions
from graphscope.units import to_count_text
from graphscope_cli import options
from graphscope_cli.messages import WRONG_USE, Faults, reporting_errors, say
from graphscope_cli.output import Destination, Output, parse_destination
from graphscope_cli.request import Request, parse_at, parse_input, parse_names
from graphscope_cli.script import INTERRUPTED, Ending
from graphscope_cli.taking import take_graphs
from graphscope_cli.targets import Name, Script, Target, parse_target
from graphscope_cli.unfit import refuse_what_does_not_apply

if TYPE_CHECKING:
    from graphscope_cli.recording import LiveRecording

CHECK_FAILED = 3
"""Exit code of a ``--check`` that failed."""

_FORMATS = ("json", "txt")
_LATE = frozenset({"graph_retained", "grad_mode_left_off"})
"""Hazards that are looked for once more when a script has ended."""
_CHECKING, _WRITING = "Check, as in CI", "Where to write"

CheckOption = Annotated[
    bool,
    typer.Option(
        "--check",
        rich_help_panel=_CHECKING,
        help="Exit with code 3 if a trainable parameter gets no gradient (with --at all: in no backward), or something "
        "will raise an error.",
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN,…",
        rich_help_panel=_CHECKING,
        help="Parameters that --check lets go without a gradient, as in model.teacher.*; may be given several times.",
    ),
]
DetailsOption = Annotated[
    bool, typer.Option("--details", help="A line for every tensor, all reasons, and notes in full.")
]
JsonOption = Annotated[bool, typer.Option("--json", rich_help_panel=_WRITING, help="Print the explanation as JSON.")]
OutputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        rich_help_panel=_WRITING,
        help="File to write, .json or .txt; may be given several times. Without a file the report is printed.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        epilog="Exit codes: 0 fine, 1 the program behind TARGET failed (what led to it is told), 2 wrong use, "
        "3 --check failed."
    )(explain)


def explain(  # noqa: PLR0913 - every parameter is an option
    target: options.TargetArgument,
    arguments: options.ScriptArguments = None,
    *,
    output: OutputOption = None,
    json: JsonOption = False,
    details: DetailsOption = False,
    check: CheckOption = False,
    allow: AllowOption = None,
    at: options.AtOption = "1",
    stop: options.StopOption = False,
    inputs: options.InputOption = None,
    fake: options.FakeOption = False,
    no_record: options.NoRecordOption = False,
    root: options.RootOption = None,
    names: options.NamesOption = None,
) -> None:
    """Tell which parameters get a gradient, which do not and why, and what else is wrong.

    [b]graphscope explain train.py --check -- --epochs 1[/b]
    """
    with reporting_errors():
        what = parse_target(target)
        request = Request(
            roots=tuple(root or ()),
            namers=parse_names(names),
            at=parse_at(at),
            stop=stop,
            inputs=tuple(parse_input(each) for each in inputs or ()),
            record=not no_record,
            fake=fake,
            keep_recording=True,
            every_module=True,
            transforms=False,
        )
        refuse_what_does_not_apply(what, request, arguments or [])
        destinations = parse_destinations(output, json=json)
        faults = Faults()
        writer = _ExplanationOutput(destinations, RenderOptions(), faults, details=details)
        teller = _Teller(what, writer)
        ending = take_graphs(what, arguments or [], request, teller.take, faults, teller.take_end)
        writer.finish()
        unmet = teller.unmet(parse_names(allow)) if check else []
        for text in unmet:
            say(f"--check: {text}")
        if unmet and request.at is not None and ending.backward_calls > request.at:
            say(
                f"that was backward {request.at} of {ending.backward_calls}. --at all --check asks for parameters that "
                "none of them reaches."
            )
    raise typer.Exit(_exit_code(ending, faults, failed=bool(unmet)))


def parse_destinations(given: Sequence[str] | None, *, json: bool) -> list[Destination]:
    """Where a report goes.

    Raises:
        InputError: for a format that a report does not have.
    """
    destinations = [parse_destination(each) for each in given or ()]
    for destination in destinations:
        if destination.format not in _FORMATS:
            raise InputError(f"A report is not written as {destination.format}, only as {' or '.join(_FORMATS)}.")
    return [*destinations, *([Destination(format="json")] if json else [])]


class ReportOutput(Output):
    """Writes what has ``to_json`` and a text, as soon as it is there unless stdout has to hold a document."""

    def __init__(
        self, destinations: Sequence[Destination], drawing: RenderOptions, faults: Faults, *, details: bool
    ) -> None:
        """Prepare to write; ``details`` makes texts complete."""
        super().__init__(destinations, drawing, faults)
        self.details = details
        self._prompt = not destinations

    def take(self, number: int | None, data: Any) -> None:
        """Write a report to the files; for people at once, since a training may run for hours."""
        super().take(number, data)
        if self._prompt:
            self.finish()
            self.forget()

    def draw(self, data: Any, format: str) -> str | bytes:
        """Write as JSON or text."""
        if format == "json":
            return json_module.dumps(data.to_json(), ensure_ascii=False, indent=2) + "\n"
        return self.text(data, TerminalOptions(width=TEXT_WIDTH))


class _ExplanationOutput(ReportOutput):
    def text(self, data: Any, options: TerminalOptions) -> str:
        """Write for people."""
        from graphscope.render.explain_terminal import render

        explained: Explained = data
        return render(explained, options, color=options.color, details=self.details)


@dataclasses.dataclass(kw_only=False)
class _Teller:
    """Explains every graph that is taken, and the error that ended the program."""

    target: Target
    writer: _ExplanationOutput
    found: list[Explained] = dataclasses.field(default_factory=list)

    def take(self, number: int | None, data: GraphData) -> None:
        """Explain a graph; of a script it is one that a backward is about to run through."""
        from graphscope.analyze.explain import explain as explain_data

        # of a script that never ran backward it is what was left in its variables
        is_at_backward = not data.recorded or any(one.clue is Clue.BACKWARD for one in data.evidence)
        is_script = isinstance(self.target, Script)
        explained = explain_data(data, starts_backward=is_script and is_at_backward and bool(data.roots))
        self.found.append(explained)
        self.writer.take(number, explained)

    def take_end(self, error: BaseException | None, recording: LiveRecording) -> None:
        """Tell the story of an error, whose traceback has been shown; or what is still to be said at the end."""
        if error is None:
            self._take_late(recording)
            return
        explained = _explain_error(error, recording, self.target)
        if explained is None:
            return
        if self.found and not explained.tensors:
            explained = dataclasses.replace(self.found[-1], error=explained.error)
        self.writer.replace(explained)
        self.found.append(explained)

    def _take_late(self, recording: LiveRecording) -> None:
        """Graphs that are kept from round to round, and a mode left off, show only when the script has run."""
        late = _explain_variables(recording)
        if late is None or not self.found:
            return
        known = {(hazard.kind, hazard.location) for hazard in self.found[-1].hazards}
        new = tuple(one for one in late.hazards if one.kind in _LATE and (one.kind, one.location) not in known)
        if new:
            merged = sorted((*self.found[-1].hazards, *new), key=lambda one: list(Severity).index(one.severity))
            self.found[-1] = dataclasses.replace(self.found[-1], hazards=tuple(merged))
            self.writer.replace(self.found[-1])

    def unmet(self, allowed: Sequence[str]) -> list[str]:
        """What makes ``--check`` fail, in words: of several graphs, parameters that none of them reaches."""
        reached = {row.name for explained in self.found for row in explained.tensors if row.receives_grad}
        rows = {row.name: row for explained in self.found for row in explained.unmet if row.name not in reached}
        hazards = {
            (hazard.kind, hazard.location): hazard
            for explained in self.found
            for hazard in explained.hazards
            if hazard.severity is Severity.ERROR
        }
        texts = []
        missing = [row for row in rows.values() if not is_allowed(row, allowed)]
        if missing:
            names = ", ".join(row.name for row in missing[:5]) + (" …" if len(missing) > 5 else "")  # noqa: PLR2004  short
            is_parameter = any(row.kind == "parameter" for row in missing)
            nouns = (
                ("trainable parameter",) if is_parameter else ("leaf that requires grad", "leaves that require grad")
            )
            texts.append(f"{to_count_text(len(missing), *nouns)} without gradient: {names}")
        blamed = {row.location for row in rows.values()}
        texts += [
            f"{hazard.kind.replace('_', ' ')}: {hazard.message}"
            for hazard in hazards.values()
            if not (rows and not missing and hazard.location in blamed)
        ]
        return texts


def is_allowed(row: Verdict, patterns: Sequence[str]) -> bool:
    """One of a parameter's names matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for name in (row.name, *row.aliases) for pattern in patterns)


def _explain_error(error: BaseException, recording: LiveRecording, target: Target) -> Explained | None:
    """``None`` of what is no error, and where torch was never there."""
    if isinstance(error, KeyboardInterrupt) or recording.recorded is None:
        return None
    from graphscope.analyze.failures import explain_failure
    from graphscope.capture.program.failure import graph_of_failure, read_error

    base = target.path.parent if isinstance(target, (Script, Name)) and target.path is not None else None
    try:
        data = graph_of_failure(error, recording.recorded, recording.global_places())
        return explain_failure(data, read_error(error, base))
    except GraphscopeError as fault:
        say(f"the error could not be explained. {fault}")
        return None


def _explain_variables(recording: LiveRecording) -> Explained | None:
    if recording.recorded is None:
        return None
    from graphscope.analyze.explain import explain as explain_data
    from graphscope.capture.program.choose import Choice, graph_of_variables

    try:
        return explain_data(
            graph_of_variables(recording.global_places(), Choice(every_module=True), recording.recorded)
        )
    except GraphscopeError:  # no tensor is left
        return None


def _exit_code(ending: Ending, faults: Faults, *, failed: bool) -> int:
    if isinstance(ending.error, KeyboardInterrupt):
        return INTERRUPTED
    if ending.status:
        return 1
    if failed:
        return CHECK_FAILED
    return WRONG_USE if faults.count else 0
