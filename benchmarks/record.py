"""What recording costs: ratios from one run, memory held per op, and the time to make a graph of it.

Tiny ops are measured against a ``TorchDispatchMode`` that does nothing, since every recorder below autograd pays for
that; GPT-2 with 256 tokens and width 768 against the plain run. All take turns in one process, and the medians of the
processor's time are compared, so that a busy machine slows each alike.

    python benchmarks/record.py [--turns 9] [--ops 3000] [--no-gpt2]

Needs ``transformers`` (extra ``test``) for GPT-2.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import graphscope

TINY, GPT2, BYTES = 3.0, 1.3, 2_000
"""What the project promises: at most."""

Tensor = torch.Tensor
x = torch.rand(3, requires_grad=True)


class Nothing(TorchDispatchMode):
    """Passes every op on; what compiled code does under it is as under a recorder."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """As a recorder does."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op."""
        return func(*args, **(kwargs or {}))


def loop(count: int) -> Tensor:
    """A chain of ``count`` multiplications and additions."""
    y = x
    for _ in range(count // 2):
        y = y * 1.0 + 0.1
    return y


def deep(count: int, levels: int = 50) -> Tensor:
    """The same, called from below 50 functions."""
    return deep(count, levels - 1) if levels else loop(count)


def untracked(count: int) -> Tensor:
    """The same under ``no_grad``."""
    with torch.no_grad():
        return loop(count)


@torch.no_grad()
def deep_untracked(count: int) -> Tensor:
    """Both."""
    return deep(count)


def left_off(count: int) -> Tensor:
    """Gradients switched off by a statement, far from the ops."""
    torch.set_grad_enabled(False)
    try:
        return deep(count)
    finally:
        torch.set_grad_enabled(True)


layers = nn.Sequential(*[nn.Linear(3, 3) for _ in range(10)])


def modules(count: int) -> Tensor:
    """Layers so small that their ops are tiny, too."""
    for _ in range(count // 20):
        y: Tensor = layers(x)
    return y


def in_place(count: int) -> Tensor:
    """One tensor, written again and again."""
    y = x * 1
    for _ in range(count // 2):
        y.mul_(1.0).add_(0.1)
    return y


TINY_OPS = {
    "loop of tiny ops": loop,
    "50 functions deep": deep,
    "under no_grad": untracked,
    "both": deep_untracked,
    "left off by a statement": left_off,
    "tiny layers": modules,
    "in place": in_place,
}


def timed(context: AbstractContextManager[Any], run: Callable[[], Any]) -> float:
    """Seconds of processor time."""
    begun = time.process_time()
    with context:
        run()
    return time.process_time() - begun


def medians(
    run: Callable[[], Any], contexts: list[Callable[[], AbstractContextManager[Any]]], turns: int
) -> list[float]:
    """Median seconds under each context, in turns."""
    run()
    seconds = [[timed(context(), run) for context in contexts] for _ in range(turns)]
    return [statistics.median(times) for times in zip(*seconds, strict=True)]


def graph_of(recording: graphscope.api.Recording, output: Tensor) -> float:
    """Seconds to make and check the graph."""
    begun = time.process_time()
    recording.graph(output).check()
    return time.process_time() - begun


def measure_tiny(turns: int, count: int) -> float:
    """Print a line for each kind of loop; return the ratio of the plain one."""
    print(f"{'':26}{'plain':>9}{'mode':>9}{'record':>9}{'ratio':>9}{'graph':>9}   µs per op; ratio: record / mode")
    ratios = {}
    for name, run in TINY_OPS.items():
        with graphscope.recording() as recording:
            output = run(count)
        ops = len(recording._recorder.log.ops)
        plain, mode, record = medians(lambda run=run: run(count), [nullcontext, Nothing, graphscope.recording], turns)
        graph = graph_of(recording, output)
        ratios[name] = record / mode
        figures = (plain / ops * 1e6, mode / ops * 1e6, record / ops * 1e6, ratios[name], graph / ops * 1e6)
        print(f"{name:26}" + "".join(f"{figure:9.2f}" for figure in figures))
    return ratios["loop of tiny ops"]


def measure_memory(count: int) -> float:
    """Bytes that a recording holds per op, while nothing of the program is alive."""
    with graphscope.recording():
        untracked(100)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    with graphscope.recording() as recording:
        output = untracked(count)
    gc.collect()
    held = (tracemalloc.get_traced_memory()[0] - before) / len(recording._recorder.log.ops)
    tracemalloc.stop()
    seconds = graph_of(recording, output)
    print(f"{count:,} ops: {held:,.0f} bytes held per op, {seconds / count * 1e6:.1f} µs per op to make the graph")
    return held


def measure_gpt2(turns: int) -> float:
    """Ratio of a recorded run of GPT-2 to a plain one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).eval()
    tokens = torch.randint(0, 50_257, (1, 256))
    plain, record = medians(lambda: model(tokens, labels=tokens).loss, [nullcontext, graphscope.recording], turns)
    print(f"GPT-2, 256 tokens, width 768: plain {plain:.2f} s, recorded {record:.2f} s, ratio {record / plain:.2f}")
    return record / plain


def main() -> int:
    """Measure, print, and return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--ops", type=int, default=3000)
    parser.add_argument("--no-gpt2", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        ("tiny ops", measure_tiny(options.turns, options.ops), TINY),
        ("bytes per op", measure_memory(100_000), BYTES),
    ]
    if not options.no_gpt2:
        found.append(("GPT-2", measure_gpt2(max(options.turns // 2, 1)), GPT2))
    broken = [f"{name}: {figure:.2f}, at most {limit}" for name, figure, limit in found if figure > limit]
    print("; ".join(broken) or "all promises kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
