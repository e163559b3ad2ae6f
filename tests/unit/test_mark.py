"""What a picture says at the spot where a program went wrong."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import graphscope
from graphscope.analyze.explain import explain
from graphscope.analyze.failures import explain_failure
from graphscope.analyze.mark import mark
from graphscope.capture.program.failure import graph_of_failure, read_error
from graphscope.capture.recording.record import Recorded, Recorder
from graphscope.model import GraphData
from graphscope.render.dot import to_dot
from tests.cli.programs import render


def noted(data: GraphData) -> dict[str, str]:
    return {node.op or node.id: node.note for node in data.nodes if node.note and node.note.startswith("×")}


def test_the_op_that_overwrote_is_marked() -> None:
    net = nn.Linear(2, 2)
    with graphscope.recording() as rec:
        hidden = net(torch.ones(1, 2)).sigmoid()
        hidden += 1
        loss = hidden.sum()
    data = rec.graph(loss)._whole
    marked = mark(data, explain(data)).check()
    assert noted(marked) == {"add": "× overwrites what backward needs"}
    assert "overwrites what backward needs" in str(to_dot(marked).source)
    assert [node.id for node in marked.nodes] == [node.id for node in data.nodes]


def test_a_script_that_dies_in_its_first_backward_is_drawn_with_the_spot(tmp_path: Path) -> None:
    text = "import torch\nw = torch.ones(2, requires_grad=True)\ny = w.exp()\ny += 1\nloss = y.sum()\nloss.backward()\n"
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    run = render(tmp_path, "script.py")
    assert run.status == 1
    assert "add  AddBackward0" in run.stdout
    assert "× overwrites what backward needs" in run.stdout


def test_a_graph_without_errors_stays_as_it_is() -> None:
    net = nn.Linear(2, 2)
    with graphscope.recording() as rec:
        loss = net(torch.ones(1, 2)).detach().sum()
    data = rec.graph(loss, names={"net": net, "result": loss})._whole
    assert mark(data, explain(data)) == data


def test_an_op_that_raised_says_so_itself() -> None:
    recorder = Recorder()
    here = Path(__file__).parent
    try:
        with recorder.active():
            x = torch.ones(2, requires_grad=True)
            y = x.exp() @ torch.ones(3)
            assert y is None
    except RuntimeError as error:
        data = graph_of_failure(error, Recorded(recorder, here))
        explained = explain_failure(data, read_error(error, here))
        assert explained.error is not None
        assert explained.error.location is not None
        assert explained.error.location.code == "y = x.exp() @ torch.ones(3)"
        marked = mark(data, explained)
        assert [node.op for node in marked.nodes if node.note and "raised an error" in node.note] == ["dot"]
        assert noted(marked) == {}


def test_another_error_marks_the_last_op_of_its_line() -> None:
    recorder = Recorder()
    here = Path(__file__).parent
    try:
        with recorder.active():
            x = torch.ones(2, requires_grad=True)
            assert x.exp().sum().item() < 0
    except AssertionError as error:
        data = graph_of_failure(error, Recorded(recorder, here))
        marked = mark(data, explain_failure(data, read_error(error, here)))
        assert noted(marked) == {"local_scalar_dense": "× AssertionError comes from this line"}
