"""What recording costs: ratios to a dispatch mode that does nothing and to a plain run, from one run.

python benchmarks/record.py
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import graphscope


class Nothing(TorchDispatchMode):
    """The floor: every op goes through Python and on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op."""
        return func(*args, **(kwargs or {}))


def loop(rounds: int = 1000) -> torch.Tensor:
    """Two tiny ops a round."""
    y = torch.ones(3, requires_grad=True)
    for _ in range(rounds):
        y = y * 1.0 + 0.1
    return y


def gpt2() -> Callable[[], object]:
    """GPT-2 (12 layers, width 768) on 256 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0))
    tokens = torch.randint(0, 50000, (1, 256))
    return lambda: model(tokens).logits


def seconds(run: Callable[[], object]) -> float:
    """CPU time of one call."""
    started = time.process_time()
    run()
    return time.process_time() - started


def under_nothing(run: Callable[[], object]) -> object:
    """One call below the mode that does nothing."""
    with Nothing():
        return run()


def ratio(one: Callable[[], object], other: Callable[[], object], turns: int) -> float:
    """Median time of one to that of the other, turn by turn."""
    one()
    other()
    pairs = [(seconds(one), seconds(other)) for _ in range(turns)]
    return statistics.median(first for first, _ in pairs) / statistics.median(second for _, second in pairs)


def main() -> int:
    """Print the figures."""
    torch.set_num_threads(1)  # a second one spins while it waits, which counts as CPU time
    tiny = ratio(lambda: graphscope.record(loop), lambda: under_nothing(loop), 9)
    sys.stdout.write(f"tiny ops, recorded / empty dispatch mode: {tiny:.2f}, at most 3.0\n")
    model = gpt2()
    large = ratio(lambda: graphscope.record(model), model, 5)
    sys.stdout.write(f"GPT-2, recorded / plain: {large:.2f}, at most 1.3\n")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    recording = graphscope.record(loop, 5000)
    held = (tracemalloc.get_traced_memory()[0] - before) / 10_000
    tracemalloc.stop()
    sys.stdout.write(f"bytes held for a recorded op: {held:.0f}, below 2000\n")
    del recording
    recording = graphscope.record(loop, 50_000)
    nodes = len(recording.graph(recording.result).nodes)
    sys.stdout.write(f"100,000 recorded ops: {nodes:,} nodes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
