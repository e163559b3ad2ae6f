"""The right cause on the models that people ask about: checkpoints, adapters, adversaries, long sequences."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everybody writes it
from torch import nn
from torch.utils.checkpoint import checkpoint

import graphscope
from graphscope.analyze.explain import explain
from graphscope.api import Recording
from graphscope.capture.merging.merge import merge
from graphscope.capture.recording.record import Recorder
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.walk import to_root
from graphscope.explanation import Explanation
from graphscope.findings import Cause, Severity, Verdict
from graphscope.testing import assert_all_trainable_reached


def explained(rec: Recording, *outputs: object, names: object = None) -> Explanation:
    return rec.graph(*outputs, names=names).explain()


def causes(explanation: Explanation) -> dict[str, str]:
    return {row.name: row.cause.value for row in explanation.missing if row.cause}


def alarms(explanation: Explanation) -> list[str]:
    return [hazard.kind for hazard in explanation.hazards if hazard.severity is not Severity.NOTE]


@pytest.fixture(scope="module")
def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=32, n_positions=16, use_cache=False)
    return GPT2LMHeadModel(config)


IDS = torch.arange(8).reshape(1, 8)


def through_checkpoints(gpt2: Any) -> torch.Tensor:
    """The blocks of GPT-2 as they were checkpointed in 2020: each takes what the one before gave."""

    def call(block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        result: Any = block(hidden)
        return result[0] if isinstance(result, tuple) else result  # type: ignore[no-any-return]

    parts = gpt2.transformer
    hidden = parts.wte(IDS) + parts.wpe(torch.arange(8))
    for block in parts.h:
        hidden = checkpoint(call, block, hidden, use_reentrant=True)
    logits: torch.Tensor = gpt2.lm_head(parts.ln_f(hidden))
    return F.cross_entropy(logits[0], IDS[0])


def test_gpt2_with_a_frozen_embedding_and_reentrant_checkpoints(gpt2: Any) -> None:
    """The first checkpoint gets nothing that requires grad, so neither does any after it."""
    gpt2.transformer.wte.weight.requires_grad_(requires_grad=False)
    gpt2.transformer.wpe.weight.requires_grad_(requires_grad=False)
    try:
        with warnings.catch_warnings(), graphscope.recording() as rec:
            warnings.simplefilter("ignore")
            loss = through_checkpoints(gpt2)
        explanation = explained(rec, loss, names={"gpt2": gpt2, "loss": loss})
        assert unfilled(gpt2, loss) == {row.name for row in explanation.tensors if is_left_out(row)}
    finally:
        gpt2.requires_grad_(requires_grad=True)
    missing = causes(explanation)
    assert {name.split(".h.")[1].split(".")[0] for name in missing} == {"0", "1", "2"}
    assert set(missing.values()) == {"no_grad"}
    assert {row.location.code for row in explanation.missing if row.location} == {
        "hidden = checkpoint(call, block, hidden, use_reentrant=True)"
    }
    assert "reentrant_checkpoint_cut" in alarms(explanation)
    (group,) = explanation.data.groups
    assert group.names == ("gpt2.transformer.h",)
    assert "use_reentrant=False" in group.remedy
    assert len(str(explanation).splitlines()) < 20


def test_gpt2_with_checkpoints_that_work(gpt2: Any) -> None:
    """The embedding is trained: what the checkpoints run again in backward is reached, as torch shows."""
    with graphscope.recording() as rec:
        loss = through_checkpoints(gpt2)
    explanation = explained(rec, loss, names={"gpt2": gpt2, "loss": loss})
    assert unfilled(gpt2, loss) == {row.name for row in explanation.tensors if is_left_out(row)} == set()
    assert (causes(explanation), explanation.hazards) == ({}, ())


def is_left_out(row: Verdict) -> bool:
    return row.kind == "parameter" and not row.receives_grad


def unfilled(gpt2: Any, loss: torch.Tensor) -> set[str]:
    """Parameters whose ``.grad`` a backward leaves empty; a tied one by its first name in the report."""
    gpt2.zero_grad()
    loss.backward()
    names = {"transformer.wte.weight": "lm_head.weight"}
    return {f"gpt2.{names.get(name, name)}" for name, one in gpt2.named_parameters() if one.grad is None}


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter beside it."""

    def __init__(self, width: int, *, broken: bool) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(requires_grad=False)
        self.lora_a = nn.Parameter(torch.rand(2, width))
        self.lora_b = nn.Parameter(torch.zeros(width, 2))
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.broken:
            with torch.no_grad():
                x = x @ self.lora_a.T
            return x @ self.lora_b.T
        return self.base(x) + x @ self.lora_a.T @ self.lora_b.T  # type: ignore[no-any-return]


def test_adapters_on_frozen_layers() -> None:
    model = nn.Sequential(*(Adapted(4, broken=place == 1) for place in range(3)))
    with graphscope.recording() as rec:
        loss = model(torch.rand(2, 4)).pow(2).mean()
    explanation = explained(rec, loss, names={"model": model, "loss": loss})
    assert causes(explanation) == {
        "model.0.lora_a": "no_grad",
        "model.0.lora_b": "no_grad",
        "model.1.lora_a": "no_grad",
    }
    assert {row.location.code for row in explanation.missing if row.location} == {"with torch.no_grad():"}
    frozen = {row.name for row in explanation.tensors if row.cause is Cause.FROZEN}
    assert frozen == {f"model.{place}.base.{kind}" for place in range(3) for kind in ("weight", "bias")}


def test_adapters_that_are_right() -> None:
    model = nn.Sequential(*(Adapted(4, broken=False) for _ in range(3)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    with graphscope.recording() as rec:
        loss = model(torch.rand(2, 4)).pow(2).mean()
    explanation = explained(rec, loss, names={"model": model, "loss": loss, "optimizer": optimizer})
    assert (causes(explanation), alarms(explanation)) == ({}, [])


def test_a_step_with_two_optimizers() -> None:
    """The discriminator's loss does not reach the generator, by intent; the generator's reaches both."""
    generator, discriminator = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    for_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
    for_discriminator = torch.optim.SGD(discriminator.parameters(), lr=0.1)
    real = torch.rand(4, 3)
    names = {
        "generator": generator,
        "discriminator": discriminator,
        "for_generator": for_generator,
        "for_discriminator": for_discriminator,
    }
    with graphscope.recording() as rec:
        fake = generator(torch.rand(4, 2))
        d_loss = F.softplus(discriminator(fake.detach())).mean() + F.softplus(-discriminator(real)).mean()
        first = explained(rec, d_loss, names={**names, "d_loss": d_loss})
        d_loss.backward()
        for_discriminator.step()
        g_loss = F.softplus(-discriminator(fake)).mean()
        second = explained(rec, g_loss, names={**names, "g_loss": g_loss})
        g_loss.backward()
        for_generator.step()
    assert causes(first) == {"generator.weight": "detach", "generator.bias": "detach"}
    assert {row.location.code for row in first.missing if row.location} == {
        "d_loss = F.softplus(discriminator(fake.detach())).mean() + F.softplus(-discriminator(real)).mean()"
    }
    assert (causes(second), alarms(second), alarms(first)) == ({}, [], [])


def test_a_step_in_the_wrong_order() -> None:
    generator, discriminator = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.1)
    with graphscope.recording() as rec:
        score = discriminator(generator(torch.rand(4, 2)))
        d_loss, g_loss = score.mean(), -score.mean()
        d_loss.backward(retain_graph=True)
        optimizer.step()
    (hazard,) = [one for one in explained(rec, g_loss).hazards if one.severity is Severity.ERROR]
    assert hazard.kind == "saved_tensor_modified"
    assert hazard.location is not None
    assert hazard.location.code == "optimizer.step()"
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        g_loss.backward()


@pytest.mark.parametrize("detached", [True, False])
def test_truncated_backpropagation_through_time(detached: bool) -> None:  # noqa: FBT001  a parameter of the test
    cell, head = nn.GRUCell(3, 4), nn.Linear(4, 1)
    state = torch.zeros(1, 4)
    with graphscope.recording() as rec:
        for window in range(3):
            if detached:
                state = state.detach()
            loss: torch.Tensor | int = 0
            for _ in range(2):
                state = cell(torch.rand(1, 3), state)
                loss = loss + head(state).pow(2).mean()
            if window < 2 and isinstance(loss, torch.Tensor):
                loss.backward(retain_graph=not detached)
    explanation = explained(rec, loss)
    assert causes(explanation) == {}
    assert alarms(explanation) == []
    assert ("saved tensors are freed" in str(explanation)) is False


def test_a_window_that_runs_into_a_freed_one() -> None:
    cell, head = nn.GRUCell(3, 4), nn.Linear(4, 1)
    state = torch.zeros(1, 4)
    with graphscope.recording() as rec:
        state = cell(torch.rand(1, 3), state)
        head(state).sum().backward()
        state = cell(torch.rand(1, 3), state)
        loss = head(state).sum()
    explanation = explained(rec, loss)
    assert alarms(explanation) == ["graph_freed"]
    (hazard,) = [one for one in explanation.hazards if one.kind == "graph_freed"]
    assert hazard.location is not None
    assert hazard.location.code == "state = cell(torch.rand(1, 3), state)"
    assert hazard.also[0].code == "head(state).sum().backward()"
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_many_parameters_are_told_in_few_lines() -> None:
    model = nn.ModuleDict({"layers": nn.Sequential(*(nn.Linear(4, 4) for _ in range(60))), "head": nn.Linear(4, 1)})
    with graphscope.recording() as rec:
        loss = model["head"](model["layers"](torch.rand(2, 4)).detach()).sum()
    explanation = explained(rec, loss, names={"model": model, "loss": loss})
    assert len(explanation.missing) == 120
    assert [group.names for group in explanation.data.groups] == [("model.layers",)]
    assert len(str(explanation).splitlines()) == 6


def test_a_large_recording_is_explained_without_a_tower_of_calls() -> None:
    """A chain of 20,000 operations: nothing recurses."""
    w = torch.ones(1, requires_grad=True)
    recorder = Recorder()
    with recorder.active():
        value = w.detach()
        for _ in range(20_000):
            value = value + 1
    names = Names()
    names.search({"w": w, "value": value})
    told = explain(merge(recorder, [to_root("value", value)], names))
    (row,) = [row for row in told.tensors if row.name == "w"]
    assert row.cause is Cause.DETACH


def test_assertion_for_test_suites() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "teacher": nn.Linear(2, 2)})
    loss = model["used"](torch.ones(1, 2)).sum()
    assert_all_trainable_reached(loss, model, allow=["teacher.*"])
    with pytest.raises(AssertionError, match=r"2 trainable parameters would get no gradient: model.teacher.weight"):
        assert_all_trainable_reached(loss, model)
    with pytest.raises(AssertionError, match="1 trainable parameter would"):
        assert_all_trainable_reached(loss, model, allow=["*.weight"])
    model["teacher"].requires_grad_(requires_grad=False)
    assert_all_trainable_reached(loss, model)


def test_assertion_tells_the_line_inside_a_recording() -> None:
    model = nn.Linear(2, 2)
    with graphscope.recording(), pytest.raises(AssertionError, match=r"cut by detach\(\)"):
        assert_all_trainable_reached(model(torch.ones(1, 2)).detach().sum(), model)
