"""Under which grad mode an op ran, and which line of the program switched to it.

torch tells the mode; it does not tell who set it, and nothing of torch is patched to find out. But the code
that set it is nearly always still running: it stands on the stack as a ``with`` block, as the wrapper of
a decorator, as a library function known to do so, or as a statement that the same list of statements has passed. That
is certain. Else there may be one single place in the program that could have done it; if there are several,
the line is unknown.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from graphscope.capture.source import Code, Codes, Line, Owner, owner_of
from graphscope.capture.switches import (
    GRAD,
    INFERENCE,
    NO_GRAD,
    SWITCH_WORDS,
    Position,
    Switch,
    Switches,
    scope_of,
    switches_in,
)

__all__ = ["CHECKPOINT", "CUSTOM", "GRAD", "INFERENCE", "NO_GRAD", "Entry", "Regions", "current_mode"]

CUSTOM = "custom_function"
CHECKPOINT = "checkpoint"

_custom_function_apply: CodeType = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]

_WITH_OPS = frozenset(
    dis.opmap[name] for name in ("BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL", "SETUP_WITH") if name in dis.opmap
)
"""Instructions that every ``with`` statement has."""

_WRAPPERS = frozenset({"decorate_context", "generator_context"})
"""What ``torch.utils._contextlib`` puts around a decorated function."""


_COMPARED = {
    "call_in_no_grad": NO_GRAD,
    "call_in_set_grad_enabled": NO_GRAD,
    "call_in_inference_mode": INFERENCE,
}
"""Functions of ``modes.py`` that run a whole computation in a mode."""


class Entry(NamedTuple):
    """What switched the mode."""

    mode: str
    """What torch says: ``no_grad`` or ``inference_mode``; or the kind of block that switched it off by itself:
    ``custom_function``, ``checkpoint``."""
    entered: str
    """``with``, ``decorator``, ``statement``, ``generator``, ``library`` or ``unknown``."""
    line: Line | None
    word: str
    """The call as it is written: ``no_grad``, ``set_grad_enabled(False)``."""


class Suspect(NamedTuple):
    """A place that may have switched the mode."""

    entry: Entry
    name: str
    likely: bool


class Finding(NamedTuple):
    """What one place on the stack says about a mode."""

    entry: Entry | None = None
    """It certainly switched to the mode."""
    suspects: tuple[Suspect, ...] = ()
    back_on: bool = False
    """It certainly switched back to grad, so that no frame outside of it is to blame."""


_NOTHING = Finding()


class ModuleCall:
    """A module's forward that is running. What lies outside of it stays as it is until it ends."""

    __slots__ = ("findings", "frame", "lines", "number", "training")

    def __init__(self, number: int, frame: int, training: int) -> None:
        self.number = number
        self.training = training
        """Its flag, as one of an op's circumstances."""
        self.frame = frame
        """``id`` of the frame that called ``forward``: alive for as long as this is kept."""
        self.lines: tuple[Line | None, Line | None] | None = None
        """The user's line outside, and the innermost one."""
        self.findings: dict[str, Finding] = {}


def current_mode() -> str:
    """The mode that an op runs under now; inference mode wins over whatever the grad flag says."""
    if torch.is_inference_mode_enabled():
        return INFERENCE
    return GRAD if torch.is_grad_enabled() else NO_GRAD


class Regions:
    """Finds who switched the mode, and remembers what it learnt of each instruction and of each running module."""

    def __init__(self, codes: Codes, calls: list[ModuleCall]) -> None:
        """Share the tables of a recorder: its code objects, and the modules that are running."""
        self._codes = codes
        self._calls = calls
        self._solved: dict[tuple[str | int, ...], Entry] = {}
        self._library_calls: dict[int, dict[tuple[str, int], Entry]] = {}
        """By ``id`` of the code that calls, then by what it calls and the line."""
        self._decorated: dict[tuple[str, int, int], Finding] = {}
        """By mode, ``id`` of the decorated function's code, and number of wrappers between."""

    def find(self, frame: FrameType | None, mode: str) -> Entry:
        """Who switched to ``mode``, looked for from ``frame`` outwards."""
        found = self._search(frame, mode, len(self._calls) - 1)
        return found.entry or self._solve(mode, found.suspects)

    def outside(self, frame: FrameType | None, entry: Entry) -> tuple[Entry, ...]:
        """Further switches in force around ``entry``, innermost first."""
        found: list[Entry] = []
        passed = False
        mode = entry.mode if entry.mode in {NO_GRAD, INFERENCE} else NO_GRAD
        for one in self._findings(frame, mode):
            if one.back_on and one.entry is None:
                break
            if one.entry is not None:
                passed = passed or one.entry == entry
                if passed and one.entry != entry and one.entry not in found:
                    found.append(one.entry)
        return tuple(found)

    def _findings(self, frame: FrameType | None, mode: str) -> Iterator[Finding]:
        inner: list[CodeType] = []
        while frame is not None:
            known = self._codes.of(frame.f_code)
            finding = self._look(known, frame, mode, inner)
            if finding.entry is not None and finding.entry.line is None and finding.entry.entered == "library":
                finding = finding._replace(entry=self._called_from(finding.entry, frame))
            yield finding
            inner.append(frame.f_code)
            frame = frame.f_back

    def _search(self, frame: FrameType | None, mode: str, level: int) -> Finding:
        """The first certain switch from ``frame`` outwards, else all suspects; the hot loop of this module."""
        codes = self._codes
        call = self._calls[level] if level >= 0 else None
        inner: list[CodeType] = []
        suspects: tuple[Suspect, ...] = ()
        while frame is not None:
            code = frame.f_code
            known = codes.get(id(code)) or codes.of(code)
            if call is not None and known.calls_module and id(frame) == call.frame:
                outside = call.findings.get(mode)
                if outside is None:
                    outside = call.findings[mode] = self._search(frame.f_back, mode, level - 1)
                return outside._replace(suspects=suspects + outside.suspects) if suspects else outside
            table = known.findings.get(mode, _UNREAD)
            if table is not None:
                finding = table.get(frame.f_lasti)
                if finding is None:
                    finding = self._look(known, frame, mode, inner)
                if finding is not _NOTHING:
                    suspects += finding.suspects
                    if finding.entry is not None:
                        entry = finding.entry
                        if entry.line is None and entry.entered == "library":
                            entry = self._called_from(entry, frame)
                        return Finding(entry, suspects)
                    if finding.back_on:
                        return Finding(None, suspects, back_on=True)
            inner.append(code)
            frame = frame.f_back
        return Finding(None, suspects)

    def _called_from(self, entry: Entry, frame: FrameType | None) -> Entry:
        """The program's line that called what switches by itself: ``optimizer.step()``, ``Function.apply(x)``."""
        while frame is not None:
            known = self._codes.of(frame.f_code)
            if known.owner is Owner.USER:
                line = known.line_of(frame)
                calls = self._library_calls.setdefault(id(known.code), {})
                key = (entry.word, line.number)
                if key not in calls:
                    calls[key] = entry._replace(line=Line(line.code, line.number))
                return calls[key]
            frame = frame.f_back
        return entry

    def _look(self, known: Code, frame: FrameType, mode: str, inner: list[CodeType]) -> Finding:
        """What a frame says about a mode, remembered by instruction where that is all it depends on."""
        code = known.code
        if code.co_name in _WRAPPERS and _is_torch(code, "utils/_contextlib.py"):
            return self._decorator(frame, mode, inner)
        table = known.findings.get(mode, _UNREAD)
        if table is _UNREAD:
            table = known.findings[mode] = {} if _may_switch(known) else None
        if table is None:
            return _NOTHING
        finding = table.get(frame.f_lasti)
        if finding is None:
            finding = table[frame.f_lasti] = _finding_at(known, frame.f_lasti, frame.f_lineno or 0, mode)
        return finding

    def _decorator(self, frame: FrameType, mode: str, inner: list[CodeType]) -> Finding:
        """What the wrapper of a decorated function says; ``inner`` are the frames inside it, the nearest last.

        Of several decorators the innermost wrapper is nearest to the function. A function wrapped by hand has
        none in its source: which block its wrapper enters, the wrapper itself tells.
        """
        depth = 0
        while depth < len(inner) and inner[-1 - depth].co_name in _WRAPPERS:
            depth += 1
        if depth == len(inner):
            return _NOTHING
        code = inner[-1 - depth]
        known = self._decorated.get((mode, id(code), depth))
        if known is not None:
            return known
        written = switches_in(code.co_filename)
        found = written.decorators.get(scope_of(code), ())
        if depth >= len(found):
            return _wrapped_by_hand(frame, code, mode)
        finding = self._decorated[mode, id(code), depth] = _decorator_finding(found[-1 - depth], code, mode)
        return finding

    def _solve(self, mode: str, suspects: tuple[Suspect, ...]) -> Entry:
        """Nothing is certain: one single suspect in the whole program is the one."""
        key: tuple[str | int, ...] = (mode, len(self._codes.files), len(sys.modules), *map(id, suspects))
        entry = self._solved.get(key)
        if entry is None:
            entry = self._solved[key] = _single_suspect(mode, suspects, self._program_files())
        return entry

    def _program_files(self) -> Iterator[str]:
        """Source files of the program: its modules, and code that was typed in or run from elsewhere."""
        found = dict(self._codes.files)
        for module in list(sys.modules.values()):
            file = getattr(module, "__dict__", {}).get("__file__")
            if isinstance(file, str) and file.endswith(".py") and owner_of(file) is Owner.USER:
                found[file] = None
        yield from found


_UNREAD: dict[int, Finding] = {}
"""Stands for a table that is not made yet."""


def _may_switch(known: Code) -> bool:
    """Whether reading the source can be worth it: code without ``with`` and without these words says nothing."""
    code = known.code
    if known.owner <= Owner.PLUMBING and _told_by_name(code):
        return True
    if known.owner <= Owner.PLUMBING and not _is_torch(code, ""):
        return False
    words = SWITCH_WORDS.union({"__enter__", "enter_context"})
    if not words.isdisjoint(code.co_names) or not words.isdisjoint(code.co_varnames + code.co_freevars):
        return True
    return known.owner > Owner.PLUMBING and (not _WITH_OPS or not _WITH_OPS.isdisjoint(code.co_code[::2]))


def _finding_at(known: Code, instruction: int, line: int, mode: str) -> Finding:
    code = known.code
    if known.owner <= Owner.PLUMBING and _told_by_name(code):
        return _finding_by_name(code, mode)
    scope = switches_in(code.co_filename).scopes.get(scope_of(code))
    if scope is None:
        return _NOTHING
    position = _position(code, instruction, line)
    suspects: tuple[Suspect, ...] = ()
    for switch in scope.switches:  # the last to start comes first
        if switch.covers(position):
            if _switches_on(switch, mode):
                return Finding(None, suspects, back_on=True)
            if switch.mode == mode:
                return Finding(_entry(switch, code, known.owner), suspects)
            if switch.mode is None:
                entry = _entry(switch, code, known.owner)._replace(mode=mode)
                suspects += (Suspect(entry, switch.name, switch.likely),)
    return Finding(None, suspects) if suspects else _NOTHING


def _switches_on(switch: Switch, mode: str) -> bool:
    """``enable_grad`` does not lead out of inference mode."""
    return switch.mode == GRAD and (mode == NO_GRAD or "inference" in switch.word.lower())


def _entry(switch: Switch, code: CodeType, owner: Owner) -> Entry:
    entered = "library" if owner <= Owner.PLUMBING else switch.entered
    line = None if entered == "library" else Line(code, switch.line)
    return Entry(switch.mode or "", entered, line, switch.word)


def _position(code: CodeType, instruction: int, line: int) -> Position:
    """Where in the source an instruction stands; at the far end of its line where the column is not known."""
    for place, (first, _, column, _) in enumerate(code.co_positions()):
        if 2 * place == instruction:
            if first is not None and column is not None:
                return first, column
            break
    return line, 1 << 30


def _is_torch(code: CodeType, ending: str) -> bool:
    file = _file_of(code)
    return "/torch/" in file and file.endswith(ending)


def _told_by_name(code: CodeType) -> bool:
    """Functions known to switch, or to hold what is not the program's; their source need not be read."""
    return (
        code is _custom_function_apply
        or _is_command_line(code)
        or (code.co_name in _COMPARED and _file_of(code).endswith("graphscope/capture/modes.py"))
        or (code.co_name == "forward" and _is_torch(code, "torch/utils/checkpoint.py"))
        or (code.co_name == "_use_grad" and _is_torch(code, "torch/optim/optimizer.py"))
        or _is_torch(code, "torch/nn/init.py")
    )


def _finding_by_name(code: CodeType, mode: str) -> Finding:
    if _is_command_line(code):
        return Finding(back_on=True)
    if code.co_name in _COMPARED:
        return (
            Finding(Entry(mode, "library", None, "graphscope.compare")) if _COMPARED[code.co_name] == mode else _NOTHING
        )
    if _is_torch(code, "torch/nn/init.py"):
        return Finding(Entry(mode, "library", None, "torch.nn.init"))
    if mode != NO_GRAD:
        return _NOTHING
    if code is _custom_function_apply:
        return Finding(Entry(CUSTOM, "library", None, "autograd.Function"))
    if code.co_name == "forward":
        return Finding(Entry(CHECKPOINT, "library", None, "checkpoint(use_reentrant=True)"))
    return Finding(Entry(NO_GRAD, "library", None, "optimizer step"))


def _is_command_line(code: CodeType) -> bool:
    """What runs the program; the blocks that it stands in are not the program's."""
    return "/graphscope_cli/" in _file_of(code)


def _file_of(code: CodeType) -> str:
    return code.co_filename.replace("\\", "/")


def _decorator_finding(switch: Switch, code: CodeType, mode: str) -> Finding:
    if _switches_on(switch, mode):
        return Finding(back_on=True)
    return Finding(_entry(switch, code, owner_of(code.co_filename))) if switch.mode == mode else _NOTHING


def _wrapped_by_hand(frame: FrameType, code: CodeType, mode: str) -> Finding:
    entered = _wrapped_mode(frame)
    if entered is None:
        return _NOTHING
    switch = switches_in(code.co_filename).wrapped.get(code.co_name)
    if switch is not None and switch.mode == entered:
        return _decorator_finding(switch, code, mode)
    if entered == GRAD:
        return Finding(back_on=mode == NO_GRAD)
    return Finding(Entry(mode, "decorator", None, mode)) if entered == mode else _NOTHING


def _wrapped_mode(frame: FrameType) -> str | None:
    """The mode that the block behind a wrapper of ``torch.utils._contextlib`` switches to."""
    make = frame.f_locals.get("ctx_factory")
    block = getattr(make, "__self__", None)
    for kind, mode in ((torch.no_grad, NO_GRAD), (torch.enable_grad, GRAD)):
        if isinstance(block, kind):
            return mode
    if isinstance(block, torch.set_grad_enabled):
        return GRAD if block.mode else NO_GRAD
    if isinstance(block, torch.inference_mode):
        return INFERENCE if block.mode else GRAD
    return None


def _single_suspect(mode: str, suspects: tuple[Suspect, ...], files: Iterable[str]) -> Entry:
    """The one place that can have switched the mode, or nobody.

    Suspected are blocks in force whose expression may be anything, statements anywhere in the program,
    and blocks that a paused generator may hold. A word such as ``no_grad`` in any other place makes it impossible to
    be sure, unless it stands in what a suspected block calls.
    """
    texts = {file: switches_in(file) for file in files}
    likely = [one for one in suspects if one.likely or _leads_to_switch(one.name, texts.values())]
    explained = {one.name for one in likely}
    elsewhere = [
        Entry(mode, "generator" if switch.pauses else switch.entered, _line_in(file, switch.line), switch.word)
        for file, written in texts.items()
        for switch in written.all_switches()
        if switch.mode == mode and (switch.pauses or not switch.block) and explained.isdisjoint(switch.owners)
    ]
    candidates = [*dict.fromkeys(one.entry for one in likely), *elsewhere]
    unclear = any(explained.isdisjoint(mention.names) for written in texts.values() for mention in written.mentions)
    if not candidates and not unclear:
        defined = frozenset().union(*(written.known for written in texts.values()))
        candidates = [*dict.fromkeys(one.entry for one in suspects if one.name not in defined)]
    if len(candidates) == 1 and not unclear:
        return candidates[0]
    return Entry(mode, "unknown", None, mode)


def _leads_to_switch(name: str, texts: Iterable[Switches]) -> bool:
    """Something of this name, defined in the program, mentions or contains a switch."""
    return bool(name) and any(
        any(name in mention.names for mention in written.mentions)
        or any(name in switch.owners and switch.mode not in {None, GRAD} for switch in written.all_switches())
        for written in texts
    )


def _line_in(file: str, number: int) -> Line:
    return Line(compile("", file, "exec"), number)
