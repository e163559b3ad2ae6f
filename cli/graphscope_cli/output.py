"""Where pictures go: files as soon as there is a graph, stdout when the user's program has ended.

A training may run for hours and may be ended by force, so its picture is written at the moment the graph is taken.
Standard output belongs to the program until it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from graphscope.errors import EngineError, GraphscopeError, InputError
from graphscope.model import GraphData, Kind
from graphscope.render.engine import ScaledDownWarning
from graphscope.render.formats import FORMATS, RenderOptions, format_of, render
from graphscope.render.terminal import TEXT_WIDTH, TerminalOptions
from graphscope.render.terminal import render as to_terminal
from graphscope.transforms import FoldedInsteadWarning, behind_names, view
from graphscope_cli.messages import Faults, say, saying_if_slow

_SEVERAL_ON_STDOUT = frozenset({"json", "dot", "txt"})
"""Formats in which several graphs can follow one another."""
_OF_DRAWING = (ScaledDownWarning, FoldedInsteadWarning)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """One place to write to."""

    format: str
    given: str = ""
    """As the user wrote it."""
    path: Path | None = None
    """Absolute, so that a program may change its folder; ``None`` for stdout."""


def parse_destination(given: str) -> Destination:
    """A file name, or ``-.svg`` for stdout.

    Raises:
        InputError: if there is no such folder, it is one, or a binary format would go to a terminal.
        FormatError: if the suffix is not that of a format.
    """
    path = Path(given)
    if given == "-":
        raise InputError(f"-o - needs a format for stdout: {', '.join(f'-.{key}' for key in FORMATS)}.")
    format = format_of(path)
    if given == f"-{path.suffix}":
        if FORMATS[format].binary and sys.stdout.isatty():
            raise InputError(f"{format} is binary and stdout is a terminal. Give -o a file name, or redirect stdout.")
        return Destination(format=format)
    if path.is_dir():
        raise InputError(f"-o {given!r} is a folder. Give a file name in it.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"-o {given!r}: the folder {str(path.parent)!r} does not exist. Make it first.")
    return Destination(format=format, given=given, path=path.absolute())


def refuse_several_pictures(destinations: Sequence[Destination]) -> None:
    """Check that stdout can hold several graphs.

    Raises:
        InputError: if pictures would follow one another.
    """
    for destination in destinations:
        if destination.path is None and destination.format not in _SEVERAL_ON_STDOUT:
            raise InputError(f"stdout can hold one {destination.format} only. With --at all, give -o a file name.")


class Output:
    """Takes graphs and writes them to every destination."""

    def __init__(
        self, destinations: Sequence[Destination], options: RenderOptions, faults: Faults, *, full: bool = False
    ) -> None:
        """Prepare to write, while ``sys.stdout`` and ``sys.path`` are not yet the user's program's.

        Args:
            destinations: where to; if empty, the graph is printed for people.
            options: how to draw.
            faults: gets what goes wrong.
            full: print every line, however many there are.
        """
        self._destinations = destinations
        self.options = options
        self._faults = faults
        self._full = full
        self._stdout = sys.stdout
        self._color = _wants_color(sys.stdout)
        self._for_stdout: list[tuple[int | None, Any]] = []
        self._uses_stdout = not destinations or any(each.path is None for each in destinations)
        self._import_path = list(sys.path)

    def take(self, number: int | None, data: Any) -> None:
        """Write a graph to the files, and keep it for stdout.

        Args:
            number: of the backward, which files get before their suffix; ``None`` for the only graph.
            data: the graph, or whatever ``draw`` and ``text`` take.
        """
        for destination in self._destinations:
            if destination.path is not None:
                with self._telling_faults(destination.given):
                    self._write_file(destination.path, Path(destination.given), destination.format, number, data)
        if self._uses_stdout:
            self._for_stdout.append((number, data))

    def forget(self) -> None:
        """Print nothing again of what has been printed."""
        self._for_stdout.clear()

    def replace(self, data: Any) -> None:
        """Write the last one anew: more is known now."""
        number = self._for_stdout.pop()[0] if self._for_stdout else None
        self.take(number, data)

    def take_recorded(self, number: int | None, whole: GraphData) -> None:
        """As ``take``, of a recording only what leads to a root or to a tensor that has a name."""
        named = behind_names(whole) if whole.recorded else whole
        # an error may come before anything has a name: then all that ran is what there was
        self.take(number, named if any(node.kind is Kind.OP for node in named.nodes) or whole.roots else whole)

    def draw(self, data: Any, format: str) -> str | bytes:
        """Write in a format, for a file or for another program."""
        return render(data, format, self.options)

    def text(self, data: Any, options: TerminalOptions) -> str:
        """Write for people, in a terminal."""
        return to_terminal(view(data, self.options.view, flat_limit=None), options)

    def finish(self) -> None:
        """Print what goes to stdout."""
        for destination in self._destinations:
            if destination.path is None:
                with self._telling_faults("stdout"):
                    self._print_document(destination.format)
        if not self._destinations:
            with self._telling_faults("stdout"):
                self._print_for_people()

    @contextlib.contextmanager
    def _telling_faults(self, place: str) -> Iterator[None]:
        """One destination does not spoil the others."""
        try:
            with _importing_from(self._import_path), _warnings_of_drawing_told():
                yield
        except BrokenPipeError:  # the reader has seen enough, as head does
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stdout.fileno())
        except OSError as error:
            self._faults.tell(f"{place} cannot be written: {error.strerror or error}.")
        except GraphscopeError as error:
            self._faults.tell(f"{place} was not drawn. {error}")

    def _write_file(self, path: Path, given: Path, format: str, number: int | None, data: Any) -> None:
        shown = _numbered(given, number)
        with saying_if_slow(f"drawing {shown} …"):
            content = _to_bytes(self.draw(data, format))
        _numbered(path, number).write_bytes(content)
        say(f"wrote {shown}")

    def _print_document(self, format: str) -> None:
        with saying_if_slow(f"drawing {format} …"):
            documents = [_to_bytes(self.draw(data, format)) for _, data in self._for_stdout]
        several = any(number is not None for number, _ in self._for_stdout)
        if format == "json" and several:
            documents = [b"[\n", b",\n".join(documents), b"]\n"]
        _write_bytes(self._stdout, b"".join(documents))

    def _print_for_people(self) -> None:
        options = TerminalOptions(
            width=shutil.get_terminal_size(fallback=(TEXT_WIDTH, 24)).columns,
            show=tuple(sorted(self.options.show)),
            encoding=self._stdout.encoding or "utf-8",
            color=self._color,
        )
        if self._full:
            options = dataclasses.replace(options, limit=None)
        for number, data in self._for_stdout:
            heading = "" if number is None else f"backward {number}\n\n"
            text = heading + self.text(data, options) + "\n" * (number is not None)
            _write_bytes(self._stdout, text.encode(options.encoding, "backslashreplace"))


@contextlib.contextmanager
def _importing_from(path: list[str]) -> Iterator[None]:
    """Look for the drawing packages where graphscope is, not in the program's folder: it may hold a ``rich.py``."""
    program_path = sys.path
    sys.path = path
    try:
        yield
    finally:
        sys.path = program_path


@contextlib.contextmanager
def _warnings_of_drawing_told() -> Iterator[None]:
    """Say what drawing warns of. The user's warning filters stay as they are, and so do all other warnings."""
    show = warnings.showwarning

    def tell(message: Warning | str, *place: Any, **more: Any) -> None:
        if isinstance(message, _OF_DRAWING):
            say(str(message))
        else:
            show(message, *place, **more)

    warnings.showwarning = tell
    try:
        yield
    except _OF_DRAWING as warning:  # the user's filters make errors of warnings
        raise EngineError(str(warning)) from None
    finally:
        warnings.showwarning = show


def _numbered(path: Path, number: int | None) -> Path:
    return path if number is None else path.with_name(f"{path.stem}.{number}{path.suffix}")


def _to_bytes(content: str | bytes) -> bytes:
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content


def _write_bytes(stream: TextIO, content: bytes) -> None:
    stream.flush()
    stream.buffer.write(content)
    stream.buffer.flush()


def _wants_color(stream: TextIO) -> bool:
    """A terminal that shows colours, unless NO_COLOR (no-color.org) is set; FORCE_COLOR asks for them anywhere."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"
