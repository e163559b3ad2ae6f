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
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import NamedTuple

import torch

from graphscope.capture.code.blocks import mode_of_block
from graphscope.capture.code.source import Code, Line, Owner, owner_of
from graphscope.capture.code.switches import (
    GRAD,
    INFERENCE,
    NO_GRAD,
    SWITCH_WORDS,
    Position,
    Scope,
    Switch,
    Switches,
    scope_of,
    switches_in,
)
from graphscope.capture.recording.callstack import CallStack, Outside
from graphscope.capture.recording.libraries import (
    CHECKPOINT,
    CUSTOM,
    FUNCTION_APPLY,
    IN_FUNCTION,
    is_command_line,
    is_custom_forward,
    is_known,
    is_torch,
    known_entry,
)
from graphscope.capture.recording.oprecords import Entry

__all__ = ["CHECKPOINT", "CUSTOM", "GRAD", "INFERENCE", "NO_GRAD", "Entry", "Regions", "current_mode"]

_WITH_OPS = frozenset(
    dis.opmap[name] for name in ("BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL", "SETUP_WITH") if name in dis.opmap
)
"""Instructions that every ``with`` statement has."""

_WRAPPERS = frozenset({"decorate_context", "generator_context"})
"""What ``torch.utils._contextlib`` puts around a decorated function."""


class Suspect(NamedTuple):
    """A place that may have switched the mode."""

    entry: Entry
    switch: Switch

    @property
    def name(self) -> str:
        """What its expression calls."""
        return self.switch.name

    @property
    def likely(self) -> bool:
        """Its text names a switch."""
        return self.switch.likely


class Finding(NamedTuple):
    """What one place on the stack says about a mode."""

    entry: Entry | None = None
    """It certainly switched to the mode."""
    suspects: tuple[Suspect, ...] = ()
    back_on: bool = False
    """It certainly switched back to grad, so that no frame outside of it is to blame."""
    around: tuple[Entry, ...] = ()
    """Further blocks around it in the same function, innermost first."""


NOTHING = Finding()


def current_mode() -> str:
    """The mode that an op runs under now; inference mode wins over whatever the grad flag says."""
    if torch.is_inference_mode_enabled():
        return INFERENCE
    return GRAD if torch.is_grad_enabled() else NO_GRAD


class Regions:
    """Finds who switched the mode, and remembers what it learnt of each instruction and of each running module."""

    def __init__(self, stack: CallStack) -> None:
        """Share what a recorder's call stack has learnt."""
        self._stack = stack
        self._codes = stack.codes
        self._solved: dict[tuple[str | int, ...], Entry] = {}
        self._library_calls: dict[int, dict[tuple[str, int], Entry]] = {}
        """By ``id`` of the code that calls, then by what it calls and the line."""
        self._decorated: dict[tuple[str, int, int], Finding] = {}
        """By mode, ``id`` of the decorated function's code, and number of wrappers between."""

    def find(self, frame: FrameType | None, mode: str) -> Entry:
        """Who switched to ``mode``, looked for from ``frame`` outwards."""
        found = self._search(frame, mode)
        if found.entry is not None:
            return found.entry
        suspects = found.suspects
        if suspects:
            entry, suspects = self._ask(frame, mode, suspects)
            if entry is not None:
                return entry
        return self._solve(mode, suspects, frame)

    def _ask(
        self, frame: FrameType | None, mode: str, suspects: tuple[Suspect, ...]
    ) -> tuple[Entry | None, tuple[Suspect, ...]]:
        """The first suspect that did it, as its frame's own variables tell; else those of which they tell nothing."""
        unclear: list[Suspect] = []
        waiting = len(suspects)
        while frame is not None and waiting:
            table = self._codes.of(frame.f_code).findings.get(mode)
            own = table.get(frame.f_lasti, NOTHING) if table else NOTHING
            kept = frame.f_trace
            for suspect in own.suspects:
                waiting -= 1
                answers = kept.findings if type(kept) is Outside and kept.stack is self._stack else {}
                key = f"{mode} {id(suspect)}"
                if key not in answers:
                    answers[key] = mode_of_block(suspect.switch, frame)
                if answers[key] == mode:
                    return _entered_in(suspect, frame.f_code, mode), ()
                if answers[key] is None:
                    unclear.append(suspect)
            frame = frame.f_back
        return None, tuple(unclear)

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
                others = [other for other in (one.entry, *one.around) if other != entry and other not in found]
                found += others if passed else []
        return tuple(found)

    def _findings(self, frame: FrameType | None, mode: str) -> Iterator[Finding]:
        inner: list[CodeType] = []
        while frame is not None:
            known = self._codes.of(frame.f_code)
            yield self._with_line(self._look(known, frame, mode, inner), frame)
            inner.append(frame.f_code)
            frame = frame.f_back

    def _search(self, frame: FrameType | None, mode: str) -> Finding:
        """The first certain switch from ``frame`` outwards, else all suspects; the hot loop of this module."""
        codes, stack = self._codes, self._stack
        inner: list[CodeType] = []
        passed: list[tuple[Outside | None, Finding]] = []
        """What frames say themselves, and where to keep what is found outside of them."""
        found = NOTHING
        while frame is not None:
            code = frame.f_code
            known = codes.get(id(code)) or codes.of(code)
            table = known.findings.get(mode, _UNREAD)
            own = NOTHING
            if table is not None:
                own = table.get(frame.f_lasti) or self._look(known, frame, mode, inner)
                if own.entry is not None or own.back_on:
                    found = self._with_line(own, frame)
                    break
            kept = frame.f_trace
            if type(kept) is Outside and kept.stack is stack:
                outside = kept.findings.get(mode)
                if outside is not None:
                    found = _joined(own, outside)
                    break
                passed.append((kept, own))
            elif own is not NOTHING:
                passed.append((None, own))
            inner.append(code)
            frame = frame.f_back
        for keep, own in reversed(passed):
            if keep is not None:
                keep.findings[mode] = found
            found = _joined(own, found)
        return found

    def _with_line(self, finding: Finding, frame: FrameType) -> Finding:
        entry = finding.entry
        if entry is None or entry.line is not None or entry.entered != "library":
            return finding
        inside = entry is IN_FUNCTION and frame.f_code is not FUNCTION_APPLY
        return finding._replace(entry=self._called_from(entry, frame.f_back if inside else frame))

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
        if code.co_name in _WRAPPERS and is_torch(code, "utils/_contextlib.py"):
            return self._decorator(frame, mode, inner)
        table = known.findings.get(mode, _UNREAD)
        if table is _UNREAD:
            table = known.findings[mode] = {} if _may_switch(known) else None
        if table is None:
            return NOTHING
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
            return NOTHING
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

    def _solve(self, mode: str, suspects: tuple[Suspect, ...], frame: FrameType | None) -> Entry:
        """Nothing is certain: one single suspect in the whole program is the one."""
        key: tuple[str | int, ...] = (mode, len(self._codes.files), len(sys.modules), *map(id, suspects))
        entry = self._solved.get(key)
        if entry is None:
            entry = self._solved[key] = _single_suspect(mode, suspects, self._program_files(frame))
        return entry

    def _program_files(self, frame: FrameType | None) -> Iterator[str]:
        """Source files of the program: those of the functions seen, and of all modules that their globals lead to."""
        found = dict(self._codes.files)
        waiting: list[dict[str, object]] = []
        while frame is not None:
            waiting.append(frame.f_globals)
            frame = frame.f_back
        modules = {name: module for name, module in list(sys.modules.items()) if _user_file(module) is not None}
        by_file = {_user_file(module): module for module in modules.values()}
        waiting += [vars(by_file[file]) for file in found if file in by_file]
        seen: set[int] = set()
        while waiting:
            variables = waiting.pop()
            if id(variables) in seen:
                continue
            seen.add(id(variables))
            for value in list(variables.values()):
                name = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", None)
                if isinstance(value, (type, FunctionType)):
                    name = value.__module__
                module = modules.get(name) if isinstance(name, str) else None
                if module is not None:
                    found[str(_user_file(module))] = None
                    waiting.append(vars(module))
        yield from found


def _entered_in(suspect: Suspect, code: CodeType, mode: str) -> Entry:
    """A block that did it; of an exit stack, the one statement that can have put the switch onto it."""
    scope = switches_in(code.co_filename).scopes[scope_of(code)]
    inside = [one for one in scope.switches if not one.block and one.mode == mode and one.entered == "with"]
    if len(inside) == 1 and suspect.switch.start <= inside[0].start <= suspect.switch.end:
        return _entry(inside[0], code, Owner.USER)
    return suspect.entry


def _user_file(module: ModuleType) -> str | None:
    file = getattr(module, "__dict__", {}).get("__file__")
    known = isinstance(file, str) and file.endswith(".py") and owner_of(file) is Owner.USER
    return file if known else None


def _joined(own: Finding, outside: Finding) -> Finding:
    """What a frame and all outside of it say, where the frame itself is not certain."""
    return outside._replace(suspects=own.suspects + outside.suspects) if own.suspects else outside


_UNREAD: dict[int, Finding] = {}
"""Stands for a table that is not made yet."""


def _may_switch(known: Code) -> bool:
    """Whether reading the source can be worth it: code without ``with`` and without these words says nothing."""
    code = known.code
    if known.owner <= Owner.PLUMBING:
        if is_known(code) or is_command_line(code):
            return True
        if not is_torch(code):
            return False
    if is_custom_forward(code):
        return True
    words = SWITCH_WORDS.union({"__enter__", "enter_context"})
    if not words.isdisjoint(code.co_names) or not words.isdisjoint(code.co_varnames + code.co_freevars):
        return True
    return known.owner > Owner.PLUMBING and (not _WITH_OPS or not _WITH_OPS.isdisjoint(code.co_code[::2]))


def _finding_at(known: Code, instruction: int, line: int, mode: str) -> Finding:
    code = known.code
    if known.owner <= Owner.PLUMBING and is_command_line(code):
        return Finding(back_on=True)
    if known.owner <= Owner.PLUMBING and is_known(code):
        entry = known_entry(code, mode)
        return NOTHING if entry is None else Finding(entry)
    scope = switches_in(code.co_filename).scopes.get(scope_of(code), Scope(()))
    position = _position(code, instruction, line)
    suspects: tuple[Suspect, ...] = ()
    for switch in scope.switches:  # the last to start comes first
        if switch.covers(position):
            if _switches_on(switch, mode):
                return Finding(None, suspects, back_on=True)
            if switch.mode == mode:
                around = _around(scope.switches, switch, position, mode)
                outer = tuple(_entry(one, code, known.owner) for one in around)
                return Finding(_entry(switch, code, known.owner), suspects, around=outer)
            if switch.mode is None:
                entry = _entry(switch, code, known.owner)._replace(mode=mode)
                suspects += (Suspect(entry, switch),)
    if mode == NO_GRAD and is_custom_forward(code):
        return Finding(IN_FUNCTION, suspects)
    return Finding(None, suspects) if suspects else NOTHING


def _around(switches: tuple[Switch, ...], switch: Switch, position: Position, mode: str) -> Iterator[Switch]:
    """The other blocks in force, as far as no block between switches gradients on again."""
    for one in switches[switches.index(switch) + 1 :]:
        if one.block and one.covers(position):
            if _switches_on(one, mode):
                return
            if one.mode == mode:
                yield one


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


def _decorator_finding(switch: Switch, code: CodeType, mode: str) -> Finding:
    if _switches_on(switch, mode):
        return Finding(back_on=True)
    return Finding(_entry(switch, code, owner_of(code.co_filename))) if switch.mode == mode else NOTHING


def _wrapped_by_hand(frame: FrameType, code: CodeType, mode: str) -> Finding:
    entered = _wrapped_mode(frame)
    if entered is None:
        return NOTHING
    switch = switches_in(code.co_filename).wrapped.get(code.co_name)
    if switch is not None and switch.mode == entered:
        return _decorator_finding(switch, code, mode)
    if entered == GRAD:
        return Finding(back_on=mode == NO_GRAD)
    return Finding(Entry(mode, "decorator", None, mode)) if entered == mode else NOTHING


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
