"""What people see of networks that they know: few boxes, equal blocks once, and whatever differs by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import graphscope
from graphscope.model import Gradient, GraphData, Kind
from graphscope.render.picture import to_picture
from graphscope.transforms import ViewOptions, view
from tests.unit import nets
from tests.unit.networks import network

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[2]
MOST_BOXES = 40
"""Fewer than the 120 that are allowed: as many as can be taken in at one glance."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """transformers warns of what is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def recorded(net: nn.Module | None, loss: nets.Loss) -> graphscope.Graph:
    rec = graphscope.record(loss)
    return rec.graph(rec.result, names={} if net is None else {"net": net})


def walked(net: nn.Module | None, loss: nets.Loss) -> graphscope.Graph:
    value = loss()
    return graphscope.walk(value, names={"loss": value} if net is None else {"net": net})


def titles(drawn: GraphData) -> list[str]:
    """What is written on folded boxes, and on frames around what repeats."""
    frames = [f"{frame.title} ×{frame.repeats:,}" for frame in drawn.view.frames if frame.repeats > 1]
    return [*(str(node.op) for node in drawn.check().nodes if node.kind is Kind.GROUP), *frames]


def test_gpt2() -> None:
    graph = recorded(*nets.gpt2())
    assert len(graph.drawn.nodes) < MOST_BOXES < len(graph.nodes) / 20
    assert titles(graph.drawn) == [
        "wpe", "drop", "ln_1", "attn", "ln_2", "mlp", "ln_f", "lm_head", "h.0–h.11 ×12",
    ]  # fmt: skip
    assert titles(graph.fold(3).drawn) == ["wpe", "drop", "h.0–h.11 ×12", "ln_f", "lm_head"]


def test_a_frozen_layer_of_gpt2_is_the_thing_to_see() -> None:
    """As a recording tells it, and as a walk does, which knows neither the frozen weights nor where they were used."""
    net, loss = nets.gpt2()
    assert net is not None
    net.get_submodule("transformer.h.7").requires_grad_(requires_grad=False)
    for graph in (recorded(net, loss), walked(net, loss)):
        drawn = graph.fold(3).drawn
        assert titles(drawn)[-5:] == ["h.0–h.6 ×7", "h.7", "h.8–h.11 ×4", "ln_f", "lm_head"]
        frozen = next(group for group in drawn.view.groups.values() if group.title == "h.7")
        assert (frozen.trainable, frozen.frozen) == (0, 7_224)
        assert frozen.gradient is Gradient.PASSES


def test_t5() -> None:
    graph = recorded(*nets.t5())
    assert len(graph.drawn.nodes) < MOST_BOXES
    blocks = [title for title in titles(graph.drawn) if "block" in title]
    assert blocks == ["block.0", "block.1–block.5 ×5", "block.0", "block.1–block.5 ×5"], "the first one makes the bias"
    assert [frame.title for frame in graph.drawn.view.frames] == ["net", "encoder", "decoder"]


def test_unet() -> None:
    graph = recorded(*nets.unet())
    assert titles(graph.fold(2).drawn) == [
        "inc", *(f"downs.{level}" for level in range(4)), *(f"ups.{level}" for level in range(4)), "out",
    ]  # fmt: skip
    drawn = graph.fold(2).drawn
    ids = {group.title: identity for identity, group in drawn.view.groups.items()}
    across = {(edge.source, edge.target) for edge in drawn.edges}
    skips = {("inc", "ups.3"), ("downs.0", "ups.2"), ("downs.1", "ups.1"), ("downs.2", "ups.0")}
    assert {(ids[source], ids[target]) for source, target in skips} <= across


@pytest.mark.parametrize("take", [recorded, walked])
def test_a_thousand_steps_of_an_lstm_cell(take: object) -> None:
    graph = recorded(*nets.lstm()) if take is recorded else walked(*nets.lstm())
    drawn = graph.drawn
    assert len(drawn.nodes) < 20 < len(graph.nodes) / 500
    if take is recorded:  # the first step begins with zeros, which need no gradient
        assert titles(drawn) == ["parameters of cell", "cell", "cell ×999", "head"]
        assert [group.calls for group in drawn.view.groups.values() if group.title == "cell"] == [1000, 1000]


def test_a_block_that_is_called_again_and_again() -> None:
    """Nothing runs between the calls, and its layers are called again too: only the recorder can tell them apart."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(6):
                x = self.block(x)
            return x

    net, x = Shared(), torch.rand(2, 4, requires_grad=True)
    graph = recorded(net, lambda: net(x).sum())
    drawn = graph.fold(2).drawn
    assert titles(drawn) == ["block ×6"]
    (box,) = drawn.view.groups.values()
    assert (box.calls, box.times, box.ops, box.trainable) == (6, 6, 3, 20)
    assert len(graph.fold(2, roll=False).drawn.view.groups) == 7, "six calls, and the parameters that they share"


def test_an_unrolled_conv_lstm() -> None:
    drawn = recorded(*nets.conv_lstm()).drawn
    (rounds,) = [frame for frame in drawn.view.frames if frame.repeats > 1]
    assert rounds.repeats == 11
    assert [drawn.view.groups[one].title for one in rounds.nodes if one in drawn.view.groups] == ["cells.0", "cells.1"]
    assert len(drawn.nodes) < 20


def test_a_loop_in_plain_code() -> None:
    for graph in (recorded(*nets.plain_rnn()), walked(*nets.plain_rnn())):
        (rounds,) = graph.drawn.view.frames
        assert rounds.repeats == 999
        assert len(graph.drawn.nodes) < 20
        assert [graph.drawn.by_id[one].op for one in rounds.nodes][-3:] == ["mm", "add", "tanh"]


def test_a_detached_encoder_is_seen() -> None:
    """The encoder gets no gradient: its box says so, and the edge out of it says why."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
            self.head = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            code = self.encoder(x).detach()
            result: torch.Tensor = self.head(code)
            return result

    net, x = Net(), torch.rand(2, 4)
    drawn = recorded(net, lambda: net(x).sum()).fold(2).drawn
    boxes = {group.title: group for group in drawn.view.groups.values()}
    assert (boxes["encoder"].gradient, boxes["encoder"].unreached) == (Gradient.NONE, 4)
    svg = to_picture(drawn, "svg").decode()
    assert "no gradient arrives" in svg
    assert "none for 4 of 4 parameters" in svg
    assert "detach() cut here" in svg


def test_no_grad_in_a_box_is_seen() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), torch.rand(2, 4)

    def run() -> torch.Tensor:
        with torch.no_grad():
            hidden = net[0](x)
        result: torch.Tensor = net[1](hidden)
        return result

    rec = graphscope.record(run)
    drawn = rec.graph(rec.result, names={"net": net}).fold(1).drawn
    first = next(group for group in drawn.view.groups.values() if group.title == "net.0")
    assert first.gradient is Gradient.DIES
    assert "not recorded: no_grad()" in to_picture(drawn, "svg").decode()


def test_the_text_of_a_folded_graph() -> None:
    text = str(recorded(*nets.gpt2()))
    assert "in h.0–h.11 ×12" in text
    assert "GPT2Attention" in text
    assert "hidden" in text
    assert "1,063: " in text, "the figures are those of the whole graph"
    assert len(text.splitlines()) < 90


def test_a_deep_chain_is_summed_up_folded_and_freed() -> None:
    """In a process of its own, which must end well: freeing a chain that was touched recurses in C."""
    program = (
        "import torch, graphscope\n"
        "z = torch.rand(2, requires_grad=True)\n"
        "for _ in range(22_000):\n"
        "    z = z * 1.01 + 0.1\n"
        "graph = graphscope.walk(z)\n"
        "print(len(graph.nodes), len(graph.drawn.nodes), graph.drawn.view.frames[0].repeats, len(str(graph)) < 3000)\n"
        "del graph, z\n"
        "print('freed')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["44002", "6", "21999", "True", "freed"]


def test_no_line_runs_over_the_title_of_a_frame() -> None:
    """Titles come after all lines, on ground of the frame's colour, which leaves its border alone."""
    net = network(12)
    root = ET.fromstring(to_picture(view(net, ViewOptions(expand=("net.h.7",))), "svg"))  # noqa: S314
    drawing = root.find(f"{SVG}g")
    assert drawing is not None
    *_, titles = drawing
    assert titles.get("class") == "titles"
    frames = [group for group in drawing if group.get("class") == "cluster frame"]
    shown = ["".join(text.itertext()).strip() for text in titles.iter(f"{SVG}text")]
    assert "h.7" in shown
    grounds = titles.findall(f"{SVG}rect")
    assert len(grounds) == len(frames) > 1
    for ground, frame in zip(grounds, frames, strict=True):
        around = frame.find(f"{SVG}rect")
        assert around is not None
        assert frame.find(f"{SVG}text") is None
        assert ground.get("fill") == around.get("fill")
        for side, size in (("x", "width"), ("y", "height")):
            first, last = (float(one.get(side, "nan")) for one in (around, ground))
            assert first < last < last + float(ground.get(size, "nan")) < first + float(around.get(size, "nan"))
