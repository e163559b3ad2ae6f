"""Under which grad mode an op ran, and which line of the program switched to it.

torch tells the mode; it does not tell who set it, and nothing of torch is patched to find out. But the code
that set it is nearly always still running: it stands on the stack as a ``with`` block, as the wrapper of
a decorator, or as a library function known to do so. What is left is a statement that was never undone.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from graphscope.capture.source import Line, Owner, current_lines, owner_of

GRAD = "grad"
NO_GRAD = "no_grad"
INFERENCE = "inference_mode"
CUSTOM = "custom_function"
CHECKPOINT = "checkpoint"

_SWITCHES = {
    "no_grad": NO_GRAD,
    "set_grad_enabled": NO_GRAD,
    "_set_grad_enabled": NO_GRAD,
    "inference_mode": INFERENCE,
    "_InferenceMode": INFERENCE,
}
_SETTERS = frozenset({"set_grad_enabled", "_set_grad_enabled"})
"""Calls that take effect as they stand; the others only as a block or decorator."""

_COMPARED = {
    "call_in_no_grad": NO_GRAD,
    "call_in_set_grad_enabled": NO_GRAD,
    "call_in_inference_mode": INFERENCE,
}
"""Functions of ``modes.py`` that run a whole computation in a mode."""

_OTHER_BLOCKS = frozenset(
    [
        "FakeTensorMode",
        "Lock",
        "Pool",
        "StringIO",
        "autocast",
        "catch_warnings",
        "device",
        "enable_grad",
        "open",
        "profile",
        "record_function",
        "recording",
        "save_on_cpu",
        "saved_tensors_hooks",
        "sdpa_kernel",
        "suppress",
        "tqdm",
    ]
)
"""Common blocks that never switch gradients off, so that they are not suspected of it."""


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


class Block(NamedTuple):
    """A ``with`` statement that may switch the mode, read from source."""

    first: int
    last: int
    line: int
    scope: int
    """First line of the function that it stands in, decorators included; 0 for the module."""
    switch: str | None
    """What it says it switches to; ``None`` if the text does not tell (``with context:``)."""
    word: str
    yields: bool


class Statement(NamedTuple):
    """A bare call that switches the mode and leaves it so."""

    line: int
    scope: int
    switch: str
    word: str


class Switches(NamedTuple):
    """All that a source file says about grad modes."""

    blocks: tuple[Block, ...]
    decorators: dict[int, tuple[int, str, str]]
    """By first line of the function: line, mode and text of the decorator."""
    statements: tuple[Statement, ...]


_custom_function_apply: CodeType = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def current_mode() -> str:
    """The mode that an op runs under now; inference mode wins over whatever the grad flag says."""
    if torch.is_inference_mode_enabled():
        return INFERENCE
    return GRAD if torch.is_grad_enabled() else NO_GRAD


def find_entry(frame: FrameType | None, mode: str, files_seen: Iterable[str] = ()) -> Entry:
    """Who switched to ``mode``, looked for from ``frame`` outwards.

    Args:
        frame: the frame that called the op.
        mode: what ``current_mode`` said; not ``grad``.
        files_seen: source files of the program, searched for a statement if no block is in force.
    """
    possible: Entry | None = None
    inner: FrameType | None = None
    outermost: list[FrameType] = []
    while frame is not None and not _is_command_line(frame):
        found = _entry_at(frame.f_code, frame.f_lineno or 0, mode)
        if found is None and inner is not None and _is_decorator_wrapper(frame.f_code):
            found = _decorator_of(inner.f_code, mode)
        if found is not None:
            if found.entered != "unknown":
                return found if found.line is not None else found._replace(line=_user_line(frame))
            possible = possible or found
        outermost.append(frame)
        inner, frame = frame, frame.f_back
    if possible is not None:
        return possible._replace(entered="with")
    return _left_on(outermost, mode, files_seen)


def _is_command_line(frame: FrameType) -> bool:
    """What runs the program; the blocks that it stands in are not the program's."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "graphscope_cli"


@functools.lru_cache(maxsize=65536)
def _entry_at(code: CodeType, line: int, mode: str) -> Entry | None:
    file = code.co_filename
    if code is _custom_function_apply and mode == NO_GRAD:
        return Entry(CUSTOM, "library", None, "autograd.Function")
    if owner_of(file) is Owner.PLUMBING:
        return _library_entry(code, mode)
    scope = 0 if code.co_name == "<module>" else code.co_firstlineno
    for block in switches_in(file).blocks:  # innermost first
        if block.first <= line <= block.last and block.scope == scope:
            if block.switch == mode:
                return Entry(mode, "with", Line(code, block.line), block.word)
            if block.switch is None:
                return Entry(mode, "unknown", Line(code, block.line), block.word)
    return None


def _library_entry(code: CodeType, mode: str) -> Entry | None:
    """Parts of torch that switch gradients off by themselves, and a comparison of modes."""
    file, name = code.co_filename.replace("\\", "/"), code.co_name
    if file.endswith("graphscope/capture/modes.py") and _COMPARED.get(name) == mode:
        return Entry(mode, "library", None, "graphscope.compare")
    if file.endswith("torch/nn/init.py"):
        return Entry(mode, "library", None, "torch.nn.init")
    if mode != NO_GRAD:
        return None
    if file.endswith("torch/utils/checkpoint.py") and name == "forward":
        return Entry(CHECKPOINT, "library", None, "checkpoint(use_reentrant=True)")
    if file.endswith("torch/optim/optimizer.py") and name == "_use_grad":
        return Entry(NO_GRAD, "library", None, "optimizer step")
    return None


def _user_line(frame: FrameType | None) -> Line | None:
    """The program's line that called what switches by itself: ``optimizer.step()``, ``checkpoint(…)``."""
    line = current_lines(frame).user
    return None if line is None else Line(line.code, line.number)


def _is_decorator_wrapper(code: CodeType) -> bool:
    return code.co_name in {"decorate_context", "generator_context"} and code.co_filename.replace("\\", "/").endswith(
        "torch/utils/_contextlib.py"
    )


def _decorator_of(code: CodeType, mode: str) -> Entry | None:
    """The decorator of a function that torch's wrapper has just called.

    A function wrapped by hand (``torch.no_grad()(f)``) has none in its source; its first line stands for it.
    """
    written = switches_in(code.co_filename).decorators.get(code.co_firstlineno)
    if written is None:
        return Entry(mode, "decorator", Line(code, code.co_firstlineno), mode)
    line, switch, word = written
    return Entry(mode, "decorator", Line(code, line), word) if switch == mode else None


def _left_on(frames: list[FrameType], mode: str, files_seen: Iterable[str]) -> Entry:
    """No block is in force: a statement switched the mode and was not undone, or a paused generator holds it."""
    for frame in frames:
        code = frame.f_code
        if owner_of(code.co_filename) is not Owner.USER:
            continue
        scope = 0 if code.co_name == "<module>" else code.co_firstlineno
        before = [
            found
            for found in switches_in(code.co_filename).statements
            if found.switch == mode and found.scope == scope and found.line <= (frame.f_lineno or 0)
        ]
        if before:
            last = max(before, key=lambda found: found.line)
            return Entry(mode, "statement", Line(code, last.line), last.word)
    elsewhere = list(_suspects(frames, mode, files_seen))
    if len(elsewhere) == 1:
        return elsewhere[0]
    return Entry(mode, "unknown", None, mode)


def _suspects(frames: list[FrameType], mode: str, files_seen: Iterable[str]) -> Iterator[Entry]:
    """Every place in the program that could have left the mode on; one alone is the one."""
    codes = {frame.f_code.co_filename: frame.f_code for frame in frames}
    for file in dict.fromkeys([*files_seen, *codes]):
        if owner_of(file) is not Owner.USER:
            continue
        code = codes.get(file) or compile("", file, "exec")
        switches = switches_in(file)
        for statement in switches.statements:
            if statement.switch == mode:
                yield Entry(mode, "statement", Line(code, statement.line), statement.word)
        for block in switches.blocks:
            if block.switch == mode and block.yields:
                yield Entry(mode, "generator", Line(code, block.line), block.word)


@functools.lru_cache(maxsize=1024)
def switches_in(file: str) -> Switches:
    """What the source of a file says about grad modes; nothing if it cannot be read or parsed."""
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Switches((), {}, ())
    blocks: list[Block] = []
    decorators: dict[int, tuple[int, str, str]] = {}
    statements: list[Statement] = []
    waiting: list[tuple[ast.AST, int]] = [(tree, 0)]
    while waiting:
        node, scope = waiting.pop()
        inner_scope = scope
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner_scope = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            for decorator in node.decorator_list:
                switch = _switch_of(decorator)
                if switch:
                    decorators[inner_scope] = (decorator.lineno, switch, ast.unparse(decorator))
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            blocks += _blocks_of(node, scope)
        elif isinstance(node, ast.Expr):
            switch = _set_by_hand(node.value)
            if switch:
                statements.append(Statement(node.lineno, scope, switch, ast.unparse(node.value)))
        waiting.extend((child, inner_scope) for child in ast.iter_child_nodes(node))
    blocks.sort(key=lambda block: (block.last - block.first, -block.line))
    return Switches(tuple(blocks), decorators, tuple(statements))


def _blocks_of(node: ast.With | ast.AsyncWith, scope: int) -> Iterator[Block]:
    first, last = node.body[0].lineno, node.end_lineno or node.lineno
    yields = any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node))
    for item in reversed(node.items):
        expression = item.context_expr
        switch = _switch_of(expression)
        if switch is None and (_last_name(expression) in _OTHER_BLOCKS | _SWITCHES.keys()):
            continue
        yield Block(first, last, expression.lineno, scope, switch, ast.unparse(expression), yields)


def _switch_of(expression: ast.expr) -> str | None:
    """The mode that ``torch.no_grad()`` and its like switch to; ``None`` for all else, ``set_grad_enabled(True)`` too.

    A flag that is no constant may switch either way; torch's own flags have told already that it did.
    """
    word = _last_name(expression)
    mode = _SWITCHES.get(word)
    if mode is None or not isinstance(expression, ast.Call):
        return mode if word in {"no_grad", "inference_mode"} else None  # a decorator without parentheses
    flag = next((argument.value for argument in expression.args if isinstance(argument, ast.Constant)), None)
    flag = next(
        (keyword.value.value for keyword in expression.keywords if isinstance(keyword.value, ast.Constant)), flag
    )
    if word in _SETTERS:
        return None if flag is True else mode
    return None if mode == INFERENCE and flag is False else mode


def _set_by_hand(expression: ast.expr) -> str | None:
    """``torch.set_grad_enabled(False)``, ``torch.no_grad().__enter__()``; a lone ``torch.no_grad()`` does nothing."""
    if not isinstance(expression, ast.Call):
        return None
    word = _last_name(expression)
    if word == "__enter__" and isinstance(expression.func, ast.Attribute):
        return _switch_of(expression.func.value)
    if word == "enter_context" and expression.args:
        return _switch_of(expression.args[0])
    return _switch_of(expression) if word in _SETTERS else None


def _last_name(expression: ast.expr) -> str:
    """``no_grad`` of ``torch.autograd.no_grad()``."""
    if isinstance(expression, ast.Call):
        expression = expression.func
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""
