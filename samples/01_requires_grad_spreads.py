"""One input that requires grad is enough.

A tensor does not require grad unless it is asked to. An operation is recorded as soon as one of its inputs
requires grad, whatever the others say, and its result requires grad in turn. So ``requires_grad`` spreads to
everything that depends on ``x``; on the way back, the gradient goes to ``x`` alone.

    graphscope render samples/01_requires_grad_spreads.py
"""

import torch

import graphscope

x = torch.ones(3, requires_grad=True)
y = torch.ones(3)
z = torch.ones(3)

assert not y.requires_grad  # the default
assert torch.nn.Parameter(torch.ones(3)).requires_grad  # a parameter is the exception

assert not (y + z).requires_grad  # no input requires grad: nothing is recorded
w = x + y + z  # one input does: both additions are recorded
assert w.requires_grad

graph = graphscope.walk(w)
assert [node.backward for node in graph.nodes if node.kind == "op"] == ["AddBackward0", "AddBackward0"]
assert [node.names for node in graph.nodes if node.kind == "leaf" and node.reached] == [("x",)]

w.backward(torch.ones(3))
assert x.grad is not None
assert y.grad is None
assert z.grad is None
print("w requires grad because x does; the gradient reaches x, and neither y nor z")
