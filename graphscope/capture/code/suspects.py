"""What the source of a program shows by itself: statements that do nothing, and lines that can explain a graph.

torch keeps no trace of ``p.requires_grad = False`` or of a lone ``torch.no_grad()``; the text of the files that ran
does. Nothing here decides: a finding is a line and what stands there.
"""

from __future__ import annotations

import ast
import difflib
import functools
import linecache
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from graphscope.capture.code.switches import last_name

LONE_SWITCH = "lone_switch"
"""``torch.no_grad()`` as a statement: it makes a context manager and drops it."""
SWITCH_ON_VALUE = "switch_on_value"
"""``torch.no_grad(x)``: in a torch that takes it for a decorator, x is wrapped and nothing else happens."""
VOLATILE = "volatile"
MISSING_CALL = "missing_call"
"""``model.eval`` without parentheses."""
ONCE_DIFFERENTIABLE = "once_differentiable"
COMPILE = "compile"
BACKWARD_HOOK = "backward_hook"
ACCUMULATOR_HOOK = "accumulator_hook"
"""A hook on a node that was found through ``next_functions``."""
SAVED_HOOKS = "saved_hooks"
NEW_PARAMETER = "new_parameter"
FREEZE = "freeze"
"""Something that may set ``requires_grad`` to False."""
REQUIRE = "require"
"""Something that sets ``requires_grad`` to True."""
DATA = "data"
"""A write to ``.data``."""
KEEP = "keep"
"""Something is put into a container: the word is the container."""
ATTRIBUTE = "attribute"
"""An attribute is set: the word is its name."""
INFERENCE_BLOCK = "inference_block"
"""A block or function under ``inference_mode``."""
OPTIMIZER = "optimizer"
"""An optimizer is made: the word is its name."""
NON_DIFFERENTIABLE = "non_differentiable"
"""``ctx.mark_non_differentiable(…)``"""
ADD = "add"
"""``total += …``: the word is the target."""

_SWITCHES = frozenset({"no_grad", "enable_grad", "inference_mode"})
_CALLS_FORGOTTEN = frozenset({"backward", "detach_", "eval", "requires_grad_", "step", "train", "zero_grad"})
_KEEPERS = frozenset({"append", "appendleft", "extend", "insert", "add"})
_SAVED_HOOKS = frozenset({"saved_tensors_hooks", "save_on_cpu"})
_HOOKS = frozenset({"register_full_backward_hook", "register_backward_hook"})


class Finding(NamedTuple):
    """One line that says something."""

    name: str
    line: int
    scope: int
    """First line of the function that it stands in, decorators included; 0 for the module."""
    text: str
    word: str = ""
    last: int = 0
    """Where a block ends."""


@functools.lru_cache(maxsize=1024)
def findings_in(file: str) -> tuple[Finding, ...]:
    """All findings of a file in the order of lines; none if it cannot be read or parsed."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    functions = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    found: list[Finding] = []
    waiting: list[tuple[ast.AST, int]] = [(tree, 0)]
    while waiting:
        node, scope = waiting.pop()
        for name, place, word in _look_at(node, functions):
            found.append(Finding(name, place.lineno, scope, _text(place), word, place.end_lineno or place.lineno))
        waiting.extend((child, _scope_of(node, scope)) for child in ast.iter_child_nodes(node))
    found += _accumulator_hooks(tree)
    return tuple(sorted(set(found), key=lambda finding: (finding.line, finding.name, finding.word)))


_Seen = Iterator[tuple[str, "ast.stmt | ast.expr", str]]


def _look_at(node: ast.AST, functions: set[str]) -> _Seen:
    look = _LOOKS.get(type(node))
    if look is not None:
        yield from look(node, functions)


def _scope_of(node: ast.AST, scope: int) -> int:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return scope


def _look_at_statement(node: ast.Expr, _: set[str]) -> _Seen:
    value = node.value
    if isinstance(value, ast.Call) and last_name(value) in _SWITCHES and not _positional(value):
        yield LONE_SWITCH, value, last_name(value)
    elif isinstance(value, ast.Attribute) and value.attr in _CALLS_FORGOTTEN:
        yield MISSING_CALL, value, value.attr


def _look_at_call(node: ast.Call, functions: set[str]) -> _Seen:
    word = last_name(node)
    given = _positional(node)
    if word in {"no_grad", "enable_grad"} and given and not _is_function(given[0], functions):
        yield SWITCH_ON_VALUE, node, ast.unparse(given[0])
    if word == "Parameter":
        yield NEW_PARAMETER, node, ast.unparse(given[0]) if given else ""
    elif word == "mark_non_differentiable":
        yield NON_DIFFERENTIABLE, node, ""
    elif word == "compile" and isinstance(node.func, ast.Attribute):
        yield COMPILE, node, ""
    elif word in _HOOKS:
        yield BACKWARD_HOOK, node, ""
    elif word in _KEEPERS and given and isinstance(node.func, ast.Attribute):
        yield KEEP, node, ast.unparse(node.func.value)
    elif word == "requires_grad_" and isinstance(node.func, ast.Attribute):
        flag = given[0] if given else next((key.value for key in node.keywords), ast.Constant(value=True))
        yield (REQUIRE if _is_true(flag) else FREEZE), node, ast.unparse(node.func.value)
    for keyword in node.keywords:
        if keyword.arg == "volatile" and _is_true(keyword.value):
            yield VOLATILE, node, ""
        elif keyword.arg == "requires_grad" and not _is_true(keyword.value):
            yield FREEZE, node, ""


def _look_at_assignment(node: ast.Assign | ast.AugAssign | ast.AnnAssign, _: set[str]) -> _Seen:
    targets = list(node.targets) if isinstance(node, ast.Assign) else [node.target]
    while targets:
        target = targets.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            targets += target.elts
        else:
            yield from _look_at_target(node, target)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield ADD, node, ast.unparse(node.target)
        yield KEEP, node, ast.unparse(node.target)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        name = ast.unparse(node.targets[0])
        if isinstance(node.value.op, ast.Add) and name in {ast.unparse(node.value.left), ast.unparse(node.value.right)}:
            yield ADD, node, name


def _look_at_target(node: ast.Assign | ast.AugAssign | ast.AnnAssign, target: ast.expr) -> _Seen:
    if isinstance(node.value, ast.Call) and "optim" in ast.unparse(node.value.func).lower():
        yield OPTIMIZER, node, ast.unparse(target)
    if isinstance(target, ast.Subscript):
        yield KEEP, node, ast.unparse(target.value)
        if isinstance(target.value, ast.Attribute) and target.value.attr == "data":
            yield DATA, node, ast.unparse(target.value.value)
    elif isinstance(target, ast.Attribute):
        yield ATTRIBUTE, node, target.attr
        if target.attr == "data":
            yield DATA, node, ast.unparse(target.value)
        elif target.attr == "requires_grad" and node.value is not None:
            yield (REQUIRE if _is_true(node.value) else FREEZE), node, ast.unparse(target.value)


def _look_at_block(node: ast.With | ast.AsyncWith, _: set[str]) -> _Seen:
    if any(last_name(item.context_expr) in _SAVED_HOOKS for item in node.items):
        yield SAVED_HOOKS, node, ""
    if any(_is_inference(item.context_expr) for item in node.items):
        yield INFERENCE_BLOCK, node, ""


def _is_inference(expression: ast.expr) -> bool:
    given = _positional(expression) if isinstance(expression, ast.Call) else []
    return last_name(expression) == "inference_mode" and not (
        given and isinstance(given[0], ast.Constant) and given[0].value is False
    )


def _look_at_class(node: ast.ClassDef, _: set[str]) -> _Seen:
    for method in node.body:
        if isinstance(method, ast.FunctionDef):
            for decorator in method.decorator_list:
                if last_name(decorator) == "once_differentiable":
                    yield ONCE_DIFFERENTIABLE, decorator, node.name


def _look_at_function(node: ast.FunctionDef | ast.AsyncFunctionDef, _: set[str]) -> _Seen:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Attribute) and decorator.attr == "compile":
            yield COMPILE, decorator, ""
        elif _is_inference(decorator):
            yield INFERENCE_BLOCK, decorator, node.name


_LOOKS: dict[type[ast.AST], Callable[[Any, set[str]], _Seen]] = {
    ast.Expr: _look_at_statement,
    ast.Call: _look_at_call,
    ast.Assign: _look_at_assignment,
    ast.AugAssign: _look_at_assignment,
    ast.AnnAssign: _look_at_assignment,
    ast.With: _look_at_block,
    ast.AsyncWith: _look_at_block,
    ast.ClassDef: _look_at_class,
    ast.FunctionDef: _look_at_function,
    ast.AsyncFunctionDef: _look_at_function,
}


def _accumulator_hooks(tree: ast.Module) -> Iterator[Finding]:
    """``node = x.expand_as(x).grad_fn.next_functions[0][0]`` of a node that then gets a hook."""
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            continue
        hooked = {
            call.func.value.id
            for call in ast.walk(function)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "register_hook"
            and isinstance(call.func.value, ast.Name)
        }
        for statement in ast.walk(function) if hooked and not isinstance(function, ast.Module) else ():
            if isinstance(statement, ast.Assign) and ".next_functions[" in ast.unparse(statement.value):
                names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
                if hooked.intersection(names):
                    scope = _scope_of(function, 0)
                    yield Finding(ACCUMULATOR_HOOK, statement.lineno, scope, _text(statement), names[0])


def nearest(word: str, known: frozenset[str]) -> str | None:
    """The one of ``known`` that a misspelt word was probably meant to be.

    >>> nearest("require_grad", frozenset({"requires_grad", "grad"})), nearest("colour", frozenset({"requires_grad"}))
    ('requires_grad', None)
    """
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.8)
    return close[0] if close else None


def _positional(call: ast.Call) -> list[ast.expr]:
    return [argument for argument in call.args if not isinstance(argument, ast.Starred)]


def _is_function(argument: ast.expr, functions: set[str]) -> bool:
    if isinstance(argument, ast.Lambda):
        return True
    return last_name(argument) in functions and not isinstance(argument, ast.Call)


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _text(node: ast.stmt | ast.expr) -> str:
    return ast.unparse(node).partition("\n")[0]
