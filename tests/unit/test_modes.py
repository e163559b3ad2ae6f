"""Running one computation under several modes: what each mode does, and that nothing is left changed."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import graphscope
from graphscope.capture.comparing.modes import DEFAULT_MODES, parse_mode, parse_modes
from graphscope.errors import InputError
from graphscope.runs import Run
from tests.leaks import random_states

CORNERS = ("train", "train+no_grad", "eval", "eval+no_grad")


class Net(nn.Module):
    """Dropout, batch-norm, a buffer that is replaced, an attribute that counts."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(6, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.calls = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        result: torch.Tensor = self.last(self.drop(self.norm(self.first(batch)).relu()))
        self.mean = result.detach().mean(0)
        return result


def facts(*modules: nn.Module, tensors: tuple[torch.Tensor, ...] = ()) -> list[Any]:
    """All that must be as before: identities, contents, versions, flags, gradients, attributes, hooks."""
    found: list[Any] = []
    for module in modules:
        for child in module.modules():
            found.append((child.training, len(child._forward_hooks), len(child._forward_pre_hooks)))
            found.append({key: id(value) for key, value in vars(child).items() if not isinstance(value, (dict, int))})
            found.append({key: value for key, value in vars(child).items() if isinstance(value, int)})
            held = [*child.named_parameters(recurse=False), *child.named_buffers(recurse=False)]
            found += [(name, *of_tensor(tensor)) for name, tensor in held]
    return found + [of_tensor(tensor) for tensor in tensors]


def of_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    grad = tensor.grad if tensor.is_leaf else None
    kept = None if grad is None else (id(grad), grad.tolist(), grad._version)
    place = (tensor.data_ptr(), tuple(tensor.shape))
    return id(tensor), tensor.tolist(), tensor._version, tensor.requires_grad, tensor.is_leaf, place, kept


@contextlib.contextmanager
def unchanged(*modules: nn.Module, tensors: tuple[torch.Tensor, ...] = ()) -> Iterator[None]:
    before, numbers = facts(*modules, tensors=tensors), random_states()
    yield
    assert facts(*modules, tensors=tensors) == before
    assert random_states() == numbers


def compare(function: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Run]:
    return {run.mode: run for run in graphscope.compare(function, *args, **{"repeats": 1, **options}).runs}


def run(module: nn.Module, *args: Any) -> torch.Tensor:
    result: torch.Tensor = module(*args)
    return result


def test_every_mode_is_what_its_name_says() -> None:
    layer = nn.Linear(1, 1)
    seen: dict[str, tuple[bool, bool, bool]] = {}
    modes = [*DEFAULT_MODES, "train", "set_grad_enabled(False)", "eval+no_grad", "train+inference_mode"]

    def look() -> torch.Tensor:
        flags = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), layer.training)
        seen[f"{len(seen)}"] = flags
        return run(layer, torch.ones(1))

    layer.eval()
    for mode in modes:
        compare(look, modes=(mode,))
    told = list(seen.values())
    assert told[::2] == told[1::2]  # recorded, then timed
    assert dict(zip(modes, told[::2], strict=True)) == {
        "grad": (True, False, False),
        "no_grad": (False, False, False),
        "inference_mode": (False, True, False),
        "eval": (True, False, False),
        "train": (True, False, True),
        "set_grad_enabled(False)": (False, False, False),
        "eval+no_grad": (False, False, False),
        "train+inference_mode": (False, True, True),
    }
    assert not layer.training


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
def test_the_mode_of_the_caller_does_not_matter(around: Callable[[], Any]) -> None:
    x = torch.ones(2, requires_grad=True)
    with around():
        runs = compare(lambda: x * 2, modes=("grad", "no_grad"))
    assert [run.data.by_id[run.data.roots[0]].outputs[0].requires_grad for run in runs.values()] == [True, False]


@pytest.mark.parametrize("given", ["fast", "", "grad+no_grad", "eval+train", "no_grad+", "grad,eval"])
def test_a_word_that_is_no_mode_is_refused(given: str) -> None:
    with pytest.raises(InputError):
        parse_mode(given)


def test_modes_are_refused_twice_and_none() -> None:
    with pytest.raises(InputError, match="twice"):
        parse_modes(["eval", "no_grad", " eval "])
    with pytest.raises(InputError, match="No modes"):
        parse_modes([])
    assert [mode.name for mode in parse_modes("eval + no_grad")] == ["eval+no_grad"]


@pytest.mark.parametrize("given", [3, torch.ones(2), Net, None])
def test_what_cannot_be_run_is_refused(given: Any) -> None:
    with pytest.raises(InputError):
        graphscope.compare(given)


def test_the_four_corners_and_an_unchanged_net() -> None:
    net, batch = Net(), torch.rand(8, 4)
    net.norm.eval()
    net.first.weight.requires_grad_(False)  # noqa: FBT003  torch takes it so
    with unchanged(net, tensors=(batch,)):
        runs = {run.mode: run for run in graphscope.compare(net, batch, modes=CORNERS).runs}
    assert [run.dropout_active for run in runs.values()] == [True, True, False, False]
    assert [run.random_numbers_drawn for run in runs.values()] == [True, True, False, False]
    moved = ("net.norm.running_mean", "net.norm.running_var", "net.norm.num_batches_tracked")
    assert [run.moved_buffers for run in runs.values()] == [moved, moved, (), ()]
    assert runs["train"].values.equal
    assert runs["train+no_grad"].values.equal
    assert not runs["eval"].values.equal
    assert runs["eval"].values.difference == runs["eval+no_grad"].values.difference


def test_the_state_is_back_after_an_error_in_the_middle() -> None:
    net, batch = Net(), torch.rand(8, 4)

    def fail() -> None:
        net(batch)
        with torch.no_grad():
            net.last.weight.zero_()
        net.drop.eval()
        torch.set_grad_enabled(False)
        raise KeyError("on purpose")

    with unchanged(net, tensors=(batch,)):
        runs = compare(fail, modes=CORNERS)
    assert {run.failure.type for run in runs.values() if run.failure} == {"KeyError"}
    assert all(run.seconds is None for run in runs.values())
    assert [node.op for node in runs["train"].data.nodes if node.op == "addmm"] == ["addmm", "addmm"]
    failure = runs["eval"].failure
    assert failure is not None
    assert failure.location is not None
    assert failure.location.code == 'raise KeyError("on purpose")'
    assert "graphscope/" not in failure.traceback


def test_what_ends_the_program_passes_and_the_state_is_back() -> None:
    net = Net()

    def leave() -> None:
        net(torch.rand(8, 4))
        raise SystemExit(3)

    with unchanged(net), pytest.raises(SystemExit):
        graphscope.compare(leave)


def test_gradients_are_back_after_a_training_step() -> None:
    net, batch = Net(), torch.rand(8, 4)
    net(batch).sum().backward()
    net.last.bias.grad = None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        loss: torch.Tensor = net(batch).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    with unchanged(net, tensors=(batch,)):
        runs = compare(step, modes=("grad", "eval", "no_grad"))
    assert runs["grad"].failure is None
    assert runs["no_grad"].failure is not None
    assert "does not require grad" in runs["no_grad"].failure.text


def test_gradients_of_leaves_that_nobody_could_know_are_back() -> None:
    hidden = {"deep": [{"x": torch.ones(2, requires_grad=True)}]}

    def find() -> torch.Tensor:
        return hidden["deep"][0]["x"]

    box = [find]
    x = hidden["deep"][0]["x"]
    (x * 3).sum().backward()

    def step() -> torch.Tensor:
        loss = (box[0]() * 2).sum()
        loss.backward()
        return loss

    with unchanged(tensors=(x,)):
        compare(step, modes=("grad",))
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_what_is_written_in_place_is_back() -> None:
    plain, weights, view = torch.zeros(4), torch.ones(4, requires_grad=True), torch.arange(6.0)
    mean, variance = torch.zeros(3), torch.ones(3)
    part = view[2:4]

    def write() -> torch.Tensor:
        plain.add_(1)
        part.mul_(7)
        weights.data.fill_(5)
        functional.batch_norm(torch.rand(5, 3), mean, variance, training=True)
        torch.add(plain, 1, out=plain)
        return plain.sum() + weights.sum()

    with unchanged(tensors=(plain, weights, view, mean, variance)):
        runs = compare(write, modes=("no_grad", "inference_mode", "grad"))
    assert [run.failure for run in runs.values()] == [None] * 3
    assert all(run.values.equal for run in runs.values())  # every run began with the same numbers


def test_a_leaf_that_got_a_history_is_a_leaf_again() -> None:
    total, x = torch.zeros(2), torch.ones(2, requires_grad=True)

    def add() -> torch.Tensor:
        total.add_(x)
        return total * 1

    with unchanged(tensors=(total, x)):
        compare(add, modes=("grad",))
    assert total.grad_fn is None


def test_every_random_generator_starts_the_same_and_is_back() -> None:
    generator, numbers = torch.Generator().manual_seed(3), np.random.default_rng(3)
    dice, other_dice = (random.Random(3) for _ in range(2))  # noqa: S311  these numbers guard nothing

    def draw() -> torch.Tensor:
        drawn = [random.random(), float(np.random.rand()), float(numbers.random()), dice.random()]  # noqa: NPY002, S311
        return torch.cat([torch.tensor(drawn), torch.rand(2), torch.rand(2, generator=generator)])

    with unchanged():
        before = generator.get_state()
        runs = compare(draw, modes=DEFAULT_MODES)
    assert all(run.values.equal and run.random_numbers_drawn for run in runs.values())
    assert torch.equal(generator.get_state(), before)
    assert numbers.random() == np.random.default_rng(3).random()
    assert dice.random() == other_dice.random()


def test_attributes_hooks_and_flags_of_modules_are_back() -> None:
    net, batch = Net(), torch.rand(8, 4)

    def change() -> torch.Tensor:
        net.register_forward_hook(lambda *_: None)
        net.first.weight.requires_grad_(False)  # noqa: FBT003  torch takes it so
        net.extra = nn.Linear(2, 2)
        net.register_buffer("late", torch.ones(1))
        net.last.weight.data = torch.zeros(2, 6)
        del net.drop.p
        net.drop.p = 0.1
        return run(net, batch)

    with unchanged(net):
        compare(change, modes=("train", "eval"))
    assert not hasattr(net, "extra")
    assert "late" not in dict(net.named_buffers())
    assert net.drop.p == 0.5
    assert net.calls == 0


def test_modules_that_the_function_builds_are_in_the_mode() -> None:
    def build() -> torch.Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
        return run(net, torch.ones(1, 3))

    with unchanged():
        runs = compare(build, modes=("train", "eval", "grad"))
    assert [run.dropout_active for run in runs.values()] == [True, False, True]
    paths = {node.module for run in runs.values() for node in run.data.nodes if node.op == "addmm"}
    assert paths == {"Sequential.0"}  # the same in every run, though the modules are others


def test_a_module_decides_itself_what_train_means() -> None:
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Frozen:  # noqa: FBT001, FBT002  torch has it so
            del mode
            return super().train(mode=False)

    net = nn.Sequential(Frozen(2), nn.Dropout(0.5))
    runs = compare(net, torch.rand(3, 2), modes=("train",))
    assert runs["train"].moved_buffers == ()
    assert runs["train"].dropout_active


def test_weights_that_eval_merges_are_split_again() -> None:
    class Merging(nn.Linear):
        merged = False

        def train(self, mode: bool = True) -> Merging:  # noqa: FBT001, FBT002  torch has it so
            if self.merged == mode:
                self.weight.data += -1 if mode else 1
                self.merged = not mode
            return super().train(mode)

    net = Merging(2, 2)
    with unchanged(net):
        runs = compare(net, torch.ones(1, 2), modes=("train", "eval"))
    assert not net.merged
    assert runs["eval"].values.difference == pytest.approx(2)


def test_nothing_lives_on() -> None:
    alive: list[weakref.ref[Any]] = []

    def build() -> dict[str, Any]:
        net = Net()
        result = {"net": net, "out": net(torch.rand(8, 4))}
        alive.extend(map(weakref.ref, (net, net.first.weight, net.norm.running_mean, result["out"])))
        return result

    comparison = graphscope.compare(build, repeats=2)
    gc.collect()
    assert len(alive) == 4 * 4 * 3
    assert [reference for reference in alive if reference() is not None] == []
    assert len(comparison.rows) > 5


def test_a_built_model_is_gone_before_the_next_run_begins() -> None:
    alive: list[weakref.ref[nn.Module]] = []
    most = 0

    def build() -> torch.Tensor:
        nonlocal most
        net = nn.Linear(3, 3)
        alive.append(weakref.ref(net))
        most = max(most, sum(1 for reference in alive if reference() is not None))
        return run(net, torch.ones(1, 3)).sum().detach()

    compare(build, repeats=3)
    assert most == 1


def test_peak_memory_is_what_results_take_at_one_time() -> None:
    x = torch.ones(1000, requires_grad=True)

    def chain() -> torch.Tensor:
        y = x * 2  # 4,000 bytes
        y = y.sin()  # 4,000 more; then the first go, unless backward needs them
        y = y.view(10, 100)  # the same memory
        return y.exp()

    runs = compare(chain, modes=("grad", "no_grad"))
    assert [run.peak_bytes for run in runs.values()] == [12_000, 8_000]


def test_composite_ops_are_taken_apart_under_inference_mode() -> None:
    net, batch = Net(), torch.rand(8, 4)
    runs = compare(net, batch, modes=("no_grad", "inference_mode"))
    ops = [[node.op for node in run.data.nodes if node.op] for run in runs.values()]
    assert ops[0] == ops[1]
    assert "dropout" not in ops[1]
    assert runs["inference_mode"].values.equal
    assert runs["inference_mode"].data.by_id[runs["inference_mode"].data.roots[0]].outputs[0].is_inference


def test_times_are_taken_without_the_recorder_and_as_often_as_asked() -> None:
    calls = 0

    def count() -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.ones(1)

    runs = compare(count, modes=("grad", "eval"), repeats=5)
    assert calls == 2 * (1 + 5)
    for run in runs.values():
        assert run.seconds is not None
        assert run.seconds.repeats == 5
        assert 0 < run.seconds.least <= run.seconds.median <= run.seconds.most
    assert "seconds_spread" not in graphscope.compare(count).to_json()["runs"][0]


def test_regions_inside_a_mode_keep_their_lines() -> None:
    x = torch.ones(2, requires_grad=True)

    def inner() -> torch.Tensor:
        y = x * 2
        with torch.no_grad():
            z = y + 1
        return z + x

    runs = compare(inner, modes=("grad", "no_grad"))
    inside = [region for region in runs["grad"].data.regions if region.location]
    assert [(region.mode, region.location.code) for region in inside if region.location] == [
        ("no_grad", "with torch.no_grad():")
    ]
    assert {region.entered for region in runs["no_grad"].data.regions} == {"with", "compare"}
    assert all(region.location is None for region in runs["no_grad"].data.regions if region.entered == "compare")


def test_odd_results_are_no_trouble() -> None:
    x = torch.ones(2, requires_grad=True)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    results: list[Any] = [
        None, 3, [], {"a": x, "b": [x * 2]}, x.detach().numpy(), nested, torch.eye(2).to_sparse(), x.to(torch.bfloat16),
        torch.tensor([float("nan")]), torch.empty(2, device="meta"), torch.ones(2, dtype=torch.complex64), "text",
        torch.tensor([True]), torch.zeros(0),
    ]  # fmt: skip
    for result in results:
        runs = compare(lambda result=result: result, modes=("grad", "no_grad"))
        assert [run.failure for run in runs.values()] == [None, None]
        assert runs["no_grad"].values.equal in {True, None}
        for run in runs.values():
            run.data.check()
