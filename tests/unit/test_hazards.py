"""Hazards of roots, of values overwritten, of graphs kept, of modes: and what is close by and innocent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphscope.findings import Severity
from tests.hazards import E, N, W, hazards_of, only, told

# Roots.


def test_a_loss_without_history() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        with torch.no_grad():
            loss = model(torch.ones(1, 2)).sum()
        return {"model": model, "loss": loss}

    assert told(program) == [("loss_without_history", E)]


def test_a_loss_that_was_made_a_leaf() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        loss = model(torch.ones(1, 2)).sum().detach()
        loss.requires_grad_()
        return {"model": model, "loss": loss}

    assert told(program)[0] == ("loss_is_leaf", E)


def test_every_parameter_frozen() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        for parameter in model.parameters():
            parameter.requires_grad = False
        loss = model(torch.ones(1, 2)).sum()
        return {"model": model, "loss": loss}

    (hazard,) = hazards_of(program)
    assert (hazard.kind, hazard.severity) == ("everything_frozen", E)
    assert "None of the 2 parameters" in hazard.message


def test_inference_with_a_frozen_model_is_no_mistake() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1).requires_grad_(requires_grad=False).eval()
        return {"model": model, "prediction": model(torch.ones(1, 2))}

    assert [one for one in told(program) if one[1] is E] == []


def test_a_complex_loss() -> None:
    def program() -> dict[str, Any]:
        z = torch.ones(2, dtype=torch.cfloat, requires_grad=True)
        return {"z": z, "loss": (z * z).sum()}

    assert told(program) == [("complex_loss", W)]


def test_the_modulus_of_a_complex_number_is_none() -> None:
    def program() -> dict[str, Any]:
        z = torch.ones(2, dtype=torch.cfloat, requires_grad=True)
        return {"z": z, "loss": (z * z).abs().sum()}

    assert told(program) == []


def test_a_graph_that_backward_freed() -> None:
    def program() -> dict[str, Any]:
        w = torch.ones(2, requires_grad=True)
        hidden = w.exp()
        first = hidden.sum()
        first.backward()
        loss = hidden.square().sum()
        return {"w": w, "loss": loss}

    hazard = only(program, "graph_freed", E, "hidden.square()")
    assert any("first.backward()" in place.code for place in hazard.also)


def test_a_loss_that_has_run_backward_is_worth_a_note_at_most() -> None:
    def program() -> dict[str, Any]:
        w = torch.ones(2, requires_grad=True)
        loss = w.exp().sum()
        loss.backward()
        return {"w": w, "loss": loss}

    assert {severity for _, severity in told(program)} <= {N}


def test_a_graph_that_saved_nothing_may_run_twice() -> None:
    def program() -> dict[str, Any]:
        w = torch.ones(2, requires_grad=True)
        loss = (w + 1).sum()
        loss.backward()
        loss.backward()
        return {"w": w, "loss": loss}

    assert {severity for _, severity in told(program)} <= {N}


# Overwritten values.


def test_a_saved_value_overwritten() -> None:
    def program() -> dict[str, Any]:
        w = torch.ones(2, requires_grad=True)
        hidden = w.exp()
        hidden.add_(1)
        loss = hidden.sum()
        return {"w": w, "loss": loss}

    hazard = only(program, "saved_tensor_modified", E, "hidden.add_(1)")
    assert "hidden = w.exp()" in hazard.also[0].code
    assert "version 0" in hazard.message
    assert "version 1" in hazard.message


def test_a_value_overwritten_that_nothing_saved() -> None:
    def program() -> dict[str, Any]:
        w = torch.ones(2, requires_grad=True)
        hidden = w * 2
        hidden.add_(1)
        return {"w": w, "loss": hidden.sum()}

    assert told(program) == []


def test_another_part_of_the_memory_overwritten_counts_for_torch() -> None:
    def program() -> dict[str, Any]:
        w = torch.ones(4, requires_grad=True)
        base = w * 1
        loss = base[:2].exp().sum() + base[2:].square().sum()
        base[3] = 0
        return {"w": w, "loss": loss}

    assert told(program) == [("saved_tensor_modified", E)]


def test_parameters_changed_by_the_optimizer_before_backward() -> None:
    def program() -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first, loss = model(torch.ones(1, 2)).sum(), model(torch.ones(1, 2)).sum()
        first.backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer, "loss": loss}

    hazard = hazards_of(program)[0]
    assert (hazard.kind, hazard.severity) == ("saved_tensor_modified", E)
    assert hazard.location is not None
    assert "optimizer.step()" in hazard.location.code


def test_a_write_past_autograd() -> None:
    def program() -> dict[str, Any]:
        w = torch.ones(2, requires_grad=True)
        hidden = w.exp()
        loss = hidden.sum()
        hidden.data.zero_()
        return {"w": w, "loss": loss}

    assert told(program) == [("silent_overwrite", E)]


# Kept graphs.


def test_losses_kept_with_their_graphs() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        history = []
        for _ in range(4):
            loss = model(torch.ones(1, 2)).square().sum()
            history.append(loss)
        return {"model": model, "loss": loss, "history": history}

    hazard = only(program, "graph_retained", W, "history.append(loss)")
    assert "history (4 results" in hazard.message


def test_losses_kept_as_numbers() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        history = []
        for _ in range(4):
            loss = model(torch.ones(1, 2)).square().sum()
            history.append(loss.detach())
        return {"model": model, "loss": loss, "history": history}

    assert told(program) == []


@pytest.mark.parametrize(("root", "severity"), [("loss", W), ("total", N)])
def test_a_running_total(root: str, severity: Severity) -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        total = torch.zeros(())
        for _ in range(4):
            loss = model(torch.ones(1, 2)).square().sum()
            total = total + loss
        return {"model": model, "loss": loss, "total": total} if root == "loss" else {"model": model, "loss": total}

    assert told(program) == [("graph_retained", severity)]


def test_an_attribute_that_keeps_a_graph_is_a_note() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.last: Tensor | None = None

        def forward(self, x: Tensor) -> Any:
            self.last = self.layer(x)
            return self.last.sum()

    def program() -> dict[str, Any]:
        model = Net()
        return {"model": model, "loss": model(torch.ones(1, 2))}

    assert "model.last" in only(program, "graph_retained", N, "self.last = self.layer(x)").message


def test_a_graph_that_grows_with_every_round() -> None:
    def program() -> dict[str, Any]:
        cell = nn.Linear(2, 2)
        state = torch.zeros(1, 2)
        for _ in range(4):
            state = torch.tanh(cell(state))
            loss = state.sum()
            loss.backward(retain_graph=True)
        return {"cell": cell, "loss": loss}

    hazard = hazards_of(program)[0]
    assert (hazard.kind, hazard.severity) == ("graph_retained", W)
    assert "detach" in hazard.remedy


# Modes.


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.norm(x))


def test_training_mode_while_evaluating() -> None:
    def program() -> dict[str, Any]:
        model = Mixed()
        with torch.no_grad():
            accuracy = model(torch.rand(4, 2)).mean()
        return {"model": model, "accuracy": accuracy}

    hazard = only(program, "train_layer_in_no_grad", W, "self.norm(x)")
    assert "Batch normalization runs" in hazard.message


def test_a_teacher_in_training_mode_is_a_note() -> None:
    def program() -> dict[str, Any]:
        teacher, student = Mixed(), nn.Linear(2, 1)
        x = torch.rand(4, 2)
        with torch.no_grad():
            target = teacher(x)
        return {"teacher": teacher, "student": student, "loss": (student(x) - target).square().mean()}

    assert told(program) == [("train_layer_in_no_grad", N)]


def test_dropout_that_ignores_eval() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Any:
            return nn.functional.dropout(self.layer(x), 0.5)

    def program() -> dict[str, Any]:
        model = Net().eval()
        with torch.no_grad():
            return {"model": model, "output": model(torch.ones(8, 2))}

    hazard = hazards_of(program)[0]
    assert (hazard.kind, hazard.severity) == ("dropout_in_eval", W)
    assert hazard.location is not None
    assert "dropout(" in hazard.location.code


def test_eval_that_records_is_a_note() -> None:
    def program() -> dict[str, Any]:
        model = Mixed().eval()
        return {"model": model, "output": model(torch.ones(1, 2))}

    assert told(program) == [("eval_still_records", N)]


def test_gradients_left_off() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        torch.set_grad_enabled(False)
        loss = model(torch.ones(1, 2)).sum()
        return {"model": model, "loss": loss}

    kinds = dict(told(program))
    assert kinds["grad_mode_left_off"] is W
    assert kinds["loss_without_history"] is E


def test_gradients_on_again_at_the_end() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        torch.set_grad_enabled(False)
        model(torch.ones(1, 2))
        torch.set_grad_enabled(True)
        return {"model": model, "loss": model(torch.ones(1, 2)).sum()}

    assert "grad_mode_left_off" not in dict(told(program))
