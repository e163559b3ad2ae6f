"""Where the tensors of a recording come from: followed by identity while they live, through weak references.

No activation lives a moment longer for being recorded, and none is touched: to ask a view whose base was written for
its history makes that history anew.
"""

from __future__ import annotations

import weakref

import torch

from graphscope.capture.code.switches import GRAD
from graphscope.capture.recording.memory import Memory
from graphscope.capture.recording.oprecords import (
    LEAF,
    NEEDS_GRAD,
    NODE,
    OP,
    UNTOLD,
    Known,
    Leaf,
    Op,
    Reassigned,
    Source,
    Unseen,
)
from graphscope.capture.walking.optypes import NodeTypes
from graphscope.capture.walking.tensors import (
    BASE,
    base_of,
    history_of,
    is_leaf,
    is_parameter,
    output_number,
    requires_grad,
    storage_key,
    tensor_info,
)


class Origins:
    """The ops so far, and every tensor that is still alive with where it came from."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self.ops: list[Op] = []
        self.flags: list[int | list[int]] = []
        """Flags of each op's output, or a list of them, right after it returned."""
        self.leaves: list[Leaf] = []
        self.unseen: list[Unseen] = []
        self.reassigned: list[Reassigned] = []
        self.memory = Memory()
        self._list_later = self.memory.list_later
        self._known: dict[int, Known] = {}
        self._write_times: dict[int, int] = {}
        self.tracking = True
        """The op that is about to run makes a backward node, as torch's counter tells."""

    def source_of(self, tensor: torch.Tensor) -> Source:
        """Where a tensor came from; one never met before becomes a leaf.

        To ask a view whose base was written for its history makes that history anew, now: only where the op that
        reads it has done so already, it is asked.
        """
        known = self._known.get(id(tensor))
        if known is None or known.tensor() is not tensor:
            return self._meet(tensor)
        source = known.source
        if source.kind == LEAF:
            self.notice_other_memory(tensor)
        base = base_of(tensor)
        stale = base is not None and self._write_times.get(id(base), -1) > known.time
        if base is not None and stale and not (self.tracking and requires_grad(tensor)):
            return self.source_of(base)
        if not requires_grad(tensor):
            return source
        if source.kind == LEAF:
            return source if (base is not None and not self.tracking) or is_leaf(tensor) else self._met(tensor, source)
        if is_leaf(tensor):  # requires_grad_() on the result of an untracked op
            return self._made_leaf(tensor, source)
        if stale or (source.kind == OP and not self._needs_grad(source)):
            return self._met(tensor, source)
        return source

    def _needs_grad(self, source: Source) -> bool:
        """An op's output requires grad as the op made it, by autograd; unknown counts as yes."""
        _, index, output = source
        flags = self.flags[index]
        told = flags if isinstance(flags, int) else flags[output]
        return self.ops[index].mode == GRAD and (told == UNTOLD or bool(told & NEEDS_GRAD))

    def known_source(self, tensor: torch.Tensor) -> Source | None:
        """As ``source_of``, but ``None`` for a tensor that was never met."""
        known = self._known.get(id(tensor))
        return self.source_of(tensor) if known is not None and known.tensor() is tensor else None

    def notice_other_memory(self, tensor: torch.Tensor) -> None:
        """Note a leaf whose memory is no longer that which it was met with, if an op is known that made it."""
        known = self._known.get(id(tensor))
        if known is None or known.tensor() is not tensor or known.source.kind != LEAF:
            return
        memory = storage_key(tensor)
        if memory is None or memory == known.memory:
            return
        known.memory = memory
        maker = self.memory.maker(tensor)
        if maker is not None and maker.kind == OP:
            self.reassigned.append(Reassigned(known.source.index, maker))

    def _made_leaf(self, tensor: torch.Tensor, source: Source) -> Source:
        if source.kind == OP:
            flags = self.flags[source.index]
            told = flags if isinstance(flags, int) else flags[source.output]
            if told != UNTOLD and told & NEEDS_GRAD:
                return source  # a view of a leaf made under no_grad says so, though no gradient can come to it
        return self._remember(tensor, self._add_leaf(tensor, alias=source))

    def _meet(self, tensor: torch.Tensor) -> Source:
        if requires_grad(tensor):
            base = base_of(tensor)
            if base is not None and not self.tracking:
                return self.source_of(base)
            if not is_leaf(tensor):
                return self._met(tensor, None)
        alias = self.memory.neighbour(tensor)
        if alias is None and is_parameter(tensor):  # what a parameter is made of need not live on
            known = self.memory.maker(tensor)
            alias = known if known is not None and known.kind == OP else None
        return self._remember(tensor, self._add_leaf(tensor, alias=alias, maker=self._maker_of(tensor, alias)))

    def _maker_of(self, tensor: torch.Tensor, alias: Source | None) -> Op | None:
        """The factory behind the memory of a tensor, as in ``nn.Parameter(torch.empty(3))``."""
        known = self.memory.maker(tensor) if alias is None else alias
        return self.leaves[known.index].maker if known is not None and known.kind == LEAF else None

    def _met(self, tensor: torch.Tensor, before: Source | None) -> Source:
        """A tensor has a history that no recorded op gave it."""
        node = history_of(tensor)
        if node is None:
            return before or self._add_leaf(tensor)
        info = tensor_info(tensor, ())._replace(version=None)
        self.unseen.append(Unseen(node._sequence_nr(), NodeTypes().look_up(node), info, before))
        return self._remember(tensor, Source(NODE, len(self.unseen) - 1, output_number(tensor)))

    def _add_leaf(self, tensor: torch.Tensor, *, alias: Source | None = None, maker: Op | None = None) -> Source:
        info = tensor_info(tensor, ())._replace(version=None)
        self.leaves.append(Leaf(weakref.ref(tensor), info, is_parameter(tensor), alias, maker))
        return Source(LEAF, len(self.leaves) - 1)

    def _remember(self, tensor: torch.Tensor, source: Source) -> Source:
        known = self._known[id(tensor)] = Known(tensor, source, len(self.ops))
        if source.kind == LEAF:
            known.memory = storage_key(tensor)
            if not BASE._is_view(tensor):
                known.tracked = requires_grad(tensor)
        self._list_later(known)
        return source
