"""The value of an expression, as far as it can be read without running anybody's code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any


def resolve(expression: ast.AST, namespaces: Sequence[dict[str, object]]) -> Any:
    """The value of a name, an attribute, ``type(x)`` or ``table[x]``, read without running anybody's code."""
    if isinstance(expression, ast.Name):
        return next((space[expression.id] for space in namespaces if expression.id in space), None)
    if isinstance(expression, ast.Attribute):
        owner = resolve(expression.value, namespaces)
        return type(owner) if expression.attr == "__class__" else _stored(owner, expression.attr)
    if isinstance(expression, ast.Call) and len(expression.args) == 1 and not expression.keywords:
        return type(resolve(expression.args[0], namespaces)) if resolve(expression.func, namespaces) is type else None
    if isinstance(expression, ast.Subscript):
        table, key = resolve(expression.value, namespaces), resolve(expression.slice, namespaces)
        try:
            return table[key] if type(table) in {dict, list, tuple} else None
        except (LookupError, TypeError):
            return None
    return expression.value if isinstance(expression, ast.Constant) else None


def _stored(owner: object, name: str) -> object:
    for space in _dictionaries(owner):
        if name in space:
            return space[name]
    return None


def _dictionaries(owner: object) -> Iterator[Any]:
    """Where the attributes of an object, or of a class, are stored."""
    if not isinstance(owner, type):
        yield getattr(owner, "__dict__", {})
    for base in type.mro(owner if isinstance(owner, type) else type(owner)):
        yield vars(base)
