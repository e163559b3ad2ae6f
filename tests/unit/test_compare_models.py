"""Models of every kind under every mode: no error, and as many backward nodes as torch itself leads to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import graphscope

MODES = ("train", "train+no_grad", "inference_mode", "eval", "eval+no_grad", "set_grad_enabled(False)")

Made = tuple[nn.Module, dict[str, torch.Tensor]]


@pytest.fixture(autouse=True)
def quiet() -> None:
    """These models are too small for their own taste."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(1, 60, shape)


SPECIAL: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def gpt2() -> Made:
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False, **SPECIAL
    )
    ids = tokens(2, 6)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def vit() -> Made:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.rand(1, 3, 16, 16)}


def t5() -> Made:
    config = transformers.T5Config(
        vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, use_cache=False
    )
    config.decoder_start_token_id = 0
    ids = tokens(1, 5)
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}


def whisper() -> Made:
    config = transformers.WhisperConfig(
        vocab_size=60,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=8,
        max_source_positions=8,
        max_target_positions=8,
        decoder_start_token_id=0,
        use_cache=False,
        **SPECIAL,
    )
    return (
        transformers.WhisperForConditionalGeneration(config),
        {"input_features": torch.rand(1, 8, 16), "labels": tokens(1, 4)},
    )


def mamba() -> Made:
    config = transformers.MambaConfig(
        vocab_size=60, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False, **SPECIAL
    )
    ids = tokens(1, 5)
    return transformers.MambaForCausalLM(config), {"input_ids": ids, "labels": ids}


class Tagger(nn.Module):
    """An LSTM that gives every token a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 8)
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(12, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(ids))
        result: torch.Tensor = self.head(hidden)
        return result


def tagger() -> Made:
    return Tagger(), {"ids": tokens(2, 5)}


def count_nodes(result: Any) -> int:
    """Backward nodes, accumulators apart, that ``next_functions`` leads to from all tensors of a result."""
    tensors = list(result.values()) if isinstance(result, Mapping) else [result]
    waiting = [tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor)]
    found: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [source for source, _ in node.next_functions]
    return sum(1 for node in found if not node.name().endswith("AccumulateGrad"))


@pytest.mark.parametrize("make", [gpt2, vit, t5, whisper, mamba, tagger])
def test_a_model_compares_under_every_mode(make: Callable[[], Made]) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    model.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    versions = [tensor._version for tensor in (*model.parameters(), *model.buffers())]
    numbers = torch.get_rng_state()
    comparison = graphscope.compare(model, modes=MODES, repeats=1, **inputs)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [tensor._version for tensor in (*model.parameters(), *model.buffers())] == versions
    assert not any(module.training for module in model.modules())

    runs = dict(zip(MODES, comparison.runs, strict=True))
    nodes = {mode: figures.backward_nodes for mode, figures in zip(MODES, comparison.data.figures, strict=True)}
    assert [run.failure for run in runs.values()] == [None] * len(MODES)
    for run in runs.values():
        run.data.check()
    expected = {"train": count_nodes(model.train()(**inputs)), "eval": count_nodes(model.eval()(**inputs))}
    assert nodes == dict.fromkeys(MODES, 0) | expected
    assert runs["train+no_grad"].values.equal
    assert runs["eval"].values.equal == (runs["eval"].random_numbers_drawn == runs["train"].random_numbers_drawn)
    together = [row for row in comparison.rows if None not in row.cells]
    assert len(together) > len(comparison.rows) / 4
    assert comparison.to("svg")
