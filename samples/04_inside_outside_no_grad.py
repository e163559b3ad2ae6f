"""Inside and outside no_grad.

The same sum twice. Outside, both additions are recorded and ``m`` knows what made it. Inside ``no_grad`` nothing is
recorded: the values are equal, but ``w`` is a leaf without a ``grad_fn``. As a decorator ``no_grad`` does the same. It
is about results of operations only: a tensor that is made inside may still ask for a gradient.

    graphscope compare samples/04_inside_outside_no_grad.py m w
"""

import torch

import graphscope

x = torch.ones(3, requires_grad=True)
y = torch.ones(3)
z = torch.ones(3)

with graphscope.recording() as rec:
    m = x + y + z
    with torch.no_grad():
        w = x + y + z

assert torch.equal(m, w)
assert m.requires_grad
assert m.grad_fn is not None
assert w.is_leaf
assert not w.requires_grad
assert w.grad_fn is None

rows = rec.compare(m, w).rows
assert [[node.backward for node in row.cells] for row in rows] == [["AddBackward0", None]] * 2

assert not torch.no_grad()(torch.add)(x, y).requires_grad
with torch.no_grad():
    made_inside = torch.ones(3, requires_grad=True)
assert made_inside.requires_grad
print(f"m was made by {m.grad_fn.name()}; w is equal, and nothing is known of how it was made")
