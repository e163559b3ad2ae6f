"""Record the user's program from the moment that it has torch, or on fake tensors from the moment that it is called."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphscope_cli.script import when_torch_is_there

if TYPE_CHECKING:
    from graphscope.capture.program.backward import Namespace
    from graphscope.capture.program.local_names import LocalNamesRecorder
    from graphscope.capture.recording.fake import FakeRun
    from graphscope.capture.recording.record import Recorded
    from graphscope.model import GraphData


class LiveRecording:
    """Begins when the program imports torch, if a recording is wanted at all; a fake one, when something is called."""

    def __init__(self, base: Path, *, wanted: bool, fake: bool = False, local_names: Sequence[str] = ()) -> None:
        """Take the folder that files are told from, and names whose variables are kept when a function has ended."""
        self.recorded: Recorded | None = None
        self.base = base
        self.fake = fake
        self.module: types.ModuleType | None = None
        """What the program is, where it is not ``__main__``."""
        self._run: FakeRun | None = None
        self._wanted = wanted
        self._local_names = local_names
        self._locals: LocalNamesRecorder | None = None
        self._active = contextlib.ExitStack()

    def begin(self) -> None:
        """Record from here on; nothing happens without a real torch."""
        if self._wanted and self.recorded is None and hasattr(sys.modules.get("torch"), "autograd"):
            from graphscope.capture.recording.record import Recorded, Recorder

            recorder = Recorder()
            if self._local_names:
                from graphscope.capture.program.local_names import LocalNamesRecorder

                recorder = self._locals = LocalNamesRecorder(self._local_names)
            self._active.enter_context(recorder.active())
            self.recorded = Recorded(recorder, self.base)

    def global_places(self) -> list[tuple[str, Namespace]]:
        """The globals of the program."""
        variables = vars(self.module or sys.modules["__main__"])
        return [("globals()", {name: value for name, value in variables.items() if not name.startswith("__")})]

    def local_places(self) -> list[tuple[str, Namespace]]:
        """The variables of functions that have some of the given names."""
        return self._locals.places() if self._locals is not None else []

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

        with self._active, contextlib.nullcontext() if self.fake else when_torch_is_there(begin):
            yield

    @contextlib.contextmanager
    def calling(self, value: object) -> Iterator[None]:
        """The block calls what a name stands for; on fake tensors, if those are wanted.

        The file that the name is in has run before, as always: what is made in it is not fake, and stood in for.
        """
        if not self.fake:
            yield
            return
        from graphscope.capture.recording.fake import FakeRun, used_by

        self._run = FakeRun()
        with self._run.active(used_by(value)), contextlib.ExitStack() as self._active:
            self.begin()
            yield

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """While a graph is made: after a fake run, modules show the tensors that stood in for theirs."""
        with self._run.named() if self._run is not None else contextlib.nullcontext():
            yield

    def told(self, data: GraphData) -> GraphData:
        """The graph; that its tensors are fake is said in it."""
        return data if self._run is None else self._run.told_of(data)
