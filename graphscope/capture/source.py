"""Which line of the user's program is running.

While recording, a line is only a code object and a number, which costs nothing to keep; the text is looked up when
the graph is made. Frames of torch, of the standard library and of graphscope are nobody's line; frames of
installed packages are passed over as long as the user's own code stands below them.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
import sys
import sysconfig
from enum import IntEnum
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from graphscope.model import Location


class Owner(IntEnum):
    """Whose code a file holds."""

    PLUMBING = 0
    """torch, graphscope, Python itself."""
    LIBRARY = 1
    """An installed package."""
    USER = 2


class Line(NamedTuple):
    """A line that was running: cheap to note, looked up later."""

    code: CodeType
    number: int
    instruction: int = -1
    """Offset of the instruction that was running, which tells the expression within the line."""


class Lines(NamedTuple):
    """Where an op was called: the user's line, and the innermost line that is not plumbing."""

    user: Line | None
    inner: Line | None


_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_NOTEBOOK_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]|<ipython-input-")
_PLUMBING = tuple(
    os.path.normpath(folder) + os.sep
    for folder in (
        str(Path(torch.__file__).parent),
        str(Path(__file__).parent.parent),
        str(Path(__file__).parent.parent.parent / "cli" / "graphscope_cli"),
    )
)
_STANDARD_LIBRARY = os.path.normpath(sysconfig.get_path("stdlib")) + os.sep


@functools.cache
def owner_of(file: str) -> Owner:
    """Whose code a file holds, judged by where it lies."""
    if file.startswith("<"):
        return Owner.USER if file.startswith(("<stdin", "<string", "<ipython")) else Owner.PLUMBING
    normal = os.path.normpath(file)
    if normal.startswith(_PLUMBING) or "graphscope_cli" in Path(normal).parts:
        return Owner.PLUMBING
    if _PACKAGES.match(normal):
        return Owner.LIBRARY
    return Owner.PLUMBING if normal.startswith(_STANDARD_LIBRARY) else Owner.USER


_owners: dict[CodeType, Owner] = {}


def current_lines(frame: FrameType | None) -> Lines:
    """The user's line at or above ``frame``, and the innermost line of anybody but the plumbing."""
    inner: Line | None = None
    while frame is not None:
        code = frame.f_code
        owner = _owners.get(code)
        if owner is None:
            owner = _owners[code] = owner_of(code.co_filename)
        if owner:
            line = Line(code, frame.f_lineno or code.co_firstlineno, frame.f_lasti)
            inner = inner or line
            if owner is Owner.USER:
                return Lines(line, inner)
        frame = frame.f_back
    return Lines(None, inner)


def to_location(line: Line | None, base: Path | None = None) -> Location | None:
    """The file as people know it, the number, and the text of a line."""
    if line is None:
        return None
    file = line.code.co_filename
    text = linecache.getline(file, line.number).strip()
    name = line.code.co_name
    return Location(shown_file(file, base), line.number, text, None if name == "<module>" else name)


def expression_at(line: Line) -> str:
    """The text of the very expression that was running (``h.detach()`` of a longer line), else the line."""
    whole = linecache.getline(line.code.co_filename, line.number)
    if line.instruction < 0:
        return whole.strip()
    position = next(itertools.islice(line.code.co_positions(), line.instruction // 2, None), None)
    if position is None:
        return whole.strip()
    first, last, start, end = position
    if first is None or last is None or start is None or end is None:
        return whole.strip()
    lines = [linecache.getline(line.code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace").strip()


@functools.lru_cache(maxsize=4096)
def shown_file(file: str, base: Path | None) -> str:
    """A file name that is the same on every machine: relative to the target's folder, or ``package/module.py``."""
    if _NOTEBOOK_CELL.search(file):
        return _cell_name(file)
    if file.startswith("<"):
        return file
    path = Path(file)
    packages = _PACKAGES.match(file)
    if packages:
        return Path(file[packages.end() :]).as_posix()
    if base is not None:
        try:
            return path.resolve().relative_to(base.resolve()).as_posix()
        except (ValueError, OSError):
            pass
    return path.as_posix() if base is not None else path.name


def _cell_name(file: str) -> str:
    """``In [3]`` for a notebook cell, where IPython knows the number."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number = numbers.get(file)
    return f"In [{number}]" if number is not None else "In [?]"
