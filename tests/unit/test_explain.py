"""What explain says of small programs that go wrong in one way each, and of those that do not."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import graphscope
from graphscope.analyze.causes import CAUSES, HAZARDS, make_hazard, say
from graphscope.analyze.collapse import collapse
from graphscope.analyze.explain import explain
from graphscope.analyze.failures import explain_failure
from graphscope.capture.program.choose import graph_of_value
from graphscope.capture.program.failure import graph_of_failure, read_error
from graphscope.capture.recording.record import Recorded, Recorder
from graphscope.findings import Cause, Explained, Severity
from graphscope.model import Clue
from graphscope.render.explain_terminal import CAUSE_WORDS, render
from graphscope.render.terminal_lines import LineOptions
from graphscope.transforms import behind_roots

PROGRAMS = Path(__file__).parent.parent / "cases" / "more"
_MARK = "# at fault"

CAUSED: dict[str, str] = {
    "item_loss": "left_pytorch",
    "item_loss_tensor": "left_pytorch",
    "numpy_roundtrip": "left_pytorch",
    "numpy_inplace": "left_pytorch",
    "tolist_roundtrip": "left_pytorch",
    "tensor_wrap": "left_pytorch",
    "argmax_onehot": "integer_dtype",
    "hard_threshold": "integer_dtype",
    "long_cast": "integer_dtype",
    "int_div": "integer_dtype",
    "multinomial_sample": "integer_dtype",
    "categorical_sample": "integer_dtype",
    "sort_indices": "integer_dtype",
    "max_indices": "integer_dtype",
    "searchsorted_bins": "integer_dtype",
    "normal_sample": "no_grad",
    "no_grad_forward": "no_grad",
    "copy_under_no_grad": "no_grad",
    "buffer_assign": "no_grad",
    "ckpt_reentrant_frozen_emb": "no_grad",
    "loss_made_leaf": "no_grad",
    "enable_in_inference": "inference_mode",
    "data_use": "data",
    "parameter_of_tensor": "data",
    "detach_in_method": "detach",
    "two_cuts": "detach",
    "load_state_mix": "detach",
    "functional_call_params": "detach",
    "custom_fn_closure": "custom_function",
    "custom_fn_nondiff": "custom_function",
    "dropped_aux": "unused",
    "overwritten_result": "unused",
    "clone_detach_copy": "not_in_graph",
    "unused_layer": "unused",
    "two_losses_retain": "unused",
    "gradient_penalty": "unused",
    "variable_data_loss": "data",
    "in_inference": "inference_mode",
}
"""Cause of the first parameter that misses its gradient."""

HAZARDOUS: dict[str, str] = {
    "bernoulli_sample": "zero_derivative",
    "rounded": "zero_derivative",
    "sign_after": "zero_derivative",
    "sqrt_zero": "infinite_derivative",
    "where_trap": "infinite_derivative",
    "norm_at_zero": "infinite_derivative",
    "log_zero": "infinite_derivative",
    "module_attr_requires_grad": "suspicious_attribute",
    "typo_attr": "suspicious_attribute",
    "bptt_no_detach": "graph_freed",
    "optimizer_before_replace": "optimizer_holds_strangers",
    "optimizer_same_shape_replace": "optimizer_holds_strangers",
    "weight_norm_old": "optimizer_holds_strangers",
    "inplace_relu_saved": "saved_tensor_modified",
    "inplace_index": "saved_tensor_modified",
    "mul_inplace_saved": "saved_tensor_modified",
    "silent_data": "silent_overwrite",
    "lone_no_grad": "no_grad_without_effect",
    "eval_missing_parens": "call_missing",
    "bn_train_no_grad": "train_layer_in_no_grad",
    "clone_of_leaf": "leaf_rebound",
    "param_times": "leaf_rebound",
    "param_list": "unregistered_module",
    "plain_tensor_attr": "unregistered_module",
    "fn_returns_none": "gradient_is_none",
    "scaled_init": "leaf_rebound",
    "loss_made_leaf": "loss_is_leaf",
    "enable_in_inference": "loss_without_history",
    "ckpt_reentrant_frozen_emb": "reentrant_checkpoint_cut",
}
"""The first hazard that is worse than a note."""

ELSEWHERE = {"rebind_update", "frozen_part", "set_grad_left", "generator_leaves"}
"""Tested by the command line: what switched is found only if it is the one switch of the whole program."""


CAUSES_FILE, ERRORS_FILE = PROGRAMS / "causes.py", PROGRAMS / "errors.py"


def names_in(file: Path) -> list[str]:
    return [
        name for name in re.findall(r"^def (\w+)\(\):", file.read_text(encoding="utf-8"), re.MULTILINE) if name != "two"
    ]


def alone(file: Path, name: str, folder: Path) -> tuple[ModuleType, set[int]]:
    """A module with one of the programs only, as ``main``, and the lines that are marked in it."""
    text = file.read_text(encoding="utf-8")
    parts = re.split(r"^(?=def \w+\(\):)", text, flags=re.MULTILINE)
    head = parts[0] + "".join(part for part in parts[1:] if part.startswith("def two():"))
    body = next(part for part in parts if part.startswith(f"def {name}():")).replace(f"def {name}(", "def main(", 1)
    path = folder / "program.py"
    path.write_text(head + body, encoding="utf-8")
    lines = {number for number, line in enumerate((head + body).splitlines(), 1) if _MARK in line}
    spec = importlib.util.spec_from_file_location(f"program_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, lines


@contextmanager
def a_program() -> Iterator[Recorder]:
    """Record it, and put back what it leaves switched."""
    grad_enabled = torch.is_grad_enabled()
    torch.manual_seed(0)
    recorder = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with recorder.active():
                yield recorder
        finally:
            torch.set_grad_enabled(grad_enabled)


def explained_program(name: str, folder: Path) -> tuple[Explained, set[int], dict[str, Any]]:
    module, lines = alone(CAUSES_FILE, name, folder)
    with a_program() as recorder:
        variables = module.main()
    data = graph_of_value(variables, "main()", recorded=Recorded(recorder, folder))
    return explain(data.check()), lines, variables


def fills(variables: dict[str, Any]) -> dict[str, bool]:
    """Which parameters backward really fills, in torch's own words."""
    model = variables["model"]
    for parameter in model.parameters():
        parameter.grad = None
    loss = variables["loss"]
    if loss.requires_grad:
        loss.backward(retain_graph=True)
    return {name: parameter.grad is not None for name, parameter in model.named_parameters()}


def test_the_tables_name_every_program() -> None:
    told = {*CAUSED, *HAZARDOUS, *ELSEWHERE}
    assert told <= set(names_in(CAUSES_FILE))
    assert {name for name in names_in(CAUSES_FILE) if not name.startswith("ok_")} == told


@pytest.mark.parametrize("name", CAUSED)
def test_cause_and_line(name: str, tmp_path: Path) -> None:
    explained, lines, _ = explained_program(name, tmp_path)
    first = explained.missing[0]
    assert first.cause is not None
    assert first.cause.value == CAUSED[name]
    assert first.message
    assert first.remedy
    if lines:
        assert first.location is not None
        assert first.location.line in lines
        assert {because.location.line for because in first.also if because.location is not None} <= lines


@pytest.mark.parametrize("name", HAZARDOUS)
def test_hazard_and_line(name: str, tmp_path: Path) -> None:
    explained, lines, _ = explained_program(name, tmp_path)
    hazard = explained.hazards[0]
    assert hazard.kind == HAZARDOUS[name]
    assert hazard.severity is not Severity.NOTE
    assert hazard.message
    assert hazard.remedy
    assert hazard.location is not None
    assert hazard.location.line in lines


@pytest.mark.parametrize("name", [name for name in names_in(CAUSES_FILE) if name.startswith("ok_")])
def test_what_is_right_gets_no_alarm(name: str, tmp_path: Path) -> None:
    explained, _, _ = explained_program(name, tmp_path)
    assert explained.missing == ()
    assert [hazard for hazard in explained.hazards if hazard.severity is not Severity.NOTE] == []


NOT_FOR_BACKWARD = {
    *("bptt_no_detach", "inplace_relu_saved", "inplace_index", "mul_inplace_saved"),  # backward raises, as it should
    *("ok_truncated_bptt", "ok_training_loop", "ok_grad_accum"),  # it has run
}


@pytest.mark.parametrize("name", [name for name in names_in(CAUSES_FILE) if name not in NOT_FOR_BACKWARD])
def test_torch_agrees_on_who_gets_a_gradient(name: str, tmp_path: Path) -> None:
    explained, _, variables = explained_program(name, tmp_path)
    if not {"model", "loss"} <= variables.keys():
        return
    told = {row.name.removeprefix("model."): row.receives_grad for row in explained.tensors if row.kind == "parameter"}
    expected = fills(variables)
    assert {name: told[name] for name in expected} == expected


@pytest.mark.parametrize("name", names_in(ERRORS_FILE))
def test_story_of_an_error(name: str, tmp_path: Path) -> None:
    module, lines = alone(ERRORS_FILE, name, tmp_path)
    error: Exception | None = None
    try:
        with a_program() as recorder:
            module.main()
    except Exception as raised:  # noqa: BLE001  whatever the program raises
        error = raised
    assert error is not None
    data = graph_of_failure(error, Recorded(recorder, tmp_path)).check()
    failure = explain_failure(data, read_error(error, tmp_path)).error
    assert failure is not None
    assert failure.type == type(error).__name__
    assert failure.text == str(error)
    assert failure.location is not None
    assert failure.location.line in lines
    assert failure.location not in failure.also
    assert bool(failure.message) == bool(failure.remedy) == (name not in NOT_OF_AUTOGRAD)


NOT_OF_AUTOGRAD = {
    "np_func",
    "hook_none",
    "retain_grad_constant",
    "shape_mismatch",
    "user_backward_bug",
}
"""The program's own mistakes, of which there is no story to tell."""


def test_every_cause_and_hazard_has_words() -> None:
    assert set(CAUSES) == set(Cause) == set(CAUSE_WORDS)
    for kind, entry in HAZARDS.items():
        assert entry.message.endswith((".", "}")), kind
        assert make_hazard(kind, None).location is None


def test_a_sentence_without_its_word_is_left_out() -> None:
    assert say("{name} is here. | {where} did it.", name="w") == "w is here."
    assert say("{name} is here. | {where} did it.", name="{x}", where="<b>") == "{x} is here. <b> did it."
    assert say("{name}.", name="") == ""


def test_names_are_put_together_by_module() -> None:
    every = [f"m.h.{layer}.{part}.{kind}" for layer in range(12) for part in ("a", "b") for kind in ("weight", "bias")]
    every += ["m.head.weight", "m.head.bias"]
    assert collapse(every[:-2], every) == ("m.h",)
    assert collapse(every[:8], every) == ("m.h.0–1",)
    assert collapse([name for name in every if ".a." in name and "12" not in name], every)[0] == "m.h.0–11.a"
    assert collapse(["m.head.bias"], every) == ("m.head.bias",)
    assert collapse([], every) == ()


def test_a_walk_tells_who_is_reached_and_what_would_tell_more() -> None:
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    loss = net["b"](net["a"](torch.ones(1, 2)).detach()).sum()
    explanation = graphscope.explain(loss, net)
    rows = {row.name: row for row in explanation.tensors if row.kind == "parameter"}
    assert {name: row.receives_grad for name, row in rows.items()} == {
        "net.a.weight": False,
        "net.a.bias": False,
        "net.b.weight": True,
        "net.b.bias": True,
    }
    assert rows["net.a.weight"].cause is Cause.UNKNOWN
    assert "recording" in rows["net.a.weight"].remedy
    assert not explanation.data.recorded


def test_explain_inside_a_recording_uses_it() -> None:
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    with graphscope.recording() as rec:
        loss = net["b"](net["a"](torch.ones(1, 2)).detach()).sum()
        inside = graphscope.explain(loss, net)
    after = rec.graph(loss).explain()
    assert {row.cause for row in inside.missing} == {row.cause for row in after.missing} == {Cause.DETACH}


def test_given_modules_are_told_and_no_others() -> None:
    told, other = nn.Linear(2, 2), nn.Linear(2, 2)
    explanation = graphscope.explain(told(other(torch.ones(1, 2))).sum(), told)
    assert {row.name for row in explanation.tensors if row.kind == "parameter" and row.name.startswith("told")} == {
        "told.weight",
        "told.bias",
    }


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(graphscope.GraphscopeError, match="tensor"):
        graphscope.explain(3)
    with pytest.raises(graphscope.GraphscopeError, match="tensor"):
        graphscope.explain(torch.ones(1, requires_grad=True), "model")


def test_another_loss_that_trains_it_is_named(tmp_path: Path) -> None:
    explained, _, _ = explained_program("two_losses_retain", tmp_path)
    assert "does reach it" in explained.missing[0].message


def test_evidence_follows_the_nodes_of_a_part() -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with graphscope.recording() as rec:
        extra = torch.ones(3) * 2
        loss = net(torch.ones(1, 2)).sum()
        loss.backward()
        optimizer.step()
    whole = rec.graph(loss)._whole
    part = behind_roots(whole).check()
    assert len(part.nodes) < len(whole.nodes)
    (found,) = [one for one in part.evidence if one.clue is Clue.OPTIMIZER]
    assert [part.by_id[node].names[0] for node in found.nodes] == ["net.weight", "net.bias"]
    assert extra.shape == (3,)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", ["two_cuts", "ckpt_reentrant_frozen_emb", "optimizer_before_replace", "ok_teacher"])
def test_report_fits_the_width(name: str, width: int, tmp_path: Path) -> None:
    explained, _, _ = explained_program(name, tmp_path)
    for details in (False, True):
        text = render(explained, LineOptions(width=width), details=details)
        assert max(map(len, text.splitlines())) <= width
        assert text.endswith("\n")
        assert "\n\n\n" not in text


def test_report_says_what_where_and_what_to_do(tmp_path: Path) -> None:
    explained, _, _ = explained_program("detach_in_method", tmp_path)
    assert render(explained, LineOptions(width=100)).splitlines() == [
        "× 2 of 4 trainable parameters get no gradient from loss.",
        "",
        "◌ model.enc (2 parameters)",
        "  program.py:20  return self.enc(x).detach()  # at fault  cut by detach()",
        "  detach() cuts the way from loss back to model.enc.",
        "  → Remove the detach(). If the cut is wanted, freeze what lies before it.",
    ]


def test_report_in_ascii(tmp_path: Path) -> None:
    explained, _, _ = explained_program("two_cuts", tmp_path)
    assert render(explained, LineOptions(width=60, encoding="ascii"), details=True).isascii()


def test_report_of_hostile_names() -> None:
    names = ['a"b', "<b>&amp;", "{name}", "{|}", "\\n", "a\nb", "🙂", "权重", "", "%s"]
    model = nn.Module()
    for place, name in enumerate(names):
        if name:
            model._modules[name] = nn.Linear(2, 2)
        else:
            model._parameters[f"p{place}"] = nn.Parameter(torch.ones(1))
    with graphscope.recording() as rec:
        value = torch.ones(1, 2)
        for child in model.children():
            value = child(value)
        loss = value.detach().sum()
    explanation = rec.graph(loss, names={"m": model, "loss": loss}).explain()
    assert {row.name for row in explanation.missing} >= {f"m.{name}.weight" for name in names if name}
    text = str(explanation)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "a\\nb" in text or "m" in text
    assert explanation.to_json()["tensors"]


def test_json_is_the_contract(tmp_path: Path) -> None:
    explained, _, _ = explained_program("two_cuts", tmp_path)
    document = explained.to_json()
    assert list(document) == ["format", "version", "recorded", "roots", "tensors", "hazards", "error"]
    assert (document["format"], document["version"], document["roots"]) == ("graphscope.explain", 1, ["loss"])
    row = document["tensors"][0]
    assert set(row) == {
        "name",
        "kind",
        "requires_grad",
        "is_leaf",
        "shape",
        "dtype",
        "receives_grad",
        "cause",
        "location",
        "also",
        "message",
        "remedy",
    }
    assert row["name"] == "model.a.weight"
    assert row["cause"] == "detach"
    assert set(row["location"]) == {"file", "line", "code"}
    assert row["also"][0]["cause"] == "integer_dtype"


def test_tied_parameters_have_one_row_with_all_names() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    rows = graphscope.explain(model["b"](torch.ones(1, 2)).sum(), model).tensors
    (row,) = [row for row in rows if row.kind == "parameter"]
    assert {row.name, *row.aliases} == {"model.a.weight", "model.b.weight"}
    assert row.receives_grad


def test_a_leaf_that_keeps_its_gradient_and_one_that_does_not() -> None:
    x = torch.ones(2, requires_grad=True)
    h = x * 2
    kept = h * 3
    kept.retain_grad()
    loss = kept.sum()
    rows = {row.name: row for row in graphscope.explain(loss, h, kept, x).tensors}
    assert (rows["x"].receives_grad, rows["kept"].receives_grad, rows["h"].receives_grad) == (True, True, False)
    assert rows["h"].cause is Cause.NON_LEAF
    assert "fills .grad of x" in rows["h"].message


def test_saved_graphs_are_explained_as_well(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    with graphscope.recording() as rec:
        loss = net(torch.ones(1, 2)).detach().sum()
    path = rec.graph(loss).save(tmp_path / "graph.json")
    assert {row.cause for row in graphscope.load(path).explain().missing} == {Cause.DETACH}
