"""A recorder beside others: modes, hooks, threads, workers, tracers."""

from __future__ import annotations

import copy
import io
import os
import pickle
import threading
import warnings
from typing import Any

import pytest
import torch
import torch.utils._pytree
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import graphscope
from tests.recorded import apply, op_names, ops, record_twice, same_as_walk

Tensor = torch.Tensor


class Marked(torch.Tensor):
    pass


class Looking(TorchDispatchMode):
    """Somebody's own mode, which runs ops of its own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen.append(str(func))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            self.seen.append(f"{(result.detach().abs().mean() + result.sum()).item():.3f}")
        return result


class Listening(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Viewed(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, a: Tensor) -> Tensor:
        return a.view_as(a) * 2

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_modes_of_the_user_see_the_same() -> None:
    layer = nn.Linear(3, 3)

    def program() -> Any:
        looking, listening = Looking(), Listening()
        x = torch.rand(2, 3, requires_grad=True)
        with looking:
            y = layer(x).relu().sum()
        with listening:
            z = apply(Viewed, layer(x).sin().sum())
            z = torch.ops.aten.mul.Tensor(z, z)
            with looking:
                w = layer(x) * 2
                w[0].add_(1)
        return y, z, w, torch.autograd.grad(y + z + w.sum(), x), looking.seen, listening.seen

    recording, (y, z, w, *_) = record_twice(program)
    assert same_as_walk(recording.graph([y, z, w]), graphscope.walk([y, z, w])) == []


def test_a_mode_of_the_user_around_the_recording() -> None:
    layer, looking = nn.Linear(3, 3), Looking()
    with looking, graphscope.recording() as recording:
        y = layer(torch.rand(2, 3)).relu().sum()
    assert same_as_walk(recording.graph(y), graphscope.walk(y)) == []
    assert any("addmm" in seen for seen in looking.seen)


def test_nested_recordings_see_what_runs_in_them() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as outer:
        y = x * 2
        with graphscope.recording() as inner:
            z = Marked(y.sin())
        w = y.cos()
    assert op_names(outer) == ["aten::mul", "aten::sin", "aten::alias", "aten::cos"]
    assert op_names(inner) == ["aten::sin", "aten::alias"]
    assert type(z) is Marked
    assert same_as_walk(outer.graph(w), graphscope.walk(w)) == []
    assert same_as_walk(inner.graph(z), graphscope.walk(z)) == ["MulBackward0"]


def test_other_threads_go_on_unrecorded() -> None:
    x = torch.rand(3, requires_grad=True)
    results: list[Tensor] = []

    def work() -> None:
        results.extend((x * 2).sum() for _ in range(50))

    with graphscope.recording() as recording:
        thread = threading.Thread(target=work)
        thread.start()
        mine = [(x * 3).sum() for _ in range(50)]
        thread.join()
    assert len(recording._recorder.log.ops) == 100
    graph = recording.graph(mine[-1], results[-1])
    # the two threads number their nodes alike, and what this one did is not told of the other
    assert same_as_walk(graph, graphscope.walk([mine[-1], results[-1]])) == ["SumBackward0", "MulBackward0"]


def test_a_thread_can_record_for_itself() -> None:
    x = torch.rand(3, requires_grad=True)
    made: list[tuple[graphscope.api.Recording, Tensor]] = []

    def work() -> None:
        with graphscope.recording() as inner:
            y = x.sin()
        made.append((inner, y))

    with graphscope.recording() as outer:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert op_names(outer) == []
    ((inner, y),) = made
    assert [node.op for node in ops(inner.graph(y).check())] == ["sin"]


class Numbers(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((2,), float(index)) * 2


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader(start: str) -> None:
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context=start)
    weight = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fork in a process with threads
        with graphscope.recording() as recording:
            losses = [(batch * weight).sum() for batch in loader]
    assert [loss.item() for loss in losses] == [4.0, 20.0]
    graph = recording.graph(losses)
    assert same_as_walk(graph, graphscope.walk(losses)) == []
    assert [node.op for node in ops(graph)] == ["mul", "sum", "mul", "sum"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_records_nothing() -> None:
    x = torch.rand(3)
    with graphscope.recording() as recording:
        x * 2
        child = os.fork()
        if child == 0:
            x * 3
            os._exit(len(recording._recorder.log.ops))
        _, status = os.waitpid(child, 0)
        x * 4
    assert os.waitstatus_to_exitcode(status) == 1
    assert len(recording._recorder.log.ops) == 2


def test_hooks_of_the_user_run_as_often_and_in_order() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU())
    calls: list[str] = []

    def before(_: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        calls.append("before")
        return (inputs[0] + 1,)

    def after(_: Any, __: Any, output: Tensor) -> Tensor:
        calls.append("after")
        return output * 2

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after)
    layer.register_full_backward_hook(lambda _m, _i, _o: calls.append("backward"))

    def program() -> Any:
        calls.clear()
        x = torch.rand(2, 3, requires_grad=True)
        y = model(x).sum()
        y.register_hook(lambda _: calls.append("tensor"))
        return y, torch.autograd.grad(y, x), list(calls)

    recording, (y, *_) = record_twice(program)
    assert same_as_walk(recording.graph(y), graphscope.walk(y)) == []


def test_hooks_on_saved_tensors_run_as_often() -> None:
    layer = nn.Linear(3, 3)
    calls: list[str] = []

    def pack(t: Tensor) -> Tensor:
        calls.append("pack")
        return t.clone()

    def unpack(t: Tensor) -> Tensor:
        calls.append("unpack")
        return t * 1

    def program() -> Any:
        calls.clear()
        x = torch.rand(2, 3, requires_grad=True)
        with saved_tensors_hooks(pack, unpack):
            y = (layer(x).exp() * x).sum()
        with save_on_cpu():
            z = (layer(x).exp() * x).sum()
        return y, z, torch.autograd.grad(y + z, x), list(calls)

    recording, (y, z, *_) = record_twice(program)
    assert same_as_walk(recording.graph([y, z]), graphscope.walk([y, z])) == []


def test_no_hook_stays_on_modules_and_copies_are_clean() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))

    def program() -> Any:
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]  # noqa: S301
        stream = io.BytesIO()
        torch.save(model.state_dict(), stream)
        stream.seek(0)
        x = torch.rand(3, 3)
        return [made(x) for made in copies], torch.load(stream), [list(vars(made)) for made in copies]

    record_twice(program)
    with graphscope.recording():
        model(torch.rand(2, 3))
        assert not module_hooks._global_forward_hooks
        assert not module_hooks._global_forward_pre_hooks


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_called_by_other_means() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.rand(2, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(model)
        ways = [nn.DataParallel(model), torch.fx.symbolic_trace(model), torch.jit.trace(model, x), scripted]
    for _ in range(3):  # the interpreter of scripts looks at its first runs
        scripted(x)
    recording, results = record_twice(lambda: [way(x) for way in ways])
    assert [[node.op for node in ops(recording.graph(result))] for result in results[:2]] == [
        ["t", "addmm", "relu"]
    ] * 2
    for result in results:
        same_as_walk(recording.graph(result), graphscope.walk(result))


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_programs_that_trace() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.rand(2, 3)
    with graphscope.recording():
        symbolic = torch.fx.symbolic_trace(model)
        traced = torch.jit.trace(model, x)
        exported = torch.export.export(model, (x,))
    expected = torch.fx.symbolic_trace(model)
    assert symbolic.code == expected.code
    assert str(traced.code) == str(torch.jit.trace(model, x).code)
    assert str(exported.graph) == str(torch.export.export(model, (x,)).graph)
