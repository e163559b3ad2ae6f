"""How graphscope bears size: a model that fits no machine, flat drawings, chains of millions, memory of a graph.

Limits are the project's promises; a limit that is missed makes the exit status 1. Every part runs in a process of its
own, so that imports and memory are its own too.

    python benchmarks/scale.py [--part llama|flat|growth|memory]

Needs ``transformers`` (extra ``test``) and ``torchviz`` (extra ``dev``).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

CHAINS = (1_000, 10_000, 100_000, 1_000_000)
"""Multiply-adds in a row; twice as many ops."""
DOT_TIME = 600.0
MOST_TEXT = 20_000
"""Letters in the DOT text of a chain that is folded."""


class Figure(NamedTuple):
    """One measured thing, and what is promised of it."""

    what: str
    value: float
    unit: str
    limit: float
    at_most: bool = True

    def __str__(self) -> str:
        """One line; what is missed says so."""
        kept = self.value <= self.limit if self.at_most else self.value >= self.limit
        words = f"at {'most' if self.at_most else 'least'} {self.limit:g}"
        return f"  {self.what}: {self.value:.3g} {self.unit} ({words}){'' if kept else '  MISSED'}"


def cpu() -> float:
    """Seconds of CPU of this process and of those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_gigabytes() -> float:
    """Most memory that this process has had, in 10⁹ bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def llama() -> Iterator[Figure]:
    """Llama-70B on fake tensors, from nothing to a folded SVG. The run is made a second time without recording."""
    times = [cpu()]

    def lap() -> float:
        times.append(cpu())
        return times[-1] - times[-2]

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    imports = times[0] + lap()
    import graphscope
    import graphscope.api

    config = LlamaConfig(
        num_hidden_layers=80,
        hidden_size=8192,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    own = lap()
    with graphscope.recording(fake=True) as rec:
        model = LlamaForCausalLM(config)
        tokens = torch.zeros(1, 2048, dtype=torch.int64)
        building = lap()
        loss = model(tokens, labels=tokens, use_cache=False).loss
        recorded = lap()
    graph = rec.graph(loss)
    svg = graph.to("svg")
    own += lap()
    memory = peak_gigabytes()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        other = LlamaForCausalLM(config)
        lap()
        other(input_ids=torch.zeros(1, 2048, dtype=torch.int64), use_cache=False)
    forward = min(lap(), recorded)
    whole = imports + building + recorded + own
    print(f"Llama-70B on fake tensors: {parameters / 1e9:.1f} billion parameters, {len(graph.nodes):,} nodes,")
    print(f"  drawn with {len(graph.drawn.nodes)} boxes in {len(svg) / 1e3:.0f} kB of SVG; seconds of CPU:")
    print(
        f"  imports {imports:.1f}, building {building:.1f}, forward {forward:.1f}, recording {recorded - forward:.1f},"
    )
    print(f"  graph, view and drawing {own:.1f}")
    yield Figure("from command to SVG", whole, "s of CPU", 20)
    yield Figure("of which graphscope's own", own + recorded - forward, "s of CPU", 2)
    yield Figure("peak memory", memory, "GB", 1.5)


def gpt2(layers: int) -> tuple[Any, Any]:
    """A narrow GPT-2 and its loss: the graph does not depend on the width."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {"n_embd": 24, "n_head": 4, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, **size))
    tokens = torch.randint(0, 50, (2, 8))
    return model, model(tokens, labels=tokens).loss


def flat() -> Iterator[Figure]:
    """GPT-2 with 48 layers, every op drawn; against ``dot`` on what torchviz writes of the same loss."""
    import torchviz

    import graphscope
    from graphscope.errors import EngineError
    from graphscope.render.engine import draw

    model, loss = gpt2(48)
    sys.setrecursionlimit(1_000_000)  # torchviz recurses once a node
    start = cpu()
    graph = graphscope.walk(loss, names={"model": model, "loss": loss})
    svg = graph.fold("full").to("svg")
    own = cpu() - start
    text = torchviz.make_dot(loss).source
    start = cpu()
    try:
        draw(text, "svg", timeout=DOT_TIME)
        told = ""
    except EngineError:
        told = " at least: it was stopped"
    dot = cpu() - start
    print(f"GPT-2 with 48 layers, {len(graph.nodes):,} boxes, {len(svg) / 1e6:.1f} MB of SVG: {own:.1f} s of CPU")
    print(f"  dot on torchviz's text: {dot:.1f} s of CPU{told}")
    yield Figure("dot on torchviz's text / graphscope", dot / own, "times", 10, at_most=False)
    yield Figure("SVG", len(svg) / len(graph.nodes), "bytes a box", 1200)


def chain(length: int) -> Any:
    """``length`` multiplications and additions, one after the other."""
    import torch

    z = x = torch.rand(3, 4, requires_grad=True)
    for _ in range(length):
        z = z * 1.01 + 0.1
    assert z is not x
    return z.sum()


def growth() -> Iterator[Figure]:
    """CPU time of a node for walk, fold and DOT text, in chains of growing length."""
    import graphscope

    def take(length: int) -> float:
        loss = chain(length)
        best = float("inf")
        for _ in range(max(3, 20_000 // length)):
            start = time.process_time()
            graph = graphscope.walk(loss, names={"loss": loss})
            text = graph.fold("auto").to("dot")
            best = min(best, time.process_time() - start)
            count = len(graph.nodes)
            assert count >= 2 * length
            assert len(text) < MOST_TEXT, "not folded"
            if length >= CHAINS[-1]:
                break
        print(f"  {count:>9,} nodes: {best / count * 1e6:.1f} µs of CPU a node")
        return best / count

    print("walk + fold + DOT text of chains")
    take(CHAINS[0])  # what is loaded at first use
    costs = [take(length) for length in CHAINS]
    yield Figure("largest / smallest cost of a node", max(costs) / min(costs), "times", 2)


def size_of(data: Any) -> int:
    """Bytes of everything that a graph holds, each object once."""
    seen: set[int] = set()
    total = 0
    stack: list[object] = [data.nodes, data.edges, data.storages, data.modules, data.regions]
    while stack:
        one = stack.pop()
        if id(one) in seen or one is None or isinstance(one, (bool, type)):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, tuple):
            stack.extend(one)
    return total


def memory() -> Iterator[Figure]:
    """Bytes of a graph by node."""
    import graphscope

    model, loss = gpt2(12)
    subjects: dict[str, Callable[[], Any]] = {
        "GPT-2, walked": lambda: graphscope.walk(loss, names={"model": model}),
        "GPT-2, recorded": lambda: _recorded(model),
        "chain of 100,000, walked": lambda: graphscope.walk(chain(100_000)),
    }
    print("memory of a graph")
    for name, make in subjects.items():
        graph = make()
        yield Figure(name, size_of(graph.data) / len(graph.nodes), "bytes a node", 1000)


def _recorded(model: Any) -> Any:
    import torch

    import graphscope

    tokens = torch.randint(0, 50, (2, 8))
    rec = graphscope.record(lambda: model(tokens, labels=tokens).loss)
    return rec.graph(rec.result, names={"model": model})


PARTS = {"llama": llama, "flat": flat, "growth": growth, "memory": memory}


def run_part(name: str) -> int:
    """Run one part here, print its figures, and tell whether one was missed."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    lines = [str(figure) for figure in PARTS[name]()]
    print("\n".join(lines))
    return int(any(line.endswith("MISSED") for line in lines))


def main() -> int:
    """Run everything, or one part."""
    parser = argparse.ArgumentParser(description="How graphscope bears size, against what it promises.")
    parser.add_argument("--part", choices=sorted(PARTS))
    options = parser.parse_args()
    if options.part is not None:
        return run_part(options.part)
    status = 0
    for name in PARTS:
        done = subprocess.run([sys.executable, __file__, "--part", name], check=False)  # noqa: S603 - this file
        status |= done.returncode
        print()
    return status


if __name__ == "__main__":
    sys.exit(main())
