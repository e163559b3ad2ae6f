"""What the source of a file says about grad modes: blocks, decorators, statements, and every other mention.

Only the text is read (``ast``), nothing is run or imported.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

GRAD = "grad"
NO_GRAD = "no_grad"
INFERENCE = "inference_mode"

Position = tuple[int, int]
"""Line and column, as ``ast`` and code objects count them: from 1 and from 0, in UTF-8 bytes."""

_MODES = {
    "no_grad": NO_GRAD,
    "set_grad_enabled": NO_GRAD,
    "_set_grad_enabled": NO_GRAD,
    "inference_mode": INFERENCE,
    "_InferenceMode": INFERENCE,
    "enable_grad": GRAD,
}
_SETTERS = frozenset({"set_grad_enabled", "_set_grad_enabled"})
"""Calls that take effect as they stand; the others only as a block or decorator."""

SWITCH_WORDS = frozenset(_MODES)

_HARMLESS_BLOCKS = frozenset(
    [
        "FakeTensorMode",
        "Lock",
        "Pool",
        "RLock",
        "StringIO",
        "TemporaryDirectory",
        "ThreadPoolExecutor",
        "autocast",
        "catch_warnings",
        "closing",
        "device",
        "fork_rng",
        "nullcontext",
        "open",
        "profile",
        "raises",
        "record_function",
        "recording",
        "redirect_stdout",
        "save_on_cpu",
        "saved_tensors_hooks",
        "sdpa_kernel",
        "subTest",
        "suppress",
        "tqdm",
        "warns",
    ]
)
"""Common blocks that never switch gradients off, so that they are not suspected of it."""


class Switch(NamedTuple):
    """One place of the source that may have switched the mode, and the stretch of code for which that is certain."""

    entered: str
    """``with``, ``decorator`` or ``statement``."""
    mode: str | None
    """What it switches to; ``None`` for a block that may do anything."""
    line: int
    word: str
    """The expression as it is written."""
    start: Position = (0, 0)
    end: Position = (0, 0)
    name: str = ""
    """What the expression calls: ``evaluating`` of ``with evaluating(model):``."""
    owners: tuple[str, ...] = ()
    """The functions and classes around it."""
    pauses: bool = False
    """A ``yield`` or ``await`` inside can leave the block while it is in force."""
    block: bool = False
    """A ``with`` statement, which is certainly over once its body has been left."""
    likely: bool = False
    """Not certain, but its text names a switch: ``with no_grad() if frozen else nullcontext():``."""
    expression: ast.expr | None = None
    """What a block that may do anything enters."""
    target: ast.expr | None = None
    """The name that it gives to it."""
    outermost: bool = False
    """A statement that its function, class or module cannot leave out."""

    def covers(self, position: Position) -> bool:
        """Code at this position runs after the switch and within its reach."""
        return self.start <= position < self.end


class Scope(NamedTuple):
    """The switches of one function, class body or module, the last to start first."""

    switches: tuple[Switch, ...]
    yields: tuple[Position, ...] = ()
    """Where it hands out values."""


class Mention(NamedTuple):
    """A word that switches modes, where it is neither a block, a decorator nor a statement by itself."""

    names: frozenset[str]
    """What it is assigned to, and the functions and classes around it."""


class Switches(NamedTuple):
    """All that a source file says about grad modes."""

    scopes: dict[tuple[int, str], Scope]
    """By first line and name of the code object."""
    decorators: dict[tuple[int, str], tuple[Switch, ...]]
    """By first line and name of the decorated function, outermost first."""
    wrapped: dict[str, Switch]
    """Functions wrapped by hand, ``torch.no_grad()(f)``, by name."""
    mentions: tuple[Mention, ...]
    known: frozenset[str]
    """Functions, classes and variables that the file defines."""

    def all_switches(self) -> Iterator[Switch]:
        """The blocks and statements of every scope."""
        for scope in self.scopes.values():
            yield from scope.switches


_NOTHING = Switches({}, {}, {}, (), frozenset())


def scope_of(code: CodeType) -> tuple[int, str]:
    """The key of a code object in ``Switches``."""
    return (0, "<module>") if code.co_name == "<module>" else (code.co_firstlineno, code.co_name)


@functools.lru_cache(maxsize=1024)
def switches_in(file: str) -> Switches:
    """What a file says; nothing if it cannot be read or parsed."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _NOTHING
    return _Reader().read(tree)


class _Reader:
    """Goes once through a tree, without recursion."""

    def __init__(self) -> None:
        self._switches: dict[tuple[int, str], list[Switch]] = {}
        self._yields: dict[tuple[int, str], list[Position]] = {}
        self._decorators: dict[tuple[int, str], tuple[Switch, ...]] = {}
        self._wrapped: dict[str, Switch] = {}
        self._mentions: list[Mention] = []
        self._known: set[str] = set()
        self._aliases: dict[str, str] = {}
        self._told: set[int] = set()
        """``id`` of the expressions that were understood; the tree keeps them alive."""

    def read(self, tree: ast.Module) -> Switches:
        waiting: list[tuple[ast.AST, tuple[int, str], tuple[str, ...]]] = [(tree, (0, "<module>"), ())]
        mentioned: list[tuple[ast.AST, frozenset[str]]] = []
        while waiting:
            node, scope, owners = waiting.pop()
            if isinstance(node, ast.stmt):
                self._read_statement(node, scope, owners)
            if isinstance(node, ast.Call):
                self._read_wrapping(node)
            elif isinstance(node, (ast.Yield, ast.YieldFrom)):
                self._yields.setdefault(scope, []).append((node.lineno, node.col_offset))
            if self._mentions_switch(node):
                mentioned.append((node, frozenset(owners)))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                scope = (min([node.lineno, *(one.lineno for one in node.decorator_list)]), node.name)
                owners = (*owners, node.name)
            children = list(ast.iter_child_nodes(node))
            names = frozenset(_target_names(node))
            if names:
                owners = (*owners, *names)
            waiting.extend((child, scope, owners) for child in reversed(children))
            self._read_suites(node, scope, owners)
        self._mentions += [Mention(names) for node, names in mentioned if id(node) not in self._told]
        scopes = {
            scope: Scope(
                tuple(sorted(self._switches.get(scope, ()), key=lambda one: (one.start, one.line), reverse=True)),
                tuple(self._yields.get(scope, ())),
            )
            for scope in dict.fromkeys([*self._switches, *self._yields])
        }
        return Switches(scopes, self._decorators, self._wrapped, tuple(self._mentions), frozenset(self._known))

    def _read_statement(self, node: ast.stmt, scope: tuple[int, str], owners: tuple[str, ...]) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                word = alias.name.rpartition(".")[2]
                if alias.asname and word in SWITCH_WORDS:
                    self._aliases[alias.asname] = word
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._known.add(node.name)
            self._read_decorators(node)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._switches.setdefault(scope, []).extend(self._blocks_of(node, owners))
        self._known.update(_target_names(node))

    def _read_decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        found = []
        for decorator in node.decorator_list:
            mode = self._mode_of(decorator, bare=True)
            if mode:
                self._tell(decorator)
                found.append(Switch("decorator", mode, decorator.lineno, ast.unparse(decorator)))
        if found:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            self._decorators[first, node.name] = tuple(found)

    def _read_wrapping(self, node: ast.Call) -> None:
        """``torch.no_grad()(f)`` and ``torch.no_grad(f)``."""
        if len(node.args) != 1 or node.keywords:
            return
        wrapper: ast.expr = node.func
        mode = self._mode_of(wrapper) if isinstance(wrapper, ast.Call) else None
        if mode is None and self._word(node) not in _SETTERS and isinstance(node.args[0], (ast.Name, ast.Attribute)):
            mode = self._mode_of(wrapper, bare=True)
        name = last_name(node.args[0])
        if mode and name:
            self._tell(wrapper)
            self._wrapped[name] = Switch("decorator", mode, node.lineno, ast.unparse(wrapper))

    def _read_suites(self, node: ast.AST, scope: tuple[int, str], owners: tuple[str, ...]) -> None:
        """Statements that switch the mode reach to the end of the list of statements that they stand in."""
        for field in ("body", "orelse", "finalbody"):
            suite = getattr(node, field, None)
            if not isinstance(suite, list):
                continue
            for place, statement in enumerate(suite):
                for switch in self._switches_of(statement):
                    end = suite[-1] if place + 1 < len(suite) else statement
                    reach = (_end(statement), _end(end))
                    outermost = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module))
                    self._switches.setdefault(scope, []).append(
                        switch._replace(start=reach[0], end=reach[1], owners=owners, outermost=outermost)
                    )

    def _switches_of(self, statement: ast.stmt) -> Iterator[Switch]:
        """``torch.set_grad_enabled(False)`` by itself or assigned; ``x.__enter__()``, ``stack.enter_context(x)``."""
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            yield from self._left_behind(statement)
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign)) or not isinstance(
            statement.value, ast.Call
        ):
            return
        call = statement.value
        word = last_name(call)
        if self._word(call) in _SETTERS:
            self._tell(call)
            yield Switch("statement", self._mode_of(call), statement.lineno, ast.unparse(call))
        elif word in {"__enter__", "enter_context"}:
            entered = call.args[0] if word == "enter_context" and call.args else getattr(call.func, "value", None)
            if entered is None:
                return
            mode = self._mode_of(entered)
            name = last_name(entered)
            kind = "with" if word == "enter_context" else "statement"
            if mode is not None or name not in _HARMLESS_BLOCKS:
                likely = self._names_switch(entered)
                yield Switch(kind, mode, entered.lineno, ast.unparse(entered), name=name, likely=likely)

    def _left_behind(self, node: ast.With | ast.AsyncWith) -> Iterator[Switch]:
        """A statement in a block that switches nothing itself goes on after the block."""
        if all(last_name(item.context_expr) in _HARMLESS_BLOCKS for item in node.items):
            for statement in node.body:
                for switch in self._switches_of(statement):
                    if switch.entered == "statement":
                        yield switch

    def _blocks_of(self, node: ast.With | ast.AsyncWith, owners: tuple[str, ...]) -> Iterator[Switch]:
        pauses = isinstance(node, ast.AsyncWith) or any(
            isinstance(part, (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith))
            for part in ast.walk(node)
        )
        for item in node.items:
            expression = item.context_expr
            mode = self._mode_of(expression)
            name = last_name(expression)
            if mode is None and name in _HARMLESS_BLOCKS:
                continue
            yield Switch(
                "with",
                mode,
                expression.lineno,
                ast.unparse(expression),
                _end(expression),
                _end(node),
                name=name,
                owners=owners,
                pauses=pauses,
                block=True,
                likely=self._names_switch(expression),
                expression=expression if mode is None else None,
                target=item.optional_vars,
            )

    def _mode_of(self, expression: ast.expr, *, bare: bool = False) -> str | None:
        """The mode that ``torch.no_grad()`` and its like switch to; ``None`` for all else.

        A flag that is no constant may switch either way; torch's own flags have told already that it did. ``bare``
        takes ``torch.no_grad`` without parentheses too, as decorators do.
        """
        word = self._word(expression)
        mode = _MODES.get(word)
        if mode is None:
            return None
        if not isinstance(expression, ast.Call):
            return mode if bare and word not in _SETTERS else None
        values = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        flag = values[0].value if values and isinstance(values[0], ast.Constant) else None
        if word in _SETTERS:
            return GRAD if flag is True else mode
        return GRAD if mode == INFERENCE and flag is False else mode

    def _mentions_switch(self, node: ast.AST) -> bool:
        """``no_grad``, ``torch.no_grad`` or ``getattr(torch, "no_grad")``."""
        if isinstance(node, ast.Call):
            named = last_name(node) == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
            return named and node.args[1].value in SWITCH_WORDS  # type: ignore[attr-defined]
        return self._word(node) in SWITCH_WORDS

    def _names_switch(self, expression: ast.expr) -> bool:
        """The expression names a switch somewhere; all such words in it are understood then."""
        found = [part for part in ast.walk(expression) if self._word(part) in SWITCH_WORDS]
        self._told.update(map(id, found))
        return bool(found)

    def _word(self, node: ast.AST) -> str:
        name = last_name(node)
        return self._aliases.get(name, name)

    def _tell(self, expression: ast.expr) -> None:
        """This expression is understood; what it names is no mere mention."""
        self._told.add(id(expression))
        if isinstance(expression, ast.Call):
            self._told.add(id(expression.func))


def _target_names(node: ast.AST) -> Iterator[str]:
    """Names that a statement binds."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        targets = [node.target]
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, (ast.Name, ast.Attribute)):
                yield last_name(part)


def last_name(expression: ast.AST) -> str:
    """``no_grad`` of ``torch.autograd.no_grad()``."""
    if isinstance(expression, ast.Call):
        expression = expression.func
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _end(node: ast.expr | ast.stmt) -> Position:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
