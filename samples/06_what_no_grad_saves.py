"""What no_grad saves.

It saves what backward would have kept, and that depends on the computation: "half of the memory" is no law. A layer
keeps its input for the derivative of its weight; a chain of additions keeps nothing, with ``no_grad`` or without.
Time is to be measured, too: on small operations the difference is clear, beside large matrix products it vanishes.

    graphscope compare samples/06_what_no_grad_saves.py:layers
    graphscope compare samples/06_what_no_grad_saves.py:additions
"""

import torch
from torch import nn

import graphscope

model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
batch = torch.ones(128, 1024)
x = torch.ones(3, requires_grad=True)


def layers() -> torch.Tensor:
    return model(batch)


def additions() -> torch.Tensor:
    return x + x + x + x


with_grad, without = graphscope.compare(layers, modes=("grad", "no_grad")).to_json()["runs"]
assert with_grad["saved_bytes"] == 3 * batch.nbytes == 1_572_864  # the inputs of three layers; weights exist anyway
assert without["saved_bytes"] == 0
assert without["peak_bytes"] < with_grad["peak_bytes"]
assert without["values_equal"]

small = graphscope.compare(additions, modes=("grad", "no_grad"), repeats=100).to_json()["runs"]
assert [run["saved_bytes"] for run in small] == [0, 0]
times = " and ".join(f"{run['seconds'] * 1e6:,.0f} µs" for run in (with_grad, without, *small))
print(f"kept for backward: {with_grad['saved_bytes']:,} bytes and 0; times with and without, large and small: {times}")
