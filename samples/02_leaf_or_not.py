"""A leaf is a tensor that no recorded operation made.

"A leaf is a tensor that the user made" tells half of it: what ``detach()`` returns and what is computed under
``no_grad`` are leaves too, because autograd has no record of how they came about. Of a tensor that is no leaf,
``grad_fn`` tells how it was made, one step back; ``next_functions`` leads on from there.

    graphscope render samples/02_leaf_or_not.py
"""

import torch

import graphscope

weight = torch.ones(3, requires_grad=True)
scaled = weight * 2  # made by a recorded operation
detached = scaled.detach()  # the same values, without their history
with torch.no_grad():
    quiet = weight * 3  # computed, but not recorded
loss = (scaled * detached + quiet).sum()

assert [tensor.is_leaf for tensor in (weight, detached, quiet)] == [True, True, True]
assert [tensor.is_leaf for tensor in (scaled, loss)] == [False, False]
assert [tensor.requires_grad for tensor in (weight, scaled, loss)] == [True, True, True]
assert [tensor.requires_grad for tensor in (detached, quiet)] == [False, False]
assert isinstance(weight, torch.autograd.Variable)  # Variable and Tensor are one since torch 0.4

step = loss.grad_fn.next_functions[0][0]
assert [loss.grad_fn.name(), step.name()] == ["SumBackward0", "AddBackward0"]
ops = [node.backward for node in graphscope.walk(loss).nodes if node.kind == "op"]
assert ops == ["MulBackward0", "MulBackward0", "AddBackward0", "SumBackward0"]  # the whole chain, first to last

copy = torch.zeros(3)
copy.detach().fill_(1)  # autograd counts this write ...
copy.data.fill_(2)  # ... and does not see this one
assert graphscope.walk(copy).nodes[0].outputs[0].version == 1
print("leaves: weight, detached, quiet; made by recorded operations: scaled, loss")
