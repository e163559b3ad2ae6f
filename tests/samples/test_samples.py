"""Every sample runs as a plain script and is drawn by the command line, and is as short as promised."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SAMPLES = sorted((ROOT / "samples").glob("*.py"))
LINE_LIMIT = 40

LEAVES = {
    "01_requires_grad_spreads": {"y": False, "z": False, "x": True},
    "02_leaf_or_not": {"weight": True, "copy": False},
    "03_frozen_backbone": {
        "model.head.weight": True,
        "model.head.bias": True,
        "model.backbone.0.weight": False,
        "model.backbone.0.bias": False,
        "model.backbone.2.weight": False,
        "model.backbone.2.bias": False,
        "images": False,
        "labels": False,
    },
}
"""The leaves that a drawing of each sample shows, and whether a gradient arrives."""


def run(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python elsewhere than in the repository, as a user would."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_samples_are_there() -> None:
    assert [path.stem for path in SAMPLES] == list(LEAVES)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_is_short_and_proves_what_it_shows(sample: Path) -> None:
    text = sample.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= LINE_LIMIT
    assert ast.get_docstring(tree)
    assert f"graphscope render samples/{sample.name}" in text
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) >= 3


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_uses_public_names_only(sample: Path) -> None:
    tree = ast.parse(sample.read_text(encoding="utf-8"))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imports if name.startswith("graphscope")} == {"graphscope"}
    assert not any(isinstance(node, ast.Attribute) and node.attr.startswith("_") for node in ast.walk(tree))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_runs_and_writes_nothing(sample: Path, tmp_path: Path) -> None:
    done = run(sample, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_is_drawn(sample: Path, tmp_path: Path) -> None:
    alone = run(sample, folder=tmp_path)
    drawn = run("-m", "graphscope_cli", "render", sample, "-o", "g.json", "-o", "g.svg", "-o", "g.txt", folder=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stdout == alone.stdout
    nodes = json.loads((tmp_path / "g.json").read_text(encoding="utf-8"))["nodes"]
    leaves = {node["names"][0]: node for node in nodes if node["kind"] == "leaf"}
    assert {name: node["reached"] for name, node in leaves.items()} == LEAVES[sample.stem]
    svg, text = ((tmp_path / f"g.{suffix}").read_text(encoding="utf-8") for suffix in ("svg", "txt"))
    for name in LEAVES[sample.stem]:
        assert name in svg
        assert name in text
