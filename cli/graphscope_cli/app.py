"""The app: what stands before every command, and the commands, each in a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from graphscope import __version__
from graphscope_cli import compare, explain, memory, render
from graphscope_cli.messages import WRONG_USE

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


for command in (render, compare, explain, memory):
    command.register(app)


@app.command()
def doctor() -> None:
    """Tell versions, engines and fonts: what works here."""
    from graphscope_cli.doctor import print_report

    raise typer.Exit(0 if print_report() else WRONG_USE)
