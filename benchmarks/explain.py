"""What ``explain`` and ``memory`` cost beside the recording's own post-processing, on a graph of many ops.

Four programs: all is well, a cut in the middle, branches that are dropped, and a whole net that the loss does not
depend on. Each runs once, in a process of its own if its name is given.

    python benchmarks/explain.py [--ops 100000] [--program plain|cut|branches|dropped]
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import nn

from graphscope.analyze.explain import explain
from graphscope.analyze.memory import measure_memory
from graphscope.capture.merging.merge import Options, merge
from graphscope.capture.recording.record import Recorder
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.walk import to_root

PROGRAMS = ("plain", "cut", "branches", "dropped")
LIMIT = 3.0
"""Most that ``explain`` may cost, in times of the post-processing."""
CUT = 150


class Net(nn.Module):
    """200 layers run over and over, with 50 more that hang beside them."""

    def __init__(self, ops: int, program: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(200)])
        self.beside = nn.ModuleList([nn.Linear(4, 4) for _ in range(50)])
        self.ops, self.program = ops, program

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Until there are enough ops; a layer and its activation are three."""
        done = 0
        while done < self.ops:
            for place, layer in enumerate(self.layers):
                x = layer(x).tanh()
                done += 3
                if self.program == "cut" and place == CUT:
                    x = x.detach()
                if self.program == "branches" and place < len(self.beside):
                    self.beside[place](x)
                    done += 2
        return x


def measure(ops: int, program: str) -> tuple[float, float, float]:
    """Seconds of the post-processing, of ``explain`` and of ``memory``."""
    net, head, x = Net(ops, program), nn.Linear(4, 1), torch.rand(2, 4)
    recorder = Recorder()
    with recorder.active():
        hidden = net(x)
        loss = head(x if program == "dropped" else hidden).sum()
    names = Names()
    names.search({"net": net, "head": head, "loss": loss})
    started = time.perf_counter()
    data = merge(recorder, [to_root("loss", loss)], names, options=Options(every_module=True))
    merged = time.perf_counter()
    explain(data)
    explained = time.perf_counter()
    measure_memory(data)
    return merged - started, explained - merged, time.perf_counter() - explained


def main() -> int:
    """Print a line per program; 1 if one is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ops", type=int, default=100_000)
    parser.add_argument("--program", choices=PROGRAMS, action="append")
    given = parser.parse_args()
    worst = 0.0
    for program in given.program or PROGRAMS:
        merging, explaining, measuring = measure(given.ops, program)
        ratio = explaining / merging
        worst = max(worst, ratio)
        print(
            f"{program:<9} post-processing {merging:6.2f} s   explain {explaining:6.2f} s = {ratio:4.2f}x   "
            f"memory {measuring:6.2f} s = {measuring / merging:4.2f}x"
        )
    print(f"most {worst:.2f}x, limit {LIMIT:.1f}x")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
