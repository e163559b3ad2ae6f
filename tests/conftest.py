"""What every test gets: a check that it left no trace in the process, and one Hypothesis profile."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from tests.leaks import changes, global_state, random_states

hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True)
def leak() -> Iterator[None]:
    """Fail a test after which global state of the process or of torch is not what it was before."""
    before = global_state()
    yield
    changed = changes(before, global_state())
    assert not changed, f"the test left global state behind: {'; '.join(changed)}"


@pytest.fixture
def random_state_untouched() -> Iterator[None]:
    """For tests of calls that must not draw random numbers: fail if a generator of Python, numpy or torch moved."""
    before = random_states()
    yield
    moved = [name for name, state in random_states().items() if name in before and state != before[name]]
    assert not moved, f"random numbers were drawn from {', '.join(moved)}"
