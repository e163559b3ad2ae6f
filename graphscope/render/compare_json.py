"""A comparison as JSON, by the schema ``graphscope/schema/compare-1.json``.

``seconds`` is the only figure that may vary from one call to the next. The spread of the times varies, too, so it
stands there only where the caller asked for a number of repeats.
"""

from __future__ import annotations

import json
from typing import Any

from graphscope.model import Location, TensorInfo
from graphscope.render.compare_words import outputs_are_inference, outputs_require_grad
from graphscope.runs import Compared, Figures, Output, Row, Run

FORMAT = "graphscope.compare"
VERSION = 1


def compared_to_json(compared: Compared, *, spread: bool = False) -> dict[str, Any]:
    """The whole comparison as plain dicts, lists, strings, numbers, bools and None; rows are never folded."""
    names = [run.mode for run in compared.runs]
    return {
        "format": FORMAT,
        "version": VERSION,
        "torch": compared.runs[0].data.torch,
        "runs": [
            _run(run, figures, spread=spread) for run, figures in zip(compared.runs, compared.figures, strict=True)
        ],
        "rows": [_row(row, names) for row in compared.rows],
    }


def dumps(document: dict[str, Any]) -> str:
    """The document as text, one run or row on a line."""
    lines = []
    for key, value in document.items():
        if key in {"runs", "rows"}:
            inside = ",\n".join("  " + _dump(each) for each in value)
            lines.append(f"{json.dumps(key)}: [\n{inside}\n ]")
        else:
            lines.append(f"{json.dumps(key)}: {_dump(value)}")
    return "{" + ",\n ".join(lines) + "}\n"


def _dump(value: object) -> str:
    """Characters stand as themselves, but for lone surrogates, which UTF-8 cannot hold."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()


def _run(run: Run, figures: Figures, *, spread: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "mode": run.mode,
        "ops": figures.ops,
        "recorded_ops": figures.recorded_ops,
        "backward_nodes": figures.backward_nodes,
        "accumulate_nodes": figures.accumulators,
        "saved_tensors": figures.saved_tensors,
        "saved_bytes": figures.saved_bytes,
        "saved_bytes_total": figures.saved_bytes_total,
        "output_requires_grad": outputs_require_grad(figures),
        "output_is_inference": outputs_are_inference(figures),
        "output_grad_fn": figures.outputs[0].grad_fn if figures.outputs else None,
        "outputs": [_output(output) for output in figures.outputs],
        "values_equal": run.values.equal,
        "max_abs_difference": run.values.difference,
        "dropout_active": run.dropout_active,
        "random_numbers_drawn": run.random_numbers_drawn,
        "statistics_moved": None if run.moved_buffers is None else bool(run.moved_buffers),
        "moved_buffers": None if run.moved_buffers is None else list(run.moved_buffers),
        "peak_bytes": run.peak_bytes,
        "seconds": run.seconds.median if run.seconds is not None else None,
    }
    if figures.freed_tensors:
        document["freed_tensors"] = figures.freed_tensors
    if spread and run.seconds is not None:
        document["seconds_spread"] = [run.seconds.least, run.seconds.most]
        document["repeats"] = run.seconds.repeats
    if run.failure is not None:
        failure = run.failure
        document["error"] = {"type": failure.type, "text": failure.text, "location": _location(failure.location)}
    return document


def _output(output: Output) -> dict[str, Any]:
    tensor: TensorInfo = output.tensor
    return {
        "names": list(tensor.names),
        "shape": None if tensor.shape is None else list(tensor.shape),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "is_inference": tensor.is_inference,
        "grad_fn": output.grad_fn,
    }


def _row(row: Row, names: list[str]) -> dict[str, Any]:
    """``in`` holds the runs that the op ran in, with its backward node or null."""
    ran = {name: node for name, node in zip(names, row.cells, strict=True) if node is not None}
    return {
        "op": row.op,
        "locations": {name: _location(node.location) for name, node in ran.items()},
        "in": {name: node.backward for name, node in ran.items()},
        "modules": {name: node.module for name, node in ran.items()},
        "differs": row.differs,
    }


def _location(location: Location | None) -> dict[str, Any] | None:
    if location is None:
        return None
    document: dict[str, Any] = {"file": location.file, "line": location.line, "code": location.code}
    return document if location.function is None else {**document, "function": location.function}
