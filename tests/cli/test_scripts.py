"""An unmodified script runs as under Python, and its graph is taken on the way."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from graphscope.serialize import loads
from tests.cli.programs import python, render, run_both, write

TRAINING = """
    import argparse
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset


    class Trainer:
        def __init__(self):
            self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 1))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def step(self, x, y):
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss.item()


    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=3)
        arguments = parser.parse_args()
        torch.manual_seed(0)
        data = TensorDataset(torch.rand(32, 3), torch.rand(32, 1))
        trainer = Trainer()
        loader = iter(DataLoader(data, batch_size=4, shuffle=True, num_workers=2))
        for step in range(arguments.steps):
            print(f"step {step} loss {trainer.step(*next(loader))!r}")
        print(torch.rand(2).tolist())


    if __name__ == "__main__":
        main()
"""


def read(path: Path) -> dict[str, Any]:
    loads(path.read_bytes()).check()
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def leaf_names(document: dict[str, Any]) -> set[str]:
    return {node["names"][0] for node in document["nodes"] if node["kind"] == "leaf"}


def test_a_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAINING)
    files = ["g.svg", "g.png", "g.pdf", "g.json", "g.txt", "g.dot"]
    alone, drawn = run_both(tmp_path, "train.py", *(word for file in files for word in ("-o", file)))
    assert alone.status == 0
    assert alone.stdout.count("loss") == 3
    assert drawn == (0, alone.stdout, drawn.stderr)
    assert drawn.program_stderr == alone.stderr
    assert drawn.messages == [f"graphscope: wrote {file}" for file in files]
    document = read(tmp_path / "g.json")
    parameters = {f"self.model.{layer}.{part}" for layer in (0, 3) for part in ("weight", "bias")}
    assert leaf_names(document) == {*parameters, "x", "y"}
    assert [node["names"] for node in document["nodes"] if node["kind"] == "output"] == [["loss"]]
    states = {saved["state"] for node in document["nodes"] for saved in node.get("saved", [])}
    assert states == {"live"}, "the graph was taken before torch freed it"
    assert "self.model.0.weight" in (tmp_path / "g.svg").read_text(encoding="utf-8")
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "g.pdf").read_bytes().startswith(b"%PDF")


def test_every_backward_gets_a_number(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAINING)
    done = render(tmp_path, "train.py", "--at", "all", "-o", "a.b.json", "-o", "-.json", "--", "--steps", "2")
    assert done.status == 0
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["a.b.1.json", "a.b.2.json"]
    printed = json.loads(done.stdout[done.stdout.index("[\n") :])
    assert printed == [read(tmp_path / "a.b.1.json"), read(tmp_path / "a.b.2.json")]
    grads = [[node["grad"] for node in graph["nodes"] if node.get("role") == "parameter"] for graph in printed]
    assert grads[0] == [None] * 4, "the first was taken before any backward"
    assert grads[1] == [None] * 4, "zero_grad() sets .grad to None"


def test_stop_ends_the_script_after_the_graph(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAINING)
    done = render(tmp_path, "train.py", "--at", "2", "--stop", "-o", "g.json", "--", "--steps", "9")
    assert (done.status, done.stdout.count("loss"), done.messages) == (0, 1, ["graphscope: wrote g.json"])


def test_stop_is_no_error_that_a_script_could_handle_by_mistake(tmp_path: Path) -> None:
    write(
        tmp_path / "handles.py",
        """
        import torch
        for step in range(5):
            print("step", step)
            try:
                torch.ones(1, requires_grad=True).sum().backward()
            except Exception:
                print("handled")
            except:
                print("bare")
        """,
    )
    done = render(tmp_path, "handles.py", "--stop", "-o", "g.json")
    assert (done.status, done.stdout.count("bare"), done.stdout.count("handled")) == (0, 5, 0)
    assert done.messages == ["graphscope: wrote g.json"]


def test_a_script_that_ends_by_force_has_its_picture(tmp_path: Path) -> None:
    write(tmp_path / "killed.py", "import os, torch\ntorch.ones(1, requires_grad=True).sum().backward()\nos._exit(4)\n")
    done = render(tmp_path, "killed.py", "-o", "g.json")
    assert done == (4, "", "graphscope: wrote g.json\n")
    assert read(tmp_path / "g.json")["roots"]


def test_a_backward_that_never_comes_is_told(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAINING)
    done = render(tmp_path, "train.py", "--at", "7", "-o", "g.json", "--", "--steps", "2")
    assert (done.status, done.stdout.count("loss")) == (2, 2)
    assert done.messages == [
        "graphscope: --at 7: the script called backward() or autograd.grad() 2 times in this process."
    ]


def test_a_script_is_main(tmp_path: Path) -> None:
    """Globals, arguments, paths and folder are those of ``python script.py``, and torch is not there too early."""
    (tmp_path / "folder").mkdir()
    write(
        tmp_path / "folder" / "tells.py",
        """
        import sys, os, pickle, dataclasses, inspect
        print(list(globals()), __name__, __file__, __spec__, __package__, __builtins__, type(__loader__))
        print(sys.argv, sys.path[0], os.getcwd(), "torch" in sys.modules, vars(sys.modules["__main__"]) is globals())
        @dataclasses.dataclass
        class Job:
            number: int
        print(pickle.loads(pickle.dumps(Job(3))), inspect.getsource(Job))
        import torch
        print(torch.__spec__.loader is torch.__loader__, sorted(vars(torch.__loader__)))
        os.chdir("..")
        (torch.ones(1, requires_grad=True) * 2).backward()
        """,
    )
    alone, drawn = run_both(tmp_path, os.path.join("folder", "tells.py"), "-o", "g.json")  # noqa: PTH118 - as typed
    assert alone.status == 0
    assert drawn == (0, alone.stdout, "graphscope: wrote g.json\n")
    assert read(tmp_path / "g.json")["roots"] == ["n2"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
def test_child_processes_are_the_scripts_own(tmp_path: Path) -> None:
    """Spawned, forked and raw children run backward as ever, and only the parent's is taken."""
    write(
        tmp_path / "children.py",
        """
        import os
        import torch
        import torch.multiprocessing as mp

        def work(queue, factor):
            x = torch.ones(3, requires_grad=True)
            (x * factor).sum().backward()
            queue.put((__name__, x.grad.tolist()))

        if __name__ == "__main__":
            for method in ("spawn", "fork"):
                context = mp.get_context(method)
                queue = context.SimpleQueue()
                process = context.Process(target=work, args=(queue, 3))
                process.start()
                print(method, queue.get(), flush=True)
                process.join()
            child = os.fork()
            parents_own = torch.ones(2, requires_grad=True)
            if child:
                os.waitpid(child, 0)
                (parents_own * 2).sum().backward()
            else:
                parents_own.sin().sum().backward()
            print("end of", "parent" if child else "child", flush=True)
        """,
    )
    alone, drawn = run_both(tmp_path, "children.py", "-o", "g.json")
    assert alone.stdout.splitlines()[-2:] == ["end of child", "end of parent"]
    assert (drawn.status, drawn.stdout) == (0, alone.stdout)
    assert drawn.messages == ["graphscope: wrote g.json"]
    assert [node["op"] for node in read(tmp_path / "g.json")["nodes"] if node["kind"] == "op"] == ["mul", "sum"]


def test_an_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    """Within torch's engine, below a handler of the script's: no frame of graphscope, and the graph is still drawn."""
    write(
        tmp_path / "fails.py",
        """
        import torch
        w = torch.ones(3, requires_grad=True)
        loss = (w * w).sum()
        loss.backward()
        def again():
            try:
                loss.backward()
            except RuntimeError as error:
                raise ValueError("twice") from error
        try:
            again()
        finally:
            print("the script's own finally ran")
        """,
    )
    alone, drawn = run_both(tmp_path, "fails.py", "-o", "g.json")
    assert alone.status == 1
    assert "Trying to backward through the graph a second time" in alone.stderr
    assert drawn == (1, alone.stdout, drawn.stderr)
    assert drawn.program_stderr == alone.stderr
    assert leaf_names(read(tmp_path / "g.json")) == {"w"}


def test_what_there_was_before_an_error_is_drawn(tmp_path: Path) -> None:
    """Before any backward: the variables of the functions that the error ended."""
    write(
        tmp_path / "fails.py",
        """
        import torch
        w = torch.ones(3, requires_grad=True)
        def forward():
            hidden = w.sin()
            return hidden @ torch.ones(4)
        forward()
        """,
    )
    alone, drawn = run_both(tmp_path, "fails.py", "-o", "g.json")
    assert "size mismatch" in alone.stderr or "inconsistent tensor size" in alone.stderr
    assert drawn.status == 1
    assert drawn.program_stderr == alone.stderr
    document = read(tmp_path / "g.json")
    assert [node["names"] for node in document["nodes"] if node["kind"] == "output"] == [["hidden"]]


def test_endings_of_every_kind(tmp_path: Path) -> None:
    """Syntax errors, exit statuses, texts, hooks, threads and exit handlers."""
    programs = {
        "syntax.py": ("def f(:\n", 1),
        "status.py": ("import sys\nsys.exit(3)\n", 1),
        "words.py": ("import sys\nsys.exit('final words')\n", 1),
        "hook.py": ("import sys\nsys.excepthook = lambda *a: print('hook', a[1], file=sys.stderr)\n1 / 0\n", 1),
        "interrupted.py": ("raise KeyboardInterrupt\n", 130),
        "handler.py": ("import atexit, sys\natexit.register(print, 'bye')\nsys.exit(7)\n", 1),
    }
    for name, (source, status) in programs.items():
        write(tmp_path / name, source)
        alone, drawn = run_both(tmp_path, name, "-o", "g.json")
        assert (drawn.status, drawn.stdout) == (status, alone.stdout), name
        assert drawn.program_stderr == alone.stderr, name
    assert "graphscope: the script ended with exit status 7.\n" in drawn.stderr


def test_a_thread_that_outlives_the_script_is_waited_for(tmp_path: Path) -> None:
    write(
        tmp_path / "threads.py",
        """
        import concurrent.futures, threading, time
        import torch
        pool = concurrent.futures.ThreadPoolExecutor(1)
        print(pool.submit(lambda: 1).result())  # leaves an idle worker
        x = torch.ones(3, requires_grad=True)
        def train():
            time.sleep(0.3)
            (x * 2).sum().backward()
            print("trained")
        threading.Thread(target=train).start()
        """,
    )
    done = render(tmp_path, "threads.py")
    assert done.status == 0
    assert done.stdout.index("trained") < done.stdout.index("output"), "the picture follows the script's own output"
    assert "● n0 x" in done.stdout


def test_a_script_without_backward_gives_its_tensors(tmp_path: Path) -> None:
    source = """
        import torch
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        z = {"deep": [y.sum(), y.mean()]}
        {loss}
    """
    write(tmp_path / "plain.py", source.replace("{loss}", ""))
    done = render(tmp_path, "plain.py", "--json")
    outputs = [node["names"] for node in json.loads(done.stdout)["nodes"] if node["kind"] == "output"]
    assert outputs == [["z.deep[0]"], ["z.deep[1]"]], "those that no other leads to"
    assert done.messages == [
        "graphscope: plain.py had not called backward(): this is the graph of the tensors left in its variables."
    ]
    write(tmp_path / "loss.py", source.replace("{loss}", "loss = y.sin()"))
    nodes = json.loads(render(tmp_path, "loss.py", "--json").stdout)["nodes"]
    assert [node["names"] for node in nodes if node["kind"] == "output"] == [["loss"]]


def test_a_script_without_tensors_is_told(tmp_path: Path) -> None:
    write(tmp_path / "no_torch.py", "print('hello')\n")
    done = render(tmp_path, "no_torch.py")
    assert done == (2, "hello\n", "graphscope: no_torch.py never imported torch, so there is no graph.\n")
    write(tmp_path / "no_tensor.py", "import torch\nmodel = torch.nn.Linear(1, 1)\nloss = 3.0\n")
    done = render(tmp_path, "no_tensor.py")
    assert done.status == 2
    assert "never called backward() or autograd.grad() in this process" in done.stderr
    assert "modules, but no tensor" in done.stderr


def test_autograd_grad_counts_and_roots_can_be_chosen(tmp_path: Path) -> None:
    write(
        tmp_path / "grads.py",
        """
        import torch
        def work():
            x = torch.ones(3, requires_grad=True)
            y = x.sin()
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            bend = slope.sum()
            bend.backward()
        work()
        """,
    )
    second = json.loads(render(tmp_path, "grads.py", "--at", "2", "--json").stdout)
    assert "cos" in [node.get("op") for node in second["nodes"]], "the derivative of sin"
    assert [node["names"] for node in second["nodes"] if node["kind"] == "output"] == [["bend"]]
    chosen = json.loads(render(tmp_path, "grads.py", "--at", "2", "--json", "--root", "y").stdout)
    assert [node["names"] for node in chosen["nodes"] if node["kind"] == "output"] == [["y"]]
    missing = render(tmp_path, "grads.py", "--root", "yy", "-o", "g.json")
    assert (missing.status, missing.messages) == (2, ["graphscope: There is no tensor named 'yy'. Did you mean y?"])
    assert not (tmp_path / "g.json").exists()


def test_names_can_be_restricted(tmp_path: Path) -> None:
    write(
        tmp_path / "two.py",
        """
        import torch
        net = torch.nn.Linear(2, 1)
        alias = {"w": net.weight}
        net(torch.ones(1, 2)).sum().backward()
        """,
    )
    document = json.loads(render(tmp_path, "two.py", "--json", "--names", "alias").stdout)
    assert {name for node in document["nodes"] if node["kind"] == "leaf" for name in node["names"]} == {"alias.w"}
    missing = render(tmp_path, "two.py", "--names", "nett")
    assert (missing.status, missing.messages) == (
        2,
        ["graphscope: There is no variable named 'nett' to take names from. Did you mean net?"],
    )


def test_hostile_files(tmp_path: Path) -> None:
    """Any name is shown as typed; whatever lies in the script's folder, graphscope's own imports are its own."""
    folder = tmp_path / 'odd "name" {|} <b>'
    folder.mkdir()
    for name in ("rich", "graphviz", "typer", "serialize", "pygraphviz"):
        write(folder / f"{name}.py", "raise SystemExit('imported')\n")
    write(folder / "a:b.py", "import torch\nx = torch.ones(2, requires_grad=True)\n(x * x).sum().backward()\n")
    script, picture, data = f"{folder.name}/a:b.py", f"{folder.name}/ü\n.png", f"{folder.name}/<&>.json"
    colours = {"FORCE_COLOR": "1"}
    done = render(tmp_path, script, "-o", picture, "-o", data, environment=colours)
    assert (done.status, done.stdout) == (0, "")
    assert leaf_names(read(tmp_path / data)) == {"x"}
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert len(done.messages) == len(done.stderr.splitlines()) == 2, "a line break in a name breaks no message"
    assert "\x1b[" in render(tmp_path, script, environment=colours).stdout


def test_two_runs_with_different_hash_seeds_write_the_same(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAINING)
    written = []
    for seed in ("1", "2"):
        arguments = [word for file in ("g.json", "g.dot", "g.txt") for word in ("-o", file)]
        assert render(tmp_path, "train.py", *arguments, environment={"PYTHONHASHSEED": seed}).status == 0
        written.append([(tmp_path / file).read_bytes() for file in ("g.json", "g.dot", "g.txt")])
    assert written[0] == written[1]


def test_python_itself_agrees(tmp_path: Path) -> None:
    """The helper runs what it says: otherwise every comparison above proves nothing."""
    write(tmp_path / "one.py", "import sys\nprint('out')\nsys.stderr.write('err')\nsys.exit(5)\n")
    assert python(tmp_path, "one.py") == (5, "out\n", "err")


def test_a_file_of_a_package_is_told_how_to_be_named(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    write(tmp_path / "pack/constants.py", "factor = 3.0")
    write(
        tmp_path / "pack/main.py",
        """
        from .constants import factor
        import torch
        w = torch.ones(3, requires_grad=True)
        loss = (w * factor).sum()
        """,
    )
    alone, drawn = run_both(tmp_path, "pack/main.py")
    assert drawn.status == alone.status == 1
    assert drawn.program_stderr == alone.stderr
    assert drawn.messages[0].endswith("from the folder that holds the package: pack.main:name.")
    assert render(tmp_path, "pack.main:loss").status == 0


def test_a_module_that_its_input_does_not_fit_is_no_fault_of_the_script(tmp_path: Path) -> None:
    write(
        tmp_path / "net.py",
        """
        import torch
        x = torch.ones(5, requires_grad=True)
        for _ in range(20):
            x = x * 2
        net = torch.nn.Linear(100, 2)
        """,
    )
    drawn = render(tmp_path, "net.py:net", "--input", "1,3")
    assert drawn.status == 1
    assert "addmm  no backward node  raised an error" in drawn.stdout
    assert "net.bias  parameter" in drawn.stdout
    assert "mul" not in drawn.stdout, "it is of no interest here"
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in drawn.program_stderr
    called, ended = drawn.messages
    assert "net raised that when called with --input 1,3:float32." in called
    assert "net.py:net ended with an error" in ended
    write(tmp_path / "net.py", "import torch\nx = torch.ones(5)\nnet = torch.nn.Linear(100, 2)\n")
    drawn = render(tmp_path, "net.py:net", "--input", "1,100", "--input", "2")
    assert (drawn.status, drawn.stdout) == (1, "")
    assert "--input 1,100:float32 --input 2:float32" in drawn.messages[0]
    assert "there was nothing to draw yet." in drawn.messages[1]
