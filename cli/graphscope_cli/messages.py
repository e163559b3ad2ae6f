"""What the command line tells its user: always on stderr, one line where one is enough."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import typer

from graphscope.errors import GraphscopeError
from graphscope.style import visible

WRONG_USE = 2
"""Exit code: the command was not used as meant, or could not do its work."""

_PATIENCE = 2.0
"""Seconds after which a user wants to know what takes so long."""


def say(message: str) -> None:
    """Write one line to stderr; control characters in it are shown, not obeyed."""
    typer.echo(f"graphscope: {visible(message)}", err=True)


class Faults:
    """What went wrong while the user's program had to go on: told at once, and remembered for the exit code."""

    def __init__(self) -> None:
        """Begin without any."""
        self.count = 0

    def tell(self, message: str) -> None:
        """Say one."""
        self.count += 1
        say(message)


@contextlib.contextmanager
def reporting_errors() -> Iterator[None]:
    """Tell an error that graphscope raises on purpose in its own words, and end with exit code 2."""
    try:
        yield
    except GraphscopeError as error:
        say(str(error))
        raise typer.Exit(WRONG_USE) from None


@contextlib.contextmanager
def saying_if_slow(message: str) -> Iterator[None]:
    """Say ``message`` if the block takes more than a moment."""
    timer = threading.Timer(_PATIENCE, say, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
