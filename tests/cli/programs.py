"""Run a program as Python does and as graphscope does, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Run(NamedTuple):
    """How a process ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def messages(self) -> list[str]:
        """Lines that graphscope wrote to stderr."""
        return [line for line in self.stderr.splitlines() if line.startswith("graphscope: ")]

    @property
    def program_stderr(self) -> str:
        """Everything else on stderr."""
        lines = self.stderr.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("graphscope: "))


def write(path: Path, source: str) -> Path:
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def python(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Run:
    variables = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "NO_COLOR"}}
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "COLUMNS": "100", **(environment or {})}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def render(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Run:
    return python(folder, "-m", "graphscope_cli", "render", *arguments, environment=environment)


def run_both(folder: Path, script: str, *options: str) -> tuple[Run, Run]:
    """The script alone, and the script under ``graphscope render script options``."""
    return python(folder, script), render(folder, script, *options)
