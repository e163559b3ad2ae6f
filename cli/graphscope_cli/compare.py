"""``graphscope compare`` and ``graphscope diff``: runs, tensors or saved graphs side by side."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from graphscope.comparison import FORMATS, Comparison, compare_graphs
from graphscope.errors import GraphscopeError, InputError
from graphscope.render.engine import Engine
from graphscope.render.formats import RenderOptions
from graphscope.render.palette import Theme
from graphscope.render.terminal import TerminalOptions
from graphscope_cli import options
from graphscope_cli.calling import call_function, is_module, make_inputs
from graphscope_cli.messages import WRONG_USE, Faults, reporting_errors, say
from graphscope_cli.output import Destination, Output, parse_destination
from graphscope_cli.recording import LiveRecording
from graphscope_cli.request import InputSpec, parse_input, parse_names
from graphscope_cli.script import Ending, run_script
from graphscope_cli.taking import (
    UserCodeEnded,
    has_torch,
    read_graph,
    run_or_end,
    variables_at,
)
from graphscope_cli.targets import (
    Name,
    SavedGraph,
    Script,
    Target,
    find_value,
    load_module,
    parse_saved_graph,
    parse_target,
)

_ARGUMENTS = "graphscope arguments"

_TAKING, _WRITING = "What to take", "Where to write"

ModesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODE,…",
        rich_help_panel=_TAKING,
        help="Modes to run under: grad, no_grad, inference_mode, set_grad_enabled(False), train, eval, or two joined "
        "by +, as in eval+no_grad. By default grad,no_grad,inference_mode,eval.",
    ),
]
RepeatsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        rich_help_panel=_TAKING,
        help="How often to time each run; the JSON tells the spread then. By default a few times within two seconds.",
    ),
]
TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="[b]script.py:name[/b] or [b]package.module:name[/b], a function that is called without arguments, or a "
        "module (with --input), to be run under each mode. With A and B also [b]script.py[/b], which is run once.",
    ),
]
FirstArgument = Annotated[str | None, typer.Argument(metavar="A", help="Name of a tensor …", show_default=False)]
SecondArgument = Annotated[
    str | None, typer.Argument(metavar="B", help="… and of the tensor to compare it with.", show_default=False)
]
OutputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        rich_help_panel=_WRITING,
        help=f"File to write; its suffix picks the format: {', '.join(FORMATS)}. May be given several times. -.svg is "
        "SVG on stdout. Without a file tables are printed.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", rich_help_panel=_WRITING, help="Print the comparison as JSON.")]


class _WithArguments(TyperCommand):
    """What follows ``--`` is the script's own, however few arguments the command itself was given."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Tell of them in the first line of the help."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENTS]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep it apart in ``ctx.meta``."""
        if "--" in args:
            place = args.index("--")
            args, ctx.meta[_ARGUMENTS] = args[:place], args[place + 1 :]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command(
        cls=_WithArguments,
        epilog="What follows -- is the script's own.\n\n"
        "Exit codes: 0 fine, 1 the program behind TARGET failed (in every run), 2 wrong use or nothing drawn.",
    )(compare)
    app.command(epilog="Exit codes: 0 fine, 2 wrong use or nothing drawn.")(diff)


def compare(  # noqa: PLR0913 - every parameter is an option
    context: typer.Context,
    target: TargetArgument,
    first: FirstArgument = None,
    second: SecondArgument = None,
    *,
    output: OutputOption = None,
    json: JsonOption = False,
    modes: ModesOption = None,
    inputs: options.InputOption = None,
    repeats: RepeatsOption = None,
    theme: options.ThemeOption = Theme.LIGHT,
    engine: options.EngineOption = Engine.AUTO,
) -> None:
    """Run the same computation under several grad modes, or lay two tensors of one run side by side, op by op.

    [b]graphscope compare model.py:step --modes train,train+no_grad,eval,eval+no_grad -o corners.svg[/b]

    [b]graphscope compare script.py m w -- --epochs 1[/b]
    """
    arguments: list[str] = context.meta.get(_ARGUMENTS, [])
    ending = Ending()
    with reporting_errors():
        what = parse_target(target)
        sides = _to_sides(what, first, second, modes, repeats)
        specs = [parse_input(each) for each in inputs or ()]
        faults = Faults()
        writer = _to_writer(output, RenderOptions(theme=theme, engine=engine), faults, json=json)
        comparison: Comparison | None = None
        try:
            with _printing_aside(wanted=not sides or writer.documents_on_stdout):
                if sides:
                    comparison, ending = _compare_sides(what, sides, arguments, specs)
                elif isinstance(what, Name):
                    comparison = _compare_modes(what, parse_names(modes), arguments, specs, repeats)
        except UserCodeEnded as ended:
            ending = ended.ending
        if comparison is not None:
            writer.take(None, comparison)
            writer.finish()
            failed = _tell_failures(comparison)
            ending = Ending(status=1) if failed else ending
    raise typer.Exit(1 if ending.status else WRONG_USE if faults.count else 0)


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A saved graph, [b]a.json[/b].")],
    second: Annotated[str, typer.Argument(metavar="B", help="The saved graph to compare it with.")],
    *,
    output: OutputOption = None,
    json: JsonOption = False,
    theme: options.ThemeOption = Theme.LIGHT,
    engine: options.EngineOption = Engine.AUTO,
) -> None:
    """Lay two saved graphs side by side, op by op.

    [b]graphscope diff before.json after.json -o diff.svg[/b]
    """
    with reporting_errors():
        graphs = [(given, read_graph(parse_saved_graph(given))) for given in (first, second)]
        stems = [Path(given).stem for given, _ in graphs]
        if len(set(stems)) == len(graphs):
            graphs = [(stem, data) for stem, (_, data) in zip(stems, graphs, strict=True)]
        elif first == second:
            graphs = [(f"{given} ({place})", data) for place, (given, data) in enumerate(graphs, start=1)]
        faults = Faults()
        writer = _to_writer(output, RenderOptions(theme=theme, engine=engine), faults, json=json)
        writer.take(None, compare_graphs(graphs))
        writer.finish()
    raise typer.Exit(WRONG_USE if faults.count else 0)


@contextlib.contextmanager
def _printing_aside(*, wanted: bool) -> Iterator[None]:
    """What the program prints goes to stderr, where it would come many times, or into the middle of a document."""
    with contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext():
        yield


class _ComparisonOutput(Output):
    """Writes a comparison in the formats that it has."""

    documents_on_stdout = False

    def draw(self, data: Any, format: str) -> str | bytes:
        """Write in a format of a comparison."""
        comparison: Comparison = data
        return comparison.to(format, self.options)

    def text(self, data: Any, options: TerminalOptions) -> str:
        """Write tables for people."""
        from graphscope.render.compare_terminal import render

        comparison: Comparison = data
        return render(comparison.data, options, color=options.color)


def _to_writer(given: Sequence[str] | None, drawing: RenderOptions, faults: Faults, *, json: bool) -> _ComparisonOutput:
    destinations = [parse_destination(each) for each in given or ()]
    for destination in destinations:
        if destination.format not in FORMATS:
            raise InputError(f"A comparison is not written as {destination.format}, only as {', '.join(FORMATS)}.")
    destinations += [Destination(format="json")] if json else []
    writer = _ComparisonOutput(destinations, drawing, faults)
    writer.documents_on_stdout = any(destination.path is None for destination in destinations)
    return writer


def _to_sides(
    what: Target, first: str | None, second: str | None, modes: Sequence[str] | None, repeats: int | None
) -> tuple[str, ...]:
    """The names of two tensors; empty to compare modes."""
    if isinstance(what, SavedGraph):
        raise InputError(f"{what.given} is a saved graph. Two of them are compared by: graphscope diff a.json b.json")
    if first is not None and second is None:
        raise InputError(f"{first!r} alone cannot be compared. Name two tensors: graphscope compare script.py m w")
    if first is not None and second is not None:
        if modes or repeats:
            option = "--modes" if modes else "--repeats"
            raise InputError(f"{option} has no use here: two tensors come from one run.")
        return (first, second)
    if isinstance(what, Script):
        raise InputError(
            f"{what.given} is a script. Name two of its tensors (graphscope compare {what.given} m w), or a function "
            f"or module in it to be run under each mode ({what.given}:name)."
        )
    return ()


def _tell_failures(comparison: Comparison) -> bool:
    """Say which runs raised; True if all did."""
    failures = [(run.mode, run.failure) for run in comparison.runs if run.failure is not None]
    if len(failures) == len(comparison.runs):
        sys.stderr.write(failures[0][1].traceback)
    for mode, failure in failures:
        where = f" ({failure.location.file}:{failure.location.line})" if failure.location is not None else ""
        say(f"under {mode} it raised {failure.type}: {failure.text}{where}")
    return len(failures) == len(comparison.runs)


def _compare_sides(
    what: Target, sides: tuple[str, ...], arguments: list[str], specs: Sequence[InputSpec]
) -> tuple[Comparison, Ending]:
    """Two tensors of one recorded run."""
    if isinstance(what, Script):
        if specs:
            raise InputError(f"--input has no use here: {what.given} is run as a script.")
        recording = LiveRecording(what.path.parent, wanted=True, local_names=sides)
        with recording.around():
            ending = run_script(what.path, what.given, arguments)
        places = [*variables_at(ending.error), *recording.global_places()]
    else:
        assert isinstance(what, Name)  # noqa: S101  saved graphs were refused
        base = what.path.parent if what.path else Path.cwd()
        recording = LiveRecording(base, wanted=True, local_names=sides)
        with recording.around():
            places = _run_name(what, arguments, specs)
        ending = Ending()
    if recording.recorded is None or not has_torch():
        raise InputError(f"{what.given} never imported torch, so there are no tensors.")
    from graphscope.analyze.compare import compare_runs
    from graphscope.capture.comparing.side_by_side import runs_of_names

    runs = runs_of_names(recording.recorded, [*places, *recording.local_places()], sides)
    return Comparison(compare_runs(runs, same_program=False)), ending


def _run_name(what: Name, arguments: list[str], specs: Sequence[InputSpec]) -> list[tuple[str, dict[str, object]]]:
    """Call what the name says, and give the variables to look in: keys of what it returned, then the module's."""
    module = load_module(what, arguments, run_or_end)
    found = find_value(module, what.name, what.given)
    value = call_function(found, what.name, run_or_end)
    if is_module(value):
        inputs = make_inputs(value, what.name, specs)
        value = run_or_end(functools.partial(value, *inputs))
    members: dict[str, object] = (
        {str(key): member for key, member in value.items()} if isinstance(value, dict) else {"output": value}
    )
    return [(f"{what.name}()", members), ("globals()", _variables(module))]


def _variables(module: object) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


def _compare_modes(
    what: Name, modes: Sequence[str], arguments: list[str], specs: Sequence[InputSpec], repeats: int | None
) -> Comparison:
    """The function or module under each mode."""
    from graphscope.analyze.compare import compare_runs
    from graphscope.capture.comparing.modes import DEFAULT_MODES, Subject, parse_modes, run_modes

    chosen = parse_modes(modes or DEFAULT_MODES)
    module = load_module(what, arguments, run_or_end)
    found = find_value(module, what.name, what.given)
    names = _variables(module)
    function, args = _to_function(found, what.name, specs)
    if args:
        names = {what.name: found, **({"input": args[0]} if len(args) == 1 else {"input": list(args)}), **names}
    subject = Subject(function, args, {}, names, None, what.path.parent if what.path else Path.cwd())

    def run() -> object:
        try:
            return run_modes(subject, chosen, repeats)
        except GraphscopeError as error:  # not the program's fault, so not told as such
            return error

    runs: Any = run_or_end(run)
    if isinstance(runs, GraphscopeError):
        raise runs
    return Comparison(compare_runs(runs, same_program=True), spread=repeats is not None)


def _to_function(value: object, name: str, specs: Sequence[InputSpec]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What to call under each mode, and with what."""
    if is_module(value):
        return value, tuple(make_inputs(value, name, specs))
    if not callable(value):
        raise InputError(
            f"{name} is {type(value).__name__}, already computed, and cannot be run under another mode. Name the "
            "function that computes it, or a module (with --input)."
        )
    function: Any = call_function(value, name, lambda call: call)

    def call() -> Any:
        result = function()
        if is_module(result):
            return result(*make_inputs(result, f"{name}()", specs))
        return result

    return call, ()
