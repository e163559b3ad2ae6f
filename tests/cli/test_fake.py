"""``--fake``: functions and modules called on fake tensors, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.programs import Run, python, write

PROGRAM = """
    import torch
    from torch import nn

    SIZE = 10**6
    net = nn.Linear(4, 2)
    number = net.weight.sum().item()  # the file itself runs as always
    x = torch.ones(4, requires_grad=True)

    def build():
        return nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU())

    def loss():
        model = build()
        return {"loss": model(torch.rand(2, SIZE)).sum(), "model": model}

    def only_loss():
        return build()(torch.rand(2, SIZE)).sum()

    def uses():
        result = net(x).sum()
        result.backward()
        return result

    def asks():
        h = (x * 2).exp()
        if h.sum() > 0:
            h = h * 2
        return h

    def counts():
        h = x.exp()
        return h[h > 1].sum()

    def writes():
        h = x.exp()
        return f"{h.sum():.3f}"

    def fails():
        h = x.exp()
        return h + torch.ones(5)

    def plain():
        return 3

    if __name__ == "__main__":
        loss()["loss"].backward()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "big.py", PROGRAM)
    return tmp_path


def run(folder: Path, command: str, target: str, *options: str) -> Run:
    return python(folder, "-m", "graphscope_cli", command, target, "--fake", *options)


def leaves(done: Run) -> dict[str, list[int]]:
    nodes = json.loads(done.stdout)["nodes"]
    return {node["names"][0]: node["tensor"]["shape"] for node in nodes if node["kind"] == "leaf" and node["names"]}


def test_a_function_may_build_the_model(folder: Path) -> None:
    """Its weight alone would take 4 TB."""
    done = run(folder, "render", "big.py:build", "--input", "2,1000000", "--json")
    assert (done.status, done.stderr) == (0, "")
    assert leaves(done) == {
        "build().0.weight": [10**6, 10**6],
        "build().0.bias": [10**6],
        "input": [2, 10**6],
    }
    document = json.loads(done.stdout)
    assert [node["op"] for node in document["nodes"] if node["kind"] == "op"] == ["t", "addmm", "relu"]
    assert "subclass" not in done.stdout
    assert "fake tensors" in document["notices"][0]


def test_a_function_may_return_the_loss(folder: Path) -> None:
    done = run(folder, "render", "big.py:loss", "--json")
    assert (done.status, done.stderr) == (0, "")
    assert leaves(done).keys() >= {"model.0.weight", "model.0.bias"}
    assert [node["names"] for node in json.loads(done.stdout)["nodes"] if node["kind"] == "output"] == [["loss"]]


def test_a_function_that_keeps_its_model_to_itself_is_told_how_to_name_parameters(folder: Path) -> None:
    done = run(folder, "render", "big.py:only_loss", "--json")
    told = 'graphscope: 2 parameters have no name. Return the model, too, to name them: return {"loss": loss, '
    assert (done.status, [line[: len(told)] for line in done.stderr.splitlines()]) == (0, [told])


@pytest.mark.parametrize("target", ["big.py:uses", "big:uses"])
def test_what_the_file_made_is_stood_in_for(folder: Path, target: str) -> None:
    done = run(folder, "render", target, "--json")
    assert (done.status, done.stderr) == (0, "")
    assert leaves(done) == {"net.weight": [2, 4], "net.bias": [2], "x": [4]}


def test_a_module_of_the_file_runs_on_fake_input(folder: Path) -> None:
    done = run(folder, "render", "big.py:net", "--input", "1000000000,4", "--json", "--no-record")
    assert (done.status, done.stderr) == (0, "")
    assert leaves(done) == {"net.weight": [2, 4], "net.bias": [2]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("asks", "big.py:27 (if h.sum() > 0:) asks a tensor for a number, and fake tensors have shapes but no numbers"),
        ("counts", "big.py:33 (return h[h > 1].sum()) makes a tensor whose shape depends on numbers"),
        ("writes", 'big.py:37 (return f"{h.sum():.3f}") writes a tensor\'s number into a text'),
    ],
)
def test_a_line_that_needs_numbers_is_named(folder: Path, name: str, words: str) -> None:
    done = run(folder, "render", f"big.py:{name}", "--json")
    assert done.status == 1
    assert done.program_stderr == "", "no traceback of torch's"
    assert done.messages[0].startswith(f"graphscope: {words}")
    assert "exp" in [node.get("op") for node in json.loads(done.stdout)["nodes"]], "what there was is drawn"


def test_another_error_is_shown_as_ever(folder: Path) -> None:
    done = run(folder, "render", "big.py:fails", "--json")
    assert done.status == 1
    assert done.program_stderr.startswith("Traceback (most recent call last):\n")
    assert "RuntimeError" in done.program_stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("big.py", "Name a function in it that returns the model (with --input) or the loss: big.py:build --fake"),
        ("big.py:x", "--fake has no use here: x is Tensor, already computed. Name the function that computes it"),
        ("big.py:build", "build() is a module. Say what to call it with"),
        ("big.py:plain", "plain(): int was given where a tensor was expected"),
        ("g.json", "--fake has no use here: g.json is a saved graph"),
    ],
)
def test_wrong_use_is_told_in_one_line(folder: Path, target: str, words: str) -> None:
    write(folder / "g.json", "{}")
    done = run(folder, "render", target)
    assert (done.status, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert words in done.stderr


def test_memory_and_explain_of_what_does_not_fit(folder: Path) -> None:
    kept = run(folder, "memory", "big.py:loss", "--json")
    assert (kept.status, kept.stderr) == (0, "")
    assert json.loads(kept.stdout)["bytes"] == 2 * 2 * 10**6 * 4, "what addmm and relu keep"
    explained = run(folder, "explain", "big.py:loss", "--json", "--check")
    assert (explained.status, explained.stderr) == (0, "")
    rows = {row["name"]: row["receives_grad"] for row in json.loads(explained.stdout)["tensors"]}
    assert rows == {"model.0.weight": True, "model.0.bias": True, "loss": False}
    story = run(folder, "explain", "big.py:asks", "--json")
    assert (story.status, json.loads(story.stdout)["error"]["location"]["line"]) == (1, 27)
