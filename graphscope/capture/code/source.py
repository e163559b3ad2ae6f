"""Which line of the user's program is running.

While recording, a line is a code object and an instruction of it, looked up and kept once however often it runs; the
text is read when the graph is made. Frames of torch, of the standard library and of graphscope are nobody's line;
frames of installed packages are passed over as long as the user's own code stands below them.
"""

from __future__ import annotations

import ast
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
from typing import Any, NamedTuple

import torch

from graphscope.model import Location


class Owner(IntEnum):
    """Whose code a file holds."""

    RECORDER = -1
    """graphscope, and what torch puts between an op and a dispatch mode."""
    PLUMBING = 0
    """torch, Python itself."""
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
    direct: bool = False
    """The user's own line called the op, no function of torch or of a package."""


class Code:
    """What a recording has learnt about one code object."""

    __slots__ = ("code", "findings", "lines", "owner")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.owner = owner_of(code.co_filename)
        self.lines: dict[int, Line] = {}
        """By instruction."""
        self.findings: dict[str, dict[int, Any] | None] = {}
        """What ``regions.py`` found out about each grad mode, by instruction; ``None`` for nothing at all."""

    def line_of(self, frame: FrameType) -> Line:
        """The line that a frame of this code is at."""
        instruction = frame.f_lasti
        line = self.lines.get(instruction)
        if line is None:
            line = self.lines[instruction] = Line(self.code, frame.f_lineno or self.code.co_firstlineno, instruction)
        return line


class Codes(dict[int, Code]):
    """Every code object met in one recording, by its ``id``: to hash a code object takes as long as a small op.

    They are held, so that no ``id`` comes twice, and go with the recording: a program that keeps making
    functions is not made to keep them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, None] = {}
        """Source files of the user's, in the order met."""

    def of(self, code: CodeType) -> Code:
        """What is known of a code object."""
        known = self.get(id(code))
        if known is None:
            known = self[id(code)] = Code(code)
            if known.owner is Owner.USER:
                self.files[code.co_filename] = None
        return known


_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_NOTEBOOK_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]|<ipython-input-")
_TORCH = os.path.normpath(Path(torch.__file__).parent) + os.sep
_ROOT = Path(__file__).parents[2]
_OWN = (
    os.path.normpath(_ROOT) + os.sep,
    os.path.normpath(_ROOT.parent / "cli" / "graphscope_cli") + os.sep,
    _TORCH + "_compile.py",
    str(Path(_TORCH, "_dynamo", "eval_frame.py")),
)
_CONSOLE_SCRIPT = frozenset({"graphscope", "graphscope.exe", "graphscope-script.py"})
"""What an installer makes of the entry point."""
_TYPED_IN = ("<stdin", "<string", "<ipython", "<doctest", "<console", "<input")
"""Names that Python gives to a user's code without a file; what else stands in ``<>`` is made by libraries."""
_STANDARD_LIBRARY = os.path.normpath(sysconfig.get_path("stdlib")) + os.sep


@functools.lru_cache(maxsize=65536)
def owner_of(file: str) -> Owner:
    """Whose code a file holds, judged by where it lies."""
    if file.startswith("<"):
        return Owner.USER if file.startswith(_TYPED_IN) else Owner.PLUMBING
    normal = os.path.normpath(file)
    if normal.startswith(_OWN) or "graphscope_cli" in Path(normal).parts or Path(normal).name in _CONSOLE_SCRIPT:
        return Owner.RECORDER
    if normal.startswith(_TORCH):
        return Owner.PLUMBING
    if _PACKAGES.match(normal):
        return Owner.LIBRARY
    return Owner.PLUMBING if normal.startswith(_STANDARD_LIBRARY) else Owner.USER


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


def assigned_name(line: Line) -> str | None:
    """``x``, where the expression that was running is all that ``x = torch.rand(3)`` assigns."""
    try:
        statements = ast.parse(linecache.getline(line.code.co_filename, line.number).strip()).body
        running = ast.unparse(ast.parse(expression_at(line), mode="eval").body)
    except (SyntaxError, ValueError):
        return None
    for statement in statements:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == running:
            target = statement.targets[0]
            return target.id if len(statement.targets) == 1 and isinstance(target, ast.Name) else None
    return None


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
