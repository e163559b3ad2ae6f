"""What users call and hold: ``walk``, ``load`` and ``Graph``.

torch and the renderers are imported inside the functions that need them, so that
``import graphscope`` and a look at a saved graph stay cheap.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from graphscope.errors import FormatError, InputError
from graphscope.model import Edge, GraphData, Node

if TYPE_CHECKING:
    import graphviz
    from rich.console import RenderableType


class Graph:
    """What autograd did, as a value to look at: a thin view over ``GraphData``.

    Prints itself in a terminal (rich) and shows itself as the last expression of a notebook cell.

    Example:
        >>> import torch, graphscope
        >>> x = torch.ones(2, requires_grad=True)
        >>> loss = (x * 3).sum()
        >>> [node.op for node in graphscope.walk(loss).nodes if node.op]
        ['mul', 'sum']
    """

    def __init__(self, data: GraphData) -> None:
        """Wrap the data of a graph."""
        self._data = data

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

        return to_dot(self._data)

    def to(self, format: str) -> str | bytes:
        """The graph in any format of ``graphscope.render.formats.FORMATS``: text, or bytes of an image.

        Raises:
            FormatError: for a format that is not in the table.
            EngineError: if drawing failed or took too long.
        """
        from graphscope.render.formats import render

        return render(self._data, format)

    def save(self, path: str | Path) -> Path:
        """Write the graph to a file; the suffix picks the format, as in ``to``."""
        from graphscope.render.formats import save

        return save(self._data, Path(path))

    def __repr__(self) -> str:
        """One line: how much there is."""
        from graphscope.style import summary_line

        return f"<Graph: {summary_line(self._data)}>"

    def __str__(self) -> str:
        """The graph as plain text."""
        from graphscope.render.terminal import to_text

        return to_text(self._data)

    def __rich__(self) -> RenderableType:
        """The graph for a rich console."""
        from graphscope.render.terminal import TerminalOptions, renderable

        return renderable(self._data, TerminalOptions())

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        from graphscope.notebook import mimebundle

        return mimebundle(self._data, include=include, exclude=exclude)


def walk(outputs: object, *, names: object = None) -> Graph:
    """The autograd graph behind tensors that already exist.

    Follows ``grad_fn`` and ``next_functions`` from the outputs back to the leaves. Nothing is run, changed or
    kept alive: saved tensors are read without unpacking, no hook is called.

    Args:
        outputs: a tensor, a ``GradientEdge``, or any nesting of dicts, lists, tuples, dataclasses that holds some.
        names: what the tensors are called: a module, a dict of names to tensors or modules, ``named_parameters()``
            or a state_dict (matched by memory). By default the variables of the calling frame.

    Returns:
        A ``Graph``. Of a tensor without history, the one leaf that it is.

    Raises:
        InputError: if there is no tensor in ``outputs``; the message says what was probably meant.

    Example:
        >>> import torch, graphscope
        >>> x = torch.ones(2, requires_grad=True)
        >>> y = x * x
        >>> [(edge.source, edge.target) for edge in graphscope.walk(y).edges]
        [('n0', 'n1'), ('n0', 'n1'), ('n1', 'n2')]
    """
    caller = sys._getframe(1)
    return Graph(walk_from(outputs, names=names, frame=caller))


def load(path: str | Path) -> Graph:
    """A graph that was saved as JSON.

    Args:
        path: the file, as written by ``Graph.save("graph.json")`` or ``graphscope render TARGET -o graph.json``.

    Raises:
        FormatError: if the file holds no graph, or one of a newer version; the message says where and why.
        OSError: if the file cannot be read.

    Example:
        >>> import tempfile, torch, graphscope
        >>> loss = torch.ones(2, requires_grad=True).sum()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = graphscope.walk(loss).save(f"{folder}/graph.json")
        ...     graphscope.load(path).roots
        ('n2',)
    """
    from graphscope.serialize import loads

    try:
        return Graph(loads(Path(path).read_bytes()))
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def walk_from(outputs: object, *, names: object, frame: FrameType | None) -> GraphData:
    """``walk`` with the frame given whose variables name the tensors."""
    from graphscope.capture.names import Names, flatten_tensors, frame_namespaces, to_namespace
    from graphscope.capture.walk import to_root, walk_graph

    known = Names(by_memory=names is not None)
    if names is not None:
        known.search(to_namespace(names))
    elif frame is not None:
        for namespace in frame_namespaces(frame):
            known.search(namespace)
    found = flatten_tensors(outputs, _prefix_for(outputs))
    if not found:
        raise InputError(no_tensor_message(outputs))
    roots = [to_root(known.best_name(value) or path, value) for path, value in found]
    return walk_graph(roots, known, every_module=names is not None)


def _prefix_for(outputs: object) -> str:
    """Keys and fields are names by themselves; anything else is called ``output``."""
    return "" if isinstance(outputs, Mapping) or dataclasses.is_dataclass(outputs) else "output"


def no_tensor_message(given: object) -> str:
    """What was given instead of a tensor, and what was probably meant."""
    from graphscope.capture.names import describe_mistake

    return describe_mistake(given)
