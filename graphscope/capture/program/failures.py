"""Errors of the user's code as data."""

from __future__ import annotations

import traceback
from pathlib import Path

from graphscope.capture.code.source import Line, Owner, owner_of, to_location
from graphscope.model import Location
from graphscope.runs import Failure

_OURS = str(Path(__file__).parents[2])


def to_failure(error: BaseException, base: Path | None = None) -> Failure:
    """Type, text and line of an error."""
    return Failure(type(error).__name__, str(error), _location(error, base), _shown(error))


def _shown(error: BaseException) -> str:
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(frame for frame in told.stack if not _is_ours(frame.filename))
    return "".join(told.format())


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) or "graphscope_cli" in Path(file).parts


def _location(error: BaseException, base: Path | None) -> Location | None:
    """The line that raised: the innermost one of the user's, else of anybody but the plumbing."""
    found: dict[Owner, Line] = {}
    for frame, number in traceback.walk_tb(error.__traceback__):
        found[owner_of(frame.f_code.co_filename)] = Line(frame.f_code, number)
    return to_location(found.get(Owner.USER) or found.get(Owner.LIBRARY), base)
