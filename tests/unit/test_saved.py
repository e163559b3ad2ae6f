"""Saved tensors, read without unpacking: what they are, what became of them, whose memory they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphscope
from graphscope.model import GraphData, Node, SavedTensor, State
from tests.subjects import Net, Touched, doubled, must_not_run


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (3,), requires_grad=True)


def walk(root: torch.Tensor, **names: object) -> GraphData:
    return graphscope.walk(root, names=names).data.check()


def op_named(data: GraphData, op: str) -> Node:
    (found,) = [node for node in data.nodes if node.op == op]
    return found


def saved_by(root: torch.Tensor, op: str) -> dict[str, SavedTensor]:
    return {saved.name: saved for saved in op_named(walk(root), op).saved}


def test_facts_of_every_slot() -> None:
    x, w = torch.ones(4, 5, dtype=torch.float64), torch.ones(2, 5, dtype=torch.float64, requires_grad=True)
    saved = saved_by(nn.functional.linear(x, w, torch.ones(2, dtype=torch.float64)), "addmm")
    assert saved == {"mat1": SavedTensor("mat1", State.LIVE, (4, 5), "float64", 160, "s0", modified=False)}


def test_a_number_is_kept_as_a_tensor() -> None:
    saved = saved_by(leaf() * 2.5, "mul")
    assert saved == {"other": SavedTensor("other", State.LIVE, (), "float64", 8, "s0", modified=False)}


def test_what_needs_nothing_saves_nothing() -> None:
    assert not op_named(walk(leaf() + leaf()), "add").saved


def test_one_storage_with_several_owners_is_counted_once() -> None:
    x = leaf(1000)
    y = x.exp()
    data = walk(y * y + y.sin())
    assert [(storage.id, storage.bytes) for storage in data.storages] == [("s0", 4000)]
    owners = [node.op for node in data.nodes if any(saved.storage == "s0" for saved in node.saved)]
    assert owners == ["exp", "mul", "sin"]
    assert data.owners == {"s0": [node.id for node in data.nodes if node.saved]}


def test_a_part_keeps_the_whole_memory() -> None:
    whole = torch.ones(1000)
    data = walk(leaf() * whole[:3])
    (saved,) = op_named(data, "mul").saved
    assert (saved.bytes, data.storages[0].bytes) == (12, 4000)


def test_storages_are_numbered_as_they_appear() -> None:
    x = leaf()
    data = walk(x.sin() * x.cos())
    met = [saved.storage for node in data.nodes for saved in node.saved]
    assert list(dict.fromkeys(met)) == ["s0", "s1", "s2"] == [storage.id for storage in data.storages]


def test_memory_of_parameters_and_buffers_is_marked() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    root = model(torch.ones(2, 3, requires_grad=True))
    for data in (walk(root, model=model), graphscope.walk(root).data):
        by_id = {storage.id: storage for storage in data.storages}
        saved_tensors = [(node, saved) for node in data.nodes for saved in node.saved]
        marked = {(node.op, saved.name): by_id[str(saved.storage)].parameter for node, saved in saved_tensors}
        assert marked["addmm", "mat2"]  # the weight's transpose
        assert marked["native_batch_norm", "weight"]
        assert marked["native_batch_norm", "running_mean"]
        assert not marked["addmm", "mat1"]
        assert not marked["native_batch_norm", "input"]


def test_a_parameter_is_one_without_its_module() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    data = walk(torch.ones(4, 3, requires_grad=True) @ weight.t())
    flags = {saved.name: data.storages[int(str(saved.storage)[1:])].parameter for saved in op_named(data, "mm").saved}
    assert flags == {"mat2": True, "self": False}


MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "mul": lambda x: x * x,
    "Doubled": doubled,
    "index": lambda x: x[torch.tensor([0, 1])],
    "std_mean": lambda x: torch.std_mean(x)[0],
}


@pytest.mark.parametrize("op", MAKERS)
def test_after_backward_it_is_freed(op: str) -> None:
    y = MAKERS[op](leaf())
    before = op_named(walk(y.sum()), op).saved
    assert {saved.state for saved in before} == {State.LIVE}
    y.sum().backward()
    after = op_named(walk(y), op).saved
    assert after
    assert {saved.state for saved in after} == {State.FREED}
    assert {saved.storage for saved in after} == {None}
    assert not walk(y).storages


def test_retained_graphs_keep_it() -> None:
    y = leaf().exp()
    y.sum().backward(retain_graph=True)
    assert saved_by(y, "exp")["result"].state is State.LIVE


def test_a_slot_that_was_never_set_is_no_freed_one() -> None:
    y = nn.BatchNorm1d(3, track_running_stats=False)(leaf(4, 3))
    names = [saved.name for saved in op_named(walk(y), "native_batch_norm").saved]
    assert "running_mean" not in names
    assert "input" in names


def test_custom_functions_list_what_they_saved_but_none() -> None:
    saved = op_named(walk(doubled(leaf())), "Doubled").saved
    assert [(one.name, one.state, one.shape) for one in saved] == [
        ("tensors[0]", State.LIVE, (3,)),
        ("tensors[2]", State.LIVE, (3,)),
    ]


PACKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "text": str,
    "nothing": lambda _: None,
    "array": lambda tensor: tensor.detach().numpy(),
    "pair": lambda tensor: (tensor.device, tensor.detach()),
}


@pytest.mark.parametrize("pack", PACKED)
@pytest.mark.parametrize("op", ["exp", "Doubled", "index"])
def test_hooks_replace_it_and_are_not_asked(op: str, pack: str) -> None:
    x = leaf()
    with torch.autograd.graph.saved_tensors_hooks(PACKED[pack], must_not_run):
        y = MAKERS[op](x)
    saved = op_named(walk(y), op).saved
    assert saved
    assert {(one.state, one.storage, one.modified) for one in saved} == {(State.PACKED, None, None)}
    assert not walk(y).storages


def test_a_packed_tensor_keeps_memory_too() -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach().double(), must_not_run):
        y = leaf().exp()
    data = walk(y)
    (saved,) = op_named(data, "exp").saved
    assert (saved.state, saved.dtype, saved.bytes, saved.modified) == (State.PACKED, "float64", 24, None)
    assert [storage.bytes for storage in data.storages] == [24]


def test_hooks_that_are_set_now_are_not_asked() -> None:
    y = leaf().exp()
    y.mul_(2)
    with torch.autograd.graph.saved_tensors_hooks(must_not_run, must_not_run):
        data = walk(y)
    assert [saved.modified for node in data.nodes for saved in node.saved if saved.name == "result"] == [True]


def test_the_hook_of_the_tests_does_raise() -> None:
    with torch.autograd.graph.saved_tensors_hooks(str, must_not_run):
        y = leaf().exp()
    with pytest.raises(Touched):
        y.grad_fn._saved_result  # type: ignore[union-attr] # noqa: B018


def test_an_offloaded_tensor_stays_where_it_is() -> None:
    with torch.autograd.graph.save_on_cpu():
        y = leaf().exp()
    assert saved_by(y, "exp")["result"].state is State.PACKED


def test_a_checkpoint_is_not_run_again() -> None:
    model = Net()
    x = leaf(5, 4)
    y = checkpoint(model, x, use_reentrant=False)
    seen = model.norm.num_batches_tracked
    assert seen is not None
    count = int(seen)
    data = walk(y.sum())
    states = {saved.state for node in data.nodes for saved in node.saved}
    assert states == {State.CHECKPOINTED}
    assert (model.calls, int(seen)) == (1, count)


def test_a_reentrant_checkpoint_is_not_run_again() -> None:
    model = Net()
    x = leaf(5, 4)
    y = checkpoint(model, x, use_reentrant=True)
    (saved,) = op_named(walk(y.sum()), "CheckpointFunction").saved
    assert (saved.state, saved.shape, model.calls) == (State.LIVE, (5, 4), 1)


def modified(root: torch.Tensor, op: str) -> dict[str, bool | None]:
    return {name: saved.modified for name, saved in saved_by(root, op).items()}


def test_what_was_written_since_is_told() -> None:
    y = leaf().exp()
    z = y.sin()
    assert modified(z, "exp") == {"result": False}
    y.add_(1)
    assert modified(z, "exp") == {"result": True}
    assert modified(z, "sin") == {"self": True}


def test_writes_before_the_op_do_not_count() -> None:
    factor = torch.ones(3)
    factor.add_(1)
    y = leaf() * factor
    assert modified(y, "mul") == {"other": False}
    factor.add_(1)
    assert modified(y, "mul") == {"other": True}


def test_a_write_through_a_view_or_a_detached_alias_counts() -> None:
    factor = torch.ones(3)
    y = leaf() * factor
    factor[:1].zero_()
    assert modified(y, "mul") == {"other": True}
    z = leaf().tanh()
    z.detach().zero_()
    assert modified(z, "tanh") == {"result": True}


def test_a_step_of_an_optimizer_counts() -> None:
    model = nn.Linear(3, 3)
    x = leaf(2, 3)
    loss = model(x).sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss.backward(retain_graph=True)
    assert modified(loss, "addmm") == {"mat1": False, "mat2": False}
    optimizer.step()
    assert modified(loss, "addmm") == {"mat1": False, "mat2": True}


def test_members_of_a_list_are_told_too() -> None:
    index = torch.tensor([0, 1])
    y = leaf()[index]
    assert modified(y, "index") == {"indices[0]": False}
    index.zero_()
    assert modified(y, "index") == {"indices[0]": True}


def test_of_a_saved_result_in_a_list_torch_does_not_tell() -> None:
    y = doubled(leaf())
    assert modified(y, "Doubled") == {"tensors[0]": False, "tensors[2]": False}
    y.detach().zero_()
    assert modified(y, "Doubled") == {"tensors[0]": False, "tensors[2]": None}


def test_a_tensor_without_dense_memory_has_no_bytes() -> None:
    x = torch.eye(3).to_sparse()
    (saved,) = [one for one in saved_by(torch.sparse.mm(x, leaf(3, 2)), "sparse_addmm").values() if one.name == "mat1"]
    assert (saved.shape, saved.bytes, saved.storage, saved.state) == ((3, 3), None, None, State.LIVE)


def test_a_subclass_is_saved_like_any_other() -> None:
    class Mine(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Mine).requires_grad_()
    (saved,) = saved_by(x.exp(), "exp").values()
    assert (saved.shape, saved.dtype, saved.bytes, saved.storage) == ((3,), "float32", 12, "s0")


def test_meta_tensors_keep_bytes_that_are_not_there() -> None:
    data = walk(torch.ones(3, device="meta", requires_grad=True).exp())
    assert [storage.bytes for storage in data.storages] == [12]
    assert op_named(data, "exp").outputs[0].device == "meta"


def test_a_function_that_saved_nothing() -> None:
    class Passing(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *grads: torch.Tensor) -> Any:
            return grads[0]

    passing: Any = Passing.apply
    y = passing(leaf())
    assert not op_named(walk(y), "Passing").saved
    y.sum().backward()
    assert {saved.state for saved in op_named(walk(y), "Passing").saved} <= {State.FREED}
