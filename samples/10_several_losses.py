"""Several losses through one encoder.

Each loss alone reaches the encoder and its own head. Added up, they need one backward. One after the other, all but
the last must be called with ``retain_graph=True``, since they share the encoder's part of the graph; the gradients are
the same, but what the encoder keeps stays in memory until the last backward.

    graphscope explain samples/10_several_losses.py
"""

import torch
from torch import nn

import graphscope

model = nn.ModuleDict({"encoder": nn.Linear(8, 32), "digit": nn.Linear(32, 10), "style": nn.Linear(32, 2)})
inputs, digits, styles = torch.rand(4, 8), torch.tensor([1, 2, 3, 4]), torch.tensor([0, 1, 1, 0])


def losses() -> tuple[torch.Tensor, torch.Tensor]:
    code = model["encoder"](inputs).tanh()
    cross_entropy = nn.functional.cross_entropy
    return cross_entropy(model["digit"](code), digits), cross_entropy(model["style"](code), styles)


digit, style = losses()
missing = graphscope.explain(digit, model).missing
assert [row.name for row in missing] == ["model.style.weight", "model.style.bias"]
assert graphscope.explain(digit + style, model).missing == ()

(digit + style).backward()
together = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
digit, style = losses()
digit.backward(retain_graph=True)
kept = graphscope.memory(style).bytes  # of the encoder, too
style.backward()
assert kept > 0 == graphscope.memory(style).bytes
assert all(map(torch.allclose, together, [parameter.grad for parameter in model.parameters()]))
print("one backward or two give the same gradients; between the two,", kept, "bytes stay for the second")
