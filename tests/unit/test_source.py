"""Which line of the program an op is told to stand at."""

from __future__ import annotations

import linecache
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphscope
from graphscope.capture.code.source import Owner, owner_of, shown_file
from graphscope.model import Location
from tests.recorded import ops, the_op

Tensor = torch.Tensor


def where(graph: graphscope.Graph, op: str) -> Location:
    location = the_op(graph, op).location
    assert location is not None
    return location


def test_the_line_its_text_and_its_function() -> None:
    x = torch.rand(3)
    with graphscope.recording() as recording:
        y = x * 2  # here
    location = where(recording.graph(y), "mul")
    assert location.file == "test_source.py"
    assert location.code == "y = x * 2  # here"
    assert location.function == "test_the_line_its_text_and_its_function"
    assert linecache.getline(__file__, location.line).strip() == location.code


def test_an_expression_of_several_lines_is_told_by_its_own() -> None:
    x = torch.rand(3)
    with graphscope.recording() as recording:
        y = torch.stack(
            [
                x.sin(),
                x.cos(),
            ]
        ).sum()
    graph = recording.graph(y)
    assert where(graph, "sin").code == "x.sin(),"
    assert where(graph, "cos").code == "x.cos(),"
    assert where(graph, "stack").code.startswith("y = torch.stack(")


def test_the_functions_of_torch_and_its_modules_are_passed_over() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.GELU())
    with graphscope.recording() as recording:
        y = model(torch.rand(2, 3))  # the call
    graph = recording.graph(y)
    assert {node.location.code for node in ops(graph) if node.location} == {"y = model(torch.rand(2, 3))  # the call"}


class Custom(nn.Module):
    def forward(self, v: Tensor) -> Tensor:
        return v.sin()  # inside


def test_a_module_of_the_user_tells_its_own_line() -> None:
    model = nn.Sequential(nn.Sequential(Custom()), nn.Tanh())
    with graphscope.recording() as recording:
        y = model(torch.rand(3))
    graph = recording.graph(y)
    assert where(graph, "sin").code == "return v.sin()  # inside"
    assert where(graph, "tanh").code == "y = model(torch.rand(3))"


def decorated(function: Any) -> Any:
    def call(*args: Any) -> Any:
        return function(*args)

    return call


@decorated
def behind_a_decorator(x: Tensor) -> Tensor:
    return x.sin()  # decorated


def test_a_decorated_function_and_a_lambda_and_a_comprehension() -> None:
    x = torch.rand(3)
    with graphscope.recording() as recording:
        kept = [behind_a_decorator(x), *map(lambda v: v.cos(), [x]), *[v.tan() for v in (x,)]]  # noqa: C417
    graph = recording.graph(kept)
    assert where(graph, "sin").code == "return x.sin()  # decorated"
    assert where(graph, "cos").code.startswith("kept = [")
    assert where(graph, "tan").code.startswith("kept = [")


def package(folder: Path, text: str) -> Any:
    """A function of an installed package."""
    file = folder / "lib" / "site-packages" / "package" / "module.py"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    variables: dict[str, Any] = {"torch": torch}
    exec(compile(text, str(file), "exec"), variables)  # noqa: S102  the program of the test
    return variables["function"]


def test_installed_packages_are_passed_over_unless_asked_for(tmp_path: Path) -> None:
    function = package(tmp_path, "def function(x):\n    return x.sin()\n")
    x = torch.rand(3)
    with graphscope.recording() as recording:
        y = function(x)  # mine
    assert where(recording.graph(y), "sin").code == "y = function(x)  # mine"
    inner = where(recording.graph(y, all_frames=True), "sin")
    assert inner == Location("package/module.py", 2, "return x.sin()", "function")


def test_what_a_package_calls_back_is_the_users(tmp_path: Path) -> None:
    function = package(tmp_path, "def function(f, x):\n    return f(x).cos()\n")

    def back(x: Tensor) -> Tensor:
        return x.sin()  # called back

    with graphscope.recording() as recording:
        y = function(back, torch.rand(3))  # called
    graph = recording.graph(y)
    assert where(graph, "sin").code == "return x.sin()  # called back"
    assert where(graph, "cos").code == "y = function(back, torch.rand(3))  # called"


def test_code_without_a_file_has_a_line_and_no_text() -> None:
    text = "def function(x):\n    return x.sin()\n"
    variables: dict[str, Any] = {}
    exec(compile(text, "<string>", "exec"), variables)  # noqa: S102
    with graphscope.recording() as recording:
        y = variables["function"](torch.rand(3))
    assert where(recording.graph(y), "sin") == Location("<string>", 2, "", "function")


def run(*command: str, text: str | None = None) -> str:
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, *command], input=text, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


TYPED = """\
import torch, graphscope
with graphscope.recording() as rec:
    y = torch.ones(3).sin()
node, = [node for node in rec.graph(y).nodes if node.op == 'sin']
print(node.location.file, node.location.line)
"""


def test_a_program_on_the_command_line_and_from_standard_input() -> None:
    assert run("-c", TYPED) == "<string> 3\n"
    assert run("-", text=TYPED) == "<stdin> 3\n"


def test_a_program_in_a_file_is_told_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "helper.py").write_text("def sine(x):\n    return x.sin()\n", encoding="utf-8")
    file = tmp_path / "main.py"
    text = TYPED.replace("import torch, graphscope", "import torch, graphscope, part.helper as h")
    file.write_text(text.replace("torch.ones(3).sin()", "h.sine(torch.ones(3))"), encoding="utf-8")
    assert run(str(file)) == "part/helper.py 2\n"


def test_a_cell_of_a_notebook() -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    cells = [
        "import torch, graphscope\ndef sine(x):\n    return x.sin()",
        "with graphscope.recording() as rec:\n    y = sine(torch.ones(3)) * 2",
        "print([(node.op, node.location.file, node.location.line) for node in rec.graph(y).nodes if node.op])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client.NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    assert notebook.cells[2].outputs[0].text == "[('sin', 'In [1]', 3), ('mul', 'In [2]', 2)]\n"


def test_names_of_files_are_hostile(tmp_path: Path) -> None:
    folder = tmp_path / 'a"b <c>&amp; {|} 漢字'
    folder.mkdir()
    file = folder / "pro gram.py"
    file.write_text(TYPED, encoding="utf-8")
    assert run(str(file)) == "pro gram.py 3\n"


OWNERS = {
    "/home/me/project/train.py": Owner.USER,
    "/home/me/venv/lib/python3.11/site-packages/transformers/models/gpt2.py": Owner.LIBRARY,
    "/usr/lib/python3/dist-packages/package/module.py": Owner.LIBRARY,
    torch.__file__: Owner.PLUMBING,
    linecache.__file__: Owner.PLUMBING,
    graphscope.__file__: Owner.RECORDER,
    "<stdin>": Owner.USER,
    "<string>": Owner.USER,
    "<doctest module[3]>": Owner.USER,
    "<ipython-input-3-abc>": Owner.USER,
    "/home/me/ipykernel_77/123.py": Owner.USER,
    "<frozen importlib._bootstrap>": Owner.PLUMBING,
    "<eval_with_key>.0": Owner.PLUMBING,
}


@pytest.mark.parametrize("file", OWNERS)
def test_whose_code_a_file_holds(file: str) -> None:
    assert owner_of(file) is OWNERS[file]


def test_files_are_told_without_the_machine() -> None:
    base = Path("/home/me/project")
    assert shown_file("/home/me/project/models/net.py", base) == "models/net.py"
    assert shown_file("/home/me/venv/lib/python3.11/site-packages/timm/layers.py", base) == "timm/layers.py"
    assert shown_file("<stdin>", base) == "<stdin>"
    assert shown_file("/anywhere/script.py", None) == "script.py"
