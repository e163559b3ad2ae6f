"""Run the user's code as Python itself would.

A script gets a ``__main__`` module of its own, its own ``sys.argv`` and ``sys.path[0]``, and keeps them until the
process ends: threads, exit handlers and pickling look there. torch is not imported before the script does it, because
scripts set ``OMP_NUM_THREADS`` and the like first. Child processes start from the script, as always, and
never from graphscope.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import importlib.util
import io
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TypeVar

from graphscope.tracebacks import forget_recorder

INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended, as shells tell it."""

Result = TypeVar("Result")


class Stopped(SystemExit):
    """Ends a script that has given the graph asked for; not an error, so ``except Exception`` lets it through."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How the user's code came to its end."""

    status: int = 0
    """The exit status that Python would end with."""
    error: BaseException | None = None
    """What it raised, if not ``SystemExit``; its traceback has no frames of graphscope."""
    exited: bool = False
    """It called ``sys.exit``."""
    backward_calls: int = 0
    """How often it ran backward."""


def run_script(path: Path, given: str, arguments: Sequence[str]) -> Ending:
    """Run a file as ``python given arguments…`` would; the process is the script's from here on."""
    main = types.ModuleType("__main__")
    main.__loader__ = SourceFileLoader("__main__", str(path))
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    main.__dict__.update(__builtins__=builtins, __file__=str(path), __cached__=None)
    sys.modules["__main__"] = main
    enter_folder(path, given, arguments)
    return run_user_code(lambda: execute_file(path, main))[1]


def enter_folder(path: Path, given: str, arguments: Sequence[str]) -> None:
    """Set ``sys.argv`` and ``sys.path[0]`` as Python does for a script."""
    sys.argv = [given, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(path.resolve().parent)


def execute_file(path: Path, module: types.ModuleType) -> None:
    """Execute a file's code in a module; nothing is cached beside the file."""
    with io.open_code(str(path)) as file:
        source = file.read()
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102  this is the task


def run_user_code(
    function: Callable[[], Result], is_told: Callable[[BaseException], bool] = lambda _: False
) -> tuple[Result | None, Ending]:
    """Call the user's code, show what it raised as Python would, and wait for its threads.

    Args:
        function: the user's.
        is_told: says of an error that it is told otherwise, and not to be shown.
    """
    result, ending = _call(function, is_told)
    try:
        _wait_for_threads()
    except KeyboardInterrupt as error:
        return None, Ending(status=INTERRUPTED, error=error)
    return result, ending


def _call(function: Callable[[], Result], is_told: Callable[[BaseException], bool]) -> tuple[Result | None, Ending]:
    try:
        return function(), Ending()
    except Stopped:
        return None, Ending()
    except SystemExit as end:
        return None, Ending(status=_status_of(end), exited=True)
    except BaseException as error:  # noqa: BLE001  whatever it is, it is the user's, and told as such
        _forget_our_frames(error)
        if not is_told(error):
            _show(error)
        return None, Ending(status=INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1, error=error)


def _show(error: BaseException) -> None:
    """Let the script's own hook show the error, or Python's where that one fails."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:  # noqa: BLE001  the hook is the user's
        sys.__excepthook__(type(error), error, error.__traceback__)


@contextlib.contextmanager
def when_torch_is_there(action: Callable[[], None]) -> Iterator[None]:
    """Call ``action`` now if torch is imported, else right after its import, if that comes before the block ends."""
    if "torch" in sys.modules:
        action()
        yield
        return
    finder = _TorchFinder(action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _TorchFinder(MetaPathFinder):
    """Finds torch as the other finders do, and acts after it was loaded."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._asking_others = False

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != "torch" or self._asking_others:
            return None
        self._asking_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking_others = False
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: object) -> None:
        load = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: types.ModuleType) -> None:
            del loader.exec_module  # type: ignore[attr-defined]
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._action()

        loader.exec_module = exec_module  # type: ignore[attr-defined]


def _status_of(end: SystemExit) -> int:
    """The exit status behind ``sys.exit(code)``; text goes to stderr, as under Python."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def _wait_for_threads() -> None:
    """Python ends a program when its threads have ended; idle workers of a pool are told to end only after that."""
    pools = sys.modules.get("concurrent.futures.thread")
    workers = set(getattr(pools, "_threads_queues", ()))
    waiting = True
    while waiting:
        waiting = False
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon and thread not in workers:
                thread.join()
                waiting = True


def _forget_our_frames(error: BaseException) -> None:
    """Leave only the user's and their libraries' frames in the tracebacks of an error and of those behind it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        forget_recorder(current)
        current.__traceback__ = _rebuilt(current.__traceback__)
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions


def _rebuilt(traceback: types.TracebackType | None) -> types.TracebackType | None:
    entries = [entry for entry in _entries(traceback) if _home(entry) not in {"graphscope", "graphscope_cli"}]
    loading = itertools.takewhile(lambda entry: _home(entry) == "importlib", entries)
    result = None
    for entry in reversed(entries[sum(1 for _ in loading) :]):
        result = types.TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def _home(entry: types.TracebackType) -> str:
    return str(entry.tb_frame.f_globals.get("__name__")).partition(".")[0]


def _entries(traceback: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
