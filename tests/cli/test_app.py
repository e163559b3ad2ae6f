"""The commands in this process: help, wrong use, names, saved graphs, formats, doctor."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from graphscope import __version__
from graphscope.render.formats import FORMATS
from graphscope_cli.app import app
from tests.cli.programs import python, write

MODELS = """
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    table = torch.nn.Embedding(5, 2)
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    held = {"out": y, "deep": [y.sum()]}
    number = 3
    nothing = None
    method = y.sum

    class Net(torch.nn.Module): ...

    def make(): return net
    def needs(a, b=1, *, c): return a
    def tensor(): return y.sin()
    def several(): return y.sin(), {"k": y.cos()}
    def both(): return {"loss": y.sum(), "net": net, "x": x, "unused": torch.ones(2), 7: y.mean()}
    def empty(): return {"net": net}
    async def coroutine(): return y
    def generator(): yield y

    def fails():
        hidden = x.exp()
        raise ValueError("on purpose")

    if __name__ == "__main__":
        raise SystemExit("imported, not run")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with programs to name; arguments, paths and modules are put back."""
    write(tmp_path / "models.py", MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in {"models", "graphscope_target"} - before:
        sys.modules.pop(name, None)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments), prog_name="graphscope")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def roots(result: Result) -> list[str]:
    document = json.loads(result.stdout)
    return [node["names"][0] for node in document["nodes"] if node["kind"] == "output"]


def test_help_tells_every_option_and_imports_no_torch(tmp_path: Path) -> None:
    program = """
        import sys
        from graphscope_cli.app import app
        for words in (["--help"], ["--version"], ["render", "--help"], ["render", "missing.py"]):
            try:
                app(words, prog_name="graphscope")
            except SystemExit:
                pass
        sys.exit(f"imported {sorted(m for m in sys.modules if m in ('torch', 'IPython', 'pygraphviz'))}")
    """
    write(tmp_path / "helps.py", program)
    done = python(tmp_path, "helps.py", environment={"COLUMNS": "200"})
    assert done.stderr.splitlines()[-1] == "imported []"
    for option in (
        "--output",
        "--at",
        "--stop",
        "--input",
        "--fake",
        "--root",
        "--names",
        "--depth",
        "--show",
        "--engine",
    ):
        assert option in done.stdout
    assert f"graphscope {__version__}\n" in done.stdout


def test_without_a_command_there_is_help() -> None:
    result = run()
    assert "render" in result.output
    assert "doctor" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.py"], "There is no file 'missing.py' in"),
        (["model.py"], "There is no file 'model.py'. Did you mean models.py?"),
        (["nowhere/train.py"], "the folder 'nowhere' does not exist"),
        (["missing.py:name"], "There is no file 'missing.py' in"),
        (["."], "'.' is a folder"),
        (["book.ipynb"], "is a notebook"),
        (["models.py:"], "has no name behind the colon"),
        (["a b:name"], "'a b:name' is no target"),
        (["no_such_package.part:name"], "There is no module 'no_such_package'"),
        (["json.nothing:name"], "There is no module 'json.nothing'"),
        (["json.decoder.nothing:name"], "There is no module 'json.decoder.nothing'"),
        (["broken.json"], "broken.json is no saved graph"),
        ([""], "The target is empty. A target is script.py"),
        (["drawn.dot"], "'drawn.dot' is a picture, and no graph can be read from it. Save the graph as JSON, too"),
        (["drawn.dot:x"], "'drawn.dot' is a picture"),
        (["weights.pt"], "'weights.pt' is no Python script: it holds weights"),
        (["notes.txt"], "'notes.txt' is no Python script: it is text"),
        (["models.py:nett"], "models.py has no name 'nett'. Did you mean net?"),
        (["models.py:held.outs"], "models.py:held.outs has no name 'outs'. Did you mean out?"),
        (["models.py:zzz"], "give no name; --root zzz then chooses the tensor"),
        (["few.py:zzz"], "few.py has no name 'zzz'. It has x, f."),
        (["empty.py:zzz"], "empty.py has no name 'zzz'; it defines nothing that could be drawn"),
        (["models.py:net"], "net is a module. Say what to call it with: --input 1,3,224,224"),
        (["models.py:make"], "make() is a module. Say what to call it with"),
        (["models.py:Net"], "Net is a class"),
        (["models.py:number"], "number: int was given where a tensor was expected"),
        (["models.py:nothing"], "nothing: NoneType was given"),
        (["models.py:needs"], "needs() cannot be called without a, c"),
        (["models.py:coroutine"], "coroutine is an async function"),
        (["models.py:generator"], "generator is a generator"),
        (["models.py:empty"], "empty(): dict was given where a tensor was expected"),
        (["models.py:y", "--root", "lost"], "There is no tensor named 'lost'. In sight are y"),
        (["models.py:y", "--input", "3"], "--input is for modules, and y is Tensor"),
        (["models.py:net", "--input", "2,3:int63"], "torch has no dtype 'int63'. Did you mean int64"),
        (["models.py:net", "--input", "2,x"], "--input '2,x' is no shape"),
        (["models.py:net", "--input", ""], "--input '' is no shape"),
        (["models.py:y", "--stop"], "--stop has no use here: models.py is imported"),
        (["models.py:y", "--at", "2"], "--at has no use here"),
        (["models.py", "--input", "2"], "--input has no use here: models.py is run as a script"),
        (["models.py", "--at", "0"], "--at '0' is no number of a backward"),
        (["models.py", "--at", "all", "--stop"], "Give --at a number"),
        (["models.py", "--at", "all", "-o", "-.png"], "stdout can hold one png only"),
        (["models.py:y", "--depth", "-1"], "--depth '-1' is no depth"),
        (["models.py:y", "--show", "saved,nonsense"], "--show 'nonsense' is nothing that can be shown"),
        (["models.py:y", "-o", "g.gif"], "'g.gif' has the suffix '.gif'. The suffix picks the format: svg, png"),
        (["models.py:y", "-o", "svg"], "'svg' has no suffix"),
        (["models.py:y", "-o", "-"], "-o - needs a format for stdout: -.svg"),
        (["models.py:y", "-o", "nowhere/g.svg"], "the folder 'nowhere' does not exist"),
        (["models.py:y", "-o", "folder.svg"], "'folder.svg' is a folder"),
        (["models.py:y", "-o", "g.svg", "--engine", "system"], "g.svg was not drawn. No `dot` on PATH"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_told_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    write(folder / "few.py", "import torch, os\nfrom json import loads\nx = torch.ones(1)\n_y = 1\ndef f(): ...\n")
    write(folder / "empty.py", "import torch\n")
    (folder / "book.ipynb").write_text("{}")
    (folder / "broken.json").write_text('{"format": "graphscope.gr')
    (folder / "folder.svg").mkdir()
    for name in ("drawn.dot", "weights.pt", "notes.txt"):
        (folder / name).write_text("digraph {}")
    monkeypatch.setenv("PATH", str(folder))
    result = run("render", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("graphscope: ")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in folder.iterdir() if path.suffix in {".svg", ".png"}] == ["folder.svg"]


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("models.py:y", [], ["y"]),
        ("models:y", [], ["y"]),
        ("models.py:held", [], ["deep[0]"]),
        ("models.py:held.out", [], ["held.out"]),
        ("models.py:held", ["--root", "deep", "--root", "out"], ["deep[0]", "out"]),
        ("models.py:tensor", [], ["tensor()"]),
        ("models.py:several", [], ["several()[0]", "several()[1].k"]),
        ("models.py:both", [], ["loss"]),
        ("models.py:both", ["--root", "7"], ["7"]),
        ("models.py:method", [], ["method()"]),
        ("models.py:net", ["--input", "2,3"], ["output"]),
        ("models.py:make", ["--input", "3"], ["output"]),
        ("models.py:table", ["--input", "1,4:int64"], ["output"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_names(target: str, options: list[str], expected: list[str]) -> None:
    result = run("render", target, "--json", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    assert roots(result) == expected


@pytest.mark.usefixtures("folder")
def test_what_a_function_returns_is_all_there() -> None:
    """Tensors that do not lead to the root, and parameters of the modules, are told as not reached."""
    nodes = json.loads(run("render", "models.py:both", "--json").stdout)["nodes"]
    leaves = {node["names"][0]: (node["role"], node["reached"]) for node in nodes if node["kind"] == "leaf"}
    assert leaves == {
        "x": ("input", True),
        "unused": ("input", False),
        "net.0.weight": ("parameter", False),
        "net.0.bias": ("parameter", False),
    }
    assert [node["op"] for node in nodes if node["kind"] == "op" and not node["reached"]] == ["sum", "mean"]


def test_a_module_is_called_once_and_keeps_the_random_state(folder: Path) -> None:
    write(
        folder / "counted.py",
        """
        import torch
        class Counted(torch.nn.Linear):
            calls = 0
            def forward(self, x, *more):
                self.calls += 1
                assert self.calls == 1 and x.min() >= 0 and x.max() < 1 and all(m.dtype is torch.int64 for m in more)
                return {"out": super().forward(x), "sizes": [m.shape for m in more]}
        torch.manual_seed(3)
        model = Counted(3, 1)
        state = torch.get_rng_state()
        model.register_forward_hook(lambda *a: (_ for _ in ()).throw(OSError) if moved() else None)
        def moved(): return not torch.equal(torch.get_rng_state(), state)
        """,
    )
    result = run("render", "counted.py:model", "--json", "--input", "2,3", "--input", "4:int64")
    assert (result.exit_code, roots(result)) == (0, ["out"])


def test_a_failing_function_shows_its_traceback_and_what_there_was(folder: Path) -> None:
    result = run("render", "models.py:fails", "--json")
    assert result.exit_code == 1
    assert roots(result)[0] == "hidden"
    told = result.stderr
    assert told.startswith(f'Traceback (most recent call last):\n  File "{folder / "models.py"}", line ')
    assert "ValueError: on purpose" in told
    assert "graphscope_cli" not in told


def test_a_saved_graph_is_drawn_again(folder: Path) -> None:
    names = [f"g.{key}" for key in FORMATS]
    drawn = run("render", "models.py:both", *(word for name in names for word in ("-o", name)))
    assert drawn.stderr.splitlines() == [f"graphscope: wrote {name}" for name in names]
    for key, format in FORMATS.items():
        again = run("render", "g.json", "-o", f"-.{key}")
        assert (again.exit_code, again.stderr) == (0, "")
        assert format.binary == (key in {"png", "pdf"})
        if key != "pdf":  # tells when it was made
            assert again.stdout_bytes == (folder / f"g.{key}").read_bytes(), key
    refused = run("render", "g.json", "--root", "x")
    assert (refused.exit_code, "--root has no use here" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("folder")
def test_look_of_a_picture() -> None:
    def dot(*options: str) -> str:
        return run("render", "models.py:y", "-o", "-.dot", *options).stdout

    assert "rankdir=TB" in dot()
    assert "rankdir=LR" in dot("--direction", "lr")
    assert dot("--theme", "dark") != dot("--theme", "light")
    assert dot("--show", "versions") != dot()
    assert dot("--depth", "full") == dot()


@pytest.mark.usefixtures("folder")
def test_the_terminal_picture_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (60, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        plain = run("render", "models.py:both").stdout
        assert "► n" in plain
        assert "\x1b" not in plain, "stdout is no terminal"
        assert max(map(len, plain.splitlines())) <= width
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run("render", "models.py:both").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("render", "models.py:both").stdout


def test_one_bad_file_does_not_spoil_the_others(folder: Path) -> None:
    (folder / "locked.json").mkdir()
    (folder / "locked.json").rename(folder / "late.json")
    write(folder / "late.py", "import os, torch\nos.rmdir('out')\nx = torch.ones(1, requires_grad=True)\n")
    (folder / "out").mkdir()
    result = run("render", "late.py:x", "-o", "out/g.json", "-o", "g.json")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "graphscope: out/g.json cannot be written: No such file or directory.",
        "graphscope: wrote g.json",
    ]


def test_doctor_tells_what_works() -> None:
    result = run("doctor")
    assert result.exit_code == 0
    for words in (
        f"ok  {__version__}",
        "tells saved tensors, without unpacking",
        "bundled Graphviz",
        "Chinese",
        "stack",
    ):
        assert words in result.stdout
