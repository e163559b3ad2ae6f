"""The sample notebook, executed and exported: its pictures are in the page, under the notebook's own names."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from graphscope.render.svg import texts

ROOT = Path(__file__).parent.parent.parent
NOTEBOOK = ROOT / "samples" / "notebook.ipynb"
_picture = re.compile(r'src="data:image/svg\+xml;base64,([^"]+)"')


def nbconvert(folder: Path, *arguments: str | Path) -> None:
    """Run nbconvert with its own folders, so that nothing of the user's is read or written."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "IPYTHONDIR": str(folder / "ipython"),
        **{f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")},
    }
    command = [sys.executable, "-m", "nbconvert", "--output-dir", str(folder), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebook")
    nbconvert(folder, "--to", "notebook", "--execute", NOTEBOOK)
    nbconvert(folder, "--to", "html", folder / "notebook.ipynb")
    return folder


@pytest.fixture(scope="module")
def pictures(executed: Path) -> list[str]:
    page = (executed / "notebook.html").read_text(encoding="utf-8")
    return [base64.b64decode(data).decode() for data in _picture.findall(page)]


def words(picture: str) -> str:
    return " ".join(texts(picture.encode()))


def test_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_pictures_have_the_names_of_the_notebook(pictures: list[str]) -> None:
    first, second = map(words, pictures)
    assert re.search(r"\bx\b", first)
    assert re.search(r"\bw\b", first)
    for name in ("model.0.weight", "model.2.weight", "model.2.bias", "model.0.bias", "loss"):
        assert name in second


def test_no_id_occurs_twice_on_the_page(pictures: list[str]) -> None:
    ids = [found for picture in pictures for found in re.findall(r'\sid="([^"]*)"', picture)]
    assert len(ids) > 20
    assert len(ids) == len(set(ids))


def test_outputs_hold_picture_and_text(executed: Path) -> None:
    cells = json.loads((executed / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    bundles = [output["data"] for cell in cells for output in cell.get("outputs", []) if "data" in output]
    assert [sorted(bundle) for bundle in bundles] == [["image/svg+xml", "text/plain"]] * 2
    assert "model.0.weight" in "".join(bundles[1]["text/plain"])
    printed = [output["text"] for cell in cells for output in cell.get("outputs", []) if "text" in output]
    assert "model.0.weight" in "".join(printed[0])
