"""An explanation as text: the verdict in one line, then what is wrong, where, and what to do.

Short first. Parameters that miss their gradient for the same reason are told together, by module. With ``details``
every tensor has a line, and notes are told in full.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

from graphscope.findings import Because, Cause, Explained, Failure, Group, Hazard, Severity, Verdict
from graphscope.model import Location
from graphscope.render.report import Renderable
from graphscope.render.report import write as write_report
from graphscope.render.terminal_lines import ALARM_STYLE, MINIMUM_WIDTH, LineOptions
from graphscope.render.terminal_text import Line, Span, cells, elide_cells, fitted
from graphscope.style import GLYPHS, Look, visible
from graphscope.units import to_count_text, to_shape_text

_GROUPS_TOLD = 12
_ALSO_TOLD = 3
_NAMES_TOLD = 6
_TEXT_TOLD = 120
_INDENT = "  "
_MARKS = {Severity.ERROR: "×", Severity.WARNING: "!", Severity.NOTE: "·"}
_STYLES = {Severity.ERROR: f"bold {ALARM_STYLE}", Severity.WARNING: "bold yellow", Severity.NOTE: "dim"}

_RAISING = frozenset(
    {"saved_tensor_modified", "graph_freed", "derivative_not_implemented", "double_backward_unsupported"}
)
"""Hazards that backward stumbles over on the way."""

CAUSE_WORDS: dict[Cause, str] = {
    Cause.FROZEN: "frozen",
    Cause.CONSTANT: "not asked for",
    Cause.UNUSED: "not used",
    Cause.NO_GRAD: "gradients were off",
    Cause.INFERENCE_MODE: "inference mode",
    Cause.DETACH: "cut by detach()",
    Cause.DATA: "only numbers handed on",
    Cause.INTEGER_DTYPE: "integers carry no gradient",
    Cause.NON_DIFFERENTIABLE: "no derivative",
    Cause.LEFT_PYTORCH: "left PyTorch",
    Cause.CUSTOM_FUNCTION: "inside a custom Function",
    Cause.NON_LEAF: "not a leaf",
    Cause.NOT_IN_GRAPH: "replaced by another tensor",
    Cause.UNKNOWN: "reason not known",
}


def render(explained: Explained, options: LineOptions, *, color: bool = False, details: bool = False) -> str:
    """Write the explanation as text with a final newline."""
    return write_report(functools.partial(to_lines, explained, details=details), options, color=color)


def renderable(explained: Explained, options: LineOptions, *, details: bool = False) -> Renderable:
    """Wrap the explanation for ``rich``; width, colours and encoding are the console's."""
    return Renderable(functools.partial(to_lines, explained, details=details), options)


def to_lines(explained: Explained, options: LineOptions, *, details: bool = False) -> Iterator[Line]:
    """Write error, verdict, groups, hazards and, for who asks, every tensor."""
    yield from _Writer(explained, options, details=details).lines()


class _Writer:
    """Writes the lines of one explanation."""

    def __init__(self, explained: Explained, options: LineOptions, *, details: bool) -> None:
        self._explained = explained
        self._encoding = options.encoding
        self._width = max(options.width, MINIMUM_WIDTH)
        self._details = details
        self._mark = fitted("…", options.encoding)

    def lines(self) -> Iterator[Line]:
        explained = self._explained
        if explained.error is not None:
            yield from self._failure(explained.error)
        verdict = list(self._verdict())
        if explained.error is not None and verdict:
            yield []
        yield from verdict
        for group in explained.groups[: None if self._details else _GROUPS_TOLD]:
            yield []
            yield from self._group(group)
        yield from self._other_leaves()
        if len(explained.groups) > _GROUPS_TOLD and not self._details:
            yield []
            yield [Span(f"… and {len(explained.groups) - _GROUPS_TOLD} more reasons; --details tells them.", "dim")]
        shown = [hazard for hazard in explained.hazards if not self._is_told(hazard)]
        for hazard in shown:
            if hazard.severity is not Severity.NOTE or self._details:
                yield []
                yield from self._hazard(hazard)
        notes = [hazard for hazard in shown if hazard.severity is Severity.NOTE]
        if notes and not self._details:
            yield []
            for hazard in notes:
                yield from self._note(hazard)
        if self._details:
            yield []
            yield from self._tensors()

    def _is_told(self, hazard: Hazard) -> bool:
        """The error's story tells it already."""
        error = self._explained.error
        return error is not None and error.message == hazard.message and error.location == hazard.location

    def _failure(self, error: Failure) -> Iterator[Line]:
        first = _first_sentence(error.text)
        yield from self._wrapped(f"{error.type}: {first}" if first else error.type, f"bold {ALARM_STYLE}", _INDENT, "")
        yield from self._place(error.location, "the line at fault" if error.message else "")
        for place in error.also if error.message else ():
            yield from self._place(place, "")
        yield from self._sentence(error.message)
        yield from self._remedy(error.remedy)

    def _verdict(self) -> Iterator[Line]:
        rows = [row for row in self._explained.tensors if row.kind == "parameter"]
        trainable = [row for row in rows if row.requires_grad]
        reached = [row for row in trainable if row.receives_grad]
        roots = " and ".join(visible(name) for name in self._explained.roots[:3]) or "the result"
        if len(self._explained.roots) > 3:  # noqa: PLR2004  as many as are named
            roots += " and others"
        if self._explained.error is not None and not (self._explained.tensors and self._explained.roots):
            return  # there is no result yet, or what tensors were called is gone with the functions that had them
        if not rows:
            yield from self._leaves(roots)
        elif not trainable:
            text = f"All {len(rows)} parameters in sight are" if len(rows) > 1 else "The only parameter in sight is"
            yield [self._span(f"{GLYPHS[Look.FROZEN]} {text} frozen.", "bold")]
            yield from self._leaves(roots)
        elif len(reached) == len(trainable):
            get = "would get" if self._raises() else "gets" if len(reached) == 1 else "get"
            count = "The only trainable parameter" if len(reached) == 1 else f"All {len(reached)} trainable parameters"
            count += f" {get}"
            yield from self._wrapped(
                f"{GLYPHS[Look.TRAINABLE]} {count} a gradient from {roots}.", "bold green", _INDENT, ""
            )
        else:
            missing = len(trainable) - len(reached)
            text = f"× {missing} of {to_count_text(len(trainable), 'trainable parameter')} "
            text += f"{'gets' if missing == 1 else 'get'} no gradient from {roots}."
            yield from self._wrapped(text, f"bold {ALARM_STYLE}", _INDENT, "")
        frozen = len(rows) - len(trainable)
        if frozen and trainable:
            text = f"{to_count_text(frozen, 'parameter')} {'is' if frozen == 1 else 'are'} frozen."
            yield [self._span(f"{GLYPHS[Look.FROZEN]} {text}", "")]

    def _raises(self) -> bool:
        """Backward has raised or will, so that nobody gets anything."""
        kinds = {hazard.kind for hazard in self._explained.hazards if hazard.severity is Severity.ERROR}
        return self._explained.error is not None or not kinds.isdisjoint(_RAISING)

    def _leaves(self, roots: str) -> Iterator[Line]:
        """Without a module it is about the named leaves."""
        rows = [row for row in self._explained.tensors if row.requires_grad and row.is_leaf]
        for row in rows:
            mark = GLYPHS[Look.TRAINABLE if row.receives_grad else Look.UNREACHED]
            words = "gets no gradient"
            if row.receives_grad:
                words = "would get a gradient" if self._raises() else "gets a gradient"
            style = "bold green" if row.receives_grad else f"bold {ALARM_STYLE}"
            yield from self._wrapped(f"{mark} {visible(row.name)} {words} from {roots}.", style, _INDENT, "")
            if not row.receives_grad:
                yield from self._place(row.location, CAUSE_WORDS[row.cause] if row.cause else "")
                yield from self._sentence(row.message)
                yield from self._remedy(row.remedy)
        if not rows and not any(row.kind == "parameter" for row in self._explained.tensors):
            yield [self._span("There is no parameter and no leaf that requires grad in sight.", "bold")]

    def _other_leaves(self) -> Iterator[Line]:
        """Beside the parameters of modules: other leaves that want a gradient, are used, and are cut off."""
        rows = self._explained.tensors
        if not any(row.kind == "parameter" and row.requires_grad for row in rows):
            return  # they are told in full
        cut = [row for row in rows if row.is_cut_leaf]
        for row in cut[: None if self._details else _NAMES_TOLD]:
            yield []
            yield from self._heading([row.name], [row])
            yield from self._place(row.location, CAUSE_WORDS[row.cause] if row.cause else "")
            yield from self._sentence(row.message)
            yield from self._remedy(row.remedy)

    def _group(self, group: Group) -> Iterator[Line]:
        yield from self._heading(group.names, group.rows)
        cause = group.first.cause
        yield from self._place(group.first.location, CAUSE_WORDS[cause] if cause is not None else "")
        yield from self._sentence(group.message)
        yield from self._remedy(group.remedy)
        yield from self._further(group.first.also)

    def _heading(self, names: Sequence[str], rows: Sequence[Verdict]) -> Iterator[Line]:
        told = [visible(name) for name in names[: None if self._details else _NAMES_TOLD]]
        more = len(names) - len(told)
        text = ", ".join(told) + (f" and {more} more" if more else "")
        count = f" ({to_count_text(len(rows), 'parameter')})" if len(rows) > 1 else ""
        yield from self._wrapped(f"{GLYPHS[Look.UNREACHED]} {text}{count}", "bold", _INDENT, "")

    def _further(self, also: Iterable[Because]) -> Iterator[Line]:
        told = list(also)
        for because in told[:_ALSO_TOLD]:
            yield from self._place(because.location, f"also: {CAUSE_WORDS[because.cause]}")
        if len(told) > _ALSO_TOLD:
            yield [self._span(f"{_INDENT}… and {len(told) - _ALSO_TOLD} more on other paths", "dim")]

    def _hazard(self, hazard: Hazard) -> Iterator[Line]:
        title = f"{_MARKS[hazard.severity]} {hazard.severity.value}: {hazard.kind.replace('_', ' ')}"
        yield [self._span(title, _STYLES[hazard.severity])]
        if any(group.first.location == hazard.location is not None for group in self._explained.groups):
            yield from self._sentence(hazard.message)  # place and remedy stand with the parameters
            return
        yield from self._place(hazard.location, "")
        for place in hazard.also[:_ALSO_TOLD]:
            yield from self._place(place, "")
        yield from self._sentence(hazard.message)
        yield from self._remedy(hazard.remedy)

    def _note(self, hazard: Hazard) -> Iterator[Line]:
        where = f" ({hazard.location.file}:{hazard.location.line})" if hazard.location is not None else ""
        text = f"{_MARKS[Severity.NOTE]} note: {hazard.message}{where}"
        yield from self._wrapped(text, "dim", _INDENT, "")

    def _place(self, location: Location | None, words: str) -> Iterator[Line]:
        """File, line and code on one line if it can hold them; of long code the start."""
        if location is None:
            return
        where = self._text(visible(f"{location.file}:{location.line}"))
        code = self._text(visible(location.code)) if location.code else ""
        tail = f"  {self._text(words)}" if words else ""
        room = self._width - len(_INDENT) - cells(where) - 2 - cells(tail)
        if code and room >= 16:  # noqa: PLR2004  less code says nothing
            shown = code if cells(code) <= room else elide_cells(code, room, self._mark)
            yield [Span(f"{_INDENT}{where}", "cyan"), Span(f"  {shown}"), Span(tail, "dim")]
            return
        yield [Span(f"{_INDENT}{elide_cells(where, self._width - 2, self._mark)}", "cyan")]
        if code:
            yield [Span(f"{_INDENT}{_INDENT}{elide_cells(code, self._width - 4, self._mark)}")]
        if words:
            yield from self._wrapped(words, "dim", _INDENT + _INDENT)

    def _sentence(self, text: str) -> Iterator[Line]:
        if text:
            yield from self._wrapped(text, "", _INDENT)

    def _remedy(self, text: str) -> Iterator[Line]:
        if text:
            yield from self._wrapped(f"→ {text}", "green", _INDENT + _INDENT, _INDENT)

    def _tensors(self) -> Iterator[Line]:
        """Every tensor, one on a line."""
        rows = self._explained.tensors
        label = min(max((cells(visible(row.name)) for row in rows), default=0), self._width // 2)
        for row in rows:
            name = elide_cells(self._text(visible(row.name)), label, self._mark)
            words = "gets a gradient" if row.receives_grad else CAUSE_WORDS[row.cause] if row.cause else ""
            where = f" {row.location.file}:{row.location.line}" if row.location is not None else ""
            text = f"{to_shape_text(row.shape)}  {words}{visible(where) if where else ''}"
            pad = " " * (label - cells(name))
            room = self._width - label - 4
            yield [self._span(f"{_row_mark(row)} {name}{pad}  {elide_cells(self._text(text), room, self._mark)}", "")]

    def _wrapped(self, text: str, style: str, indent: str, first: str | None = None) -> Iterator[Line]:
        """Text on as many lines as it needs; lines after the first one begin with ``indent``."""
        lead = indent if first is None else first
        line = ""
        for word in self._text(visible(text)).split(" "):
            room = self._width - cells(lead)
            joined = f"{line} {word}" if line else word
            if line and cells(joined) > room:
                yield [Span(lead + line, style)]
                lead, line = indent, elide_cells(word, self._width - cells(indent), self._mark)
            else:
                line = elide_cells(joined, room, self._mark)
        yield [Span(lead + line, style)]

    def _span(self, text: str, style: str) -> Span:
        return Span(elide_cells(self._text(text), self._width, self._mark), style)

    def _text(self, text: str) -> str:
        return fitted(text, self._encoding)


def _first_sentence(text: str) -> str:
    """The user's own traceback has the rest."""
    line = text.partition("\n")[0]
    short = line.partition(". ")[0]
    return short + "." if len(line) > _TEXT_TOLD and len(short) < len(line) else line


def _row_mark(row: Verdict) -> str:
    if row.receives_grad:
        return GLYPHS[Look.TRAINABLE]
    if row.requires_grad and row.is_leaf:
        return GLYPHS[Look.UNREACHED]
    if row.kind == "parameter":
        return GLYPHS[Look.FROZEN]
    return GLYPHS[Look.TRACKED] if row.requires_grad else GLYPHS[Look.CONSTANT]
