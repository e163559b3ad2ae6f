"""A program does the same, to the bit, whether it is recorded or not."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import graphscope
from tests.recorded import op_names, ops, record_twice, same_as_walk

Tensor = torch.Tensor


def test_the_fused_encoder_layer_stays_fused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.rand(2, 3, 8)

    @torch.no_grad()
    def program() -> Any:
        return layer(x)

    recording, _ = record_twice(program)
    assert op_names(recording) == ["aten::_transformer_encoder_layer_fwd"]


def test_fused_attention_stays_fused() -> None:
    q = torch.rand(2, 2, 16, 8, requires_grad=True)

    def program() -> Any:
        out = functional.scaled_dot_product_attention(q, q, q)
        return out, torch.autograd.grad(out.sum(), q)

    recording, _ = record_twice(program)
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in op_names(recording)


def test_training_with_dropout_and_normalization() -> None:
    def program() -> Any:
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.rand(4, 3)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return losses, model.state_dict(), [parameter.grad for parameter in model.parameters()]

    record_twice(program)


@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_optimizers_that_work_on_lists(kind: str) -> None:
    def program() -> Any:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), **{kind: True})  # type: ignore[arg-type]
        model(torch.rand(4, 3)).sum().backward()
        optimizer.step()
        return list(model.parameters())

    record_twice(program)


def test_autocast_casts_a_weight_once() -> None:
    layer, x = nn.Linear(4, 4), torch.rand(2, 4)

    def program() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first, second = layer(x), layer(x)
        casts = [result.grad_fn.next_functions[0][0] for result in (first, second)]
        return first, second, casts[0] is casts[1]

    _, (_, _, shared) = record_twice(program)
    assert shared


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_functional_transforms() -> None:
    x = torch.rand(3)

    def f(v: Tensor) -> Tensor:
        return (v.sin() * v).sum()

    def program() -> Any:
        model = nn.Linear(3, 1)
        parameters = dict(model.named_parameters())
        loss = functools.partial(lambda p: torch.func.functional_call(model, p, (x,)).sum())
        return [
            torch.func.grad(f)(x),
            torch.func.vmap(f)(torch.rand(2, 3)),
            torch.func.vmap(torch.func.grad(f))(torch.rand(2, 3)),
            torch.func.vmap(functional.dropout, randomness="different")(torch.rand(2, 3)),
            torch.func.jacrev(torch.sin)(x),
            torch.func.jacfwd(torch.sin)(x),
            torch.func.hessian(f)(x),
            torch.func.jvp(f, (x,), (x,)),
            torch.func.grad(loss)(parameters),
            torch.func.grad(f)(x.clone().requires_grad_()),
        ]

    record_twice(program)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_forward_mode_goes_through_no_grad() -> None:
    def program() -> Any:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(torch.rand(3), torch.ones(3))
            with torch.no_grad():
                result = dual.sin() * 2
            return tuple(torch.autograd.forward_ad.unpack_dual(result))

    record_twice(program)


def test_inference_mode() -> None:
    model, x = nn.Linear(3, 3), torch.rand(2, 3)

    def program() -> Any:
        with torch.inference_mode():
            y = functional.dropout(model(x))
            with torch.enable_grad():
                w = model(x)
            with torch.inference_mode(mode=False):
                v = model(x)
        return y.is_inference(), y.sum().item(), w.requires_grad, v

    recording, (_, _, _, v) = record_twice(program)
    assert "aten::linear" in op_names(recording)  # inference mode does not take it apart
    assert same_as_walk(recording.graph(v), graphscope.walk(v)) == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_compute_again_as_often_and_alike(*, reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 3))
    calls: list[int] = []

    def part(v: Tensor) -> Tensor:
        calls.append(1)
        result: Tensor = model(v)
        return result

    def program() -> Any:
        calls.clear()
        x = torch.rand(2, 3, requires_grad=True)
        y = checkpoint(part, x * 1, use_reentrant=reentrant).sum()
        return y, torch.autograd.grad(y, x) if not reentrant else y.backward(), x.grad, len(calls)

    recording, (y, _, _, count) = record_twice(program)
    assert count == 2
    graph = recording.graph().check()
    again = [node for node in ops(graph) if node.note is not None and "during a backward" in node.note]
    # what is not reentrant stops as soon as it has what was saved
    assert [node.op for node in again].count("addmm") == (2 if reentrant else 1)
    assert same_as_walk(recording.graph(y), graphscope.walk(y)) == []


def test_higher_order_operators() -> None:
    def program() -> Any:
        x = torch.rand(3, requires_grad=True)
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recording, result = record_twice(program)
    recording.graph(result).check()


def is_shared(tensor: Tensor) -> bool:
    asked: Any = torch._C
    return bool(asked._is_cow_tensor(tensor))


def test_layouts_of_every_kind() -> None:
    def program() -> Any:
        sparse = torch.eye(3).to_sparse().requires_grad_()
        product = torch.sparse.mm(sparse, torch.rand(3, 3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(1, 3)]) * 2
            rows = torch.eye(3).to_sparse_csr() @ torch.rand(3, 3)
        jagged = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(1, 3)], layout=torch.jagged) * 2
        z = torch.rand(3, dtype=torch.complex64, requires_grad=True)
        lazy = torch._lazy_clone(torch.ones(3))
        twice = lazy * 2
        return [
            product,
            nested.to_padded_tensor(0.0),
            jagged.values(),
            rows,
            torch.autograd.grad((z.conj() * z).real.sum(), z),
            torch.empty(3, device="meta").mul(2).shape,
            is_shared(lazy),
            twice,
        ]

    _, result = record_twice(program)
    assert result[6], "the storage is still shared: nobody asked for its address"


def broken(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    def function(v: Tensor) -> Tensor:
        w = (v * 2).sin()
        torch._dynamo.graph_break()
        result: Tensor = layer(w)
        return result

    return function


COMPILED: dict[str, Callable[[], Any]] = {
    "function": lambda: lambda v: (v * 2).sin().sum(),
    "module": lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
    "graph break": lambda: broken(nn.Linear(3, 3)),
}


@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize("kind", COMPILED)
@pytest.mark.parametrize("order", ["cold", "warm"])
def test_what_is_compiled_stays_compiled(kind: str, order: str) -> None:
    torch._dynamo.reset()
    compilations: list[int] = []

    def backend(module: Any, inputs: Any) -> Any:
        compilations.append(1)
        return aot_eager(module, inputs)

    x = torch.rand(2, 3, requires_grad=True)
    compiled: Callable[[Tensor], Tensor] = torch.compile(COMPILED[kind](), backend=backend)
    expected = type(compiled(x).grad_fn).__name__
    alone = len(compilations)
    if order == "cold":
        torch._dynamo.reset()
        compilations.clear()
    with graphscope.recording() as recording:
        y = compiled(x)
    assert len(compilations) == alone
    assert type(y.grad_fn).__name__ == expected
    assert type(compiled(x).grad_fn).__name__ == expected
    with graphscope.recording():
        compiled(x)
    assert len(compilations) == alone, "nothing was compiled anew, during or after"
    assert same_as_walk(recording.graph(y), graphscope.walk(y)) == []
    assert any(node.note is not None and "torch.compile" in node.note for node in recording.graph(y).nodes)
    torch._dynamo.reset()


def test_recording_does_not_load_the_compiler(python: Callable[[str], str]) -> None:
    program = """
import sys, torch, graphscope
with graphscope.recording() as rec:
    y = torch.ones(3, requires_grad=True) * 2
assert rec.graph(y).check()
print("torch._dynamo" in sys.modules)
"""
    assert python(program) == "False\n"


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], str]:
    import subprocess

    def run(program: str) -> str:
        file = tmp_path / "program.py"
        file.write_text(program, encoding="utf-8")
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
