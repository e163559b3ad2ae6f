"""What TARGET says: a script, a name in a file or module, or a saved graph."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graphscope.errors import InputError
from graphscope_cli.script import enter_folder, execute_file

Runner = Callable[[Callable[[], Any]], Any]
"""Calls a function of the user's and returns what it returned."""

_FORMS = "script.py, script.py:name, package.module:name, or graph.json"

_NAMES_LISTED = 10

_PICTURES = frozenset({".svg", ".png", ".pdf", ".jpg", ".jpeg", ".gif", ".dot", ".gv", ".mmd", ".tex", ".html"})
_WEIGHTS = "it holds weights, which have no graph before a model has run; name a function that runs it"
_NO_SCRIPTS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".safetensors", ".onnx", ".pkl", ".npz", ".npy"), _WEIGHTS),
    **dict.fromkeys((".txt", ".md", ".rst", ".toml", ".yaml", ".yml", ".csv"), "it is text"),
}


class Script(NamedTuple):
    """A file to run as ``__main__``."""

    given: str
    """As the user wrote it."""
    path: Path


class SavedGraph(NamedTuple):
    """A graph in a JSON file."""

    given: str
    path: Path


class Name(NamedTuple):
    """A name in a file or a module."""

    given: str
    """The file or module, without the name."""
    path: Path | None
    """``None`` of a module that is found by import."""
    name: str
    """May be dotted."""


Target = Script | SavedGraph | Name


def parse_target(given: str) -> Target:
    """Understand a target. Nothing is run.

    Raises:
        InputError: if there is no such file, or it is no form of a target.
    """
    if not given:
        raise InputError(f"The target is empty. A target is {_FORMS}.")
    if Path(given).exists():
        return _to_file(given)
    place, colon, name = given.rpartition(":")
    if colon and Path(place).is_file():
        _refuse_other_files(place)
        if not name:
            raise InputError(f"{given!r} has no name behind the colon. To run the whole script, leave the colon out.")
        return Name(place, Path(place).absolute(), name)
    if not colon or place.endswith((".py", ".json")) or os.sep in place:
        raise InputError(_missing_file(place or given))
    if not name or not all(part.isidentifier() for part in place.split(".")):
        raise InputError(f"{given!r} is no target. A target is {_FORMS}.")
    return Name(place, None, name)


def parse_saved_graph(given: str) -> SavedGraph:
    """Understand what must be the file of a saved graph.

    Raises:
        InputError: if there is no such file, or it is another target.
    """
    if given.lower().endswith(".json") and not Path(given).exists():
        raise InputError(_missing_file(given, "Save a graph: graphscope render TARGET -o graph.json"))
    what = parse_target(given)
    if not isinstance(what, SavedGraph):
        raise InputError(f"{given} is no saved graph. Save one: graphscope render {given} -o graph.json")
    return what


def _to_file(given: str) -> Target:
    path = Path(given)
    if path.is_dir():
        raise InputError(f"{given!r} is a folder. Give the script in it. A target is {_FORMS}.")
    if path.suffix == ".ipynb":
        raise InputError(
            f"{given!r} is a notebook. Show its graph in the notebook itself, with graphscope.walk(loss) at the end of "
            f"a cell, or make a script of it: jupyter nbconvert --to script {given}"
        )
    if path.suffix.lower() == ".json":
        return SavedGraph(given, path.absolute())
    _refuse_other_files(given)
    return Script(given, path.absolute())


def _refuse_other_files(given: str) -> None:
    """Files that are known not to be Python are not run; a script may have any other suffix, or none."""
    suffix = Path(given).suffix.lower()
    if suffix in _PICTURES:
        raise InputError(
            f"{given!r} is a picture, and no graph can be read from it. Save the graph as JSON, too (-o graph.json), "
            f"and give that. A target is {_FORMS}."
        )
    if suffix in _NO_SCRIPTS:
        raise InputError(f"{given!r} is no Python script: {_NO_SCRIPTS[suffix]}. A target is {_FORMS}.")


def _missing_file(place: str, remedy: str = f"A target is {_FORMS}.") -> str:
    path = Path(place)
    try:
        neighbours = [entry.name for entry in path.parent.iterdir() if entry.suffix == path.suffix or not path.suffix]
    except OSError:
        return f"There is no file {place!r}: the folder {str(path.parent)!r} does not exist. {remedy}"
    close = difflib.get_close_matches(path.name, neighbours, n=3, cutoff=0.75)
    if close:
        return f"There is no file {place!r}. Did you mean {' or '.join(str(path.parent / name) for name in close)}?"
    return f"There is no file {place!r} in {Path.cwd()}. {remedy}"


def load_module(target: Name, arguments: Sequence[str], run: Runner) -> types.ModuleType:
    """Import what the name of a target is in. Nothing under ``if __name__ == "__main__"`` runs.

    Args:
        target: where to look.
        arguments: ``sys.argv[1:]`` for the code.
        run: calls the user's code.

    Raises:
        InputError: if there is no such module.
    """
    path = target.path
    if path is not None:
        module = _prepare_file(path, target.given, arguments)
        run(functools.partial(execute_file, path, module))
        return module
    sys.argv = [target.given, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())
    parts = target.given.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if not _is_module(name):
            raise InputError(f"There is no module {name!r} (looked for from {Path.cwd()}). A target is {_FORMS}.")
        run(functools.partial(importlib.import_module, name))
    return sys.modules[target.given]


def _is_module(name: str) -> bool:
    """A module of that name can be imported; the package that it is in is already."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # what it would be in is no package
        return False


def _prepare_file(path: Path, given: str, arguments: Sequence[str]) -> types.ModuleType:
    enter_folder(path, given, arguments)
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "graphscope_target"
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    sys.modules[name] = module  # pickling and dataclasses look it up
    return module


def find_value(module: types.ModuleType, name: str, given: str) -> object:
    """The value of a dotted name; the last parts may also be keys of a dict.

    Raises:
        InputError: with the nearest names, if there is none.
    """
    value: object = module
    for position, part in enumerate(name.split(".")):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif hasattr(value, part):
            value = getattr(value, part)
        else:
            raise InputError(_missing_name(value, part, given if not position else f"{given}:{name}", module))
    return value


def _missing_name(owner: object, part: str, where: str, module: types.ModuleType) -> str:
    known = list(owner) if isinstance(owner, dict) else [name for name in vars(owner) if not name.startswith("_")]
    if owner is module:
        known = [name for name in known if _is_candidate(vars(module)[name], module)]
    close = difflib.get_close_matches(part, map(str, known), n=3)
    if close:
        return f"{where} has no name {part!r}. Did you mean {' or '.join(close)}?"
    if owner is module and '"__main__"' in _source(module):
        return (
            f'{where} has no name {part!r} when it is imported, which leaves out if __name__ == "__main__". To take '
            f"the graph of the running script, give no name; --root {part} then chooses the tensor."
        )
    if not known:
        return f"{where} has no name {part!r}; it defines nothing that could be drawn."
    more = f" and {len(known) - _NAMES_LISTED} more" if len(known) > _NAMES_LISTED else ""
    return f"{where} has no name {part!r}. It has {', '.join(map(str, known[:_NAMES_LISTED]))}{more}."


def _source(module: types.ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""


def _is_candidate(value: object, module: types.ModuleType) -> bool:
    """Nothing that was only imported: no modules, no other module's functions and classes."""
    if isinstance(value, types.ModuleType):
        return False
    if inspect.isclass(value) or inspect.isroutine(value):
        return getattr(value, "__module__", None) == module.__name__
    return True
