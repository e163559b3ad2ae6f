"""Every sample runs as a plain script and is drawn by the command line, and is as short as promised."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphscope.render.svg import texts

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

CORNERS = "train,train+no_grad,eval,eval+no_grad"

COMPARED = {
    "04_inside_outside_no_grad": [(["m", "w"], {"m": 2, "w": 0})],
    "05_volatile_then_and_now": [(["after", "mixed"], {"after": 1, "mixed": 1})],
    "06_what_no_grad_saves": [
        ([":layers"], {"grad": 8, "no_grad": 0, "inference_mode": 0, "eval": 8}),
        ([":additions"], {"grad": 3, "no_grad": 0, "inference_mode": 0, "eval": 3}),
    ],
    "07_eval_is_not_no_grad": [
        ([":predict", "--modes", CORNERS], {"train": 6, "train+no_grad": 0, "eval": 5, "eval+no_grad": 0}),
    ],
    "08_set_grad_enabled": [(["before", "after"], {"before": 1, "after": 0})],
}
"""What each sample is compared by, and the backward nodes of each run."""

EXPLAINED = {
    "09_accumulate_and_free": ("memory", "12 B in 1 storage kept for a backward from loss."),
    "10_several_losses": ("explain", "All 6 trainable parameters get a gradient from output."),
}
"""The command that each sample names, and what it says at the first backward."""


def run(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python elsewhere than in the repository, as a user would."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_samples_are_there() -> None:
    assert [path.stem for path in SAMPLES] == [*LEAVES, *COMPARED, *EXPLAINED]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_is_short_and_proves_what_it_shows(sample: Path) -> None:
    text = sample.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= LINE_LIMIT
    assert ast.get_docstring(tree)
    command = "render" if sample.stem in LEAVES else EXPLAINED.get(sample.stem, ("compare",))[0]
    assert f"graphscope {command} samples/{sample.name}" in text
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) >= 3


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_uses_public_names_only(sample: Path) -> None:
    tree = ast.parse(sample.read_text(encoding="utf-8"))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imports if name.startswith("graphscope")} <= {"graphscope"}
    assert not any(isinstance(node, ast.Attribute) and node.attr.startswith("_") for node in ast.walk(tree))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_runs_and_writes_nothing(sample: Path, tmp_path: Path) -> None:
    done = run(sample, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sample", [path for path in SAMPLES if path.stem in LEAVES], ids=lambda path: path.stem)
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


@pytest.mark.parametrize("sample", [path for path in SAMPLES if path.stem in COMPARED], ids=lambda path: path.stem)
def test_sample_is_compared_as_it_says(sample: Path, tmp_path: Path) -> None:
    for (first, *more), expected in COMPARED[sample.stem]:
        arguments = [f"{sample}{first}", *more] if first.startswith(":") else [str(sample), first, *more]
        shown = " ".join([*(argument.replace(str(sample.parent), "samples") for argument in arguments)])
        assert f"graphscope compare {shown}\n" in sample.read_text(encoding="utf-8")
        done = run("-m", "graphscope_cli", "compare", *arguments, "-o", "c.json", "-o", "c.svg", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        comparison = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
        assert {each["mode"]: each["backward_nodes"] for each in comparison["runs"]} == expected
        svg = (tmp_path / "c.svg").read_text(encoding="utf-8")
        assert all(f">{name}<" in svg for name in expected)


def test_the_box_of_no_grad_names_its_line(tmp_path: Path) -> None:
    sample = ROOT / "samples" / "04_inside_outside_no_grad.py"
    run(
        "-m",
        "graphscope_cli",
        "compare",
        sample,
        "m",
        "w",
        "-o",
        "c.svg",
        "-o",
        "c.json",
        "-o",
        "c.txt",
        folder=tmp_path,
    )
    line = sample.read_text(encoding="utf-8").splitlines().index("    with torch.no_grad():") + 1
    shown = list(texts((tmp_path / "c.svg").read_bytes()))
    assert f"no_grad()  {sample.name}:{line}" in shown
    assert shown.count("AddBackward0") == 2
    assert shown.count("not recorded: no_grad()") == 2
    assert {"a leaf: no grad_fn", "values equal to m", "recorded only in m"} <= set(shown)
    assert f"switched at {sample.name}:{line}: with torch.no_grad():" in (tmp_path / "c.txt").read_text(
        encoding="utf-8"
    )
    comparison = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert [row["in"] for row in comparison["rows"]] == [{"m": "AddBackward0", "w": None}] * 2
    assert all(row["op"] == "add" and row["differs"] for row in comparison["rows"])
    w = comparison["runs"][1]["outputs"][0]
    assert (w["is_leaf"], w["requires_grad"], w["grad_fn"]) == (True, False, None)
    assert comparison["runs"][1]["values_equal"]


@pytest.mark.parametrize("sample", [path for path in SAMPLES if path.stem in EXPLAINED], ids=lambda path: path.stem)
def test_sample_is_explained_as_it_says(sample: Path, tmp_path: Path) -> None:
    command, said = EXPLAINED[sample.stem]
    done = run("-m", "graphscope_cli", command, sample, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    assert run(sample, folder=tmp_path).stdout in done.stdout
