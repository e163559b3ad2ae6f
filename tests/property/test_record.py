"""Random programs, recorded, against the walk, against torch's own flags, and against themselves unrecorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import graphscope
from tests.recorded import apply, assert_same, same_as_walk

Tensor = torch.Tensor
Step = tuple[str, int, int]


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a.exp().mul(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return gradient.mul(a)


class Several(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return a + b, a * b, a.argmax()

    @staticmethod
    def backward(_: Any, first: Tensor, second: Tensor, __: Tensor) -> tuple[Tensor, Tensor]:
        return first, second


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        a.add_(1)
        ctx.mark_dirty(a)
        return a

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class AsItCame(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, a: Tensor) -> Tensor:
        return a

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class ThroughNumpy(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, a: Tensor) -> Tensor:
        return torch.from_numpy(a.detach().numpy() * 2)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class Layers:
    """Layers whose parameters the programs use; made once, put back before each run."""

    made: ClassVar[dict[str, nn.Module]] = {}
    state: ClassVar[dict[str, Tensor]] = {}

    @classmethod
    def get(cls, name: str) -> nn.Module:
        if not cls.made:
            torch.manual_seed(0)
            cls.made = {
                "linear": nn.Linear(3, 3),
                "norm": nn.BatchNorm1d(3),
                "lstm": nn.LSTM(3, 3, batch_first=True),
                "attention": nn.MultiheadAttention(3, 1, batch_first=True),
            }
            cls.state = {key: value.clone() for key, value in nn.ModuleDict(cls.made).state_dict().items()}
        return cls.made[name]

    @classmethod
    def reset(cls) -> None:
        cls.get("linear")
        nn.ModuleDict(cls.made).load_state_dict(cls.state)


def real(a: Tensor) -> Tensor:
    return a if a.is_floating_point() else a.float()


def square(a: Tensor) -> Tensor:
    """Two by three, whatever it was; a view where it can be."""
    a = real(a)
    return a.reshape(-1)[:6].reshape(2, 3) if a.numel() >= 6 else a.sum().expand(2, 3)


def write(a: Tensor, change: Callable[[Tensor], object]) -> Tensor:
    fresh = square(a).clone()
    change(fresh)
    return fresh


def under_no_grad(run: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return run()


def into_zeros(_: Tensor, b: Tensor) -> Tensor:
    buffer = torch.zeros(2, 3)
    buffer[1] = square(b)[0]
    return buffer


def on_each_view(a: Tensor, _: Tensor) -> Tensor:
    base = square(a).clone()
    torch._foreach_mul_([base[0], base[1]], 2.0)
    return base


def on_each(a: Tensor, b: Tensor) -> Tensor:
    parts = [square(a).clone(), square(b).clone()]
    torch._foreach_add_(parts, 1.0)
    return parts[0] * parts[1]


def into_out(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(2, 3)
    torch.mul(square(a).detach(), square(b).detach(), out=out)
    return out


def grad_in_no_grad(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        c = square(a) + 1
        with torch.enable_grad():
            d = c * square(b)
        return d + c


def from_inference(a: Tensor, b: Tensor) -> Tensor:
    with torch.inference_mode():
        c = square(a) * 2
    return square(b) * c.clone()


def stale_views(a: Tensor, _: Tensor) -> Tensor:
    base = square(a).clone()
    row, flat = base[0], base.view(-1)
    base.mul_(2)
    return row.sum() + flat


def stale_view_untracked(a: Tensor, b: Tensor) -> Tensor:
    base = square(a).clone()
    row = base[0]
    base.mul_(2)
    chosen = row.argmax()
    with torch.no_grad():
        untracked = row * 2
    return base + untracked + chosen + square(b)


def derivative(a: Tensor, _: Tensor) -> Tensor:
    x = square(a)
    if not x.requires_grad:
        return x
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return gradient * 2


def other_memory(a: Tensor, _: Tensor) -> Tensor:
    parameter = nn.Parameter(torch.ones(2, 3))
    parameter.data = square(a) * 1.0
    return parameter * 2


def autocast(a: Tensor, _: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result: Tensor = Layers.get("linear")(square(a))
    return result.float()


def attention(a: Tensor, _: Tensor) -> Tensor:
    q = square(a).unsqueeze(0)
    result: Tensor = Layers.get("attention")(q, q, q)[0]
    return result


OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: square(a) + square(b),
    "multiply": lambda a, b: square(a) * square(b),
    "by itself": lambda a, _: a * a,
    "exp": lambda a, _: real(a).clamp(max=2).exp(),
    "relu": lambda a, _: real(a).relu(),
    "relu_": lambda a, _: real(a).relu_(),
    "row": lambda a, _: a[0] if a.dim() else a.view(1),
    "flat": lambda a, _: a.view(-1),
    "turned": lambda a, _: a.t() if a.dim() == 2 else a,
    "expanded": lambda a, _: square(a).unsqueeze(0).expand(2, 2, 3),
    "in place": lambda a, _: a.mul_(1.5),
    "in place with": lambda a, b: square(a).add_(square(b)),
    "write to a row": lambda a, _: write(a, lambda c: c[0].add_(1)),
    "write to what is there": lambda a, _: a[0].mul_(2),
    "assign into zeros": into_zeros,
    "index put": lambda a, b: write(a, lambda c: c.index_put_((torch.tensor([0]),), square(b)[1])),
    "masked": lambda a, b: square(a).masked_fill(square(b) > 0, 0.5),
    "masked_": lambda a, b: write(a, lambda c: c.masked_fill_(square(b) > 0, 0.5)),
    "where": lambda a, b: torch.where(square(a) > square(b), square(a), 0.0),
    "detach": lambda a, _: a.detach(),
    "data": lambda a, _: a.data,
    "write to data": lambda a, _: (a.data.mul_(0.5), a)[1],
    "detach_": lambda a, _: (square(a) * 1).detach_(),
    "argmax": lambda a, _: a.argmax(),
    "equal": lambda a, b: square(a) == square(b),
    "round": lambda a, _: real(a).round(),
    "top values": lambda a, _: square(a).topk(2)[0],
    "top places": lambda a, _: square(a).topk(2)[1],
    "chunk": lambda a, _: square(a).chunk(2)[1],
    "chunks": lambda a, _: torch.mul(*square(a).clone().chunk(2)),
    "unbind": lambda a, _: square(a).unbind(1)[2],
    "split": lambda a, _: torch.stack(square(a).split(1, 1)),
    "cat": lambda a, b: torch.cat([square(a), square(b), square(a)]),
    "stack": lambda a, b: torch.stack([square(a), torch.ones(2, 3), square(b)]),
    "on a list": lambda a, b: torch._foreach_mul([square(a), square(b)], 2.0)[1],
    "on a list in place": on_each,
    "on views in place": on_each_view,
    "out": into_out,
    "linear": lambda a, _: Layers.get("linear")(square(a)),
    "norm": lambda a, _: Layers.get("norm")(square(a)),
    "lstm": lambda a, _: Layers.get("lstm")(square(a).unsqueeze(0))[0],
    "attention": attention,
    "dropout": lambda a, _: functional.dropout(real(a), 0.5),
    "cross entropy": lambda a, _: functional.cross_entropy(square(a), torch.tensor([0, 2])),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", square(a), square(b)),
    "convolution": lambda a, b: functional.conv1d(square(a).unsqueeze(0), square(b).reshape(1, 2, 3)),
    "custom": lambda a, _: apply(Exponential, real(a).clamp(max=2)),
    "custom with several": lambda a, b: apply(Several, square(a), square(b))[1],
    "custom that writes": lambda a, _: apply(Written, square(a) * 1),
    "custom that does nothing": lambda a, _: apply(AsItCame, a),
    "custom through numpy": lambda a, _: apply(ThroughNumpy, real(a)),
    "numpy": lambda a, _: torch.from_numpy(a.detach().numpy()),
    "item": lambda a, b: square(a) * b.sum().item(),
    "tolist": lambda a, _: torch.tensor(a.tolist()),
    "parameter": lambda a, _: nn.Parameter(real(a)),
    "leaf": lambda a, _: real(a).detach().requires_grad_(),
    "no_grad": lambda a, b: under_no_grad(lambda: square(a) * square(b)),
    "view under no_grad": lambda a, _: under_no_grad(lambda: a.view(-1)),
    "write under no_grad": lambda a, _: under_no_grad(lambda: a.mul_(1.01)),
    "leaf from no_grad": lambda a, _: under_no_grad(lambda: square(a) * 2).requires_grad_(),
    "grad in no_grad": grad_in_no_grad,
    "inference": from_inference,
    "checkpoint": lambda a, _: checkpoint(lambda x: (x * 2).sin(), real(a), use_reentrant=False),
    "reentrant checkpoint": lambda a, _: checkpoint(lambda x: (x * 2).sin(), real(a), use_reentrant=True),
    "complex": lambda a, b: torch.complex(square(a), square(b)).abs(),
    "double": lambda a, _: a.double().float(),
    "stale views": stale_views,
    "stale view untracked": stale_view_untracked,
    "as_strided": lambda a, _: square(a).contiguous().as_strided((2, 2), (1, 1)),
    "derivative": derivative,
    "func.grad": lambda a, _: torch.func.grad(lambda x: (x**2).sum())(square(a)),
    "vmap": lambda a, _: torch.func.vmap(lambda x: x * 2 + 1)(square(a)),
    "other memory": other_memory,
    "autocast": autocast,
    "copy into a row": lambda a, b: write(a, lambda c: c[0].copy_(square(b)[1])),
    "sort": lambda a, _: square(a).sort(1)[0],
    "gather": lambda a, _: square(a).gather(1, torch.tensor([[0], [1]])),
    "scatter": lambda a, b: write(a, lambda c: c.scatter_(1, torch.tensor([[0], [1]]), square(b)[:, :1])),
}

STEPS = st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=14)


def flags(tensor: Tensor) -> tuple[bool, bool | None, bool]:
    """``requires_grad``, ``is_leaf`` where torch tells it, and ``is_inference``."""
    try:
        return tensor.requires_grad, tensor.is_leaf, tensor.is_inference()
    except RuntimeError:  # a view made by a custom Function whose base was written
        return tensor.requires_grad, None, tensor.is_inference()


def run(steps: list[Step]) -> tuple[list[Tensor], list[object]]:
    """The tensors that are left, and what torch said after each step."""
    Layers.reset()
    torch.manual_seed(0)
    tensors = [
        torch.rand(2, 3, requires_grad=True),
        torch.rand(2, 3),
        torch.rand(2, 3, requires_grad=True) * 1,
        torch.rand(4, 3),
    ]
    told: list[object] = []
    for name, one, other in steps:
        try:
            result = OPS[name](tensors[-1 - one % len(tensors)], tensors[other % len(tensors)])
        except (IndexError, RuntimeError, TypeError) as error:
            told.append((type(error), str(error)))
            continue
        tensors.append(result)
        told.append(flags(result))
        if len(tensors) > 8:
            del tensors[other % 6]
    return [tensor for tensor in tensors if flags(tensor)[1] is not None], told


def gradients(tensors: list[Tensor]) -> list[Tensor | None] | str:
    leaves = list(nn.ModuleDict(Layers.made).parameters())
    roots = [real(tensor).sum() for tensor in tensors if tensor.requires_grad and tensor.is_floating_point()]
    try:
        return list(torch.autograd.grad(torch.stack(roots).sum(), leaves, allow_unused=True)) if roots else []
    except RuntimeError as error:  # something saved was written in place
        return str(error)


@settings(max_examples=150)
@given(STEPS)
def test_a_recording_is_the_walk_and_changes_nothing(steps: list[Step]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, told = run(steps)
        expected_random, expected_gradients = torch.get_rng_state(), gradients(expected)
        with graphscope.recording() as recording:
            tensors, told_again = run(steps)
        assert recording._recorder.puzzles == []
        assert told == told_again
        assert torch.equal(expected_random, torch.get_rng_state())
        assert_same(expected, tensors)
        unclaimed = same_as_walk(recording.graph(tensors), graphscope.walk(tensors))
        assert set(unclaimed) <= {"AsStridedBackward0"}  # a history made anew, which no op makes
        recording.graph().check()
        assert_same(expected_gradients, gradients(tensors))


@settings(max_examples=60)
@given(STEPS)
def test_flags_of_every_named_result_are_those_of_torch(steps: list[Step]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with graphscope.recording() as recording:
            tensors, _ = run(steps)
        graph = recording.graph(tensors)
    for number, tensor in enumerate(tensors):
        named = [
            info
            for node in graph.nodes
            if node.kind != "output"
            for info in node.outputs
            if f"tensors[{number}]" in info.names
        ]
        for info in named:
            assert (info.requires_grad, info.is_leaf) == (tensor.requires_grad, tensor.is_leaf)
            assert info.shape == tuple(tensor.shape)
