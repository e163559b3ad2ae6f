"""What a recording tells of ops: torch's own flags, in-place writes and views, which op made which node, modules."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphscope
from graphscope.errors import InputError
from graphscope.model import Kind, Node, Reason, Role
from tests.recorded import apply, ops, record_twice, same_as_walk, the_op

CASES = sorted(path for path in (Path(__file__).parent.parent / "cases").iterdir() if (path / "case.py").exists())
Tensor = torch.Tensor


def load_case(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"case_{folder.name}", folder / "case.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# classes that torch's own constructors make unseen, and what lies behind them
UNCLAIMED = {"073": ["AliasBackward0"]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_every_case_recorded_is_the_walk(folder: Path) -> None:
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    case = load_case(folder)
    torch.manual_seed(0)
    try:
        with graphscope.recording() as recording:
            variables = case.build()
    finally:
        torch.set_grad_enabled(True)
    assert recording._recorder.puzzles == []
    recording.graph(names=variables).check()
    root = facts.get("graph", {}).get("root")
    if root is None:
        return
    graph, walked = recording.graph(variables[root], names=variables), graphscope.walk(variables[root], names=variables)
    assert same_as_walk(graph, walked) == UNCLAIMED.get(folder.name[:3], [])
    kinds = Counter(name for node in graph.nodes if node.reached for name in (node.backward, node.accumulate) if name)
    assert dict(kinds) == facts["graph"]["node_types"]


# ------------------------------------------------------------------------------------------------ flags and modes


def untracked(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


def inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x * 2


def leaf_of_result(x: Tensor) -> Tensor:
    return untracked(x).requires_grad_()


def view_of_leaf(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.view(-1)


def detached_in_place(x: Tensor) -> Tensor:
    return (x * 2).detach_()


RESULTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "tracked": (lambda x: x * 2, "grad"),
    "detached": (lambda x: x.detach(), "grad"),
    "comparison": (lambda x: x > 0, "grad"),
    "rounded": (lambda x: x.round(), "grad"),
    "untracked": (untracked, "no_grad"),
    "inference": (inference, "inference_mode"),
    "a view of a leaf": (view_of_leaf, "no_grad"),
    "detach_": (detached_in_place, "grad"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_flags_and_mode_are_those_of_torch_right_after(name: str) -> None:
    make, mode = RESULTS[name]
    x = torch.rand(2, 3, requires_grad=True)
    with graphscope.recording() as recording:
        result = make(x)
    graph = recording.graph(result).check()
    node = ops(graph)[-1]
    info = node.outputs[0]
    assert node.mode == mode
    assert (info.requires_grad, info.is_leaf) == (result.requires_grad, result.is_leaf)
    assert (info.is_inference, info.is_view) == (result.is_inference(), result._is_view())


def test_requires_grad_on_a_result_makes_a_leaf_of_it() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        y = leaf_of_result(x)
        z = y * 3
    graph = recording.graph(z)
    assert same_as_walk(graph, graphscope.walk(z)) == []
    made, product = (node for node in ops(graph) if node.op == "mul")
    assert (made.outputs[0].requires_grad, made.outputs[0].is_leaf) == (False, True), "as it was right after the op"
    (leaf,) = [node for node in graph.nodes if node.kind is Kind.LEAF and "y" in node.names]
    assert [edge.source for edge in graph.data.incoming[leaf.id]] == [made.id]
    assert [edge.source for edge in graph.data.incoming[product.id]] == [leaf.id]


def test_a_view_of_a_leaf_made_under_no_grad_says_it_requires_grad_and_gets_none() -> None:
    x = torch.rand(2, 3, requires_grad=True)
    with graphscope.recording() as recording:
        view = view_of_leaf(x)
        y = (view * 2).sum()
    graph = recording.graph(y)
    assert same_as_walk(graph, graphscope.walk(y)) == []
    (edge,) = graph.data.incoming[the_op(graph, "mul").id]
    assert (edge.gradient, edge.reason) == (False, Reason.NO_GRAD)
    y.backward()
    assert x.grad is None
    assert view.grad is None


def test_that_view_can_be_made_a_leaf_all_the_same() -> None:
    x = torch.rand(2, 3, requires_grad=True)
    with graphscope.recording() as recording:
        view = view_of_leaf(x).requires_grad_()
        y = (view * 2).sum()
    graph = recording.graph(y)
    assert same_as_walk(graph, graphscope.walk(y)) == []
    (leaf,) = [node for node in graph.nodes if "view" in node.names]
    assert (leaf.kind, leaf.accumulate) == (Kind.LEAF, "AccumulateGrad")
    assert [edge.source for edge in graph.data.incoming[leaf.id]] == [the_op(graph, "view").id]
    assert [edge.source for edge in graph.data.incoming[the_op(graph, "mul").id]] == [leaf.id]
    y.backward()
    assert view.grad is not None


def test_autocast_shows_in_what_it_casts() -> None:
    layer, x = nn.Linear(3, 3), torch.rand(2, 3)
    with graphscope.recording() as recording, torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x).relu()
    graph = recording.graph(y)
    assert [node.op for node in ops(graph)].count("to_copy") == 3
    assert the_op(graph, "addmm").outputs[0].dtype == "bfloat16"
    assert {node.note for node in ops(graph)} == {"inside autocast"}


# --------------------------------------------------------------------------------------------- views and writes


def test_a_write_into_a_view_claims_the_new_history_of_its_base() -> None:
    with graphscope.recording() as recording:
        y = torch.rand(2, 3, requires_grad=True) * 1
        y[0].add_(1)
        chosen = y.argmax()
        z = y.sum()
    graph = recording.graph([z, chosen])
    assert same_as_walk(graph, graphscope.walk([z, chosen])) == []
    (write,) = [node for node in ops(graph) if node.backward == "CopySlices"]
    (product,) = [node for node in ops(graph) if node.op == "mul"]
    assert write.op == "add"
    assert product.id in write.writes
    assert the_op(graph, "argmax").backward is None


def test_a_stale_view_is_asked_for_its_history_only_where_torch_asks() -> None:
    """Its history is made, and numbered, when it is asked for: to ask early would change the order of a backward."""

    def numbers(*, recorded: bool) -> list[int]:
        base = torch.rand(2, 3, requires_grad=True) * 1
        row = base[0]
        first = base.grad_fn._sequence_nr()  # type: ignore[union-attr]
        base.mul_(2)
        with torch.no_grad():
            row * 2
        row.argmax()
        after = torch._C._autograd._get_sequence_nr()
        assert row.grad_fn is not None
        made = [after, row.grad_fn._sequence_nr()]
        return [number - first for number in made] if recorded or made else []

    expected = numbers(recorded=False)
    with graphscope.recording():
        assert numbers(recorded=True) == expected


def test_a_value_set_into_a_constant() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        buffer = torch.zeros(2, 3)
        buffer[1] = x
        z = buffer.sum()
    graph = recording.graph(z)
    assert same_as_walk(graph, graphscope.walk(z)) == []
    (write,) = [node for node in ops(graph) if node.backward == "CopySlices"]
    (constant,) = [node for node in graph.nodes if node.kind is Kind.LEAF and node.location is not None]
    assert constant.location is not None
    assert constant.location.code == "buffer = torch.zeros(2, 3)"
    assert constant.id in write.writes


def test_lists_written_in_place_have_a_node_each() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        first, constant, last = x * 1, torch.ones(3), x * 2
        torch._foreach_add_([first, constant, last], 1.0)
        z = first * last + constant
    graph = recording.graph(z)
    assert same_as_walk(graph, graphscope.walk(z)) == []
    whole = [node.backward for node in ops(recording.graph()) if node.op == "foreach_add"]
    assert whole == ["AddBackward1", None, "AddBackward1"]


def test_a_leaf_written_under_no_grad_stays_a_leaf() -> None:
    layer = nn.Linear(3, 1)
    with graphscope.recording() as recording:
        with torch.no_grad():
            layer.weight.mul_(0.5)
        loss = layer(torch.rand(2, 3)).sum()
    graph = recording.graph(loss)
    assert same_as_walk(graph, graphscope.walk(loss)) == []
    whole = recording.graph()
    (write,) = [node for node in ops(whole) if node.op == "mul"]
    (weight,) = [node for node in whole.nodes if "layer.weight" in node.names and node.kind is Kind.LEAF]
    assert write.writes == (weight.id,)
    assert weight.role is Role.PARAMETER


def test_an_optimizer_step_writes_the_parameters() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with graphscope.recording() as recording:
        model(torch.rand(2, 3)).sum().backward()
        optimizer.step()
        loss = model(torch.rand(2, 3)).sum()
    assert same_as_walk(recording.graph(loss), graphscope.walk(loss)) == []
    whole = recording.graph(names={"model": model, "loss": loss}).check()
    written = {name for node in ops(whole) for one in node.writes for name in whole.data.by_id[one].names}
    assert {"model.weight", "model.bias"} <= written


def test_a_result_written_under_no_grad_keeps_its_history() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        y = x * 2
        with torch.no_grad():
            y.add_(1)
        z = y.sin()
    graph = recording.graph(z)
    assert same_as_walk(graph, graphscope.walk(z)) == []
    assert the_op(graph, "mul").backward == "MulBackward0"


def test_data_assigned_gives_a_parameter_other_memory() -> None:
    x = torch.rand(3, requires_grad=True)
    parameter = nn.Parameter(torch.ones(3))
    with graphscope.recording() as recording:
        parameter * 1
        parameter.data = x * 2
        z = (parameter * 3).sum()
    assert same_as_walk(recording.graph(z), graphscope.walk(z)) == []
    (noted,) = recording._recorder.log.reassigned
    assert recording._recorder.log.ops[noted.origin.index].func is torch.ops.aten.mul.Tensor


def test_out_of_a_node_with_several_results_the_right_one() -> None:
    x = torch.rand(4, 4, requires_grad=True)
    with graphscope.recording() as recording:
        values, places = x.topk(2)
        first, _, third, _ = x.unbind()
        z = values.sum() + third.sum() * places.sum() - first.sum()
    graph = recording.graph(z)
    assert same_as_walk(graph, graphscope.walk(z)) == []
    top, parts = the_op(graph, "topk"), the_op(graph, "unbind")
    assert [info.dtype for info in top.outputs] == ["float32", "int64"]
    assert [info.requires_grad for info in top.outputs] == [True, False]
    read = {edge.output for edge in graph.data.outgoing[parts.id]}
    assert read == {0, 2}


def test_an_op_whose_result_nobody_keeps() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        x * 2
        y = x.sin()
    whole = recording.graph().check()
    (product,) = [node for node in ops(whole) if node.op == "mul"]
    assert product.outputs[0].requires_grad is None, "it was gone before it could be asked"
    assert [edge.gradient for edge in whole.data.incoming[product.id]] == [True]
    assert [node.op for node in ops(recording.graph(y))] == ["sin"]


# ------------------------------------------------------------------------------------- what stands in for an op


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        a: Tensor = ctx.saved_tensors[0]
        return gradient * 2 * a


def test_a_custom_function_stands_beside_the_ops_of_its_forward() -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        y = apply(Square, x)
    graph = recording.graph(y)
    assert same_as_walk(graph, graphscope.walk(y)) == []
    function, inner = the_op(graph, "Square"), the_op(graph, "mul")
    assert (function.backward, inner.backward) == ("SquareBackward", None)
    (region,) = graph.data.regions
    assert (inner.region, region.mode) == (region.id, "custom_function")
    assert {edge.source for edge in graph.data.incoming[function.id]} == {inner.id, x_of(graph).id}


def x_of(graph: graphscope.Graph) -> Node:
    (found,) = [node for node in graph.nodes if "x" in node.names]
    return found


def test_a_library_op_with_its_own_derivative() -> None:
    def twice(a: Tensor) -> Tensor:
        return a * 2

    double = torch.library.custom_op("graphscope_test::double", twice, mutates_args=())
    double.register_autograd(lambda _, gradient: gradient * 2)
    x = torch.rand(3, requires_grad=True)
    recording, y = record_twice(lambda: double(x))
    graph = recording.graph(y)
    same_as_walk(graph, graphscope.walk(y))
    assert "double" in {node.op for node in ops(graph)}


# ---------------------------------------------------------------------------------------------------- modules


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.unlisted = [nn.Linear(3, 3)]

    def forward(self, v: Tensor) -> Tensor:
        for layer in self.layers:
            v = layer(v).relu()
        v = self.unlisted[0](v)
        result: Tensor = self.layers[0].forward(v)  # past the call, so that the module does not know
        return result + 1


def test_each_op_stands_in_its_module() -> None:
    model = nn.Sequential(Block(), nn.Tanh())
    with graphscope.recording() as recording:
        y = model(torch.rand(2, 3)).sum()
    graph = recording.graph(y)
    assert [(node.op, node.module) for node in ops(graph) if node.op != "t"] == [
        ("addmm", "model.0.layers.0"),
        ("relu", "model.0"),
        ("addmm", "model.0.layers.1"),
        ("relu", "model.0"),
        ("addmm", "model.0.unlisted[0]"),
        ("addmm", "model.0"),
        ("add", "model.0"),
        ("tanh", "model.1"),
        ("sum", None),
    ]


def test_a_module_that_is_gone_is_told_by_its_type() -> None:
    def forward(x: Tensor) -> Tensor:
        result: Tensor = nn.Linear(3, 1)(x)
        return result

    with graphscope.recording() as recording:
        y = forward(torch.rand(2, 3))
    assert the_op(recording.graph(y), "addmm").module == "Linear"


def test_a_module_may_raise_and_another_goes_on() -> None:
    good, bad = nn.Linear(3, 3), nn.Linear(4, 4)
    with graphscope.recording() as recording:
        with pytest.raises(RuntimeError):
            nn.Sequential(good, bad)(torch.rand(2, 3))
        y = good(torch.rand(2, 3)) * 2
    graph = recording.graph(y)
    assert [(node.op, node.module) for node in ops(graph)] == [("t", "good"), ("addmm", "good"), ("mul", None)]
    failed = [node for node in ops(recording.graph()) if node.note == "raised an error"]
    assert [(node.op, node.outputs) for node in failed] == [("addmm", ())]


def test_a_recording_keeps_going_where_an_op_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(3, requires_grad=True)
    with graphscope.recording() as recording:
        log = recording._recorder.log
        monkeypatch.setattr(type(log), "begin", lambda *_: 1 / 0)
        y = x * 2
        monkeypatch.undo()
        z = y + 1
    assert torch.equal(z, x * 2 + 1)
    graph = recording.graph(z)
    assert same_as_walk(graph, graphscope.walk(z)) == ["MulBackward0"]
    assert any("could not be read" in notice for notice in graph.data.notices)


def test_many_ops() -> None:
    x = torch.rand(1)
    with graphscope.recording() as recording, torch.no_grad():
        y = x
        for _ in range(100_000):
            y = y + 1
    graph = recording.graph(y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(graph.check().nodes) == 100_002


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("given", [3, torch.ones(2), None])
def test_what_cannot_be_called_is_told_with_what_was_meant(given: object, fake: bool) -> None:  # noqa: FBT001  pytest
    with pytest.raises(InputError, match=rf"was given {type(given).__name__}\..*record\(model, x\).*walk\(loss\)"):
        graphscope.record(given, fake=fake)  # type: ignore[arg-type]
