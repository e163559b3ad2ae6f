"""The rules of the source itself: lint, format, types, layers, sizes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CODE = ("graphscope", "cli/graphscope_cli", "samples", "tests", "benchmarks")
GIVEN = ROOT / "tests" / "cases"
"""Programs of users, kept as they came."""

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 80
MOST_PARAMETERS = 8


class Size(NamedTuple):
    """How large a function is."""

    place: str
    lines: int
    parameters: int


def sources(*folders: str) -> list[Path]:
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [path for path in found if GIVEN not in path.parents]


def functions(source: str, name: str) -> Iterator[Size]:
    """Every function and method, nested ones too; ``self`` and ``cls`` are no parameters."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            counted = [one for one in given if one.arg not in {"self", "cls"}]
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield Size(f"{name}:{node.lineno} {node.name}", (node.end_lineno or first) - first + 1, len(counted))


def run(*command: str) -> str:
    """Run one of the tools over the repository and return what it found; empty if nothing."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    return done.stdout + done.stderr if done.returncode else ""


def test_lint() -> None:
    assert run("-m", "ruff", "check", "--output-format=concise", ".") == ""


def test_format() -> None:
    assert run("-m", "ruff", "format", "--check", ".") == ""


def test_types() -> None:
    assert run("-m", "mypy") == ""


def test_layers() -> None:
    assert run("-c", "from importlinter.cli import lint_imports_command as lint; lint()") == ""


def test_every_lint_exception_has_its_reason() -> None:
    """An ignored rule in pyproject.toml is followed by its reason; a ``noqa`` names its rule."""
    config = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    rules = [line for line in config.splitlines() if re.fullmatch(r'\s+"[A-Z]+\d*",.*', line)]
    assert len(rules) > 10
    assert [line for line in rules if not re.search(r"# \S+ \S+", line)] == []
    unnamed = re.compile(r"#\s*noqa(?!: [A-Z]+\d+)|#\s*type:\s*ignore(?!\[)")
    code = [path for path in sources(*CODE) if path != Path(__file__)]
    assert [str(path) for path in code if unnamed.search(path.read_text(encoding="utf-8"))] == []


def test_sizes_are_measured() -> None:
    """The measure itself: decorators and nested functions count, ``self`` does not."""
    source = "class A:\n    @b\n    def f(self, x, /, y, *args, z=1, **more):\n        def g(): ...\n        return g\n"
    assert list(functions(source, "a.py")) == [Size("a.py:3 f", 4, 3), Size("a.py:4 g", 1, 0)]


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources(*CODE)}
    assert {str(path): length for path, length in lengths.items() if length >= MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_too_long() -> None:
    sizes = [size for path in sources(*CODE) for size in functions(path.read_text(encoding="utf-8"), str(path))]
    assert [size for size in sizes if size.lines >= MOST_LINES_OF_A_FUNCTION] == []


def test_no_function_takes_too_much() -> None:
    """The command line is left out: there a parameter is an option."""
    code = sources("graphscope", "samples", "tests", "benchmarks")
    sizes = [size for path in code for size in functions(path.read_text(encoding="utf-8"), str(path))]
    assert [size for size in sizes if size.parameters > MOST_PARAMETERS] == []


def test_the_library_does_not_print() -> None:
    printing = [
        f"{path}:{node.lineno}"
        for path in sources("graphscope")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []
