"""What explain says of the programs that forums are full of: the cause, the line, and who torch really fills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphscope.analyze.explain import explain
from graphscope.capture.program.choose import graph_of_value
from graphscope.capture.recording.record import Recorded
from graphscope.findings import Explained, Severity
from graphscope.render.explain_terminal import render
from graphscope.render.terminal_lines import LineOptions
from tests.unit.test_explain import PROGRAMS, a_program, alone, fills, names_in

FILE = PROGRAMS / "forum.py"

CAUSED = {
    "parameter_of_result": ("data", "nn.Parameter(…) makes a new leaf"),
    "parameter_of_parameter": ("data", "nn.Parameter(…) makes a new leaf"),
    "view_under_no_grad": ("no_grad", "with torch.no_grad()"),
    "function_answers_none": ("custom_function", "The backward of Scale returns None"),
    "item_of_log_probs": ("left_pytorch", "left PyTorch"),
    "threshold_that_learns": ("integer_dtype", "A comparison gives"),
    "constants_of_the_shape": ("integer_dtype", "A comparison gives"),
    "rolled_by_a_parameter": ("left_pytorch", "left PyTorch"),
    "new_tensor_of_result": ("left_pytorch", "left PyTorch"),
    "states_kept_detached": ("detach", "detach() cuts"),
    "loaded_in_forward": ("detach", "as detach() does"),
}
"""Cause of every parameter that misses its gradient, and words of the sentence."""


def explained_program(name: str, folder: Path) -> tuple[Explained, set[int], dict[str, Any]]:
    module, lines = alone(FILE, name, folder)
    with a_program() as recorder:
        variables = module.main()
    data = graph_of_value(variables, "main()", recorded=Recorded(recorder, folder))
    return explain(data.check()), lines, variables


def alarms(explained: Explained) -> list[str]:
    return [hazard.kind for hazard in explained.hazards if hazard.severity is not Severity.NOTE]


@pytest.mark.parametrize("name", CAUSED)
def test_cause_line_and_words(name: str, tmp_path: Path) -> None:
    explained, lines, _ = explained_program(name, tmp_path)
    cause, words = CAUSED[name]
    assert explained.missing
    for row in explained.missing:
        assert row.cause is not None
        assert row.cause.value == cause
        assert words in row.message
        assert row.location is not None
        assert row.location.line in lines
        assert {one.location.line for one in row.also if one.location is not None} <= lines


@pytest.mark.parametrize("name", [name for name in names_in(FILE) if name.startswith("ok_")])
def test_what_is_right_gets_no_alarm(name: str, tmp_path: Path) -> None:
    explained, _, _ = explained_program(name, tmp_path)
    assert (explained.missing, alarms(explained)) == ((), [])


@pytest.mark.parametrize("name", names_in(FILE))
def test_torch_agrees_on_who_gets_a_gradient(name: str, tmp_path: Path) -> None:
    explained, _, variables = explained_program(name, tmp_path)
    if "model" in variables:
        told = {row.name: row.receives_grad for row in explained.tensors if row.kind == "parameter"}
        told |= {name.removeprefix("model."): got for name, got in told.items()}
        expected = fills(variables)
        tied = {alias: row for row in explained.tensors for alias in row.aliases}
        assert {
            name: told[name] if name in told else tied[f"model.{name}"].receives_grad for name in expected
        } == expected


def test_what_is_trained_beside_a_frozen_network() -> None:
    from graphscope import recording

    net, image = torch.nn.Linear(4, 1).requires_grad_(requires_grad=False), torch.rand(2, 4, requires_grad=True)
    with recording() as rec:
        loss = net(image).sum()
    text = str(rec.graph(loss, names={"net": net, "image": image, "loss": loss}).explain())
    assert text.splitlines() == ["‖ All 2 parameters in sight are frozen.", "● image gets a gradient from loss."]


def test_an_optimizer_of_a_model_that_is_gone(tmp_path: Path) -> None:
    explained, lines, _ = explained_program("optimizer_of_the_old_model", tmp_path)
    (hazard,) = [one for one in explained.hazards if one.severity is not Severity.NOTE]
    assert (hazard.kind, hazard.tensors) == ("optimizer_holds_strangers", ("model.weight", "model.bias"))
    assert hazard.location is not None
    assert hazard.location.line in lines


def test_a_name_given_to_a_result_under_no_grad(tmp_path: Path) -> None:
    explained, lines, _ = explained_program("name_given_away", tmp_path)
    text = render(explained, LineOptions(width=100), details=True)
    row = next(row for row in explained.tensors if row.name == "w")
    assert row.location is not None
    assert row.location.line in lines
    assert "w" in text


def test_a_leaf_of_no_module_is_told_beside_the_parameters() -> None:
    from graphscope import recording

    w, head = torch.rand(4, 3, requires_grad=True), torch.nn.Linear(3, 1)
    with recording() as rec:
        loss = head(w.detach()).sum()
    explanation = rec.graph(loss, names={"w": w, "head": head, "loss": loss}).explain()
    assert explanation.missing == ()
    assert "\n◌ w\n" in str(explanation)
    assert "cut by detach()" in str(explanation)


def test_an_update_is_no_use() -> None:
    from graphscope import recording

    model = torch.nn.ModuleDict({"used": torch.nn.Linear(2, 1), "idle": torch.nn.Linear(2, 1)})
    with recording() as rec:
        for parameter in model.parameters():
            parameter.data *= 0.9
        loss = model["used"](torch.rand(3, 2)).sum()
    explanation = rec.graph(loss, names={"model": model, "loss": loss}).explain()
    assert {row.message.partition(",")[0] for row in explanation.missing} == {
        "model.idle was not called while the program ran"
    }


def test_a_gradient_without_graph_is_a_constant() -> None:
    from graphscope import recording

    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x = torch.rand(3, 2, requires_grad=True)
    with recording() as rec:
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        loss = y.mean() + slope.norm()
    with recording() as right:
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        other = y.mean() + slope.norm()
    names = {"model": model, "x": x, "slope": slope}
    (hazard,) = rec.graph(loss, names={**names, "loss": loss}).explain().hazards
    assert (hazard.kind, hazard.severity) == ("gradient_without_graph", Severity.NOTE)
    assert "without create_graph=True" in hazard.message
    assert right.graph(other, names={**names, "loss": other}).explain().hazards == ()
