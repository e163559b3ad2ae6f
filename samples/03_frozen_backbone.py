"""Freezing the first layers ends the graph where they end.

No parameter of the backbone requires grad, so nothing below the head is recorded and nothing there is kept for
backward. Freezing only the last layer is different: its own weights stay as they are, but the gradient passes
through it to the layers before.

    graphscope render samples/03_frozen_backbone.py
"""

from collections import OrderedDict

import torch
from torch import nn

import graphscope

model = nn.Sequential(
    OrderedDict(backbone=nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)), head=nn.Linear(16, 3))
)
images, labels = torch.rand(4, 8), torch.tensor([0, 1, 2, 1])


def names_reached(loss: torch.Tensor) -> list[str]:
    """The parameters that a backward from the loss fills."""
    graph = graphscope.walk(loss, names={"model": model})
    return sorted(node.names[0] for node in graph.nodes if node.role == "parameter" and node.reached)


model.head.requires_grad_(requires_grad=False)
names = names_reached(nn.functional.cross_entropy(model(images), labels))
assert names == [f"model.backbone.{layer}.{kind}" for layer in (0, 2) for kind in ("bias", "weight")]

model.head.requires_grad_()
model.backbone.requires_grad_(requires_grad=False)
assert not model.backbone(images).requires_grad
loss = nn.functional.cross_entropy(model(images), labels)
assert names_reached(loss) == ["model.head.bias", "model.head.weight"]
print("with a frozen backbone, backward fills only", *names_reached(loss))
