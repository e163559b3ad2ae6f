"""What tensors are called: where names come from, which comes first, and what is never run to find them."""

from __future__ import annotations

import sys
import types
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import graphscope
from graphscope.capture.walking.names import Names, flatten_tensors, frame_namespaces, to_namespace
from graphscope.errors import InputError
from graphscope.model import Role
from tests.subjects import Lazy, Odd, Stranger, Touched

GLOBAL = torch.ones(2, requires_grad=True)
_private_global = torch.ones(3, requires_grad=True)


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def names_in(**variables: object) -> Callable[[torch.Tensor], tuple[str, ...]]:
    known = Names()
    known.search(variables)
    return known.of


def frame_names(tensor: torch.Tensor) -> tuple[str, ...]:
    """What ``walk`` calls a tensor by the variables of the frame that called this."""
    known = Names()
    for namespace in frame_namespaces(sys._getframe(1)):
        known.search(namespace)
    return known.of(tensor)


class Pair(NamedTuple):
    left: object
    right: object


@dataclass
class Record:
    tensor: object
    note: str = ""


@dataclass(slots=True)
class Slotted:
    tensor: object
    absent: object


class Plain:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class WithSlots:
    __slots__ = ("empty", "tensor")

    def __init__(self, tensor: object) -> None:
        self.tensor = tensor


CONTAINERS: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "variable": (lambda t: t, "v"),
    "list": (lambda t: [0, t], "v[1]"),
    "tuple": (lambda t: (t,), "v[0]"),
    "deque": (lambda t: deque([t]), "v[0]"),
    "dict": (lambda t: {"a": t}, "v.a"),
    "dict of numbers": (lambda t: {3: t}, "v.3"),
    "default dict": (lambda t: defaultdict(list, a=[t]), "v.a[0]"),
    "ordered dict": (lambda t: OrderedDict(a=t), "v.a"),
    "user dict": (lambda t: UserDict(a=t), "v.a"),
    "named tuple": (lambda t: Pair(1, t), "v.right"),
    "dataclass": (Record, "v.tensor"),
    "slotted dataclass": (lambda t: Slotted(t, None), "v.tensor"),
    "object": (lambda t: Plain(held=t), "v.held"),
    "object with slots": (WithSlots, "v.tensor"),
    "namespace": (lambda t: types.SimpleNamespace(held=t), "v.held"),
    "nested": (lambda t: {"a": [Plain(b=Pair(t, 1))]}, "v.a[0].b.left"),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_tensors_in_variables_and_what_they_hold(kind: str) -> None:
    make, expected = CONTAINERS[kind]
    tensor = leaf()
    assert names_in(v=make(tensor))(tensor) == (expected,)


def test_results_of_ops_that_return_several() -> None:
    result = leaf().topk(1)
    assert names_in(best=result)(result.values) == ("best.values",)


def test_variables_of_the_frame_come_before_globals() -> None:
    local = GLOBAL
    assert frame_names(local) == ("local", "GLOBAL")
    assert frame_names(_private_global) == ("_private_global",)


def test_private_variables_come_last_and_pythons_own_not_at_all() -> None:
    _hidden = shown = leaf()
    assert frame_names(shown) == ("shown", "_hidden")
    assert names_in(__secret__=shown)(shown) == ("__secret__",)  # given by hand, it counts
    known = frame_namespaces(sys._getframe(0))
    assert not [name for namespace in known for name in namespace if name.startswith("__")]


def test_in_a_notebook_only_what_the_user_wrote() -> None:
    tensor = leaf()
    namespace = {"x": tensor, "_": tensor, "_3": tensor, "Out": {3: tensor}, "In": ["x"], "get_ipython": print}
    run_cell = types.FunctionType((lambda: sys._getframe(0)).__code__, {"sys": sys, **namespace})
    known = Names()
    for found in frame_namespaces(run_cell()):
        known.search(found)
    assert known.of(tensor) == ("x",)


def test_the_shortest_path_comes_first() -> None:
    tensor = leaf()
    assert names_in(deep={"a": {"b": tensor}}, short=tensor)(tensor) == ("short", "deep.a.b")


def test_hostile_names_stay_as_typed() -> None:
    tensors = {name: leaf() for name in ('a"b', "<b>&amp;", "{|}", "\n", "🙂", "变量", "", "a.b", "a[0]")}
    data = graphscope.walk(torch.stack(list(tensors.values())), names=tensors).data
    assert [node.names for node in data.nodes if node.accumulate] == [(name,) for name in tensors]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.kept = leaf()
        self.listed = [leaf()]
        self._hidden = leaf()


def test_modules_name_parameters_buffers_and_plain_tensors() -> None:
    block = Block()
    of = names_in(model=block)
    assert of(block.inner.weight) == ("model.inner.weight",)
    assert of(block.get_buffer("mean")) == ("model.mean",)
    assert of(block.kept) == ("model.kept",)
    assert of(block.listed[0]) == ("model.listed[0]",)
    assert of(block._hidden) == ()


def test_modules_in_containers_and_in_each_other() -> None:
    first, block, parameter = nn.Linear(2, 2), Block(), nn.Parameter(torch.ones(1))
    second = nn.Sequential(nn.ModuleDict({"a": block}), nn.ParameterList([parameter]))
    of = names_in(models=[first, {"b": second}])
    assert of(first.bias) == ("models[0].bias",)
    assert of(block.inner.bias) == ("models[1].b.0.a.inner.bias",)
    assert of(parameter) == ("models[1].b.1.0",)


def test_modules_in_a_plain_list_of_a_module() -> None:
    block, inner = Block(), nn.Linear(2, 2)
    block.parts = [inner]  # type: ignore[assignment]
    assert names_in(model=block)(inner.weight) == ("model.parts[0].weight",)


def test_what_a_user_hangs_on_a_module_of_torch_has_a_name() -> None:
    layer = nn.Conv2d(1, 1, 1)
    layer.last_output = leaf()
    assert names_in(conv=layer)(layer.last_output) == ("conv.last_output",)


def test_a_tied_weight_goes_by_all_its_names() -> None:
    embed, head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
    head.weight = embed.weight
    model = nn.ModuleDict({"embed": embed, "head": head})
    assert names_in(model=model)(head.weight) == ("model.embed.weight", "model.head.weight")


def test_a_shared_module_goes_by_all_its_places() -> None:
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": shared})
    assert names_in(model=model)(shared.weight) == ("model.b.weight", "model.a.0.weight")


def test_a_module_in_a_module_and_in_a_variable_goes_by_both() -> None:
    encoder = nn.Linear(2, 2)
    model = nn.Sequential(encoder)
    expected = ("encoder.weight", "model.0.weight")
    assert names_in(encoder=encoder, model=model)(encoder.weight) == expected
    later = ("model.0.weight", "encoder.weight")  # the variable of a loop over the model, say
    assert names_in(model=model, encoder=encoder)(encoder.weight) == later


def test_a_module_found_again_in_an_object_keeps_its_name() -> None:
    model = nn.Linear(2, 2)
    trainer = Plain(model=model, nested=Plain(model=model))
    assert names_in(model=model, trainer=trainer)(model.weight) == ("model.weight",)
    assert names_in(trainer=trainer)(model.weight) == ("trainer.model.weight",)


def test_a_module_that_holds_itself_ends() -> None:
    block = Block()
    object.__setattr__(block, "again", block)
    block._modules["itself"] = block
    found = names_in(model=block)(block.inner.weight)
    assert found[0] == "model.inner.weight"
    assert len(found) <= 16


def test_the_qualified_name_comes_before_a_loop_variable() -> None:
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        weight = parameter
        break
    assert names_in(weight=weight, model=model)(weight) == ("model.weight", "weight")


def test_roles_and_module_records() -> None:
    linear, norm = nn.Linear(2, 3), nn.BatchNorm1d(3)
    linear.bias.requires_grad = False
    known = Names()
    known.search({"net": nn.Sequential(linear, norm).eval()})
    assert known.roles[id(linear.weight)] is Role.PARAMETER
    assert known.roles[id(norm.running_mean)] is Role.BUFFER
    records = {record.path: record for record in known.module_records()}
    assert list(records) == ["net", "net.0", "net.1"]
    assert tuple(records["net.0"]) == ("net.0", "Linear", False, 9, 6)
    assert tuple(records["net.1"]) == ("net.1", "BatchNorm1d", False, 6, 6)


def test_a_module_that_is_not_yet_built_is_read() -> None:
    lazy = nn.LazyLinear(3)
    data = graphscope.walk(leaf() * 2, names={"lazy": lazy}).data.check()
    (weight,) = [node for node in data.nodes if node.names == ("lazy.weight",)]
    assert weight.outputs[0].subclass == "UninitializedParameter"
    assert data.modules[0].parameters == 0


def test_cycles_end() -> None:
    looped: list[Any] = [leaf()]
    looped.append(looped)
    held: dict[str, Any] = {"looped": looped}
    held["held"] = held
    thing = Plain()
    thing.__dict__["thing"] = thing
    assert names_in(held=held, thing=thing)(looped[0]) == ("held.looped[0]",)


def test_limits_keep_a_search_short() -> None:
    near, far = leaf(), leaf()
    million = [1.0] * 1_000_000
    long = [*range(20_000), far]
    nest: object = far
    for _ in range(10):
        nest = [nest]
    many = [[index] * 10 for index in range(50_000)]
    of = names_in(million=million, long=long, many=many, nest=nest, near=near)
    assert of(near) == ("near",)
    assert of(far) == ()


def test_long_lists_given_by_hand_are_read_whole() -> None:
    tensors = {f"t{index}": leaf() for index in range(12_000)}
    known = Names()
    known.search(tensors)
    assert known.of(tensors["t11999"]) == ("t11999",)
    assert len(flatten_tensors(list(tensors.values()), "out")) == 12_000


def test_no_code_of_the_user_runs() -> None:
    kept = leaf()
    lazy = Lazy(held=kept)
    odd = Odd()
    meta = Forbidding("Made", (), {"held": kept})
    of = names_in(odd=odd, lazy=lazy, stranger=Stranger.__new__(Stranger), odds=[odd, lazy], meta=meta, kind=Lazy)
    assert of(odd.kept) == ("odd.kept",)
    assert of(kept) == ("lazy.held",)
    with pytest.raises(Touched):
        len(odd)


class Forbidding(type):
    def __getattr__(cls, name: str) -> Any:
        raise Touched

    def __instancecheck__(cls, instance: object) -> bool:
        raise Touched


class Guarded(nn.Module):
    """A module that wants no attribute read."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.closed = True

    def __getattribute__(self, name: str) -> Any:
        if name != "__dict__" and object.__getattribute__(self, "__dict__").get("closed"):
            raise Touched
        return super().__getattribute__(name)


def test_a_module_is_read_past_its_getattribute() -> None:
    guarded = Guarded()
    weight = guarded.__dict__["_modules"]["inner"].weight
    assert names_in(model=guarded)(weight) == ("model.inner.weight",)


NAMES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "module": (lambda model: model, "0.weight"),
    "dict of modules": (lambda model: {"net": model}, "net.0.weight"),
    "named_parameters": (lambda model: model.named_parameters(), "0.weight"),
    "dict of tensors": (lambda model: dict(model.named_parameters()), "0.weight"),
    "pairs": (lambda model: [("w", model[0].weight)], "w"),  # type: ignore[index]
    "modules": (lambda model: [model], "0.weight"),
    "dicts": (lambda model: [{"a": 1}, {"w": model[0].weight}], "w"),  # type: ignore[index]
    "state_dict": (lambda model: model.state_dict(), "0.weight"),
    "state_dict of variables": (lambda model: model.state_dict(keep_vars=True), "0.weight"),
}


@pytest.mark.parametrize("form", NAMES)
def test_names_are_taken_in_every_form(form: str) -> None:
    make, expected = NAMES[form]
    model = nn.Sequential(nn.Linear(2, 2))
    data = graphscope.walk(model(torch.ones(1, 2)), names=make(model)).data.check()
    names = [node.names for node in data.nodes if node.accumulate and node.outputs[0].shape == (2, 2)]
    assert names == [(expected,)]


def test_a_state_dict_names_by_memory_and_shape() -> None:
    model = nn.Linear(4, 4)
    state = {"whole": model.weight.detach(), "part": model.weight.detach()[:2], "other": torch.zeros(4, 4)}
    data = graphscope.walk(model(torch.ones(1, 4)), names=state).data
    assert [node.names for node in data.nodes if node.accumulate] == [("whole",), ()]


def test_by_default_memory_gives_no_names() -> None:
    weight = nn.Parameter(torch.ones(2))
    alias = weight.detach()
    data = graphscope.walk(weight * 2).data
    assert data.nodes[0].names == ("weight",)
    del weight
    assert data.nodes[0].names
    assert alias is not None


@pytest.mark.parametrize("wrong", [5, "text", torch.ones(1), [1], [("a",)], object()])
def test_wrong_names_are_refused_with_an_example(wrong: object) -> None:
    with pytest.raises(InputError, match=r"names was given as .* Expected a module, a dict") as error:
        to_namespace(wrong)
    assert "\n" not in str(error.value)


def flat(value: object, prefix: str = "out") -> list[str]:
    return [name for name, _ in flatten_tensors(value, prefix)]


def test_outputs_of_any_nesting_come_in_the_order_of_writing() -> None:
    t = [torch.ones(1) for _ in range(7)]
    value = {"b": [t[0], {"x": t[1]}], "a": Pair(t[2], Record(t[3])), "c": ((t[4],), None, 3, "s"), "d": deque([t[5]])}
    found = flatten_tensors(value, "")
    assert [name for name, _ in found] == ["b[0]", "b[1].x", "a.left", "a.right.tensor", "c[0][0]", "d[0]"]
    assert all(tensor is expected for (_, tensor), expected in zip(found, t, strict=False))
    assert flat(t[0]) == ["out"]
    assert flat((t[0], t[0])) == ["out[0]", "out[1]"]


def test_outputs_nested_deeply_are_found() -> None:
    value: object = torch.ones(1)
    for _ in range(5000):
        value = [value]
    assert flat(value) == ["out" + "[0]" * 5000]


def test_outputs_in_mappings_of_any_kind() -> None:
    class Remote:
        def keys(self) -> list[str]:
            return ["a"]

    class Own(UserDict[str, Any]):
        pass

    tensor = torch.ones(1)
    assert flat(types.MappingProxyType({"a": tensor})) == ["out.a"]
    assert flat(Own(a=tensor)) == ["out.a"]
    assert flat(Remote()) == []


def test_outputs_of_transformers() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    hidden = torch.ones(1)
    output = BaseModelOutput(last_hidden_state=hidden, hidden_states=(hidden * 1, hidden * 2))
    assert flat(output, "") == ["last_hidden_state", "hidden_states[0]", "hidden_states[1]"]


def test_modules_and_objects_are_no_outputs() -> None:
    assert flat([nn.Linear(1, 1), Plain(held=torch.ones(1)), np.ones(1)]) == []


def test_graph_edges_are_outputs() -> None:
    edge = torch.autograd.graph.get_gradient_edge(leaf() * 2)
    assert flat([edge, Pair(edge, 1)]) == ["out[0]", "out[1].left"]


def generator() -> Iterator[torch.Tensor]:
    yield torch.ones(1)


MISTAKES: dict[str, tuple[object, str]] = {
    "module": (nn.Linear(1, 1), "A module has no graph before it runs"),
    "method": (torch.ones(1).sum, "add the parentheses, .sum()"),
    "none": (None, "without a return statement"),
    "number": (3.5, "A number has left autograd"),
    "flag": (True, "A number has left autograd"),
    "array": (np.ones(2), "An array has left autograd"),
    "function": (leaf, "A function has no graph before it runs"),
    "empty": ([], "It is empty"),
    "text": ("loss", "Pass a tensor"),
    "list without tensors": ([1, [2]], "Pass a tensor"),
    "node": ((leaf() * 2).grad_fn, "That is a backward node"),
    "generator": (generator(), "Pass a tensor"),
    "type": (torch.Tensor, "A function has no graph"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_what_is_no_tensor_gives_one_line_with_the_likely_intent(kind: str) -> None:
    given, hint = MISTAKES[kind]
    with pytest.raises(InputError) as error:
        graphscope.walk(given)
    text = str(error.value)
    assert hint in text
    assert "was given where a tensor was expected" in text
    assert "\n" not in text
    assert len(text) < 200
