"""What a comparison says, for all renderers: the figures of a run, and how a row differs, in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphscope.bands import Band
from graphscope.model import GraphData, Kind, Node, TensorInfo
from graphscope.render.legend import LINE_LIMIT
from graphscope.runs import Compared, Failure, Figures, Row, Run, Seconds, was_recorded
from graphscope.style import GLYPHS, details_of, elide, look_of, tensor_words, title_of, visible
from graphscope.units import to_bytes_text, to_count_text

_READS = 3
"""Most inputs that a box names."""

_NAME = 26
"""Longest name of an input."""

_ERROR = 150
"""Most letters of an error's text in a box."""

_NAMED_RUNS = 3
_FOUR_DIGITS = 999.5
_TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


class Fact(NamedTuple):
    """One row of the table: a word for it, and what each run says."""

    label: str
    texts: tuple[str, ...]


def facts(compared: Compared) -> list[Fact]:
    """The table of figures; what is not known of any run has no row."""
    runs, figures = compared.runs, compared.figures
    found = [
        Fact("operations", tuple(f"{each.ops:,}" for each in figures)),
        Fact("backward nodes", tuple(f"{each.backward_nodes:,}" for each in figures)),
        Fact("saved tensors", tuple(f"{each.saved_tensors:,}" for each in figures)),
        Fact("of these freed", _freed(figures)),
        Fact("saved bytes", tuple(to_bytes_text(each.saved_bytes) for each in figures)),
        Fact("incl. parameters", tuple(to_bytes_text(each.saved_bytes_total) for each in figures)),
        Fact("requires_grad", tuple(_flag(outputs_require_grad(each)) for each in figures)),
        Fact("grad_fn", tuple(_grad_fn(each) for each in figures)),
        Fact("inference tensor", tuple(_flag(outputs_are_inference(each)) for each in figures)),
        Fact("values", tuple(_short_values(run, runs) for run in runs)),
        Fact("dropout", tuple(_switch(run.dropout_active) for run in runs)),
        Fact("buffers", tuple(_moved(run.moved_buffers) for run in runs)),
        Fact("peak memory", tuple("" if run.peak_bytes is None else to_bytes_text(run.peak_bytes) for run in runs)),
        Fact("time", tuple(seconds_words(run.seconds) for run in runs)),
        Fact("error", tuple(run.failure.type if run.failure else "" for run in runs)),
    ]
    return [fact for fact in found if any(fact.texts)]


def outputs_require_grad(figures: Figures) -> bool | None:
    """Some output does; ``None`` without outputs."""
    flags = [output.tensor.requires_grad for output in figures.outputs]
    return any(flags) if flags else None


def outputs_are_inference(figures: Figures) -> bool | None:
    """Some output is an inference tensor; ``None`` without outputs, and where it is not known of any."""
    flags = [flag for output in figures.outputs if (flag := output.tensor.is_inference) is not None]
    return any(flags) if flags else None


def _freed(figures: Sequence[Figures]) -> tuple[str, ...]:
    """What a backward freed before the graph was taken, without which ``0 B`` would look like nothing ever saved."""
    if not any(each.freed_tensors for each in figures):
        return ()
    return tuple(f"{each.freed_tensors:,}" for each in figures)


def _flag(value: bool | None) -> str:  # noqa: FBT001  a cell of a table
    return "" if value is None else str(value)


def _switch(value: bool | None) -> str:  # noqa: FBT001  a cell of a table
    return "" if value is None else "active" if value else "off"


def _grad_fn(figures: Figures) -> str:
    names = dict.fromkeys(output.grad_fn or "None" for output in figures.outputs)
    return ", ".join(names)


def _moved(buffers: Sequence[str] | None) -> str:
    if buffers is None:
        return ""
    return f"{len(buffers):,} moved" if buffers else "unmoved"


def seconds_words(seconds: Seconds | None) -> str:
    """The median, and how far the repeats lie apart.

    >>> seconds_words(Seconds(0.00123, 0.001, 0.0156, 5)), seconds_words(Seconds(2.5, 2.5, 2.5, 1))
    ('1.23 ms (1–15.6)', '2.5 s')
    """
    if seconds is None:
        return ""
    unit, size = next((unit for unit in _TIME_UNITS if seconds.median >= unit[1]), _TIME_UNITS[-1])
    median, least, most = (_digits(value / size) for value in seconds[:3])
    return f"{median} {unit}" + (f" ({least}–{most})" if seconds.repeats > 1 else "")


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < _FOUR_DIGITS else f"{value:,.0f}"


def _short_values(run: Run, runs: Sequence[Run]) -> str:
    if run.failure is not None or run.values.equal is None:
        return ""
    if run is next((each for each in runs if each.failure is None), None):
        return "the first"
    if run.values.equal:
        return "equal"
    return "differ" if run.values.difference is None else f"differ by {run.values.difference:.3g}"


def values_words(run: Run, compared: Compared) -> str:
    """How the results compare with those of the first run that had some."""
    first = next((each for each in compared.runs if each.failure is None), None)
    if run.failure is not None or run.values.equal is None:
        return ""
    if first is run or first is None:
        return ""
    if run.values.equal:
        return f"equal to {visible(first.mode)}"
    difference = "" if run.values.difference is None else f" by up to {run.values.difference:.3g}"
    return f"differ from {visible(first.mode)}{difference}"


def row_words(row: Row, names: Sequence[str]) -> str:
    """How the runs of these names differ in one row; empty if they do not."""
    places = range(len(names))
    ran = [place for place in places if row.cells[place] is not None]
    nodes = [node for node in row.cells if node is not None]
    recorded = [place for place, node in zip(ran, nodes, strict=True) if was_recorded(node)]
    unknown = [place for place, node in zip(ran, nodes, strict=True) if was_recorded(node) is None]
    words = []
    if len(ran) < len(names):
        words.append(_where(ran, places, names, ("runs", "does not run")))
    if recorded and len(recorded) < len(ran):
        words.append(_where(recorded, ran, names, ("recorded", "not recorded")))
    if unknown:
        words.append(f"gone too soon to tell in {_listed([names[place] for place in unknown])}")
    if len({node.backward for node in nodes if node.backward is not None}) > 1:
        words.append("by another backward node")
    if len({tensor[:2] for node in nodes for tensor in node.outputs[:1]}) > 1:
        words.append("another shape or dtype")
    return "; ".join(words)


def band_words(band: Band, names: Sequence[str]) -> str:
    """How the runs differ in a band: in words where all its rows say the same, else in how many rows."""
    words = {row_words(row, names) for row in band.rows}
    if len(words) == 1:
        return words.pop()
    differing = sum(1 for row in band.rows if row.differs)
    return f"{differing:,} of {to_count_text(len(band.rows), 'operation')} differ"


def _where(some: Sequence[int], all_of_them: Sequence[int], names: Sequence[str], words: tuple[str, str]) -> str:
    """``recorded only in grad``, or ``not recorded in eval`` where that is shorter."""
    others = [place for place in all_of_them if place not in some]
    if len(some) <= len(others):
        return f"{words[0]} only in {_listed([names[place] for place in some])}"
    return f"{words[1]} in {_listed([names[place] for place in others])}"


def _listed(names: Sequence[str]) -> str:
    shown = [elide(visible(name), _NAME) for name in names[:_NAMED_RUNS]]
    return ", ".join(shown) + (" …" if len(names) > _NAMED_RUNS else "")


def cell_title(node: Node) -> str:
    """The mark of the part it plays, and the op."""
    return f"{GLYPHS[look_of(node)]} {elide(title_of(node))}"


def lost_words(node: Node) -> str | None:
    """What is to be said of an op whose backward node, if it had one, was gone when the graph was taken."""
    if node.backward is not None:
        return None
    words = {True: "recorded, and let go since", None: "recorded or not: gone too soon to tell"}
    return words.get(was_recorded(node))


def cut(text: str, limit: int) -> str:
    """Text of at most ``limit`` characters; a longer one loses its end."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def cell_lines(node: Node, data: GraphData) -> list[str]:
    """Backward node, result, the leaves that it reads, and where it stands."""
    shown = node._replace(outputs=node.outputs[:1], without_gradient=())
    lines = list(details_of(shown, data))
    lost = lost_words(node)
    if lost is not None:
        lines[0] = lost
    reads = [*_reads(node, data)]
    if reads:
        lines.append("reads " + ", ".join(reads))
    if node.module:
        lines.append(f"in {elide(visible(node.module))}")
    elif node.location is not None:
        code = f": {visible(node.location.code)}" if node.location.code else ""
        lines.append(cut(f"line {node.location.line}{code}", LINE_LIMIT))
    return lines


def leaves_read(node: Node, data: GraphData) -> list[Node]:
    """Leaves that an op reads, each once."""
    sources = dict.fromkeys(edge.source for edge in data.incoming[node.id])
    return [data.by_id[source] for source in sources if data.by_id[source].kind is Kind.LEAF]


def _reads(node: Node, data: GraphData) -> Iterator[str]:
    leaves = leaves_read(node, data)
    for leaf in leaves[:_READS]:
        name = title_of(leaf).removeprefix(f"{node.module}." if node.module else "\0")
        yield f"{GLYPHS[look_of(leaf)]} {elide(name, _NAME)}"
    if len(leaves) > _READS:
        yield f"{len(leaves) - _READS} more"


def band_lines(nodes: Sequence[Node]) -> list[str]:
    """How many ops of a band were recorded, and which ops are the most frequent."""
    common = Counter(title_of(node) for node in nodes).most_common(3)
    kinds = ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in common)
    more = len({title_of(node) for node in nodes}) - len(common)
    return [f"{band_told(nodes)} recorded", kinds + (" …" if more else "")]


def band_told(nodes: Sequence[Node]) -> str:
    """How many of the ops were recorded: ``all 4``, ``none``, ``1 of 4``."""
    recorded = sum(1 for node in nodes if node.backward is not None)
    if not recorded:
        return "none"
    return f"all {recorded:,}" if recorded == len(nodes) else f"{recorded:,} of {len(nodes):,}"


def run_lines(place: int, compared: Compared) -> list[str]:
    """The figures of one run for the head of its column; what no run has is left out."""
    run, figures = compared.runs[place], compared.figures[place]
    lines = [f"{to_count_text(figures.ops, 'operation')}, {to_count_text(figures.backward_nodes, 'backward node')}"]
    freed = to_count_text(figures.freed_tensors, "saved tensor")
    if figures.saved_bytes or not figures.freed_tensors:
        lines.append(f"keeps {to_bytes_text(figures.saved_bytes) if figures.saved_bytes else 'nothing'} for backward")
    if figures.freed_tensors:
        lines.append(f"{freed} freed by a backward")
    if any(each.dropout_active for each in compared.runs):
        lines.append(f"dropout {_switch(run.dropout_active)}")
    if any(each.moved_buffers for each in compared.runs):
        moved = len(run.moved_buffers or ())
        lines.append(f"{to_count_text(moved, 'buffer')} moved" if moved else "no buffer moved")
    return lines


def output_lines(tensor: TensorInfo, grad_fn: str | None) -> list[str]:
    """What is told of a result: its kind, how autograd knows it."""
    lines = [tensor_words(tensor), f"requires_grad={tensor.requires_grad}"]
    if grad_fn is not None:
        lines.append(f"grad_fn={grad_fn}")
    elif tensor.is_leaf or not tensor.requires_grad:
        lines.append("a leaf: no grad_fn")
    return lines


def failure_lines(failure: Failure) -> list[str]:
    """The error that ended a run, and where it was raised."""
    lines = [cut(visible(line), _ERROR) for line in failure.text.split("\n")[:2] if line.strip()]
    where = failure.location
    return [*lines, visible(f"{where.file}:{where.line}")] if where is not None else lines
