"""A graph as a value to hold: what it is, and what of it is drawn.

torch and the renderers are imported inside the functions that need them, so that a look at a saved graph stays cheap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphscope.errors import InputError
from graphscope.model import Edge, GraphData, Node

if TYPE_CHECKING:
    import graphviz
    from rich.console import RenderableType

    from graphscope.explanation import Explanation, Memory
    from graphscope.render.formats import RenderOptions
    from graphscope.transforms import ViewOptions


class Graph:
    """What autograd did, as a value to look at: a thin view over ``GraphData``.

    Prints itself in a terminal (rich) and shows itself as the last expression of a notebook cell. A large graph is
    drawn folded; ``fold``, ``expand``, ``focus``, ``path`` and ``hide`` choose what is drawn. The graph stays whole.

    Example:
        >>> import torch, graphscope
        >>> x = torch.ones(2, requires_grad=True)
        >>> loss = (x * 3).sum()
        >>> [node.op for node in graphscope.walk(loss).nodes if node.op]
        ['mul', 'sum']
    """

    def __init__(self, data: GraphData, *, whole: GraphData | None = None, options: ViewOptions | None = None) -> None:
        """Wrap the data of a graph.

        Args:
            data: all of the graph.
            whole: the recording that it is a part of, where there is one.
            options: what of it is drawn; by default all, folded as far as that is needed to read it.
        """
        self._data = data
        self._whole = data if whole is None else whole
        self._options = options

    @property
    def data(self) -> GraphData:
        """The records themselves."""
        return self._data

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Leaves, ops and outputs, inputs before what reads them."""
        return self._data.nodes

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Uses of tensors, in the order of their targets."""
        return self._data.edges

    @property
    def roots(self) -> tuple[str, ...]:
        """Ids of the output nodes where a backward would start."""
        return self._data.roots

    def check(self) -> Graph:
        """Verify every invariant of the graph; see ``GraphData.check``."""
        self._data.check()
        return self

    def to_json(self) -> dict[str, Any]:
        """The whole graph as JSON data, by the schema ``graphscope/schema/graph-1.json``."""
        from graphscope.serialize import to_json

        return to_json(self._data)

    def to_dot(self) -> graphviz.Digraph:
        """The drawing as a ``graphviz.Digraph``: text to keep, change, or render elsewhere."""
        from graphscope.render.dot import to_dot

        return to_dot(self.drawn)

    def to(self, format: str) -> str | bytes:
        """The graph in any format of ``graphscope.render.formats.FORMATS``: text, or bytes of an image.

        Raises:
            FormatError: for a format that is not in the table.
            EngineError: if drawing failed or took too long.
        """
        from graphscope.render.formats import render

        return render(self._data, format, self._render_options())

    def explain(self) -> Explanation:
        """Who gets a gradient from the roots and who does not, why, and at which line.

        At full strength on the graph of a recording; a graph that was only walked tells who is reached.
        """
        from graphscope.analyze.explain import explain
        from graphscope.explanation import Explanation

        return Explanation(explain(self._whole))

    def memory(self) -> Memory:
        """What backward keeps in memory: by op, module, line and storage, each storage once."""
        from graphscope.analyze.memory import measure_memory
        from graphscope.explanation import Memory

        return Memory(measure_memory(self._data))

    def save(self, path: str | Path) -> Path:
        """Write the graph to a file; the suffix picks the format, as in ``to``."""
        from graphscope.render.formats import save

        return save(self._data, Path(path), self._render_options())

    # ------------------------------------------------------------------------------------- what of it is drawn

    @property
    def drawn(self) -> GraphData:
        """What is drawn: the graph itself, or a view of it with folded boxes, whose notes tell what is left out.

        Raises:
            InputError: if something that was asked for is not in the graph; the message tells the nearest names.
        """
        from graphscope.transforms import view

        return view(self._data, self._options, flat_limit=None)

    def fold(self, depth: int | Literal["auto", "full"], *, roll: bool | None = None) -> Graph:
        """The same graph, drawn down to a depth of modules.

        Args:
            depth: 1 is one box for a model, 2 its children; ``auto`` as many levels as are easy to take in, ``full``
                every op.
            roll: draw equal blocks in a row once; by default unless the depth is ``full``.

        Raises:
            InputError: if the depth is none of these.

        Example:
            >>> import torch, graphscope
            >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))
            >>> graph = graphscope.record(net, torch.ones(1, 4)).graph()
            >>> [node.op for node in graph.fold(2).drawn.nodes if node.op]
            ['0', '1–5 ×5']
        """
        if depth not in ("auto", "full") and not (isinstance(depth, int) and depth >= 0):
            raise InputError(f"{depth!r} is no depth. Give a number of module levels, 'auto' or 'full'.")
        return self._drawn_with(depth=depth, roll=roll)

    def expand(self, *modules: str) -> Graph:
        """The same graph, with some modules drawn open though they lie deeper than the rest is drawn."""
        return self._drawn_with(expand=modules)

    def focus(self, name: str) -> Graph:
        """The same graph; drawn is what a tensor, module or node depends on, and what depends on it."""
        return self._drawn_with(focus=name)

    def path(self, start: str, end: str) -> Graph:
        """The same graph; drawn is what lies between two tensors, modules or nodes."""
        return self._drawn_with(path=(start, end))

    def hide(self, *words: str) -> Graph:
        """The same graph, drawn without some roles (``constants``), ops (``view``), modules, tensors or nodes."""
        return self._drawn_with(hide=words)

    def _drawn_with(self, **choices: Any) -> Graph:
        from graphscope.transforms import ViewOptions

        options = dataclasses.replace(self._options or ViewOptions(), **choices)
        graph = Graph(self._data, whole=self._whole, options=options)
        _ = graph.drawn  # what is not there is told now
        return graph

    def _render_options(self) -> RenderOptions | None:
        from graphscope.render.formats import RenderOptions

        return None if self._options is None else RenderOptions(view=self._options)

    def __repr__(self) -> str:
        """One line: how much there is."""
        from graphscope.style import summary_line

        return f"<Graph: {summary_line(self._data)}>"

    def __str__(self) -> str:
        """The graph as plain text."""
        from graphscope.render.terminal import to_text

        return to_text(self.drawn)

    def __rich__(self) -> RenderableType:
        """The graph for a rich console."""
        from graphscope.render.terminal import TerminalOptions, renderable

        return renderable(self.drawn, TerminalOptions())

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        from graphscope.notebook import mimebundle

        return mimebundle(self.drawn, include=include, exclude=exclude)
