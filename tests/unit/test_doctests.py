"""The examples in docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import graphscope

PROGRAMS = {"graphscope.render.engine_child"}
"""Run as a program, not imported."""

MODULES = sorted(
    {module.name for module in pkgutil.walk_packages(graphscope.__path__, "graphscope.")} - PROGRAMS,
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    found = [example for name in MODULES for example in finder.find(importlib.import_module(name)) if example.examples]
    assert len(found) > 5
