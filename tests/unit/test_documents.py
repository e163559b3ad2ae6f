"""What the documents say is so: links, files, commands, formats, the JSON example."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main

import graphscope.render.formats
from graphscope.serialize import from_json, to_json
from graphscope_cli.app import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text) + re.findall(r'(?:src|href|srcset)="([^"#]+)"', text)
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (document.parent / link).exists()] == []


@each_document
def test_files_named_in_a_document_exist(document: Path) -> None:
    """A path in backticks that begins with a folder of the repository is a file or folder there."""
    folders = "graphscope|cli|samples|tests|docs|benchmarks|\\.ci"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", document.read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_and_ci_run_the_same_commands() -> None:
    first, second = re.findall(r"```bash\n(pip install .*)\n```", README)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "graphscope render samples/" in first
    assert "pytest" in second
    assert [command for command in (first, second) if command not in ci] == []


def test_the_readme_tells_every_command() -> None:
    commands = typer.main.get_group(app).commands
    told = set(re.findall(r"^\| `graphscope (\w+)", README, re.MULTILINE))
    assert told == set(commands)
    assert [name for name, command in commands.items() if not command.help] == []


def test_the_readme_tells_every_format() -> None:
    (told,) = re.findall(r"the suffix picks the format \(([\w ]+)\)", README)
    assert told.split() == list(graphscope.render.formats.FORMATS)


def test_the_json_example_is_valid_and_complete() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", ARCHITECTURE, re.DOTALL)
    example: dict[str, Any] = json.loads(text)
    schema = json.loads((ROOT / "graphscope" / "schema" / "graph-1.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(example)
    written = to_json(from_json(example))
    assert written | {"nodes": None} == example | {"nodes": None}
    assert written["nodes"][:2] == example["nodes"][:2]
