"""The graph of a walk: what is told of every kind of node, leaf and root."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphscope
from graphscope.capture.walking.optypes import base_name, op_word
from graphscope.model import GraphData, Kind, Node, Role
from tests.subjects import SUBJECTS, Marked, Net, doubled, once


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (3,), requires_grad=True)


def walk(root: object, **names: object) -> GraphData:
    return graphscope.walk(root, names=names).data.check()


def ops(data: GraphData) -> list[str]:
    return [node.op for node in data.nodes if node.op is not None]


def node_of(data: GraphData, name: str) -> Node:
    """The leaf or op that has a name; not the output mark."""
    (found,) = [node for node in data.nodes if name in node.names and node.kind is not Kind.OUTPUT]
    return found


def backward_names(data: GraphData) -> list[str]:
    return [node.backward for node in data.nodes if node.backward is not None]


# Leaves


def test_a_parameter_and_its_gradient() -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    weight = node_of(walk(model(torch.ones(1, 3)), model=model), "model.weight")
    assert (weight.kind, weight.role, weight.reached, weight.accumulate) == (
        Kind.LEAF,
        Role.PARAMETER,
        True,
        "AccumulateGrad",
    )
    assert weight.outputs[0].shape == (2, 3)
    assert weight.outputs[0].is_leaf
    assert weight.outputs[0].requires_grad
    assert weight.grad is not None
    assert (weight.grad.shape, weight.grad.dtype, weight.grad.requires_grad) == ((2, 3), "float32", False)


def test_an_input_without_gradient_yet() -> None:
    x = leaf()
    told = node_of(walk(x * 2, x=x), "x")
    assert (told.role, told.grad, told.hooks) == (Role.INPUT, None, 0)


def test_hooks_on_a_leaf_are_counted() -> None:
    x = leaf()
    y = x * 2
    x.register_hook(lambda grad: grad)
    x.register_hook(lambda grad: grad)
    x.register_post_accumulate_grad_hook(lambda _: None)
    assert node_of(walk(y, x=x), "x").hooks == 3


def test_hooks_and_retained_gradients_of_results() -> None:
    x = leaf()
    y = x * 2
    y.register_hook(lambda grad: grad)
    y.retain_grad()
    z = y.sum()
    told = node_of(walk(z, y=y, z=z), "y")
    assert (told.hooks, told.retains_grad) == (1, True)
    assert not node_of(walk(z, z=z), "z").retains_grad


def test_a_leaf_without_a_python_object() -> None:
    y = leaf() * 2
    data = walk(y)
    assert [node.names for node in data.nodes if node.kind is Kind.LEAF] == [()]


def test_frozen_and_unused_parameters_are_there_but_not_reached() -> None:
    model = Net().eval()
    data = walk(model(torch.ones(2, 4)), model=model)
    for name in ("model.frozen.weight", "model.frozen.bias", "model.unused.weight"):
        told = node_of(data, name)
        assert (told.reached, told.accumulate, told.role) == (False, None, Role.PARAMETER)
    assert node_of(data, "model.frozen.weight").outputs[0].requires_grad is False
    assert node_of(data, "model.unused.weight").outputs[0].requires_grad is True
    assert node_of(data, "model.last.weight").names == ("model.last.weight", "model.tied.weight")


def test_by_default_only_the_modules_of_the_graph_list_what_they_do_not_use() -> None:
    used, unused = nn.Linear(2, 2), nn.Linear(2, 2)
    loss = used(torch.ones(1, 2)).sum()
    used.extra = nn.Parameter(torch.ones(1))
    names = {name for node in graphscope.walk(loss).nodes for name in node.names}
    assert {"used.weight", "used.extra"} <= names
    assert "unused.weight" not in names
    assert unused is not None


def test_a_parameter_gives_its_module_to_what_reads_it() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.fc.weight.t()).relu()

    model = Twice()
    data = walk(model(torch.ones(1, 2)), model=model)
    modules = {node.op: node.module for node in data.nodes if node.op}
    assert modules == {"t": "model.fc", "mm": "model.fc", "relu": None}


# Ops and their outputs


def test_every_backward_node_of_torch_has_its_op() -> None:
    ops_of_torch = {base_name(name).rstrip("_") for name in torch._C._dispatch_get_all_op_names()}
    kinds = {name for name in dir(torch._C._functions) if name[0].isupper() and re.search(r"Backward.*\d", name)}
    assert len(kinds) > 400
    assert not {name: op_word(name) for name in kinds if op_word(name) not in ops_of_torch}


def test_words_for_ops() -> None:
    x = leaf(1, 1, 4, 4)
    y = nn.functional.max_pool2d(nn.functional.log_softmax(x, -1), 2)
    data = walk(nn.functional.grid_sample(y, torch.zeros(1, 2, 2, 2), align_corners=False))
    assert ops(data) == ["log_softmax", "max_pool2d_with_indices", "grid_sampler_2d"]
    assert backward_names(data) == ["LogSoftmaxBackward0", "MaxPool2DWithIndicesBackward0", "GridSampler2DBackward0"]


def test_inputs_without_gradient_are_told() -> None:
    data = walk(torch.addmm(torch.ones(2), leaf(2, 3), torch.ones(3, 2)))
    (told,) = [node for node in data.nodes if node.op == "addmm"]
    assert told.without_gradient == (0, 2)


def test_several_outputs_have_their_numbers() -> None:
    x = leaf(5)
    parts = x.chunk(5)
    data = walk(parts[3] * parts[1], x=x, third=parts[3])
    (split,) = [node for node in data.nodes if node.op == "split"]
    assert [output.shape for output in split.outputs] == [(1,)] * 5
    assert [output.names for output in split.outputs] == [(), (), (), ("third",), ()]
    edges = [(edge.output, edge.slot) for edge in data.edges if edge.source == split.id]
    assert edges == [(3, 0), (1, 1)]


def test_versions_and_views_of_what_is_in_hand() -> None:
    base = leaf(4) * 1
    part = base[1:]
    part.mul_(2)
    data = walk(base.sum() + part.sum(), base=base, part=part)
    told = node_of(data, "base")
    assert (told.backward, told.outputs[0].version, told.outputs[0].is_view) == ("CopySlices", 1, False)
    assert told.note is not None
    assert "in place" in told.note
    view = node_of(data, "part")
    assert (view.outputs[0].is_view, view.outputs[0].version) == (True, 1)


def test_dtypes_and_complex_numbers() -> None:
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    data = walk(torch.view_as_real(torch.complex(x, x) * 2j).to(torch.bfloat16))
    dtypes = [node.outputs[0].dtype for node in data.nodes if node.op]
    assert dtypes == ["complex128", "complex128", "float64", "bfloat16"]


def test_two_names_of_one_tensor() -> None:
    x = leaf()
    y = again = x.exp()
    assert node_of(walk(y.sum(), y=y, again=again), "y").names == ("y", "again")


# Nodes of other makers


def test_custom_functions_go_by_their_class() -> None:
    data = walk(once(doubled(leaf())))
    assert ops(data) == ["Doubled", "Once"]
    assert backward_names(data) == ["DoubledBackward", "OnceBackward"]
    assert {node.note for node in data.nodes if node.op} == {"a custom autograd.Function"}


def test_foreach_ops_have_no_class_of_their_own() -> None:
    results = torch._foreach_mul([leaf(), leaf()], 2.0)
    data = walk(list(results))
    assert ops(data) == ["foreach_mul"]
    assert backward_names(data) == ["ForeachMulBackward1Scalar"]


def test_a_full_backward_hook_of_a_module_is_a_node() -> None:
    model = nn.Linear(2, 2)
    model.register_full_backward_hook(lambda *_: None)
    data = walk(model(leaf(1, 2)), model=model)
    notes = [node.note for node in data.nodes if node.backward == "BackwardHookFunctionBackward"]
    assert len(notes) == 2
    assert all(note is not None and "register_full_backward_hook" in note for note in notes)


def test_checkpoints() -> None:
    model = Net()
    data = walk(checkpoint(model, leaf(5, 4), use_reentrant=True))
    assert backward_names(data) == ["CheckpointFunctionBackward"]
    data = walk(checkpoint(model, leaf(5, 4), use_reentrant=False), model=model)
    assert "NativeBatchNormBackward0" in backward_names(data)
    assert model.calls == 2


def test_a_graph_of_gradients() -> None:
    x = leaf()
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    data = walk(grad, x=x)
    assert node_of(data, "x").reached
    assert "pow" in ops(data)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_is_one_opaque_node() -> None:
    try:
        compiled = torch.compile(lambda x: (x.sin() * x).sum(), backend="aot_eager")
        x = leaf()
        data = walk(compiled(x), x=x)
    finally:
        torch._dynamo.reset()
    (node,) = [node for node in data.nodes if node.op]
    assert node.backward == "CompiledFunctionBackward"
    assert node.note is not None
    assert "torch.compile" in node.note
    assert node_of(data, "x").reached


# Tensors of other kinds


def test_sparse_tensors() -> None:
    x = torch.eye(3).to_sparse().requires_grad_()
    data = walk(torch.sparse.mm(x, leaf(3, 2)), x=x)
    told = node_of(data, "x").outputs[0]
    assert (told.layout, told.shape, told.version) == ("sparse_coo", (3, 3), x._version)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_with_strides_have_no_single_shape() -> None:
    n = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], requires_grad=True)
    data = walk(n * 2, n=n)
    assert node_of(data, "n").outputs[0].shape is None
    assert [node.outputs[0].shape for node in data.nodes if node.op] == [None]


def test_jagged_tensors_have_a_symbol_for_a_size() -> None:
    n = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=torch.jagged, requires_grad=True)
    data = walk(n * 2, n=n)
    told = node_of(data, "n").outputs[0]
    assert (told.layout, told.subclass) == ("jagged", "NestedTensor")
    assert told.shape is not None
    assert told.shape[0] == 2
    assert isinstance(told.shape[1], str)
    graphscope.walk(n * 2).to_json()


def test_subclasses_are_named_and_not_asked() -> None:
    try:
        variables = SUBJECTS["hostile subclass"]()
        data = walk(variables["loss"], **variables)
    finally:
        Marked.switched_on = False
    told = node_of(data, "x").outputs[0]
    assert (told.subclass, told.shape, told.requires_grad) == ("Marked", (3,), True)
    assert node_of(data, "x").role is Role.INPUT


def test_a_parameter_of_another_class_is_a_parameter() -> None:
    class Mine(torch.Tensor):
        pass

    weight = nn.Parameter(torch.ones(2).as_subclass(Mine))
    assert node_of(walk(weight * 2, weight=weight), "weight").role is Role.PARAMETER


def test_wrapped_tensors_with_a_dispatch_of_their_own() -> None:
    class Wrapped(torch.Tensor):
        held: Any

        @staticmethod
        def __new__(kind: Any, held: torch.Tensor) -> Any:
            made: Any = torch.Tensor._make_wrapper_subclass(kind, held.shape, requires_grad=True)
            made.held = held
            return made

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
            plain = [arg.held if isinstance(arg, Wrapped) else arg for arg in args]
            calls.append(func)
            return func(*plain, **(kwargs or {}))

    calls: list[Any] = []
    x = Wrapped(torch.ones(3))
    y = x * 2
    calls.clear()
    data = walk(y, x=x)
    assert not calls
    assert node_of(data, "x").outputs[0].subclass == "Wrapped"


def test_meta_tensors() -> None:
    model = nn.Linear(3, 2, device="meta")
    data = walk(model(torch.ones(1, 3, device="meta")), model=model)
    assert {output.device for node in data.nodes for output in node.outputs} == {"meta"}


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Linear(3, 2)
        data = walk(model(torch.ones(1, 3)).sum(), model=model)
    assert node_of(data, "model.weight").outputs[0].shape == (2, 3)
    assert ops(data)[-1] == "sum"


def test_inside_transforms_of_functions() -> None:
    seen: list[GraphData] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        y = (x.exp() * x).sum()
        seen.append(walk(y))
        return y

    torch.func.grad(look)(torch.ones(3))
    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.vmap(look)(leaf(2, 3))
    assert len(seen) == 3
    assert ops(seen[0])[-1] == "sum"


def test_replicas_of_a_model_lead_to_its_own_parameters() -> None:
    model = nn.Linear(2, 2)
    replica = copy.copy(model)
    replica._parameters = {}
    replica.weight, replica.bias = model.weight * 1, model.bias * 1  # type: ignore[assignment]
    data = walk(replica(torch.ones(1, 2)), model=model, replica=replica)
    assert node_of(data, "model.weight").reached
    assert node_of(data, "replica.weight").op == "mul"


def test_an_optimizer_that_is_differentiated_through() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([w], lr=0.1, differentiable=True)
    clone = w.clone()
    optimizer.param_groups[0]["params"][0] = clone
    clone.grad = (w * 2).detach().requires_grad_()
    optimizer.step()
    data = walk(clone.sum(), w=w, clone=clone)
    assert node_of(data, "w").reached
    assert "add" in ops(data) or "addcmul" in ops(data)


# Roots


def test_a_tensor_without_history_is_one_leaf() -> None:
    x = torch.ones(2)
    data = walk(x, x=x)
    assert [node.kind for node in data.nodes] == [Kind.LEAF, Kind.OUTPUT]
    assert not data.nodes[0].reached
    assert [edge.gradient for edge in data.edges] == [False]


def test_a_leaf_that_requires_grad_is_reached_by_itself() -> None:
    x = leaf()
    data = walk(x, x=x)
    assert data.nodes[0].reached
    assert [edge.gradient for edge in data.edges] == [True]


def test_a_view_of_which_torch_refuses_to_tell() -> None:
    base = leaf(4) * 1
    with torch.no_grad():
        view = base.view(2, 2)
    base.mul_(2)
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        view.grad_fn  # noqa: B018
    data = walk(view, view=view)
    told = node_of(data, "view")
    assert (told.kind, told.outputs[0].is_leaf) == (Kind.LEAF, False)
    assert told.note is not None
    assert "refuses to tell its history" in told.note
    assert ops(walk(base.sum(), view=view, base=base)) == ["mul", "mul", "sum"]


def test_several_roots_share_their_graph() -> None:
    x = leaf()
    shared = x.exp()
    data = walk({"a": shared.sum(), "b": shared.mean(), "x": x, "c": torch.ones(1)})
    names = [data.by_id[root].names for root in data.roots]
    assert names == [("a",), ("b",), ("x",), ("c",)]
    assert ops(data).count("exp") == 1


def test_one_tensor_given_twice_is_two_roots_of_one_node() -> None:
    y = leaf().exp()
    data = walk([y, y])
    assert len(data.roots) == 2
    assert ops(data) == ["exp"]


def test_other_outputs_of_an_op_as_roots() -> None:
    values, indices = leaf(5).topk(2)
    parts = leaf(4).chunk(2)
    data = walk({"values": values, "indices": indices, "second": parts[1]})
    second = data.by_id[data.roots[2]]
    assert [edge.output for edge in data.incoming[second.id]] == [1]
    assert data.by_id[data.roots[1]].outputs[0].dtype == "int64"


def test_graph_edges_are_roots() -> None:
    parts = leaf(4).chunk(2)
    edge = torch.autograd.graph.get_gradient_edge(parts[1])
    data = walk({"edge": edge})
    (root,) = data.roots
    assert data.by_id[root].outputs[0].shape == (2,)
    assert [found.output for found in data.incoming[root]] == [1]
    x = leaf()
    data = walk(torch.autograd.graph.get_gradient_edge(x), x=x)
    assert data.nodes[0].names == ("x",)
    assert data.nodes[0].reached


def test_an_inference_tensor_as_root() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
        data = walk(x, x=x)
    told = data.nodes[0].outputs[0]
    assert (told.is_inference, told.version, told.requires_grad) == (True, None, False)
    assert walk(x + leaf(2)).nodes[-1].outputs[0].is_inference is False


def test_an_inference_tensor_with_a_history() -> None:
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                return torch.ones_like(x)

        @staticmethod
        def backward(_: Any, *grads: torch.Tensor) -> Any:
            return grads[0]

    odd: Any = Odd.apply
    y = odd(leaf())
    data = walk(y, y=y)
    assert node_of(data, "y").outputs[0].is_inference == y.is_inference()


def test_outputs_of_a_transformer() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=11, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    tokens = torch.tensor([[1, 2, 3]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = model(tokens, labels=tokens, output_hidden_states=True)
    data = graphscope.walk(output, names={"model": model}).data.check()
    names = [data.by_id[root].names[0] for root in data.roots]
    assert names == ["loss", "logits", "hidden_states[0]", "hidden_states[1]", "hidden_states[2]"]
    leaves = [node for node in data.nodes if node.accumulate]
    assert len(leaves) == len(list(model.parameters()))
    assert node_of(data, "model.lm_head.weight").names == ("model.lm_head.weight", "model.transformer.wte.weight")
    assert {node.module for node in data.nodes if node.op == "addmm"} >= {"model.transformer.h.0.attn.c_attn"}
