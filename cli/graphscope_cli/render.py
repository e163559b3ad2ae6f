"""``graphscope render``: draw the graph of a program, a module or a saved graph."""

from __future__ import annotations

import typer

from graphscope.model import GraphData
from graphscope.render.dot import Direction
from graphscope.render.engine import Engine
from graphscope.render.formats import RenderOptions
from graphscope.render.palette import Theme
from graphscope.transforms import ViewOptions
from graphscope_cli import options
from graphscope_cli.messages import WRONG_USE, Faults, reporting_errors
from graphscope_cli.output import Destination, Output, parse_destination, refuse_several_pictures
from graphscope_cli.request import Request, parse_at, parse_depth, parse_input, parse_names, parse_show
from graphscope_cli.script import INTERRUPTED, Ending
from graphscope_cli.taking import take_graphs
from graphscope_cli.targets import Script, parse_target
from graphscope_cli.unfit import refuse_what_does_not_apply


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(epilog="Exit codes: 0 fine, 1 the program behind TARGET failed, 2 wrong use or nothing drawn.")(render)


def render(  # noqa: PLR0913 - every parameter is an option
    target: options.TargetArgument,
    arguments: options.ScriptArguments = None,
    *,
    output: options.OutputOption = None,
    json: options.JsonOption = False,
    at: options.AtOption = "1",
    stop: options.StopOption = False,
    inputs: options.InputOption = None,
    fake: options.FakeOption = False,
    no_record: options.NoRecordOption = False,
    root: options.RootOption = None,
    names: options.NamesOption = None,
    depth: options.DepthOption = "auto",
    expand: options.ExpandOption = None,
    focus: options.FocusOption = None,
    path: options.PathOption = None,
    hide: options.HideOption = None,
    force: options.ForceOption = False,
    show: options.ShowOption = None,
    theme: options.ThemeOption = Theme.LIGHT,
    direction: options.DirectionOption = Direction.DOWN,
    engine: options.EngineOption = Engine.AUTO,
) -> None:
    """Draw the autograd graph of a program, a module or a saved graph.

    [b]graphscope render train.py -o graph.svg -- --epochs 1[/b]
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
        )
        refuse_what_does_not_apply(what, request, arguments or [])
        destinations = [parse_destination(each) for each in output or ()]
        destinations += [Destination(format="json")] if json else []
        if request.at is None:
            refuse_several_pictures(destinations)
        part = ViewOptions(
            depth=parse_depth(depth),
            expand=parse_names(expand),
            focus=focus,
            path=path,
            hide=parse_names(hide),
            force=force,
        )
        drawing = RenderOptions(theme=theme, direction=direction, show=parse_show(show), engine=engine, view=part)
        faults = Faults()
        writer = Output(destinations, drawing, faults, full=part.depth == "full")

        def take(number: int | None, whole: GraphData) -> None:
            from graphscope.analyze.mark import mark_what_will_raise  # not for --help

            writer.take_recorded(number, mark_what_will_raise(whole) if isinstance(what, Script) else whole)

        ending = take_graphs(what, arguments or [], request, take, faults)
        writer.finish()
    raise typer.Exit(_exit_code(ending, faults))


def _exit_code(ending: Ending, faults: Faults) -> int:
    if isinstance(ending.error, KeyboardInterrupt):
        return INTERRUPTED
    if ending.status:
        return 1
    return WRONG_USE if faults.count else 0
