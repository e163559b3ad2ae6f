"""Inputs of custom ``autograd.Function``s for which their ``backward`` returns None, read from its source.

The graph leads on to such an input, but no gradient will ever go there. Only what stands in the text is told: a
``backward`` whose every ``return`` has a plain ``None`` in that place.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from graphscope.capture.code.source import Line
from graphscope.capture.walking.walk import Walked


class NoneReturned(NamedTuple):
    """One input that gets no gradient."""

    node: str
    """Id of the custom Function's node in the walk."""
    source: str
    """Id of what the input comes from."""
    line: Line
    """A ``return`` of the backward."""


def inputs_without_gradient(walked: Walked) -> Iterator[NoneReturned]:
    """Every input that autograd leads to and that gets None."""
    custom = [node for node in walked.data.nodes if node.note is not None and "custom autograd.Function" in node.note]
    raw = walked.nodes() if custom else {}
    for node in custom:
        code = _backward_code(raw[node.id])
        returned = _always_none(code) if code is not None else {}
        for edge in walked.data.incoming[node.id]:
            if edge.gradient and edge.slot in returned and code is not None:
                yield NoneReturned(node.id, edge.source, Line(code, returned[edge.slot]))


def _backward_code(raw: Any) -> CodeType | None:
    function = getattr(type(raw), "_forward_cls", None)
    backward = getattr(function, "__dict__", {}).get("backward")
    code = getattr(getattr(backward, "__func__", backward), "__code__", None)
    return code if isinstance(code, CodeType) else None


@functools.lru_cache(maxsize=1024)
def _always_none(code: CodeType) -> dict[int, int]:
    """Places that are None in every ``return`` of a function, with the line of the last one."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == code.co_name and _begins(function, code):
            returns = [one for one in ast.walk(function) if isinstance(one, ast.Return)]
            places = [_nones(one.value) for one in returns]
            if not places:
                return {}
            common = frozenset.intersection(*places)
            return dict.fromkeys(sorted(common), returns[-1].lineno)
    return {}


def _begins(function: ast.FunctionDef, code: CodeType) -> bool:
    return code.co_firstlineno in {function.lineno, *(one.lineno for one in function.decorator_list)}


def _nones(value: ast.expr | None) -> frozenset[int]:
    elements = value.elts if isinstance(value, ast.Tuple) else [] if value is None else [value]
    return frozenset(place for place, one in enumerate(elements) if isinstance(one, ast.Constant) and one.value is None)
