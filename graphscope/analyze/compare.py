"""Several runs side by side: what was counted in each, and which op of one is which op of the others."""

from __future__ import annotations

from collections.abc import Sequence

from graphscope.analyze.align import Key, align
from graphscope.model import GraphData, Kind, Node, State
from graphscope.runs import Compared, Figures, Output, Row, Run, was_recorded
from graphscope.style import short_backward

Cells = list[Node | None]


def compare_runs(runs: Sequence[Run], *, same_program: bool) -> Compared:
    """Count in every run, and put their ops into rows.

    Args:
        runs: two or more.
        same_program: the runs are of one program, so that ops at different lines or in different modules are different
            ops, and the branches of an ``if`` stand in rows of their own. Otherwise line and module only count in
            favour.
    """
    rows = _rows([_ops(run.data) for run in runs], same_program=same_program)
    return Compared(
        runs=tuple(runs),
        figures=tuple(figures_of(run.data) for run in runs),
        rows=tuple(Row(name_of(_first(cells)), tuple(cells), _differs(cells)) for cells in rows),
    )


def figures_of(data: GraphData) -> Figures:
    """Everything that can be counted in one graph."""
    ops = _ops(data)
    kept = [storage for storage in data.storages if storage.id in data.owners]
    return Figures(
        ops=sum(1 for node in ops if node.op is not None),
        recorded_ops=sum(1 for node in ops if node.backward is not None),
        backward_nodes=sum(1 for node in ops if node.backward is not None and node.reached),
        accumulators=sum(1 for node in data.nodes if node.accumulate is not None and node.reached),
        saved_tensors=sum(len(node.saved) for node in ops),
        saved_bytes=sum(storage.bytes for storage in kept if not storage.parameter),
        saved_bytes_total=sum(storage.bytes for storage in kept),
        outputs=tuple(_output(data, root) for root in data.roots),
        freed_tensors=sum(saved.state is State.FREED for node in ops for saved in node.saved),
    )


def name_of(node: Node) -> str:
    """The forward op; the backward node where no op was seen."""
    return node.op if node.op is not None else short_backward(node.backward or "unknown")


def _ops(data: GraphData) -> list[Node]:
    return [node for node in data.nodes if node.kind is Kind.OP]


def _output(data: GraphData, root: str) -> Output:
    (edge,) = data.incoming[root]
    made_by = data.by_id[edge.source].backward
    tensor = data.by_id[root].outputs[0]
    return Output(tensor, short_backward(made_by) if made_by is not None and tensor.requires_grad else None)


def _rows(runs: Sequence[Sequence[Node]], *, same_program: bool) -> list[Cells]:
    """Each run is laid beside the rows that the ones before have made; what it has more gets rows of its own."""
    rows: list[Cells] = [[node] for node in runs[0]]
    for number, nodes in enumerate(runs[1:], start=1):
        pairs = align(
            [_key(_first(cells), same_program=same_program) for cells in rows],
            [_key(node, same_program=same_program) for node in nodes],
        )
        rows = _joined(rows, nodes, pairs, number)
    return rows


def _joined(
    rows: list[Cells], nodes: Sequence[Node], pairs: Sequence[tuple[int, int]], runs_before: int
) -> list[Cells]:
    joined: list[Cells] = []
    row, place = 0, 0
    for row_end, place_end in [*pairs, (len(rows), len(nodes))]:
        joined += [[*cells, None] for cells in rows[row:row_end]]
        joined += [[*[None] * runs_before, node] for node in nodes[place:place_end]]
        if row_end < len(rows):
            joined.append([*rows[row_end], nodes[place_end]])
        row, place = row_end + 1, place_end + 1
    return joined


def _key(node: Node, *, same_program: bool) -> Key:
    line = (node.location.file, node.location.line) if node.location is not None else None
    key = (name_of(node), node.module, line)
    return (key,) if same_program else key


def _first(cells: Sequence[Node | None]) -> Node:
    return next(node for node in cells if node is not None)


def _differs(cells: Sequence[Node | None]) -> bool:
    """The op did not run everywhere, was recorded in another way, or returned something of another kind."""
    nodes = [node for node in cells if node is not None]
    return len(nodes) < len(cells) or len(set(map(_kind, nodes))) > 1


def _kind(node: Node) -> tuple[object, ...]:
    """Its backward node, whether it had one that is gone, and what it returned first."""
    return (node.backward, was_recorded(node), *(tensor[:2] for tensor in node.outputs[:1]))
