"""What ``explain`` and ``memory`` return: findings as values to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from graphscope.findings import Explained, Failure, Hazard, Kept, Share, Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType


class Explanation:
    """Who gets a gradient and who does not, why, at which line, and what else is wrong.

    Prints itself in a terminal (rich) and shows itself as the last expression of a notebook cell.

    Example:
        >>> import torch, graphscope
        >>> net = torch.nn.Linear(3, 2)
        >>> with graphscope.recording() as rec:
        ...     loss = net(torch.ones(1, 3)).detach().sum()
        >>> [(row.name, row.cause.value) for row in rec.graph(loss).explain().missing]
        [('net.weight', 'detach'), ('net.bias', 'detach')]
    """

    def __init__(self, explained: Explained) -> None:
        """Wrap what was found out."""
        self._explained = explained

    @property
    def data(self) -> Explained:
        """The records themselves."""
        return self._explained

    @property
    def tensors(self) -> tuple[Verdict, ...]:
        """A verdict on every parameter of every module in sight, and on every named tensor."""
        return self._explained.tensors

    @property
    def missing(self) -> tuple[Verdict, ...]:
        """The trainable parameters that get no gradient."""
        return self._explained.missing

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """What will raise, be wrong, or cost more than it should, worst first."""
        return self._explained.hazards

    @property
    def error(self) -> Failure | None:
        """What the program raised, and what led to it."""
        return self._explained.error

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON data, by the schema ``graphscope/schema/explain-1.json``."""
        return self._explained.to_json()

    def __repr__(self) -> str:
        """One line: how many miss their gradient, how many hazards there are."""
        parameters = sum(1 for row in self.tensors if row.kind == "parameter" and row.requires_grad)
        missing, hazards = len(self.missing), len(self.hazards)
        return f"<Explanation: {missing} of {parameters} trainable parameters without gradient, {hazards} hazards>"

    def __str__(self) -> str:
        """The report as plain text."""
        return self._text(TEXT_WIDTH)

    def __rich__(self) -> RenderableType:
        """The report for a rich console."""
        from graphscope.render.explain_terminal import renderable
        from graphscope.render.terminal_lines import LineOptions

        return renderable(self._explained, LineOptions())

    def _text(self, width: int) -> str:
        from graphscope.render.explain_terminal import render
        from graphscope.render.terminal_lines import LineOptions

        return render(self._explained, LineOptions(width=width))

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        return _plain(self._text, include, exclude)


class Memory:
    """What backward keeps in memory: by op, module, line and storage, each storage once.

    Prints itself in a terminal (rich) and shows itself as the last expression of a notebook cell.

    Example:
        >>> import torch, graphscope
        >>> x = torch.ones(256, requires_grad=True)
        >>> loss = x.exp().sum()
        >>> memory = graphscope.walk(loss).memory()
        >>> memory.bytes, [(share.name, share.bytes) for share in memory.by_op]
        (1024, [('exp', 1024)])
    """

    def __init__(self, kept: Kept) -> None:
        """Wrap what was measured."""
        self._kept = kept

    @property
    def data(self) -> Kept:
        """The records themselves."""
        return self._kept

    @property
    def bytes(self) -> int:
        """Bytes that backward alone keeps: each storage once, without parameters and buffers."""
        return self._kept.bytes

    @property
    def by_op(self) -> tuple[Share, ...]:
        """What each kind of operation keeps, most first."""
        return self._kept.by_op

    @property
    def by_module(self) -> tuple[Share, ...]:
        """What each module keeps with all that is inside it; ops of none under an empty name."""
        return self._kept.by_module

    @property
    def by_line(self) -> tuple[Share, ...]:
        """What each line keeps, most first; only of what was recorded."""
        return self._kept.by_line

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON data, by the schema ``graphscope/schema/memory-1.json``."""
        return self._kept.to_json()

    def __repr__(self) -> str:
        """One line: how much."""
        from graphscope.units import to_bytes_text, to_count_text

        count = to_count_text(len(self._kept.storages), "storage")
        return f"<Memory: {to_bytes_text(self.bytes)} kept for backward in {count}>"

    def __str__(self) -> str:
        """The report as plain text."""
        return self._text(TEXT_WIDTH)

    def __rich__(self) -> RenderableType:
        """The report for a rich console."""
        from graphscope.render.memory_terminal import renderable
        from graphscope.render.terminal_lines import LineOptions

        return renderable(self._kept, LineOptions())

    def _text(self, width: int) -> str:
        from graphscope.render.memory_terminal import render
        from graphscope.render.terminal_lines import LineOptions

        return render(self._kept, LineOptions(width=width))

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        return _plain(self._text, include, exclude)


TEXT_WIDTH = 100
"""Cells of a line where no terminal says how many there are."""


def _plain(text: Callable[[int], str], include: Iterable[str] | None, exclude: Iterable[str] | None) -> dict[str, str]:
    wanted = {"text/plain"} if include is None else {"text/plain"} & set(include)
    return {kind: text(TEXT_WIDTH) for kind in wanted - set(exclude or ())}
