"""After a recording, an error included: nothing is left behind, and nothing lives longer."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import graphscope
from tests.recorded import apply, ops, same_as_walk, the_op

Tensor = torch.Tensor


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, a: Tensor) -> Tensor:
        a.exp()
        raise ValueError("in the middle")

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


def fail_in_op(y: Tensor) -> None:
    y @ torch.rand(7, 7)


def fail_in_function(y: Tensor) -> None:
    apply(Failing, y)


def fail_under_no_grad(y: Tensor) -> None:
    with torch.no_grad():
        nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4))(y)


def interrupt(_: Tensor) -> None:
    raise KeyboardInterrupt


def leave(_: Tensor) -> None:
    sys.exit(3)


@pytest.mark.parametrize("fail", [fail_in_op, fail_in_function, fail_under_no_grad, interrupt, leave])
def test_an_error_in_the_middle(fail: Callable[[Tensor], None]) -> None:
    x = torch.rand(2, 3, requires_grad=True)

    def program() -> Tensor:
        y = x * 2
        fail(y)
        return y

    with pytest.raises((RuntimeError, ValueError, KeyboardInterrupt, SystemExit)) as plain:
        program()
    with pytest.raises(plain.type) as recorded, graphscope.recording() as recording:  # noqa: PT012
        y = x * 2
        fail(y)
    assert str(recorded.value) == str(plain.value)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.is_grad_enabled()
    assert same_as_walk(recording.graph(y), graphscope.walk(y)) == []
    recording.graph().check()
    with graphscope.recording() as again:
        z = x * 3
    assert [node.op for node in ops(again.graph(z))] == ["mul"]


def test_an_error_holds_no_tensor_of_the_op(tensors_in_tracebacks: Callable[[BaseException], int]) -> None:
    def program() -> None:
        torch.rand(2, 3).mul(2) @ torch.rand(7, 7)

    with pytest.raises(RuntimeError) as plain:
        program()
    with pytest.raises(RuntimeError) as recorded, graphscope.recording():
        program()
    assert tensors_in_tracebacks(recorded.value) == tensors_in_tracebacks(plain.value) == 0


def test_frames_are_left_as_they_were() -> None:
    frame: Any = sys._getframe()
    with graphscope.recording():
        nn.Sequential(nn.Linear(3, 3))(torch.rand(2, 3))
        assert frame.f_trace is not None, "this is where the recorder keeps what it found"
    while frame is not None:
        assert frame.f_trace is None
        frame = frame.f_back


def test_a_debugger_may_begin_and_be_at_work() -> None:
    lines: list[int] = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if event == "line" and frame.f_code.co_name == "body":
            lines.append(frame.f_lineno)
        return trace

    def body(x: Tensor) -> Tensor:
        y = x * 2
        y = y + 1
        return y.sin()

    x = torch.rand(3, requires_grad=True)
    before = sys.gettrace()
    with graphscope.recording() as recording:
        body(x)
        sys.settrace(trace)
        try:
            y = body(x)
        finally:
            sys.settrace(before)
    assert len(lines) == 3
    assert same_as_walk(recording.graph(y), graphscope.walk(y)) == []


@pytest.fixture
def tensors_in_tracebacks() -> Callable[[BaseException], int]:
    """How many tensors the frames of an error's traceback hold."""

    def count(error: BaseException) -> int:
        found, place = 0, error.__traceback__
        while place is not None:
            found += sum(isinstance(value, torch.Tensor) for value in place.tb_frame.f_locals.values())
            found += sum(
                isinstance(value, tuple) and any(isinstance(part, torch.Tensor) for part in value)
                for value in place.tb_frame.f_locals.values()
            )
            place = place.tb_next
        return found

    return count


def living() -> int:
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def test_every_tensor_dies_at_the_same_moment() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))

    def program() -> list[list[bool]]:
        kept: list[weakref.ref[Tensor]] = []
        alive: list[list[bool]] = []

        def note(value: Tensor) -> Tensor:
            kept.append(weakref.ref(value))
            alive.append([one() is not None for one in kept])
            return value

        x = note(torch.rand(2, 3))
        with torch.no_grad():
            y = note(x * 2)
            y = note(note(y + 1) * y)
            del x
            y = note(y[0])
        hidden = note(model(y))
        for layer in model:
            hidden = note(layer(hidden))
        loss = note(hidden.sum())
        loss.backward()
        del hidden
        note(loss * 1)
        del loss, y
        note(torch.ones(1))
        return alive

    expected = program()
    with graphscope.recording():
        assert program() == expected


class Passing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_the_most_tensors_alive_are_as_many() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(6)])
    highest: list[int] = []

    class Counting(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            highest.append(living())
            return v

    counted = nn.Sequential(*[nn.Sequential(part, Counting()) for part in model])

    def program() -> list[int]:
        gc.collect()
        highest.clear()
        before = living()
        with torch.no_grad():
            counted(torch.rand(2, 4))
        counted(torch.rand(2, 4)).sum().backward()
        counted.zero_grad()
        return [count - before for count in highest]

    program()
    with Passing():  # what torch makes of a tensor in Python, it makes under any mode
        expected = program()
    with graphscope.recording():
        assert program() == expected


def test_nothing_lives_on_with_the_recording() -> None:
    gc.collect()
    before = living()
    with graphscope.recording() as recording:
        y = nn.Linear(3, 3)(torch.rand(2, 3)).sum()
    graph = recording.graph(y)
    del y
    gc.collect()
    assert living() == before
    assert len(graph.nodes) > 3
    recording.graph().check()


def test_addresses_that_come_again_link_nothing_wrong() -> None:
    """Short-lived tensors take each other's place in memory; what came from where is known by the values."""
    x = torch.zeros(1, requires_grad=True)
    with graphscope.recording() as recording:
        kept = []
        for number in range(400):
            a = x + number
            b = torch.full((1,), 1000.0) + a.detach()
            c = nn.Parameter(torch.full((1,), float(number)))
            if number % 40 == 0:
                kept.append(a * b + c)
    for number, result in enumerate(kept):
        graph = recording.graph(result)
        assert same_as_walk(graph, graphscope.walk(result)) == []
        assert [node.op for node in ops(graph)] == ["add", "detach", "add", "mul", "add"]
        assert result.item() == (40 * number) * (1000 + 40 * number) + 40 * number
        product = the_op(graph, "mul")
        assert len(graph.data.incoming[product.id]) == 2
