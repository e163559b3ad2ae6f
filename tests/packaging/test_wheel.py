"""The built wheel: what is in it, and that it works where the repository is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import graphscope

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).with_name("typed_example.py")
DIST_INFO = f"torch_graphscope-{graphscope.__version__}.dist-info"


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a release would build it."""
    folder = tmp_path_factory.mktemp("wheel")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel installs, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_name_of_the_wheel(wheel: Path) -> None:
    assert wheel.name == f"torch_graphscope-{graphscope.__version__}-py3-none-any.whl"


def test_the_top_level_is_the_two_packages(wheel: Path) -> None:
    assert {name.split("/")[0] for name in members(wheel)} == {"graphscope", "graphscope_cli", DIST_INFO}


def test_every_file_of_the_packages_is_inside(wheel: Path) -> None:
    expected = {
        str(path.relative_to(parent))
        for parent, package in ((ROOT, "graphscope"), (ROOT / "cli", "graphscope_cli"))
        for path in (parent / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"graphscope/py.typed", "graphscope/schema/graph-1.json"} <= expected
    assert {name for name in members(wheel) if not name.startswith(DIST_INFO)} == expected


def test_the_metadata(unpacked: Path) -> None:
    metadata = message_from_string((unpacked / DIST_INFO / "METADATA").read_text(encoding="utf-8"))
    assert metadata["Name"] == "torch-graphscope"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("Provides-Extra") == ["dev", "test"]
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(line.split(">")[0] for line in needed) == [
        "fast-sugiyama",
        "fontpkg-arimo",
        "graphviz",
        "pygraphviz",
        "rich",
        "torch",
        "typer",
    ]
    entries = (unpacked / DIST_INFO / "entry_points.txt").read_text(encoding="utf-8").split("\n")
    assert "graphscope = graphscope_cli.__main__:main" in entries
    assert (unpacked / DIST_INFO / "licenses" / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")


def test_it_works_where_the_repository_is_not(unpacked: Path, tmp_path: Path) -> None:
    """An editable install puts the repository on the path; here the wheel's own files come before it."""
    shutil.copy(EXAMPLE, tmp_path)
    program = "import graphscope, pathlib, typed_example as t; print(graphscope.__file__, t.main(pathlib.Path()))"
    said = run("-c", program, cwd=tmp_path, PYTHONPATH=str(unpacked))
    assert said.split(maxsplit=1) == [str(unpacked / "graphscope" / "__init__.py"), "['weight', 'InputError']\n"]


def test_its_command_line_starts(unpacked: Path, tmp_path: Path) -> None:
    said = run("-m", "graphscope_cli", "--help", cwd=tmp_path, PYTHONPATH=str(unpacked), NO_COLOR="1", COLUMNS="80")
    assert "render" in said


def test_type_checkers_read_the_public_names(tmp_path: Path) -> None:
    """From outside of the repository, as a user's program is checked: ``py.typed`` is found and no name is ``Any``."""
    shutil.copy(EXAMPLE, tmp_path)
    cache = ROOT / ".mypy_cache" / "typed_example"
    options = ["--strict", "--config-file=", f"--cache-dir={cache}"]
    said = run("-m", "mypy", *options, EXAMPLE.name, cwd=tmp_path)
    assert said.startswith("Success")
