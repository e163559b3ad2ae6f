"""Checks for test suites.

Example:
    >>> import torch, graphscope.testing
    >>> net = torch.nn.Linear(3, 1)
    >>> graphscope.testing.assert_all_trainable_reached(net(torch.ones(2, 3)).sum(), net)
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


def assert_all_trainable_reached(loss: object, model: nn.Module, *, allow: Sequence[str] = ()) -> None:
    """Fail unless a backward from ``loss`` would fill ``.grad`` of every parameter of ``model`` that requires grad.

    Nothing is run backward and nothing is changed. Inside ``with graphscope.recording():`` the message tells
    the reason and the line.

    Args:
        loss: a tensor, or any nesting of tensors.
        model: the module whose parameters are to be reached.
        allow: patterns of names (``teacher.*``, as seen from the model) that may be missed.

    Raises:
        AssertionError: with the report of ``graphscope.explain``.
        InputError: if there is no tensor in ``loss``.
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    from graphscope.analyze.explain import explain
    from graphscope.capture.program.asked import graph_of_given
    from graphscope.explanation import Explanation

    explanation = Explanation(explain(graph_of_given(loss, (model,), sys._getframe(1))))
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    missing = []
    for row in explanation.missing:
        own = [name for full in (row.name, *row.aliases) if (name := _own_name(full, known)) is not None]
        if own and not any(fnmatchcase(name, pattern) for name in own for pattern in allow):
            missing.append(row.name)
    if missing:
        shown = ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")  # noqa: PLR2004  as many as fit a line
        count = f"{len(missing)} trainable parameter{'s' * (len(missing) > 1)}"
        message = f"{count} would get no gradient: {shown}\n\n{explanation}"
        raise AssertionError(message)


def _own_name(full: str, known: set[str]) -> str | None:
    """The name that the model itself has for a parameter: ``fc.weight`` of ``model.fc.weight``."""
    while full not in known:
        _, dot, full = full.partition(".")
        if not dot:
            return None
    return full
