"""Record the user's program from the moment that it has torch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from graphscope_cli.script import when_torch_is_there

if TYPE_CHECKING:
    from graphscope.capture.record import Recorded


class LiveRecording:
    """Begins when the program imports torch, if a recording is wanted at all."""

    def __init__(self, base: Path, *, wanted: bool) -> None:
        """Take the folder that files are told from."""
        self.recorded: Recorded | None = None
        self._base = base
        self._wanted = wanted
        self._active = contextlib.ExitStack()

    def begin(self) -> None:
        """Record from here on; nothing happens without a real torch."""
        if self._wanted and self.recorded is None and hasattr(sys.modules.get("torch"), "autograd"):
            from graphscope.capture.record import Recorded, Recorder

            recorder = Recorder()
            self._active.enter_context(recorder.active())
            self.recorded = Recorded(recorder, self._base)

    def rest(self) -> None:
        """Nothing more is needed of what runs."""
        if self.recorded is not None:
            self.recorded.recorder.rest()

    @contextlib.contextmanager
    def around(self, also: Callable[[], None] = lambda: None) -> Iterator[None]:
        """The program's code; torch is afterwards as it was. ``also`` is done, too, once there is torch."""

        def begin() -> None:
            also()
            self.begin()

        with self._active, when_torch_is_there(begin):
            yield
