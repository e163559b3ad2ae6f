"""How fast ``graphscope.walk`` is: ratios to its floor and to its peers, from one run.

The floor reads the same facts of the same nodes and keeps none of them. The peer is ``torchviz.make_dot``, plain
(names of nodes, shapes of leaves) and with ``show_attrs`` and ``show_saved``. All take turns in one process, and
medians of CPU time are compared, so that neither a busy machine nor the order matters. A finished graph is read
once from end to end within the time of its walk: a graph that put off work would pay here.

    python benchmarks/walk.py [--turns 15] [--subject gpt2]

Needs ``transformers`` (extra ``test``) and ``torchviz`` (extra ``dev``). torchviz 0.0.3 imports ``distutils``, which
Python 3.12 and later find only where ``setuptools`` is installed.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import graphscope

RATIOS = (
    ("walk", "floor", 3.0, True),
    ("make_dot with all", "walk", 7.0, False),
    ("make_dot", "walk", 1.5, False),
    ("DOT text", "walk", 3.0, True),
)
"""What is compared with what, and the limit that the project sets itself: at most (True) or at least."""

CHAIN = 37_000
"""Ops in a chain. torchviz recurses once a node, and 40,000 nodes are about what the stack can free afterwards."""

Subject = tuple[nn.Module | None, torch.Tensor]
"""A model, and the loss that its graph ends in."""


def gpt2() -> Subject:
    """GPT-2 with its 12 layers, narrow: the graph does not depend on the width."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=12, n_embd=24, n_head=4, vocab_size=50, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(0, 50, (2, 8))
    return model, model(tokens, labels=tokens).loss


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut, as in ResNet-50."""

    def __init__(self, width: int, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or width != outer:
            self.downsample = nn.Sequential(nn.Conv2d(width, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From ``[N, width, H, W]`` to ``[N, outer, H / stride, W / stride]``."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y = y + (x if self.downsample is None else self.downsample(x))
        return torch.relu_(y)


def resnet50() -> Subject:
    """A net with the 16 blocks of ResNet-50, narrow."""
    blocks: list[nn.Module] = [
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    width = 8
    for inner, count, stride in ((8, 3, 1), (16, 4, 2), (32, 6, 2), (64, 3, 2)):
        for place in range(count):
            blocks.append(Bottleneck(width, inner, 4 * inner, stride if place == 0 else 1))
            width = 4 * inner
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    labels = torch.randint(0, 10, (4,))
    return model, nn.functional.cross_entropy(model(torch.rand(4, 3, 64, 64)), labels)


def chain(length: int = CHAIN) -> Subject:
    """Multiplications and additions, one after the other."""
    z = torch.rand(3, 4, requires_grad=True)
    for _ in range(length // 2):
        z = z * 1.01 + 0.1
    return None, z.sum()


SUBJECTS: dict[str, Callable[[], Subject]] = {"gpt2": gpt2, "resnet50": resnet50, "chain": chain}


def floor(loss: torch.Tensor) -> int:
    """Read what a walk must read, keep nothing, and return the number of nodes."""
    stack: list[Any] = [loss.grad_fn]
    seen = set(stack)
    slots: dict[type, list[str]] = {}
    while stack:
        node = stack.pop()
        for source, _ in node.next_functions:
            if source is not None and source not in seen:
                seen.add(source)
                stack.append(source)
        for output in node._input_metadata:
            output.shape, output.dtype, output.device  # noqa: B018  reading is what is timed
        kind = type(node)
        if kind not in slots:
            slots[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
        for name in slots[kind]:
            slot = getattr(node, name)
            for saved in slot if isinstance(slot, tuple) else (slot,):
                tensor = None if saved is None else saved.data
                if tensor is not None:
                    tensor.shape, tensor.untyped_storage().nbytes()
    return len(seen)


def walk(model: nn.Module | None, loss: torch.Tensor) -> graphscope.Graph:
    """Walk with the names that this frame's variables give, and look at every node once."""
    graph = graphscope.walk(loss)
    for node in graph.nodes:
        node.id, node.outputs, node.saved  # noqa: B018  reading is what is timed
    assert model is None or graph.data.modules, "the variable model was not found"
    return graph


def make_dot(loss: torch.Tensor, *, show: bool) -> str:
    """What torchviz draws, as text."""
    import torchviz  # type: ignore[import-untyped]

    return str(torchviz.make_dot(loss, show_attrs=show, show_saved=show).source)


def measure(subject: Subject, turns: int) -> dict[str, float]:
    """CPU seconds for each thing that can be done with a loss, the median over turns in which each comes once."""
    model, loss = subject
    graph = walk(model, loss)
    doings: dict[str, Callable[[], object]] = {
        "floor": lambda: floor(loss),
        "walk": lambda: walk(model, loss),
        "DOT text": lambda: graph.to("dot"),
        "make_dot": lambda: make_dot(loss, show=False),
        "make_dot with all": lambda: make_dot(loss, show=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in doings}
    for _ in range(turns):
        for name, do in doings.items():
            start = time.process_time()
            do()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def report_ratios(names: list[str], turns: int) -> bool:
    """Print the ratios of every subject, and tell whether all of them keep to the limits."""
    good = True
    for name in names:
        subject = SUBJECTS[name]()
        taken = measure(subject, turns if name != "chain" else max(turns // 5, 3))
        print(f"\n{name}: {floor(subject[1]):,} nodes, walked in {taken['walk'] * 1e3:.1f} ms")
        for above, below, limit, most in RATIOS:
            ratio = taken[above] / taken[below]
            kept = ratio <= limit if most else ratio >= limit
            good &= kept
            verdict = "" if kept else ": MISSED"
            print(f"  {above} / {below}: {ratio:.2f}, at {'most' if most else 'least'} {limit}{verdict}")
    return good


def report_growth() -> None:
    """Print time and memory of a node in chains of growing length."""
    print("\nby node of a chain: CPU time of a walk, memory of its Graph")
    for length in (1_000, 100_000, 1_000_000):
        model, loss = chain(length)
        start = time.process_time()
        walk(model, loss)
        seconds = time.process_time() - start
        print(f"  {length:>9,}: {seconds / length * 1e6:4.1f} µs, {bytes_of_graph(loss, length)}")


def bytes_of_graph(loss: torch.Tensor, length: int) -> str:
    """Memory that a finished graph holds; measured on short chains, since measuring is slow."""
    if length > 100_000:  # noqa: PLR2004
        return "not measured"
    gc.collect()
    tracemalloc.start()
    graph = graphscope.walk(loss)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return f"{held / len(graph.nodes):.0f} bytes"


def main() -> int:
    """Run everything; the exit status is 1 if a limit was missed."""
    parser = argparse.ArgumentParser(description="How fast graphscope.walk is: ratios to its floor and its peers.")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--subject", choices=SUBJECTS, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.setrecursionlimit(1_000_000)  # torchviz recurses once a node
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, medians of {options.turns} turns")
    good = report_ratios(options.subject or list(SUBJECTS), options.turns)
    report_growth()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
