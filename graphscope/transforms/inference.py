"""Which module an op ran in, guessed from what ran before and after it.

Only a pure walk needs it: it knows the module of an op that reads a parameter, and of no other. A parameter that
several modules share leaves a choice, and the ops of a frozen layer read no parameter that autograd keeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from graphscope.model import GraphData, Kind, Node, Role

CONTAINERS = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
"""Modules that are never called: they make no level of their own, ``h.3`` is one step below ``transformer``."""


class Scope(NamedTuple):
    """One level: a module, or a function of the user's."""

    name: str
    """Full path of the module; name of the function with parentheses."""
    file: str | None = None
    """Of a function: where it is; ``None`` of a module."""
    run: int = -1
    """Which recorded call of the module; -1 where calls are told apart only by what runs between them."""

    @property
    def place(self) -> tuple[str, str | None]:
        """What is the same for every call."""
        return self.name, self.file

    @property
    def is_module(self) -> bool:
        """A module, not a function."""
        return self.file is None


Path = tuple[Scope, ...]
"""The scopes around an op, outermost first."""


class ModulePaths:
    """The scopes that the path of a module stands for, each worked out once."""

    def __init__(self, data: GraphData) -> None:
        """Read the modules of a graph."""
        self.types = {module.path: module.type for module in data.modules}
        self._known: dict[str, Path | None] = {}

    def path_of(self, module: str) -> Path | None:
        """The modules around a module and itself; ``None`` of one that nobody holds, which is called by its class."""
        if module not in self._known:
            self._known[module] = self._read(module)
        return self._known[module]

    def _read(self, module: str) -> Path | None:
        if not self.types:
            return (Scope(module),)
        if module not in self.types:
            return None
        prefixes = [module[:end] for end, letter in enumerate(module) if letter == "."]
        if module:
            prefixes.insert(0, "")
        outer = [prefix for prefix in prefixes if self.types.get(prefix, "ModuleList") not in CONTAINERS]
        return (*map(Scope, outer), Scope(module))


def choose_shared(data: GraphData, paths: list[Path | None], modules: ModulePaths) -> None:
    """Of the modules that share a parameter, take for each op that reads it the one that fits its kind and place."""
    shared = _modules_sharing(data.nodes)
    if not shared:
        return
    doubtful = {place for place, node in enumerate(data.nodes) if paths[place] is not None and node.module in shared}
    following: Path = ()
    after: dict[int, Path] = {}
    for place in range(len(paths) - 1, -1, -1):
        after[place] = following
        following = following if place in doubtful else paths[place] or following
    before: Path = ()
    for place, path in enumerate(paths):
        if place in doubtful:
            found = (modules.path_of(module) for module in shared[data.nodes[place].module or ""])
            fitting = [one for one in found if one is not None]
            paths[place] = _best(fitting, data.nodes[place], modules.types, before, after[place]) or path
        before = paths[place] or before


def _modules_sharing(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """By the module that a shared parameter is called after: all modules that have it."""
    shared = {}
    for node in nodes:
        if node.kind is Kind.LEAF and node.role is Role.PARAMETER and len(node.names) > 1:
            owners = list(dict.fromkeys(name.rpartition(".")[0] for name in node.names))
            if len(owners) > 1:
                shared[owners[0]] = owners
    return shared


def _best(choices: list[Path], node: Node, types: Mapping[str, str], before: Path, after: Path) -> Path | None:
    looks_up = node.op == "embedding"
    fitting = [path for path in choices if ("Embedding" in types.get(path[-1].name, "")) == looks_up] or choices
    return max(fitting, key=lambda path: alike(path, after) + alike(path, before), default=None)


class Inference:
    """Gives each op whose module is not known a place between the known ops before and after it.

    That is where both run, or the end of the block that has passed: what stands between ``h.0`` and ``h.1`` is taken
    to end ``h.0``, since most blocks end with a sum and none begins with one. The last block of a list ends
    with as much of what follows it as looks like the end of the one before; what is between ``h.3`` and ``h.5`` beyond
    such an end ran in ``h.4``.
    """

    def __init__(self, nodes: Sequence[Node], modules: ModulePaths) -> None:
        """Prepare for one graph."""
        self._nodes, self._modules = nodes, modules
        self._endings: dict[str, list[str | None]] = {}

    def infer(self, paths: list[Path | None], unknown: Mapping[int, Path], *, guess: bool) -> None:
        """Fill in paths.

        Args:
            paths: the scopes of each op, in order; ``None`` where there is no op, or where they are not known.
            unknown: positions that are not known, with what is known of their innermost scopes.
            guess: go beyond what the ops around have in common.
        """
        before: Path = ()
        stretch: list[int] = []
        for place, path in enumerate((*paths, ())):
            if place in unknown:
                stretch.append(place)
            elif path is not None:
                if stretch:
                    parts = self._between(stretch, before, path) if guess else iter(())
                    self._settle(paths, unknown, stretch, parts, before[: alike(before, path)])
                    stretch = []
                before = path

    @staticmethod
    def _settle(
        paths: list[Path | None],
        unknown: Mapping[int, Path],
        stretch: Sequence[int],
        parts: Iterator[tuple[Path, int]],
        rest: Path,
    ) -> None:
        found = iter(stretch)
        for path, count in parts:
            for place in itertools.islice(found, count):
                paths[place] = path + unknown[place] if unknown[place] else path
        for place in found:
            paths[place] = rest + unknown[place] if unknown[place] else rest

    def _between(self, stretch: Sequence[int], before: Path, after: Path) -> Iterator[tuple[Path, int]]:
        """Scopes and how many ops of the stretch each takes from the front."""
        shared = alike(before, after)
        if len(before) <= shared + 1:
            return
        block = before[: shared + 1]
        family, number = _number_in(block[-1].name)
        if number is None:
            return
        ops = [self._nodes[place].op for place in stretch]
        known = self._endings.get(family)
        following, next_number = _number_in(after[shared].name) if len(after) > shared else ("", None)
        if following != family or next_number is None:
            if known:
                yield block, alike(ops, known)
            return
        missing = [f"{family}.{between}" for between in range(number + 1, next_number)]
        missing = [name for name in missing if name in self._modules.types]
        own = alike(ops, known) if known and missing else len(ops)
        each, uneven = divmod(len(ops) - own, len(missing)) if missing else (0, 0)
        rounds = {tuple(ops[own + each * place : own + each * (place + 1)]) for place in range(len(missing))}
        if not missing or own == len(ops) or uneven or len(rounds) != 1:
            self._endings[family] = ops
            yield block, len(ops)
            return
        yield block, own
        for name in missing:
            yield (*before[:shared], Scope(name)), each


def alike(one: Sequence[object], other: Sequence[object]) -> int:
    """How many members from the first on are equal."""
    if one is other:
        return len(one)
    differing = (place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    return next(differing, min(len(one), len(other)))


def _number_in(name: str) -> tuple[str, int | None]:
    """The list that a module is in, and its number there: ``h`` and 3 of ``h.3``."""
    family, _, last = name.rpartition(".")
    return family, int(last) if last.isdecimal() and last.isascii() else None
