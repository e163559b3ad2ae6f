"""The commands; options are described in ``options.py``, the work is done next door."""

from __future__ import annotations

from typing import Annotated

import typer

from graphscope import __version__
from graphscope.render.dot import Direction
from graphscope.render.engine import Engine
from graphscope.render.formats import RenderOptions
from graphscope.render.palette import Theme
from graphscope_cli import explain, memory, options
from graphscope_cli.compare import register
from graphscope_cli.messages import WRONG_USE, Faults, reporting_errors, say
from graphscope_cli.output import Destination, Output, parse_destination, refuse_several_pictures
from graphscope_cli.request import Request, parse_at, parse_depth, parse_input, parse_names, parse_show
from graphscope_cli.script import INTERRUPTED, Ending
from graphscope_cli.taking import take_graphs
from graphscope_cli.targets import parse_target
from graphscope_cli.unfit import refuse_what_does_not_apply

app = typer.Typer(
    help="Shows what PyTorch autograd really did: which tensors get a gradient, and through which operations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        typer.echo(f"graphscope {__version__}")
        raise typer.Exit


@app.callback()
def _before_every_command(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Exit codes: 0 fine, 1 the program behind TARGET failed, 2 wrong use or nothing drawn.")
def render(  # noqa: PLR0913 - every parameter is an option
    target: options.TargetArgument,
    arguments: options.ScriptArguments = None,
    *,
    output: options.OutputOption = None,
    json: options.JsonOption = False,
    at: options.AtOption = "1",
    stop: options.StopOption = False,
    inputs: options.InputOption = None,
    no_record: options.NoRecordOption = False,
    root: options.RootOption = None,
    names: options.NamesOption = None,
    depth: options.DepthOption = "auto",
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
        )
        refuse_what_does_not_apply(what, request, arguments or [])
        destinations = [parse_destination(each) for each in output or ()]
        destinations += [Destination(format="json")] if json else []
        if request.at is None:
            refuse_several_pictures(destinations)
        drawing = RenderOptions(theme=theme, direction=direction, show=parse_show(show), engine=engine)
        level = parse_depth(depth)
        if isinstance(level, int):
            say(f"--depth {level}: pictures are not folded by module yet, this one shows the whole graph.")
        faults = Faults()
        writer = Output(destinations, drawing, faults, full=level == "full")
        ending = take_graphs(what, arguments or [], request, writer.take_recorded, faults)
        writer.finish()
    raise typer.Exit(_exit_code(ending, faults))


register(app)
explain.register(app)
memory.register(app)


@app.command()
def doctor() -> None:
    """Tell versions, engines and fonts: what works here."""
    from graphscope_cli.doctor import print_report

    raise typer.Exit(0 if print_report() else WRONG_USE)


def _exit_code(ending: Ending, faults: Faults) -> int:
    if isinstance(ending.error, KeyboardInterrupt):
        return INTERRUPTED
    if ending.status:
        return 1
    return WRONG_USE if faults.count else 0
