"""set_grad_enabled, as a block and as a statement.

``torch.set_grad_enabled(flag)`` chooses by a flag, for instance to share one function between training and validation.
As a block it ends with the block. Called as a plain statement it stays in force until it is changed back, also after
the function that called it has returned.

    graphscope compare samples/08_set_grad_enabled.py before after
"""

import torch

x = torch.ones(3, requires_grad=True)


def squares(*, training: bool) -> torch.Tensor:
    with torch.set_grad_enabled(training):
        return x * x


def prepare_validation() -> None:
    torch.set_grad_enabled(False)


assert squares(training=True).requires_grad
assert not squares(training=False).requires_grad
before = x * x
assert before.requires_grad  # the block has ended

prepare_validation()
after = x * x
assert not after.requires_grad  # the statement is still in force
assert not torch.is_grad_enabled()

torch.set_grad_enabled(True)
assert (x * x).requires_grad
print("a block ends, a statement stays: requires_grad is", before.requires_grad, "before it and", after.requires_grad)
