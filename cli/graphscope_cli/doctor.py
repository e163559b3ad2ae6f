"""``graphscope doctor``: versions, engines and fonts, each found by trying it."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from graphscope import __version__
from graphscope.render.engine import EngineReport, report
from graphscope.units import to_count_text


class State(StrEnum):
    """How well something works."""

    WORKS = "ok"
    MISSING = "–"
    """Not here; graphscope does without."""
    NEEDED = "!!"
    """Not here, and graphscope does not work without."""


_STYLES = {State.WORKS: "green", State.MISSING: "dim", State.NEEDED: "bold red"}


class Finding(NamedTuple):
    """One line of the report."""

    subject: str
    state: State
    text: str


def print_report() -> bool:
    """Print the report to stdout. False if something is missing that graphscope does not work without."""
    findings = list(examine())
    table = Table.grid(padding=(0, 2))
    for subject, state, text in findings:
        table.add_row(Text(subject), Text(state, style=_STYLES[state]), Text(text, overflow="fold"))
    Console(file=sys.stdout, highlight=False).print(table)
    return all(finding.state is not State.NEEDED for finding in findings)


def examine() -> Iterator[Finding]:
    """Everything there is to tell, one finding at a time."""
    yield Finding("graphscope", State.WORKS, __version__)
    yield Finding("python", State.WORKS, f"{platform.python_version()}, {sys.executable}")
    yield from _examine_torch()
    yield from _examine_drawing(report())
    for package in ("rich", "typer"):
        yield Finding(package, State.WORKS, importlib.metadata.version(package))
    notebook = _version_of("ipython")
    yield Finding("notebook", *((State.WORKS, f"IPython {notebook}") if notebook else (State.MISSING, "no IPython")))


def _examine_torch() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        remedy = "Install it: pip install torch. A saved graph.json can be drawn without."
        yield Finding("torch", State.NEEDED, f"cannot be imported ({error}). {remedy}")
        return
    from graphscope.capture.walking.facts import available_facts
    from graphscope.capture.walking.stack import reserve_depth, safe_depth

    yield Finding("torch", State.WORKS, str(torch.__version__))
    for fact in available_facts():
        if fact.available:
            yield Finding("", State.WORKS, f"tells {fact.meaning}")
        else:
            yield Finding("", State.MISSING, f"does not tell {fact.meaning} (no {fact.private_name})")
    before, most = safe_depth(), reserve_depth(10_000_000)
    text = f"graphs {to_count_text(max(before, most), 'node')} deep can be walked and freed in the main thread"
    yield Finding("stack", State.WORKS, text)


def _examine_drawing(found: EngineReport) -> Iterator[Finding]:
    works = bool(found.bundled or found.system)
    without = State.MISSING if works else State.NEEDED
    missing = "not here: pip install pygraphviz brings it"
    yield _finding("bundled Graphviz", found.bundled, missing, without)
    system = f"{found.system}, {found.system_path}" if found.system else None
    yield _finding("system Graphviz", system, "no dot on PATH; it is not needed", State.MISSING)
    font = str(found.font) if found.font else None
    yield _finding("font", font, "no bundled one: PNG and PDF depend on the system's fonts", State.MISSING)
    no_chinese = "no font for PNG and PDF (Debian: fonts-noto-cjk); SVG uses the viewer's"
    yield _finding("Chinese", found.chinese, no_chinese, State.MISSING)


def _finding(subject: str, found: str | None, otherwise: str, state: State) -> Finding:
    return Finding(subject, State.WORKS, found) if found else Finding(subject, state, otherwise)


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
