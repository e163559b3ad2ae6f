"""What users call and hold: ``walk``, ``load`` and ``Graph``.

torch and the renderers are imported inside the functions that need them, so that
``import graphscope`` and a look at a saved graph stay cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from graphscope.errors import FormatError
from graphscope.model import Edge, GraphData, Node

if TYPE_CHECKING:
    import graphviz
    from rich.console import RenderableType

    from graphscope.capture.record import Recorder


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

    def __init__(self, data: GraphData, *, whole: GraphData | None = None) -> None:
        """Wrap the data of a graph; ``whole`` is the recording that it is a part of, where there is one."""
        self._data = data
        self._whole = data if whole is None else whole

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
    from graphscope.capture.given import gather_names, to_roots
    from graphscope.capture.walk import walk_graph

    known = gather_names(names, sys._getframe(1))
    return Graph(walk_graph(to_roots(outputs, known), known, every_module=names is not None))


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


class Recording:
    """Everything that ran while it was being recorded; ask it for the graph behind any tensor of it.

    It keeps no tensor alive: ask while the outputs live.
    """

    def __init__(self, recorder: Recorder, base: Path | None = None) -> None:
        """Hold a recorder; ``record`` and ``recording`` make these."""
        self._recorder = recorder
        self._base = base
        self.result: Any = None
        """What the recorded function returned; None for a ``with`` block."""

    def graph(self, *outputs: object, names: object = None, all_frames: bool = False) -> Graph:
        """The full computation behind the outputs, also where nothing was tracked.

        Args:
            outputs: tensors, or nestings of them; without any, everything that was recorded, ending in ``result``.
            names: as in ``walk``; by default the variables of the calling frame.
            all_frames: name the innermost line that is not torch's, also inside installed packages.

        Raises:
            InputError: if outputs were given and hold no tensor.
        """
        return self._graph(outputs, names, sys._getframe(1), all_frames=all_frames)

    def _graph(
        self, outputs: tuple[object, ...], names: object, frame: FrameType, *, all_frames: bool = False
    ) -> Graph:
        from graphscope.capture.given import gather_names, to_roots
        from graphscope.capture.merge import Options, merge
        from graphscope.transforms import behind_roots

        known = gather_names(names, frame)
        wanted = outputs[0] if len(outputs) == 1 else outputs
        if not outputs:
            wanted = self.result if self.result is not None else self._recorder.log.ends()
        roots = to_roots(wanted, known) if outputs or wanted else []
        options = Options(base=self._base, all_frames=all_frames, every_module=names is not None)
        whole = merge(self._recorder, roots, known, options=options)
        return Graph(behind_roots(whole) if outputs else whole, whole=whole)

    def to_json(self) -> dict[str, Any]:
        """Everything recorded, as the JSON of a graph."""
        return self._graph((), None, sys._getframe(1)).to_json()

    def __rich__(self) -> RenderableType:
        """Everything recorded, for a rich console."""
        return self._graph((), None, sys._getframe(1)).__rich__()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        return self._graph((), None, sys._getframe(1))._repr_mimebundle_(include, exclude)


def record(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Recording:
    """Run a function or module and record every operation, tracked by autograd or not.

    What runs is not changed: results, random numbers, gradients and fused paths are those of an unrecorded run. What
    the function raises comes through untouched.

    Example:
        >>> import torch, graphscope
        >>> def f(x):
        ...     with torch.no_grad():
        ...         y = x * 2
        ...     return x + y
        >>> rec = graphscope.record(f, torch.ones(2, requires_grad=True))
        >>> [(node.op, node.mode, node.backward) for node in rec.graph(rec.result).nodes if node.op]
        [('mul', 'no_grad', None), ('add', 'grad', 'AddBackward0')]
    """
    with _recording(sys._getframe(1)) as recording_:
        recording_.result = function(*args, **kwargs)
    return recording_


def recording() -> AbstractContextManager[Recording]:
    """Record a ``with`` block; the recording stays usable if the block raises.

    Example:
        >>> import torch, graphscope
        >>> x = torch.ones(2, requires_grad=True)
        >>> with graphscope.recording() as rec:
        ...     y = x.detach() * x
        >>> [edge.reason.value for edge in rec.graph(y).edges if edge.reason]
        ['detach']
    """
    return _recording(sys._getframe(1))


@contextmanager
def _recording(frame: FrameType) -> Iterator[Recording]:
    from graphscope.capture.record import Recorder

    file = Path(frame.f_code.co_filename)
    recorder = Recorder()
    with recorder.active():
        yield Recording(recorder, file.parent if file.is_absolute() else None)
