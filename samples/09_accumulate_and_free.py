"""Gradients accumulate, and what was kept for backward is freed.

``backward`` adds to ``.grad``, it does not replace it; that is why training loops call ``zero_grad``. A second
backward through the same graph needs ``retain_graph=True`` in the first one: the structure of the graph stays in any
case, but the tensors that its operations keep are freed as soon as a backward has used them.

    graphscope memory samples/09_accumulate_and_free.py
"""

import torch

import graphscope

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
loss = x.exp().sum()
graph = graphscope.walk(loss)
assert graph.memory().bytes == x.nbytes  # exp keeps its result

loss.backward(retain_graph=True)
once = x.grad.clone()
assert graphscope.walk(loss).memory().bytes == x.nbytes  # retained
loss.backward()
assert torch.equal(x.grad, 2 * once)  # the second gradient came on top

after = graphscope.walk(loss)
assert [node.backward for node in after.nodes] == [node.backward for node in graph.nodes]  # the structure stays
assert after.memory().bytes == 0  # the kept tensor is gone
try:
    loss.backward()
except RuntimeError as error:
    refused = str(error)
assert "a second time" in refused

x.grad = None  # what optimizer.zero_grad() does
x.exp().sum().backward()
assert torch.equal(x.grad, once)
print("after two backward calls .grad is twice the gradient; kept for backward:", graph.memory().bytes, "then 0 bytes")
