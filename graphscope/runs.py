"""What is known of several runs of one computation: immutable records, no torch.

A comparison is a few runs, each with its graph and what was measured of it, and the rows in which their ops stand side
by side.
"""

from __future__ import annotations

from typing import NamedTuple

from graphscope.model import GraphData, Location, Node, TensorInfo


class Failure(NamedTuple):
    """The error that ended a run."""

    type: str
    text: str
    location: Location | None = None
    traceback: str = ""
    """As Python would show it, without frames of graphscope."""


class Seconds(NamedTuple):
    """How long a run took, over several repeats."""

    median: float
    least: float
    most: float
    repeats: int


class Values(NamedTuple):
    """How the results of a run compare with those of the first one; ``None`` where that cannot be known."""

    equal: bool | None
    difference: float | None = None
    """Largest absolute difference between two elements."""


class Run(NamedTuple):
    """One run, or one of the tensors that are compared. ``None`` always means "not known"."""

    mode: str
    """``grad``, ``eval+no_grad``; or the name of the tensor or graph."""
    data: GraphData
    """Everything that ran, as far as it came."""
    failure: Failure | None = None
    seconds: Seconds | None = None
    values: Values = Values(None)
    dropout_active: bool | None = None
    random_numbers_drawn: bool | None = None
    moved_buffers: tuple[str, ...] | None = None
    """Names of the buffers that the run changed: running statistics, counters."""
    peak_bytes: int | None = None
    """Most memory that results of ops took at one time, each storage once."""


class Output(NamedTuple):
    """One tensor that a run returned."""

    tensor: TensorInfo
    grad_fn: str | None
    """Name of the backward node that made it."""


class Figures(NamedTuple):
    """What can be counted in the graph of a run."""

    ops: int
    recorded_ops: int
    """Ops that have a backward node, whether a gradient arrives there or not."""
    backward_nodes: int
    """Nodes that ``next_functions`` leads to from the outputs, without the accumulators of the leaves."""
    accumulators: int
    """``AccumulateGrad`` nodes among those that it leads to."""
    saved_tensors: int
    """Tensors that backward nodes keep, parameters included."""
    saved_bytes: int
    """Memory that they keep alive: each storage once, without parameters and buffers, which exist anyway."""
    saved_bytes_total: int
    """The same with parameters and buffers."""
    outputs: tuple[Output, ...]
    freed_tensors: int = 0
    """Of the saved tensors, those that a backward freed before the graph was taken: their bytes are counted nowhere."""


def was_recorded(node: Node) -> bool | None:
    """Autograd recorded the op, even if its backward node is gone; ``None`` where it is gone too soon to tell."""
    if node.backward is not None:
        return True
    if node.mode != "grad":
        return False
    if any(tensor.requires_grad and tensor.is_leaf is False for tensor in node.outputs):
        return True
    return None if any(tensor.requires_grad is None for tensor in node.outputs) else False


class Row(NamedTuple):
    """One op, in every run in which it ran."""

    op: str
    cells: tuple[Node | None, ...]
    """For each run the node, or ``None`` where the op did not run."""
    differs: bool


class Compared(NamedTuple):
    """Runs, what was counted in each, and their ops side by side in the order in which they ran."""

    runs: tuple[Run, ...]
    figures: tuple[Figures, ...]
    rows: tuple[Row, ...]
