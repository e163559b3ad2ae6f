"""Errors that graphscope raises on purpose.

One base class, so that a caller can catch everything; few leaves, so that a caller can
tell wrong use from a failing program or drawing engine. A message says what was given, what
was expected and what to do next.
"""

from __future__ import annotations


class GraphscopeError(Exception):
    """Base of every error that graphscope raises on purpose."""


class InputError(GraphscopeError, TypeError):
    """Something that is no tensor, target or graph was given."""


class FormatError(GraphscopeError, ValueError):
    """A file, a format name or a JSON document cannot be understood."""


class EngineError(GraphscopeError, RuntimeError):
    """The drawing engine is missing, failed, or ran out of time."""


class GraphCheckError(GraphscopeError, AssertionError):
    """A graph breaks one of its own invariants: a fault in graphscope, worth reporting."""
