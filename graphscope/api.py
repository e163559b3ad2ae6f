"""What users call and hold: ``walk``, ``load`` and ``Graph``.

torch and the renderers are imported inside the functions that need them, so that
``import graphscope`` and a look at a saved graph stay cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from graphscope.errors import FormatError, InputError
from graphscope.model import Edge, GraphData, Node

if TYPE_CHECKING:
    import graphviz
    import torch
    from rich.console import RenderableType

    from graphscope.capture.record import Recorder
    from graphscope.comparison import Comparison
    from graphscope.explanation import Explanation, Memory


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
    from graphscope.capture.given import walk_given

    return Graph(walk_given(outputs, names, sys._getframe(1)))


def explain(outputs: object, *modules_or_tensors: object) -> Explanation:
    """Who gets a gradient from ``outputs`` and who does not, why, and at which line.

    Inside ``with recording():`` the recording tells why; else the graph that autograd kept tells who is reached.

    Args:
        outputs: a loss, or any nesting of tensors.
        modules_or_tensors: modules whose parameters all get a verdict, and tensors that do; by default the modules
            that the graph leads to, and the variables of the calling frame.

    Raises:
        InputError: if there is no tensor in ``outputs``.

    Example:
        >>> import torch, graphscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        >>> net[0].requires_grad_(False)
        Linear(in_features=3, out_features=2, bias=True)
        >>> result = graphscope.explain(net(torch.ones(1, 3)).sum(), net)
        >>> [(row.name, row.cause.value) for row in result.tensors if row.kind == "parameter" and row.cause]
        [('net.0.weight', 'frozen'), ('net.0.bias', 'frozen')]
    """
    from graphscope.analyze.explain import explain as explain_data
    from graphscope.capture.asked import graph_of_given
    from graphscope.explanation import Explanation

    return Explanation(explain_data(graph_of_given(outputs, modules_or_tensors, sys._getframe(1))))


def memory(outputs: object, *modules_or_tensors: object) -> Memory:
    """What a backward from ``outputs`` keeps in memory; arguments and errors as in ``explain``.

    Example:
        >>> import torch, graphscope
        >>> x = torch.ones(256, requires_grad=True)
        >>> graphscope.memory(x.exp().sum()).bytes
        1024
    """
    from graphscope.analyze.memory import measure_memory
    from graphscope.capture.asked import graph_of_given
    from graphscope.explanation import Memory

    return Memory(measure_memory(graph_of_given(outputs, modules_or_tensors, sys._getframe(1))))


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

    def compare(self, *tensors: torch.Tensor, names: object = None) -> Comparison:
        """Two or more of the tensors that were computed while recording, side by side, op by op.

        Args:
            tensors: results of what was recorded, still alive.
            names: as in ``walk``; by default the variables of the calling frame.

        Raises:
            InputError: for fewer than two tensors, and for anything that is no tensor.

        Example:
            >>> import torch, graphscope
            >>> x, y = torch.ones(2, requires_grad=True), torch.ones(2)
            >>> with graphscope.recording() as rec:
            ...     m = x + y
            ...     with torch.no_grad():
            ...         w = x + y
            >>> [[node.backward for node in row.cells] for row in rec.compare(m, w).rows]
            [['AddBackward0', None]]
        """
        from graphscope.analyze.compare import compare_runs
        from graphscope.capture.given import gather_names
        from graphscope.capture.side_by_side import runs_of_tensors
        from graphscope.comparison import Comparison

        known = gather_names(names, sys._getframe(1))
        runs = runs_of_tensors(self._recorder, tensors, known, base=self._base)
        return Comparison(compare_runs(runs, same_program=False))

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


def compare(
    function: Callable[..., Any] | Graph,
    *args: Any,
    modes: Sequence[str] = ("grad", "no_grad", "inference_mode", "eval"),
    repeats: int | None = None,
    names: object = None,
    **kwargs: Any,
) -> Comparison:
    """Run the same computation under several modes and lay the runs side by side, op by op.

    Every run starts from the same random numbers, buffers, parameters and flags, and all of it is put back afterwards,
    an exception included; ``.grad``, too, if the function runs backward. What is neither a tensor nor an attribute
    of a module (a list that the function appends to) is the function's own business. A run that raises is a run
    with a ``failure``.

    Args:
        function: a function or module; or a graph, to be compared with the one that follows.
        args: what to call it with.
        modes: ``grad``, ``no_grad``, ``inference_mode``, ``set_grad_enabled(False)``, ``train``, ``eval``, or one of
            the former and one of the latter joined by ``+``: ``eval+no_grad``. ``train`` and ``eval`` alone record
            gradients; the others leave modules in the state that they are in.
        repeats: how often each run is timed; by default up to seven times, as long as that takes no more than about
            two seconds.
        names: what tensors are called, as in ``walk``; by default the variables of the calling frame.
        kwargs: what to call it with.

    Raises:
        InputError: for a mode that is none, or if ``function`` cannot be called.

    Example:
        >>> import torch, graphscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout())
        >>> result = graphscope.compare(net, torch.ones(1, 3), modes=("train", "train+no_grad", "eval"))
        >>> [(run.mode, run.dropout_active, run.values.equal) for run in result.runs]
        [('train', True, True), ('train+no_grad', True, True), ('eval', False, False)]
    """
    from graphscope.comparison import Comparison, compare_graphs

    if isinstance(function, Graph):
        return compare_graphs(_named_graphs(function, args, names))
    from graphscope.analyze.compare import compare_runs
    from graphscope.capture.modes import Subject, parse_modes, refuse_uncallable, run_modes

    refuse_uncallable(function)
    frame = sys._getframe(1)
    file = Path(frame.f_code.co_filename)
    subject = Subject(function, args, kwargs, names, frame, file.parent if file.is_absolute() else None)
    runs = run_modes(subject, parse_modes(modes), repeats)
    return Comparison(compare_runs(runs, same_program=True), spread=repeats is not None)


def _named_graphs(first: Graph, others: tuple[Any, ...], names: object) -> list[tuple[str, GraphData]]:
    graphs = [first, *others]
    if len(graphs) < 2 or not all(isinstance(graph, Graph) for graph in graphs):  # noqa: PLR2004  two sides
        raise InputError("A graph can be compared with another graph. Give two: compare(before, after)")
    called = [str(name) for name in names] if isinstance(names, (list, tuple)) else []
    if len(called) != len(graphs) or len(set(called)) != len(called):
        called = ["first", "second", *(f"graph {number}" for number in range(3, len(graphs) + 1))]
    return [(name, graph.data) for name, graph in zip(called, graphs, strict=True)]
