"""eval() is not no_grad.

Four corners. ``eval()`` switches dropout off and lets batch-norm use its running statistics; operations are recorded
as ever. Under ``no_grad`` nothing is recorded; dropout still drops and the statistics still move. For validation
``eval()`` gives the right values, and ``no_grad`` on top of it saves memory and time. (``torch.zero_grad()``, which
some texts name, does not exist.)

    graphscope compare samples/07_eval_is_not_no_grad.py:predict --modes train,train+no_grad,eval,eval+no_grad
"""

import torch
from torch import nn

import graphscope

net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
batch = torch.rand(16, 4)


def predict() -> torch.Tensor:
    return net(batch)


modes = ("eval", "eval+no_grad", "train", "train+no_grad")
runs = {run["mode"]: run for run in graphscope.compare(predict, modes=modes, repeats=1).to_json()["runs"]}
assert [runs[mode]["dropout_active"] for mode in modes] == [False, False, True, True]
assert [runs[mode]["statistics_moved"] for mode in modes] == [False, False, True, True]
assert [runs[mode]["backward_nodes"] > 0 for mode in modes] == [True, False, True, False]
assert [runs[mode]["saved_bytes"] > 0 for mode in modes] == [True, False, True, False]
assert [runs[mode]["values_equal"] for mode in modes] == [True, True, False, False]  # equal to those of the first

net.eval()
predict().sum().backward()  # eval() does not change gradient computation
assert all(parameter.grad is not None for parameter in net.parameters())
assert not hasattr(torch, "zero_grad")
print("backward nodes:", ", ".join(f"{mode} {run['backward_nodes']}" for mode, run in runs.items()))
