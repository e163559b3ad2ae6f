"""Volatile then, no_grad and inference tensors now.

Until torch 0.4 one ``volatile`` input switched recording off for everything downstream. The word is still accepted,
with a warning, and does nothing. ``no_grad`` is no property of a tensor and spreads to nothing: an operation after
the block is recorded as soon as one of its inputs requires grad. Nearest to volatile comes an inference tensor, and it
does not win either: mixed with such an input the operation is recorded, or refused if backward would need the tensor.

    graphscope compare samples/05_volatile_then_and_now.py after mixed
"""

import warnings

import torch

x = torch.ones(3, requires_grad=True)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    volatile = torch.autograd.Variable(torch.ones(3), volatile=True)
assert "no effect" in str(caught[0].message)
assert (volatile * x).requires_grad

with torch.no_grad():
    inside = x * 2
after = inside + x
assert not inside.requires_grad
assert after.requires_grad

with torch.inference_mode():
    inference = torch.ones(3)
mixed = inference + x
assert mixed.requires_grad
try:
    refused = inference * x  # the derivative for x is the inference tensor itself
except RuntimeError as error:
    assert "cannot be saved for backward" in str(error)  # noqa: PT017
    print("addition is recorded; multiplication is refused:", str(error).partition(".")[0])
