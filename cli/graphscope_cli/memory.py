"""``graphscope memory``: what backward keeps, by op, module, line and storage."""

from __future__ import annotations

from typing import Any

import typer

from graphscope.findings import Kept
from graphscope.model import GraphData
from graphscope.render.formats import RenderOptions
from graphscope.render.terminal import TerminalOptions
from graphscope_cli import options
from graphscope_cli.explain import DetailsOption, JsonOption, OutputOption, ReportOutput, parse_destinations
from graphscope_cli.messages import WRONG_USE, Faults, reporting_errors
from graphscope_cli.request import Request, parse_at, parse_input, parse_names
from graphscope_cli.script import INTERRUPTED
from graphscope_cli.taking import take_graphs
from graphscope_cli.targets import parse_target
from graphscope_cli.unfit import refuse_what_does_not_apply


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(epilog="Exit codes: 0 fine, 1 the program behind TARGET failed, 2 wrong use.")(memory)


def memory(  # noqa: PLR0913 - every parameter is an option
    target: options.TargetArgument,
    arguments: options.ScriptArguments = None,
    *,
    output: OutputOption = None,
    json: JsonOption = False,
    details: DetailsOption = False,
    at: options.AtOption = "1",
    stop: options.StopOption = False,
    inputs: options.InputOption = None,
    fake: options.FakeOption = False,
    no_record: options.NoRecordOption = False,
    root: options.RootOption = None,
    names: options.NamesOption = None,
) -> None:
    """Tell what is kept in memory for backward, and what would keep less.

    [b]graphscope memory train.py --stop -- --epochs 1[/b]
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
        faults = Faults()
        writer = _MemoryOutput(parse_destinations(output, json=json), RenderOptions(), faults, details=details)
        ending = take_graphs(what, arguments or [], request, writer.take_graph, faults)
        writer.finish()
    if isinstance(ending.error, KeyboardInterrupt):
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(1 if ending.status else WRONG_USE if faults.count else 0)


class _MemoryOutput(ReportOutput):
    def take_graph(self, number: int | None, data: GraphData) -> None:
        """Measure what backward from the roots keeps."""
        from graphscope.analyze.memory import measure_memory
        from graphscope.transforms import behind_roots

        self.take(number, measure_memory(behind_roots(data)))

    def text(self, data: Any, options: TerminalOptions) -> str:
        """Write for people."""
        from graphscope.render.memory_terminal import render

        kept: Kept = data
        return render(kept, options, color=options.color, details=self.details)
