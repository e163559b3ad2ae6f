"""Hazards of derivatives, attributes, optimizers and checkpoints: and what is close by and innocent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphscope.findings import Severity
from tests.hazards import E, N, W, hazards_of, only, told
from tests.recorded import apply

# Derivatives.


@pytest.mark.parametrize("op", ["round", "floor", "ceil", "sign", "trunc"])
def test_a_derivative_of_zero(op: str) -> None:
    def program() -> dict[str, Any]:
        w = torch.ones(2, requires_grad=True)
        loss = getattr(w, op)().sum()
        return {"w": w, "loss": loss}

    hazard = only(program, "zero_derivative", W, "getattr(w, op)()")
    assert op in hazard.message


def test_a_straight_through_estimator_is_right() -> None:
    def program() -> dict[str, Any]:
        w = torch.ones(2, requires_grad=True)
        return {"w": w, "loss": (w + (w.round() - w).detach()).sum()}

    assert told(program) == []


@pytest.mark.parametrize(("value", "expected"), [(0.0, [("infinite_derivative", W)]), (1.0, [])])
def test_a_derivative_at_a_point_where_it_is_infinite(value: float, expected: list[tuple[str, Severity]]) -> None:
    def program() -> dict[str, Any]:
        x = torch.full((2,), value, requires_grad=True)
        return {"x": x, "loss": x.sqrt().sum()}

    assert told(program) == expected


def test_a_backward_that_returns_none() -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(weight)
            return x * weight

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            (weight,) = ctx.saved_tensors
            return grad * weight, None

    def program() -> dict[str, Any]:
        x = torch.ones(2, requires_grad=True)
        weight = torch.ones(2, requires_grad=True)
        return {"x": x, "weight": weight, "loss": apply(Scale, x, weight).sum()}

    hazard = only(program, "gradient_is_none", W, "return grad * weight, None")
    assert "weight" in hazard.message


# Attributes, optimizers, registration.


def test_an_attribute_that_torch_does_not_know() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        for parameter in model.parameters():
            parameter.require_grad = False  # type: ignore[attr-defined]
        return {"model": model, "loss": model(torch.ones(1, 2)).sum()}

    hazard = only(program, "suspicious_attribute", W, "parameter.require_grad = False")
    assert "requires_grad" in hazard.remedy


def two_layers() -> nn.ModuleDict:
    return nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Linear(2, 1)})


def test_half_a_layer_that_no_optimizer_holds() -> None:
    def program() -> dict[str, Any]:
        model = two_layers()
        weights = [parameter for name, parameter in model.named_parameters() if name.endswith("weight")]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        loss = model["second"](model["first"](torch.ones(1, 2))).sum()
        return {"model": model, "optimizer": optimizer, "loss": loss}

    assert told(program) == [("not_in_optimizer", W)]


def test_a_whole_layer_that_no_optimizer_holds_is_a_note() -> None:
    def program() -> dict[str, Any]:
        model = two_layers()
        optimizer = torch.optim.SGD(model["second"].parameters(), lr=0.1)
        loss = model["second"](model["first"](torch.ones(1, 2))).sum()
        return {"model": model, "optimizer": optimizer, "loss": loss}

    assert told(program) == [("not_in_optimizer", N)]


def test_an_optimizer_made_before_a_layer_was_replaced() -> None:
    def program() -> dict[str, Any]:
        model = two_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model["second"] = nn.Linear(2, 3)
        loss = model["second"](model["first"](torch.ones(1, 2))).sum()
        return {"model": model, "optimizer": optimizer, "loss": loss}

    hazard = hazards_of(program)[0]
    assert (hazard.kind, hazard.severity) == ("optimizer_holds_strangers", W)
    assert "model.second.weight" in hazard.message


def test_layers_in_a_plain_list() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 1)
            self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]

        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    def program() -> dict[str, Any]:
        model = Net()
        return {"model": model, "loss": model(torch.ones(1, 2)).sum()}

    hazard = hazards_of(program)[0]
    assert (hazard.kind, hazard.severity) == ("unregistered_module", W)
    assert "layers" in hazard.message


def test_a_leaf_whose_name_was_given_away() -> None:
    def program() -> dict[str, Any]:
        w = torch.rand(2, requires_grad=True) * 0.1
        return {"w": w, "loss": w.square().sum()}

    assert told(program) == [("leaf_rebound", W)]


# Checkpoints, inference tensors, second derivatives.


def test_a_reentrant_checkpoint_of_an_input_that_wants_no_gradient() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        loss = checkpoint(model, torch.ones(1, 2), use_reentrant=True).sum()
        return {"model": model, "loss": loss}

    kinds = dict(told(program))
    assert kinds["reentrant_checkpoint_cut"] is E


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_that_are_right(*, use_reentrant: bool) -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 1)
        x = torch.ones(1, 2, requires_grad=use_reentrant)
        return {"model": model, "loss": checkpoint(model, x, use_reentrant=use_reentrant).sum()}

    assert [one for one in told(program) if one[1] is not N] == []


def test_an_inference_tensor_where_gradients_are_on() -> None:
    def program() -> dict[str, Any]:
        model = nn.Linear(2, 2)
        with torch.inference_mode():
            features = torch.ones(1, 2).cumsum(0)
        return {"model": model, "features": features, "loss": (model(torch.ones(1, 2)) + features).sum()}

    hazard = only(program, "inference_tensor_in_grad", N, "+ features")
    assert "cumsum" in hazard.also[0].code


def test_a_second_derivative_that_exists() -> None:
    def program() -> dict[str, Any]:
        x = torch.rand(3, requires_grad=True)
        (slope,) = torch.autograd.grad(x.tanh().sum(), x, create_graph=True)
        return {"x": x, "loss": slope.square().sum()}

    assert told(program) == []


def test_a_second_derivative_that_is_marked_as_missing() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return grad * 2 * x

    def program() -> dict[str, Any]:
        x = torch.rand(3, requires_grad=True)
        (slope,) = torch.autograd.grad(apply(Square, x).square().sum(), x, create_graph=True)
        return {"x": x, "loss": slope.square().sum()}

    assert told(program)[0] == ("double_backward_unsupported", E)
