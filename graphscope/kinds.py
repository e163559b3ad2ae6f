"""The closed choices of the graph: what nodes, leaves, saved tensors and cut edges may be."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a node stands for."""

    LEAF = "leaf"
    """A tensor that no recorded or tracked op made: parameter, buffer, input, constant."""
    OP = "op"
    """One operation, tracked by autograd or not."""
    OUTPUT = "output"
    """Marks a root, nothing else."""
    GROUP = "group"
    """Several nodes folded into one box; only in a view, never in JSON."""


class Role(StrEnum):
    """What a leaf is to the program."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    CONSTANT = "constant"


class State(StrEnum):
    """What became of a tensor saved for backward."""

    LIVE = "live"
    """The node holds the tensor."""
    FREED = "freed"
    """A backward without ``retain_graph`` has run through the node."""
    PACKED = "packed"
    """A ``saved_tensors_hooks`` pack hook replaced it by something else."""
    CHECKPOINTED = "checkpointed"
    """Non-reentrant checkpointing holds a placeholder and computes it again in backward."""
    UNAVAILABLE = "unavailable"
    """This torch offers no way to look without unpacking."""


class Reason(StrEnum):
    """Why an edge carries no gradient."""

    FROZEN = "frozen"
    CONSTANT = "constant"
    NO_GRAD = "no_grad"
    INFERENCE_MODE = "inference_mode"
    DETACH = "detach"
    DATA = "data"
    INTEGER_DTYPE = "integer_dtype"
    NON_DIFFERENTIABLE = "non_differentiable"
    LEFT_PYTORCH = "left_pytorch"
    CUSTOM_FUNCTION = "custom_function"
    UNKNOWN = "unknown"


class Clue(StrEnum):
    """What kind of thing an ``Evidence`` tells; ``nodes``, ``words`` and ``numbers`` are read by it."""

    OPTIMIZER = "optimizer"
    """An optimizer in sight: its parameters, its class, and how many of them there are and no module in sight has."""
    ATTRIBUTE = "attribute"
    """An attribute that somebody set and nobody reads: the tensors that have it, what was probably meant."""
    STATEMENT = "statement"
    """Something to see in the source alone; ``subject`` is its name in ``suspects.py``, the word its text."""
    BACKWARD = "backward"
    """A ``backward()`` or ``autograd.grad()``: the last node before it, then its roots; ``retain_graph`` and
    ``create_graph`` among the words if it was asked for them."""
    OVERWRITE = "overwrite"
    """A saved tensor that was written later: the op that saved it, the op that wrote; the version then and now. The
    word ``silent`` where torch does not notice."""
    REASSIGNED = "reassigned"
    """``parameter.data = …``: the leaf, and the op that made the memory that it has now."""
    GRAD_MODE = "grad_mode"
    """Gradients were off when the recording ended; ``subject`` is the mode, the word how it was entered."""
    UNREGISTERED = "unregistered"
    """Parameters of a module that its parent keeps in a plain list, dict or tuple: the leaves."""
    TRAINING = "training"
    """Ops of dropout and normalization layers, and of functional dropout, in modules that train."""
    EVALUATING = "evaluating"
    """The same in modules in eval mode; then ``subject`` is ``dropout``. With ``recorded`` the first op that autograd
    recorded in one."""
    NO_GRADIENT = "no_gradient"
    """A custom Function whose backward returns None for an input that the graph leads on to: the op, the input's."""
    SINGULAR = "singular"
    """A recorded op at values where its derivative is infinite or not a number: the op; how many values."""


RAISED_NOTE = "raised an error"
"""Note of the op at which a program ended."""

SHAPE_READERS = frozenset(
    f"{kind}_like" for kind in ("empty", "full", "ones", "rand", "randint", "randn", "zeros")
) | frozenset(f"new_{kind}" for kind in ("empty", "empty_strided", "full", "ones", "zeros"))
"""Ops that read the shape of a tensor and none of its values."""


class Gradient(StrEnum):
    """What a gradient does in a folded box."""

    PASSES = "passes"
    """It arrives, and goes on to what came before."""
    ENTERS = "enters"
    """It arrives, and goes to parameters only."""
    DIES = "dies"
    """An edge inside cuts a gradient off, and none leaves the box."""
    NONE = "none"
    """None arrives, and none is cut off inside."""
