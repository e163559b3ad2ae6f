"""``graphscope compare`` and ``graphscope diff``: targets, output, errors, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from graphscope_cli.app import app
from tests.cli.programs import Run, python, write

PROGRAM = """
    import sys
    import torch
    from torch import nn

    print("imported with", sys.argv[1:])
    x = torch.ones(3, requires_grad=True)
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))

    def step():
        print("called")
        return net(x).sum()

    def several():
        return {"first": x * 2, "second": (x * 2).sin(), "net": net}

    def make():
        return nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))

    def branch():
        return (x * 2).sin() if torch.is_grad_enabled() else (x * 2).cos()

    def backward():
        (x * 2).sum().backward()
        return x.grad

    def fails():
        y = x * 2
        raise ValueError("on purpose")

    def leaves():
        sys.exit(5)

    def needs(argument): ...

    class Thing: ...
"""

SCRIPT = """
    import sys
    import torch

    x = torch.ones(3, requires_grad=True)
    y = torch.ones(3)
    m = x + y
    with torch.no_grad():
        w = x + y
    held = {"deep": x * 3}
    print("the script ran", sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with programs; arguments, paths and modules are put back."""
    write(tmp_path / "model.py", PROGRAM)
    write(tmp_path / "script.py", SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in {"model", "graph_a", "graph_b", "graphscope_target"} - before:
        sys.modules.pop(name, None)


def in_process(*arguments: str) -> Run:
    """Where the program is imported, not run as a script, this process will do."""
    result = CliRunner().invoke(app, list(arguments), prog_name="graphscope")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Run(result.exit_code, result.stdout, result.stderr)


def compare(folder: Path, *arguments: str) -> Run:
    target, *rest = arguments
    if target.endswith(".py") and len(rest) > 1 and not rest[0].startswith("-"):  # a script that is run
        return python(folder, "-m", "graphscope_cli", "compare", *arguments)
    return in_process("compare", *arguments)


def diff(*arguments: str) -> Run:
    return in_process("diff", *arguments)


def document(run: Run) -> dict[str, Any]:
    assert run.status == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def modes(run: Run) -> dict[str, dict[str, Any]]:
    return {each["mode"]: each for each in document(run)["runs"]}


def test_two_tensors_of_a_script(folder: Path) -> None:
    done = compare(folder, "script.py", "m", "w", "--json", "--", "--epochs", "1")
    found = document(done)
    assert [(row["op"], row["in"]) for row in found["rows"]] == [("add", {"m": "AddBackward0", "w": None})]
    assert found["rows"][0]["locations"]["w"] == {"file": "script.py", "line": 9, "code": "w = x + y"}
    assert [run["output_grad_fn"] for run in found["runs"]] == ["AddBackward0", None]
    assert "the script ran ['--epochs', '1']" in done.program_stderr  # stdout is the document's


def test_tensors_in_a_function_of_a_script_are_found(folder: Path) -> None:
    write(
        folder / "main.py",
        """
        import torch

        def head(x, scale):
            scaled = x * scale
            return {"m": scaled.exp()}

        def main():
            for scale in (2, 3):
                out = head(torch.ones(3, requires_grad=True), scale)
                with torch.no_grad():
                    w = out["m"] + 1
            del scale

        if __name__ == "__main__":
            main()
        """,
    )
    found = document(compare(folder, "main.py", "out.m", "w", "--json"))
    assert [row["op"] for row in found["rows"]] == ["mul", "exp", "add"]
    assert [run["mode"] for run in found["runs"]] == ["out.m", "w"]
    inner = document(compare(folder, "main.py", "scaled", "w", "--json"))
    assert [(run["mode"], run["ops"]) for run in inner["runs"]] == [("scaled", 1), ("w", 3)]
    missing = compare(folder, "main.py", "out.m", "v")
    assert missing.status == 2
    assert missing.messages == ["graphscope: There is no tensor named 'v'. In sight are w, out.m."]


def test_tables_follow_what_the_script_prints(folder: Path) -> None:
    done = compare(folder, "script.py", "m", "held.deep")
    assert done.status == 0
    first, *table = done.stdout.splitlines()
    assert first == "the script ran []"
    assert table[0].split() == ["m", "held.deep"]
    assert done.stderr == ""


def test_two_tensors_that_a_function_returns(folder: Path) -> None:
    found = modes(compare(folder, "model.py:several", "first", "second", "--json"))
    assert [(name, run["ops"]) for name, run in found.items()] == [("first", 1), ("second", 2)]


def test_a_function_under_every_mode(folder: Path) -> None:
    done = compare(folder, "model.py:step", "--json", "--", "--flag")
    found = modes(done)
    assert list(found) == ["grad", "no_grad", "inference_mode", "eval"]
    assert [run["backward_nodes"] > 0 for run in found.values()] == [True, False, False, True]
    assert [run["dropout_active"] for run in found.values()] == [True, True, True, False]
    assert [run["output_is_inference"] for run in found.values()] == [False, False, True, False]
    assert done.stdout.startswith('{"format": "graphscope.compare"')
    assert "imported with ['--flag']" in done.stderr
    assert "called" in done.stderr


def test_the_four_corners(folder: Path) -> None:
    corners = "train,train+no_grad,eval,eval+no_grad"
    done = compare(folder, "model.py:net", "--input", "5,3", "--modes", corners, "--json", "--repeats", "3")
    found = modes(done)
    assert list(found) == corners.split(",")
    assert [run["repeats"] for run in found.values()] == [3] * 4
    assert all(low <= run["seconds"] <= high for run in found.values() for low, high in [run["seconds_spread"]])
    assert [row["modules"]["train"] for row in document(done)["rows"]][:2] == ["net.0", "net.0"]


def test_modules_that_a_function_makes_are_called(folder: Path) -> None:
    found = modes(compare(folder, "model.py:make", "--input", "5,4", "--modes", "train", "--modes", "eval", "--json"))
    assert [run["dropout_active"] for run in found.values()] == [True, False]
    refused = compare(folder, "model.py:make")
    assert refused.status == 2
    assert "--input 1,3,224,224" in refused.messages[-1]


def test_every_kind_of_file_is_written(folder: Path) -> None:
    names = [f"c.{suffix}" for suffix in ("svg", "png", "pdf", "dot", "json", "txt")]
    done = compare(folder, "model.py:branch", *(part for name in names for part in ("-o", name)))
    assert done.status == 0, done.stderr
    assert [f"graphscope: wrote {name}" for name in names] == done.messages
    assert all((folder / name).stat().st_size > 200 for name in names)
    assert "layout=nop2" in (folder / "c.dot").read_text("utf-8")
    assert compare(folder, "model.py:branch", "-o", "-.svg").stdout.startswith("<svg")


def test_a_run_that_raises_leaves_the_others(folder: Path) -> None:
    done = compare(folder, "model.py:backward", "--json")
    found = modes(done)
    assert [name for name, run in found.items() if "error" in run] == ["no_grad", "inference_mode"]
    assert found["no_grad"]["error"]["location"]["line"] == 24
    assert "under no_grad it raised RuntimeError: element 0 of tensors does not require grad" in done.messages[0]


def test_exit_1_if_every_run_raises(folder: Path) -> None:
    done = compare(folder, "model.py:fails", "-o", "c.json")
    assert done.status == 1
    assert 'raise ValueError("on purpose")' in done.stderr
    assert "graphscope_cli" not in done.stderr
    assert [run["ops"] for run in json.loads((folder / "c.json").read_text("utf-8"))["runs"]] == [1] * 4


def test_exit_1_if_the_program_leaves_or_fails(folder: Path) -> None:
    assert compare(folder, "model.py:leaves").status == 1
    write(folder / "broken.py", "import torch\nm = torch.ones(2)\nw = m * 2\nraise KeyError('here')\n")
    done = compare(folder, "broken.py", "m", "w", "--json")
    assert done.status == 1
    assert "KeyError" in done.stderr
    assert [run["ops"] for run in json.loads(done.stdout)["runs"]] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["script.py"], "script.py is a script. Name two of its tensors"),
        (["script.py", "m"], "'m' alone cannot be compared"),
        (["script.py", "m", "q"], "There is no tensor named 'q'"),
        (["script.py", "m", "w", "--modes", "eval"], "--modes has no use here"),
        (["script.py", "m", "w", "--repeats", "2"], "--repeats has no use here"),
        (["script.py", "m", "w", "--input", "1,2"], "--input has no use here"),
        (["model.py:step", "--modes", "fast"], "'fast' is no mode"),
        (["model.py:step", "--modes", "eval,eval"], "given twice"),
        (["model.py:net"], "--input 1,3,224,224"),
        (["model.py:x"], "already computed"),
        (["model.py:needs"], "cannot be called without argument"),
        (["model.py:Thing"], "is a class"),
        (["model.py:stepp"], "Did you mean step?"),
        (["model.py:step", "-o", "c.gif"], "c.gif"),
        (["missing.py", "m", "w"], "There is no file 'missing.py'"),
        (["saved.json"], "graphscope diff a.json b.json"),
    ],
)
def test_wrong_use_is_told_in_one_line(folder: Path, arguments: list[str], words: str) -> None:
    write(folder / "saved.json", "{}")
    done = compare(folder, *arguments)
    assert done.status == 2
    assert words in done.messages[-1]
    assert "Traceback" not in done.stderr


def test_saved_graphs_are_compared(folder: Path) -> None:
    for name, op in (("a", "sin"), ("b", "cos")):
        line = f"loss = (torch.ones(2, requires_grad=True) * 2).{op}().sum()"
        write(folder / f"graph_{name}.py", f"import torch\n\n{line}\n")
    for name in "ab":
        assert in_process("render", f"graph_{name}.py:loss", "-o", f"{name}.json").status == 0
    found = document(diff("a.json", "b.json", "--json"))
    assert [(row["op"], list(row["in"])) for row in found["rows"]] == [
        ("mul", ["a", "b"]),
        ("sin", ["a"]),
        ("cos", ["b"]),
        ("sum", ["a", "b"]),
    ]
    table = diff("a.json", "b.json").stdout
    assert "≠ sin  line 3" in table
    assert diff("a.json", "b.json", "-o", "d.svg").status == 0
    assert (folder / "d.svg").read_text("utf-8").count("does not run") >= 2
    same = document(diff("a.json", "a.json", "--json"))
    assert [run["mode"] for run in same["runs"]] == ["a.json (1)", "a.json (2)"]
    assert not any(row["differs"] for row in same["rows"])


@pytest.mark.usefixtures("folder")
def test_what_is_no_saved_graph_is_refused() -> None:
    done = diff("script.py", "model.py")
    assert done.status == 2
    assert "graphscope render script.py -o graph.json" in done.messages[0]
    done = diff("nowhere.json", "elsewhere.json")
    assert done.status == 2
    assert done.messages[0].endswith("Save a graph: graphscope render TARGET -o graph.json")


@pytest.mark.parametrize("columns", ["80", "200"])
def test_tables_are_as_wide_as_the_terminal(folder: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = compare(folder, "model.py:step")
    widest = max(map(len, done.stdout.splitlines()))
    assert "inference" in done.stdout, "broken, not cut"
    assert int(columns) * 0.6 < widest <= int(columns)


def test_help_tells_the_modes_and_imports_no_torch(folder: Path) -> None:
    program = "import sys\nfrom graphscope_cli.app import app\napp(['compare', '--help'], standalone_mode=False)\n"
    done = python(folder, "-c", program + "assert 'torch' not in sys.modules, 'torch was imported'\n")
    assert done.status == 0, done.stderr
    assert "eval+no_grad" in done.stdout
    assert "--repeats" in done.stdout
    assert "[-- ARGUMENTS]" in done.stdout
