"""Where each op ran: in which module, in which call of it, or in which Python function.

A recording tells the module of every op. A pure walk knows it only of ops that read a parameter; the others get what
the ops before and after them have in common. Ops stand in the order they ran, so a stretch of ops
in one module is one call of it; the calls form a tree of blocks.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphscope.model import GraphData, Kind, Node, Role
from graphscope.transforms.inference import Inference, ModulePaths, Path, Scope, choose_shared
from graphscope.transforms.links import Links

INFERRED_NOTE = (
    "Operations without parameters were put into modules by what runs before and after them; record() knows it exactly."
)


class Block:
    """One call of a scope: a stretch ``start:end`` of the sequence of ops, and the blocks within it, in order."""

    __slots__ = ("blocks", "call", "end", "level", "parent", "scope", "start")

    def __init__(self, scope: Scope | None, parent: Block | None, start: int) -> None:
        self.scope = scope
        """``None`` of the block that is the whole graph."""
        self.parent = parent
        self.level: int = 0 if parent is None else parent.level + 1
        self.start = start
        self.end = start
        self.blocks: list[Block] = []
        self.call = 1

    def items(self) -> Iterator[Block | int]:
        """Inner blocks, and the places in the sequence that are in none, in order."""
        place = self.start
        for block in self.blocks:
            yield from range(place, block.start)
            yield block
            place = block.end
        yield from range(place, self.end)


class Scopes(NamedTuple):
    """The tree of blocks over the sequence of ops."""

    whole: Block
    sequence: list[int]
    """Positions of nodes: ops in order, each with the parameters and the like that only it reads right before it."""
    place: array[int]
    """By position: the place in the sequence; -1 of what is not in it."""
    free: list[bool]
    """By position: a leaf that nothing wrote, which may stand anywhere before its readers."""
    calls: dict[tuple[str, str | None], int]
    """How often each scope was entered, by its place."""
    inferred: bool
    """Some ops got their module by what runs around them."""


def find_scopes(data: GraphData, links: Links) -> Scopes:
    """The blocks of a graph, or of a part of one."""
    starts = links.start
    free = [
        node.kind is Kind.LEAF and start == end
        for node, start, end in zip(data.nodes, starts, itertools.islice(starts, 1, None), strict=False)
    ]
    paths, inferred = _paths(data, free)
    owned: dict[int, list[int]] = {}
    for leaf, reader in _only_readers(links, free).items():
        if is_inner(data.nodes[leaf]):
            owned.setdefault(reader, []).append(leaf)
    block = whole = Block(None, None, 0)
    sequence: list[int] = []
    before: Path = ()
    for position, path in enumerate(paths):
        if path is None:
            continue
        if path is not before:
            block = _enter(block, path, len(sequence))
            before = path
        if position in owned:
            sequence += owned[position]
        sequence.append(position)
    _enter(block, (), len(sequence))
    whole.end = len(sequence)
    place_of = array("q", [-1]) * len(paths)
    for place, position in enumerate(sequence):
        place_of[position] = place
    return Scopes(whole, sequence, place_of, free, _number_calls(whole), inferred)


def is_inner(leaf: Node) -> bool:
    """Belongs to the code that reads it, rather than being handed in by the user: a parameter, an unnamed constant."""
    return leaf.role in {Role.PARAMETER, Role.BUFFER} or (leaf.role is Role.CONSTANT and not leaf.names)


def blocks_of(whole: Block) -> Iterator[Block]:
    """Every block, outer ones before those within."""
    stack = [whole]
    while stack:
        block = stack.pop()
        yield block
        stack.extend(reversed(block.blocks))


def _only_readers(links: Links, free: Sequence[bool]) -> dict[int, int]:
    """The one op that reads a leaf, of the leaves that one op reads."""
    reader: dict[int, int] = {}
    for source, target in zip(links.source, links.target, strict=True):
        if free[source] and reader.setdefault(source, target) != target:
            reader[source] = -1
    return {leaf: position for leaf, position in reader.items() if position >= 0}


def _enter(block: Block, path: Path, place: int) -> Block:
    """The block of ``path`` at a place of the sequence: the current one, or a new one."""
    names: list[Scope | None] = []
    inner: Block | None = block
    while inner is not None and inner.parent is not None:
        names.append(inner.scope)
        inner = inner.parent
    common = 0
    for known, wanted in zip(reversed(names), path, strict=False):
        if known != wanted:
            break
        common += 1
    while block.level > common and block.parent is not None:
        block.end = place
        block = block.parent
    for scope in path[common:]:
        outer, block = block, Block(scope, block, place)
        outer.blocks.append(block)
    return block


def _number_calls(whole: Block) -> dict[tuple[str, str | None], int]:
    calls: Counter[tuple[str, str | None]] = Counter()
    for block in blocks_of(whole):
        if block.scope is not None:
            calls[block.scope.place] += 1
            block.call = calls[block.scope.place]
    return dict(calls)


def _paths(data: GraphData, free: Sequence[bool]) -> tuple[list[Path | None], bool]:
    """The scopes that each op ran in; ``None`` for leaves that no op wrote, and for outputs."""
    modules = ModulePaths(data)
    reader = _PathReader(data, modules)
    paths: list[Path | None] = []
    unknown: dict[int, Path] = {}
    for position, node in enumerate(data.nodes):
        if free[position] or node.kind is Kind.OUTPUT:
            paths.append(None)
            continue
        path = reader.path_of(node)
        if path is None:
            unknown[position] = () if node.module is None else (Scope(node.module),)
        paths.append(path)
    if not data.recorded:
        choose_shared(data, paths, modules)
    if unknown:
        Inference(data.nodes, modules).infer(paths, unknown, guess=not data.recorded)
    return paths, not data.recorded and any(paths[position] for position in unknown)


class _PathReader:
    """Turns what a node says of its place into scopes, each place once."""

    def __init__(self, data: GraphData, modules: ModulePaths) -> None:
        self._recorded = data.recorded
        self._modules = modules
        self._functions: dict[tuple[str, str], Path] = {}
        self._calls: dict[str, Path] = {}
        """By the ids of the ops that ran in a recorded call of a module."""
        paths: list[Path] = []
        for number, call in enumerate(data.calls):
            outer = () if call.parent is None else paths[call.parent]
            paths.append((*outer, Scope(call.module, run=number)))
            self._calls.update(dict.fromkeys(call.nodes, paths[-1]))

    def path_of(self, node: Node) -> Path | None:
        """The scopes of an op; ``None`` if what runs around it must tell."""
        if self._calls:
            path = self._calls.get(node.id)
            if path is not None:
                return path
        elif node.module is not None:
            return self._modules.path_of(node.module)
        if not self._recorded or (node.kind is Kind.OP and node.op is None):
            return None
        place = node.location
        if place is None or place.function is None or place.function.startswith("<"):
            return ()
        key = (place.file, place.function)
        if key not in self._functions:
            self._functions[key] = (Scope(f"{place.function}()", place.file),)
        return self._functions[key]
