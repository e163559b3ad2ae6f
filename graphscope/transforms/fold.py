"""Fold: one box for all that runs in a module, and one block for many equal ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from graphscope.errors import InputError
from graphscope.garbage import collection_paused
from graphscope.model import GraphData
from graphscope.transforms.links import Links
from graphscope.transforms.names import unknown
from graphscope.transforms.partition import Partition, Plain, divide
from graphscope.transforms.quotient import to_view
from graphscope.transforms.repeats import Repeats
from graphscope.transforms.scopes import INFERRED_NOTE, Block, blocks_of, find_scopes
from graphscope.units import to_count_text

AUTO_LIMIT = 120
"""Most boxes of a drawing that nobody asked to be larger."""
_EASY = 31
"""Boxes that are taken in at one glance: a deeper drawing is chosen only up to there."""
_SMALL = 10
"""Most ops and leaves of a module without modules in it that is drawn open only when all others are: a ``Linear``."""

_COARSE = 16
"""Boxes below which a drawing could well show more."""
_FEW = 6
"""A folded drawing with fewer boxes says little; code outside of modules is then shown by its lines."""


@collection_paused()
def fold(data: GraphData, depth: int, *, expand: Iterable[str] = (), roll: bool = True) -> GraphData:
    """Draw modules down to a depth, and each one there as a single box for each time it is called.

    Code outside of modules becomes one box for each stretch in one Python function at depth 1, and is drawn op by op
    from depth 2 on.

    Args:
        data: a whole graph, or a part of one.
        depth: levels of modules that are drawn; 1 is one box for a model, 2 its children. ``ModuleList`` is no level.
        expand: paths of modules to be drawn open although they lie deeper.
        roll: draw equal blocks in a row once.

    Raises:
        InputError: if a path in ``expand`` is no module of the graph, or if the graph is a folded view already.
    """
    folder = _Folder(data, expand, roll=roll)
    return folder.draw(folder.divided(max(depth, 0)), f"folded at depth {depth}")


@collection_paused()
def fold_auto(
    data: GraphData,
    limit: int = AUTO_LIMIT,
    *,
    expand: Iterable[str] = (),
    roll: bool = True,
    reveal: Iterable[str] = (),
) -> GraphData:
    """Fold a graph as little as a drawing of at most about ``limit`` boxes allows.

    A smaller graph stays as it is, with equal blocks drawn once if that halves what is more than a glance takes in.
    What is around the modules that are to be seen (``reveal``, or tensors of theirs) is drawn open.

    Raises:
        InputError: as ``fold``.
    """
    wanted = tuple(expand)
    is_small = len(data.nodes) <= limit and not wanted
    if is_small and (not roll or len(data.nodes) <= _EASY):
        return data
    folder = _Folder(data, wanted, roll=roll, reveal=reveal)
    if is_small:
        rolled = folder.divided(folder.levels + 1)
        return folder.draw(rolled, "") if 2 * len(rolled.boxes) <= len(data.nodes) else data
    depth, plain = folder.deepest(limit)
    return folder.draw(folder.divided(depth, plain), f"folded at depth {depth}")


@collection_paused()
def roll(data: GraphData) -> GraphData:
    """Draw equal blocks in a row once, and everything else op by op.

    Raises:
        InputError: if the graph is a folded view already.
    """
    folder = _Folder(data, (), roll=True)
    return folder.draw(folder.divided(folder.levels + 1), "")


class _Folder:
    """Tries ways of folding one graph."""

    def __init__(self, data: GraphData, expand: Iterable[str], *, roll: bool, reveal: Iterable[str] = ()) -> None:
        if not data.view.is_whole:
            raise InputError("This graph is folded already. Fold the whole graph, with all that is wanted at once.")
        self._data = data
        self._links = Links(data)
        self._scopes = find_scopes(data, self._links)
        blocks = list(blocks_of(self._scopes.whole))
        self.levels = max(block.level for block in blocks)
        self._repeats = Repeats(data, self._links, self._scopes) if roll else None
        self._expanded = _expanded(blocks, expand)
        self._around = frozenset(outer for block in self._expanded for outer in _outwards(block))
        self._revealing = _around_revealed(blocks, reveal)

    def divided(self, depth: int, plain: Plain = Plain.OPS) -> Partition:
        """Boxes down to a depth; what is to be expanded op by op, or as deep as it can without crowding the rest."""
        least = self._divided(depth, plain, within=1)
        for within in range(self.levels, 1, -1) if self._expanded else ():
            partition = self._divided(depth, plain, within=within)
            if len(partition.boxes) <= len(least.boxes) + AUTO_LIMIT // 2:
                return partition
        return least

    def _divided(self, depth: int, plain: Plain, *, within: int) -> Partition:
        """Boxes down to a depth, and ``within`` levels of what is to be expanded."""
        around = self._around | self._revealing if within else self._revealing

        def opens(block: Block) -> bool:
            if block in around:
                return True
            while len(block.blocks) == 1 and (block.start, block.end) == (block.blocks[0].start, block.blocks[0].end):
                block = block.blocks[0]  # a box in a frame of its own says nothing more
            is_large = bool(block.blocks) or block.end - block.start > _SMALL
            if block.level < depth:
                return is_large or depth > self.levels
            outer = next((one for one in _outwards(block) if one in self._expanded), None)
            if outer is None or block.level >= outer.level + within:
                return False
            return is_large or within == self.levels

        return divide(self._data, self._links, self._scopes, opens, repeats=self._repeats, apart=around, plain=plain)

    def deepest(self, limit: int) -> tuple[int, Plain]:
        """The largest depth that is easy to take in, or the first one that says enough within ``limit`` boxes.

        Where ops in no inner block are what crowds the next depth, they become one box for each line or stretch of
        them, if that brings more modules into sight.
        """
        depth, count = 1, self._count(1)
        easy = min(limit, _EASY)
        for further in range(2, self.levels + 2):
            next_count = self._count(further)
            if next_count > (limit if count < _FEW else easy):
                break
            depth, count = further, next_count
        else:
            return (depth, Plain.OPS) if count <= limit else self._by_lines(depth, depth, limit)
        if count < _COARSE:
            shown = self._modules_shown(depth, Plain.OPS)
            for plain in (Plain.LINES, Plain.STRETCHES):
                if self._count(further, plain) <= easy and self._modules_shown(further, plain) > shown:
                    return further, plain
        return self._by_lines(depth, further, limit) if count > limit or count < _FEW else (depth, Plain.OPS)

    def _by_lines(self, depth: int, further: int, limit: int) -> tuple[int, Plain]:
        """Ops by lines or stretches, as deep as the limit allows."""
        count = self._count(depth)
        for plain in (Plain.LINES, Plain.STRETCHES):
            for at in range(further, depth - 1, -1):
                if count != self._count(at, plain) <= limit:
                    return at, plain
        return depth, Plain.OPS

    def _count(self, depth: int, plain: Plain = Plain.OPS) -> int:
        """Boxes of a drawing in which nothing is expanded."""
        return len(self._divided(depth, plain, within=0).boxes)

    def _modules_shown(self, depth: int, plain: Plain) -> int:
        boxes = self._divided(depth, plain, within=0).boxes
        return sum(box.is_group and box.scope is not None and box.scope.is_module for box in boxes)

    def draw(self, partition: Partition, how: str) -> GraphData:
        """The view, with notes on how it came about."""
        view = to_view(partition)
        if view.view.is_whole:
            return self._data
        notes = (*view.view.notes, *self._notes(view, how))
        return dataclasses.replace(view, view=view.view._replace(notes=notes))

    def _notes(self, view: GraphData, how: str) -> Iterator[str]:
        if view.view.groups and how:
            count = len(view.view.groups)
            stand = "stands for several nodes" if count == 1 else "stand for several nodes each"
            several = f"{to_count_text(count, 'box', 'boxes')} {stand}"
            yield f"{how}: {several}"
        if any(frame.repeats > 1 for frame in view.view.frames) or any(
            group.repeats > 1 for group in view.view.groups.values()
        ):
            yield "equal blocks in a row are drawn once, with their number"
        if self._scopes.inferred:
            yield INFERRED_NOTE


def _expanded(blocks: list[Block], expand: Iterable[str]) -> frozenset[Block]:
    """The blocks of some modules; a path may leave out what all of them have in front."""
    found: set[Block] = set()
    for wanted in expand:
        paths = {block.scope.name for block in blocks if block.scope is not None}
        exact = {wanted} if wanted in paths else {path for path in paths if path.endswith(f".{wanted}")}
        if not exact:
            raise unknown("module", wanted, sorted(paths))
        found.update(block for block in blocks if block.scope is not None and block.scope.name in exact)
    return frozenset(found)


def _around_revealed(blocks: list[Block], reveal: Iterable[str]) -> frozenset[Block]:
    """The blocks around those of some modules, which may be named by a tensor of theirs."""
    names = {part for name in reveal for part in (name, name.rpartition(".")[0]) if part}
    ends = tuple(f".{name}" for name in names)
    return frozenset(
        outer
        for block in blocks
        if block.scope is not None
        and block.scope.is_module
        and (block.scope.name in names or (ends and block.scope.name.endswith(ends)))
        for outer in _outwards(block.parent)
    )


def _outwards(block: Block | None) -> Iterator[Block]:
    outer = block
    while outer is not None:
        yield outer
        outer = outer.parent
