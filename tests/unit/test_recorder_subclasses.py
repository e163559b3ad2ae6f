"""Tensor subclasses are made, asked and computed with as if nobody recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import graphscope
from tests.recorded import ops, record_twice, same_as_walk

Tensor = torch.Tensor


class Marked(torch.Tensor):
    pass


class Extra(torch.Tensor):
    extra: int

    @staticmethod
    def __new__(cls: type[Extra], x: Tensor, extra: int) -> Extra:  # noqa: PYI034
        result = super().__new__(cls, x)
        result.extra = extra
        return result


class Noticed(torch.Tensor):
    seen: list[str] = []  # noqa: RUF012  of the class

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Noticed.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Wrapper(torch.Tensor):
    held: Tensor

    @staticmethod
    def __new__(cls: type[Wrapper], inner: Tensor) -> Wrapper:  # noqa: PYI034
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        tree_map = torch.utils._pytree.tree_map
        plain = tree_map(lambda v: v.held if isinstance(v, Wrapper) else v, (args, kwargs or {}))
        result = func(*plain[0], **plain[1])
        return tree_map(lambda v: Wrapper(v) if isinstance(v, torch.Tensor) else v, result)


MAKING: dict[str, Callable[[Tensor], Any]] = {
    "called": lambda x: Marked(x),  # noqa: PLW0108  the call is what is tested
    "called with numbers": lambda _: Marked([1.0, 2.0]),
    "called with sizes": lambda _: Marked(2, 3).zero_(),
    "as_subclass": lambda x: x.as_subclass(Marked),
    "__new__": lambda x: (Extra(x * 2, 3), Extra(x, 4).extra),
    "type()": lambda x: type(Marked(x))(x),
    "__class__": lambda x: Marked(x).__class__(x),
    "map": lambda x: list(map(Marked, [x, x * 2])),
    "comprehension": lambda x: [Marked(v) for v in (x, x)],
    "table": lambda x: {"marked": Marked}["marked"](x),  # noqa: PLW0108
    "partial": lambda x: functools.partial(Marked)(x),  # noqa: PLW0108
    "parameter": lambda x: nn.Parameter(Marked(x.detach())),
    "arithmetic": lambda x: (Marked(x) + 1, Marked(x).sum()),
}


@pytest.mark.parametrize("how", MAKING)
def test_a_subclass_is_made_as_ever(how: str) -> None:
    x = torch.rand(2, 2, requires_grad=True)
    record_twice(lambda: MAKING[how](x))


def test_a_plain_factory_beside_a_subclass_stays_plain() -> None:
    assert type(Marked) is not type(torch.empty)

    def program() -> Any:
        marked = Marked
        return torch.empty(3).zero_(), torch.tensor([1.0]), marked([1.0]), torch.rand(2)

    record_twice(program)


def test_a_subclass_is_not_asked_more_often() -> None:
    def program() -> Any:
        Noticed.seen.clear()
        x = Noticed(torch.rand(2, 2))
        y = (x + 1) * x
        z = torch.ops.aten.mul.Tensor(x, x)
        return y, z, y.sum().item(), list(Noticed.seen)

    record_twice(program)


def test_a_wrapper_subclass() -> None:
    def program() -> Any:
        x = Wrapper(torch.rand(2, 3)).requires_grad_()
        y = (x * 2).sin().sum()
        (gradient,) = torch.autograd.grad(y, x)
        return y.held, gradient.held  # type: ignore[attr-defined]

    record_twice(program)


def test_fake_tensors_inside_and_outside() -> None:
    def compute() -> Tensor:
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
        result: Tensor = model(torch.rand(2, 3)).sum()
        return result

    with graphscope.recording() as inside, FakeTensorMode():
        y = compute()
    assert same_as_walk(inside.graph(y), graphscope.walk(y)) == []
    with FakeTensorMode(), graphscope.recording() as outside:
        z = compute()
    assert same_as_walk(outside.graph(z), graphscope.walk(z)) == []
    assert [node.op for node in ops(inside.graph(y))] == [node.op for node in ops(outside.graph(z))]
