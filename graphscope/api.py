"""What users call: ``walk``, ``record``, ``compare``, ``explain``, ``memory``, ``load``, ``show``.

torch and the renderers are imported inside the functions that need them, so that
``import graphscope`` and a look at a saved graph stay cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from graphscope.errors import FormatError, InputError
from graphscope.graph import Graph
from graphscope.model import GraphData

if TYPE_CHECKING:
    import torch
    from rich.console import RenderableType

    from graphscope.capture.recording.fake import FakeRun
    from graphscope.capture.recording.record import Recorder
    from graphscope.comparison import Comparison
    from graphscope.explanation import Explanation, Memory


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
    from graphscope.capture.program.given import walk_given

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
    from graphscope.capture.program.asked import graph_of_given
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
    from graphscope.capture.program.asked import graph_of_given
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


def show(outputs: object, *, names: object = None) -> None:
    """Show a graph right here: its picture in a notebook, its tree in a terminal.

    Args:
        outputs: what ``walk`` accepts; or something that shows itself: a ``Graph``, or what ``record``, ``compare``,
            ``explain`` and ``memory`` return.
        names: as in ``walk``; by default the variables of the calling frame.

    Raises:
        InputError: if there is no tensor in ``outputs``.

    Example:
        >>> import torch, graphscope
        >>> x = torch.ones(2, requires_grad=True)
        >>> graphscope.show(x.exp().sum())  # doctest: +ELLIPSIS
        ► n3 output  output · scalar
        ■ n2 sum  SumBackward0  scalar
        ■ n1 exp  ExpBackward0  [2]
        ╰─● n0 x  input · [2]
        ...
    """
    from graphscope.notebook import display

    if hasattr(type(outputs), "__rich__"):
        display(outputs)
    else:
        from graphscope.capture.program.given import walk_given

        display(Graph(walk_given(outputs, names, sys._getframe(1))))


class Recording:
    """Everything that ran while it was being recorded; ask it for the graph behind any tensor of it.

    It keeps no tensor alive: ask while the outputs live.
    """

    def __init__(self, recorder: Recorder, base: Path | None = None, fake: FakeRun | None = None) -> None:
        """Hold a recorder; ``record`` and ``recording`` make these."""
        self._recorder = recorder
        self._base = base
        self._fake = fake
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
        with self._fake.named() if self._fake is not None else nullcontext():
            return self._named_graph(outputs, names, frame, all_frames=all_frames)

    def _named_graph(self, outputs: tuple[object, ...], names: object, frame: FrameType, *, all_frames: bool) -> Graph:
        from graphscope.capture.merging.merge import Options, merge
        from graphscope.capture.program.given import gather_names, to_roots
        from graphscope.transforms import behind_roots

        known = gather_names(names, frame)
        if self._fake is not None:
            self._fake.name_arguments(known)
        wanted = outputs[0] if len(outputs) == 1 else outputs
        if not outputs:
            wanted = self.result if self.result is not None else self._recorder.log.ends()
        roots = [] if isinstance(wanted, list) and not wanted and not outputs else to_roots(wanted, known)
        options = Options(base=self._base, all_frames=all_frames, every_module=names is not None)
        whole = merge(self._recorder, roots, known, options=options)
        if self._fake is not None:
            whole = self._fake.told_of(whole)
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
        from graphscope.capture.comparing.side_by_side import runs_of_tensors
        from graphscope.capture.program.given import gather_names
        from graphscope.comparison import Comparison

        known = gather_names(names, sys._getframe(1))
        runs = runs_of_tensors(self._recorder, tensors, known, base=self._base)
        return Comparison(compare_runs(runs, same_program=False))

    def to_json(self) -> dict[str, Any]:
        """Everything recorded, as the JSON of a graph."""
        return self._graph((), None, _users_frame()).to_json()

    def __rich__(self) -> RenderableType:
        """Everything recorded, for a rich console."""
        return self._graph((), None, _users_frame()).__rich__()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        return self._graph((), None, _users_frame())._repr_mimebundle_(include, exclude)


def _users_frame() -> FrameType:
    """The innermost frame of the user's own code: rich, or a notebook, stands between it and what shows itself."""
    from graphscope.capture.code.source import Owner, owner_of

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and owner_of(frame.f_code.co_filename) is not Owner.USER:
        frame = frame.f_back
    return frame or sys._getframe(1)


def record(function: Callable[..., Any], *args: Any, fake: bool = False, **kwargs: Any) -> Recording:
    """Run a function or module and record every operation, tracked by autograd or not.

    What runs is not changed: results, random numbers, gradients and fused paths are those of an unrecorded run. What
    the function raises comes through untouched.

    Args:
        function: what to run.
        args: what to call it with.
        fake: run on fake tensors, which have shapes but no numbers: a model of any size, in no memory. Modules are as
            they were afterwards. A program that asks a tensor for a number fails.
        kwargs: what to call it with.

    Raises:
        InputError: if ``function`` cannot be called: a tensor, say, which has run already.

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
    _refuse_uncallable(function)
    if fake:
        return _record_fake(sys._getframe(1), function, args, kwargs)
    with _recording(sys._getframe(1)) as recording_:
        recording_.result = function(*args, **kwargs)
    return recording_


def _refuse_uncallable(function: object) -> None:
    if not callable(function):
        raise InputError(
            f"record runs a function or module, and was given {type(function).__name__}. Give the function and what it "
            "is to be called with: record(model, x). What tensors came from is told by walk(loss)."
        )


def _record_fake(
    frame: FrameType, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recording:
    from graphscope.capture.recording.fake import FakeRun, used_by

    run = FakeRun()
    with run.active(used_by(function, args, kwargs)), _recording(frame, run) as recording_:
        recording_.result = run.call(function, args, kwargs)
    return recording_


def recording(*, fake: bool = False) -> AbstractContextManager[Recording]:
    """Record a ``with`` block; the recording stays usable if the block raises.

    Args:
        fake: run on fake tensors, as in ``record``: a model may be built in the block and take no memory.

    Example:
        >>> import torch, graphscope
        >>> x = torch.ones(2, requires_grad=True)
        >>> with graphscope.recording() as rec:
        ...     y = x.detach() * x
        >>> [edge.reason.value for edge in rec.graph(y).edges if edge.reason]
        ['detach']
    """
    frame = sys._getframe(1)
    return _recording_fake(frame) if fake else _recording(frame)


@contextmanager
def _recording_fake(frame: FrameType) -> Iterator[Recording]:
    from graphscope.capture.recording.fake import FakeRun
    from graphscope.capture.walking.names import frame_namespaces

    run = FakeRun()
    inner, *outer = frame_namespaces(frame)
    with run.active({**(outer[0] if outer else {}), **inner}), _recording(frame, run) as recording_:
        yield recording_


@contextmanager
def _recording(frame: FrameType, fake: FakeRun | None = None) -> Iterator[Recording]:
    from graphscope.capture.recording.record import Recorder

    file = Path(frame.f_code.co_filename)
    recorder = Recorder()
    with recorder.active():
        yield Recording(recorder, file.parent if file.is_absolute() else None, fake)


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
    from graphscope.capture.comparing.modes import Subject, parse_modes, refuse_uncallable, run_modes

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
