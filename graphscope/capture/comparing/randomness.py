"""Sources of random numbers: where they stand, and how to bring them back there."""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from graphscope.capture.walking.tensors import is_tensor

_ACCELERATORS = ("cuda", "xpu", "mps")


class RandomSource(NamedTuple):
    """One source of random numbers."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    before: Any

    def has_moved(self) -> bool:
        """Numbers were drawn, or a seed was set."""
        return not _same_state(self.read(), self.before)

    def put_back(self) -> None:
        """Let the same numbers come again."""
        self.write(self.before)


def _same_state(now: Any, before: Any) -> bool:
    if is_tensor(now):
        return torch.equal(now, before)
    if isinstance(now, dict):
        return all(_same_state(value, before[key]) for key, value in now.items())
    if isinstance(now, (list, tuple)):
        return len(now) == len(before) and all(map(_same_state, now, before))
    if type(now).__module__ == "numpy":
        return bool((now == before).all())
    return bool(now == before)


def global_sources() -> Iterator[RandomSource]:
    """Python's generator, numpy's if it is loaded, torch's, and those of the accelerators in use."""
    yield _source(random.getstate, random.setstate)
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "random"):
        yield _source(functools.partial(numpy.random.get_state, legacy=False), numpy.random.set_state)
    yield _source(torch.get_rng_state, torch.set_rng_state)
    for name in _ACCELERATORS:
        device = getattr(torch, name, None)
        if device is None or not _in_use(name, device):
            continue
        if hasattr(device, "get_rng_state_all"):
            yield _source(device.get_rng_state_all, device.set_rng_state_all)
        else:
            yield _source(device.get_rng_state, device.set_rng_state)


def _in_use(name: str, device: types.ModuleType) -> bool:
    """Asking for the state of a device that nobody uses would start it."""
    if name == "mps":
        return bool(torch.backends.mps.is_available())
    return bool(device.is_available() and device.is_initialized())


def synchronize() -> None:
    """Wait until the accelerators in use have done what they were told."""
    for name in _ACCELERATORS:
        device = getattr(torch, name, None)
        if device is not None and _in_use(name, device):
            device.synchronize()


def given_sources(values: Iterable[Any]) -> Iterator[RandomSource]:
    """Generators among the values, of torch, Python and numpy."""
    for value in values:
        kind = type(value)
        if kind is torch.Generator:
            yield _source(value.get_state, value.set_state)
        elif kind is random.Random:
            yield _source(value.getstate, value.setstate)
        elif kind.__module__.startswith("numpy.random") and kind.__name__ == "Generator":
            bits = value.bit_generator
            yield _source(functools.partial(getattr, bits, "state"), functools.partial(setattr, bits, "state"))


def _source(read: Callable[[], Any], write: Callable[[Any], Any]) -> RandomSource:
    return RandomSource(read, write, read())
