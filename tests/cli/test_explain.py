"""``graphscope explain`` and ``graphscope memory`` on programs, as a user runs them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.programs import Run, python

SCHEMAS = {
    name: jsonschema.Draft202012Validator(
        json.loads(files("graphscope").joinpath(f"schema/{name}-1.json").read_text(encoding="utf-8"))
    )
    for name in ("explain", "memory")
}

TRAIN = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--bug", default="")
options = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = self.encoder(x).tanh()
        if options.bug == "detach":
            h = h.detach()
        return self.head(h)


def main():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(options.epochs):
        loss = net(torch.rand(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if options.bug == "twice" and epoch == 1:
            loss.backward()
        optimizer.step()
        print("epoch", epoch, float(loss.detach()))


main()
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    return tmp_path


def graphscope(folder: Path, *arguments: str) -> Run:
    return python(folder, "-m", "graphscope_cli", *arguments)


def document(run: Run, kind: str = "explain") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.stdout[run.stdout.index("{\n") :])
    SCHEMAS[kind].validate(found)
    return found


def test_a_training_that_is_right(train: Path) -> None:
    alone = python(train, "train.py", "--epochs", "2")
    run = graphscope(train, "explain", "train.py", "--check", "--", "--epochs", "2")
    assert (run.status, run.stderr) == (0, "")
    assert "All 4 trainable parameters get a gradient from loss." in run.stdout
    assert [line for line in run.stdout.splitlines() if line.startswith("epoch")] == alone.stdout.splitlines()
    assert run.stdout.index("get a gradient") < run.stdout.index("epoch 1"), "the verdict comes at the first backward"


def test_check_fails_with_3_and_says_what(train: Path) -> None:
    run = graphscope(train, "explain", "train.py", "--check", "--", "--epochs", "1", "--bug", "detach")
    assert run.status == 3
    assert "train.py:20  h = h.detach()" in run.stdout
    assert run.messages == [
        "graphscope: --check: 2 trainable parameters without gradient: net.encoder.weight, net.encoder.bias"
    ]


@pytest.mark.parametrize(("patterns", "status"), [(["net.encoder.weight,net.encoder.*"], 0), (["*.weight"], 3)])
def test_what_is_allowed_is_let_go(train: Path, patterns: list[str], status: int) -> None:
    allow = [part for pattern in patterns for part in ("--allow", pattern)]
    run = graphscope(train, "explain", "train.py", "--check", *allow, "--", "--epochs", "1", "--bug", "detach")
    assert run.status == status, run.stdout + run.stderr


def test_the_story_follows_the_untouched_traceback(train: Path) -> None:
    arguments = ["--bug", "twice"]
    alone = python(train, "train.py", *arguments)
    run = graphscope(train, "explain", "train.py", "--", *arguments)
    assert run.status == 1
    assert run.program_stderr == alone.stderr
    assert "RuntimeError: Trying to backward through the graph a second time" in run.stdout
    assert "The backward at train.py:31 freed the graph of loss, and train.py:33 runs backward through it" in run.stdout


def test_the_error_is_in_the_json(train: Path) -> None:
    run = graphscope(train, "explain", "train.py", "--json", "--", "--bug", "twice")
    error = document(run)["error"]
    assert run.status == 1
    assert (error["type"], error["location"]["line"], error["also"][0]["line"]) == ("RuntimeError", 31, 33)


def test_a_file_gets_the_report(train: Path) -> None:
    command = ["explain", "train.py", "-o", "why.json", "-o", "why.txt", "--", "--epochs", "1", "--bug", "detach"]
    run = graphscope(train, *command)
    assert run.status == 0
    assert run.messages == ["graphscope: wrote why.json", "graphscope: wrote why.txt"]
    SCHEMAS["explain"].validate(json.loads((train / "why.json").read_text(encoding="utf-8")))
    assert "cut by detach()" in (train / "why.txt").read_text(encoding="utf-8")
    assert "gradient" not in run.stdout


def test_a_report_is_no_picture(train: Path) -> None:
    run = graphscope(train, "explain", "train.py", "-o", "why.svg")
    assert run.status == 2
    assert "json or txt" in run.stderr


LEFT_OFF = """
import torch
from torch import nn

net, history = nn.Linear(3, 1), []


def evaluate():
    torch.set_grad_enabled(False)


for _ in range(3):
    loss = net(torch.rand(2, 3)).pow(2).mean()
    loss.backward()
    history.append(loss)
evaluate()
"""


def test_what_shows_only_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LEFT_OFF, encoding="utf-8")
    told = document(graphscope(tmp_path, "explain", "script.py", "--json"))
    hazards = {hazard["kind"]: hazard["location"]["line"] for hazard in told["hazards"]}
    assert hazards == {"graph_retained": 15, "grad_mode_left_off": 9}


MODE_LEFT = """
import torch
from torch import nn


def {name}():
    {body}


def build():
    model = nn.Linear(2, 2)
    {call}
    return {{"loss": model(torch.rand(1, 2)).sum(), "model": model}}
"""


@pytest.mark.parametrize(
    ("body", "call", "line"),
    [
        ("torch.set_grad_enabled(False)", "prepare()", 7),
        ("torch.no_grad().__enter__()", "prepare()", 7),
        ("with torch.no_grad(): yield 1", "held = prepare(); next(held)", 7),
    ],
)
def test_a_mode_left_off_elsewhere(tmp_path: Path, body: str, call: str, line: int) -> None:
    (tmp_path / "case.py").write_text(MODE_LEFT.format(name="prepare", body=body, call=call), encoding="utf-8")
    told = document(graphscope(tmp_path, "explain", "case.py:build", "--json"))
    rows = [row for row in told["tensors"] if row["kind"] == "parameter"]
    assert {row["cause"] for row in rows} == {"no_grad"}
    assert {row["location"]["line"] for row in rows} == {line}


FROZEN = """
import torch
from torch import nn


def build():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "none" in name
    return {"loss": model["b"](model["a"](torch.rand(1, 2))).sum(), "model": model}


def fail():
    build()["loss"].backward()
"""


def test_who_froze_everything(tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(FROZEN, encoding="utf-8")
    built = document(graphscope(tmp_path, "explain", "case.py:build", "--json"))
    failed = graphscope(tmp_path, "explain", "case.py:fail", "--json")
    assert {row["location"]["line"] for row in built["tensors"] if row["kind"] == "parameter"} == {9}
    assert (failed.status, document(failed)["error"]["location"]["line"]) == (1, 9)


def test_a_saved_graph_is_explained(train: Path) -> None:
    assert graphscope(train, "render", "train.py", "-o", "g.json", "--", "--epochs", "1", "--bug", "detach").status == 0
    run = graphscope(train, "explain", "g.json", "--check")
    assert run.status == 3
    assert "cut by detach()" in run.stdout


def test_a_module_is_called_with_inputs(train: Path) -> None:
    (train / "nets.py").write_text(
        "from torch import nn\nnet = nn.Sequential(nn.Linear(3, 2), nn.Tanh())\n", encoding="utf-8"
    )
    run = graphscope(train, "explain", "nets.py:net", "--input", "4,3")
    assert run.status == 0, run.stderr
    assert "All 2 trainable parameters get a gradient from output." in run.stdout


def test_memory_of_a_training(train: Path) -> None:
    run = graphscope(train, "memory", "train.py", "--json", "--", "--epochs", "1")
    told = document(run, "memory")
    assert run.status == 0
    assert told["bytes"] == sum(share["bytes"] for share in told["by_op"]) > 0
    assert {share["op"] for share in told["by_op"]} >= {"addmm", "tanh", "pow"}
    assert {place["location"]["line"] for place in told["by_line"]} == {18, 21, 29}


TRANSFORMED = """
import torch
from torch import nn
from torch.func import functional_call, grad

net = nn.Linear(3, 1)
frozen = {name: one.detach() for name, one in net.named_parameters()}
slope = grad(lambda p: functional_call(net, p, (torch.ones(3),)).sum())(frozen)
loss = net(torch.rand(2, 3)).sum()
loss.backward()
"""


def test_a_gradient_of_func_is_not_the_backward(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TRANSFORMED, encoding="utf-8")
    run = graphscope(tmp_path, "explain", "script.py", "--check")
    assert (run.status, run.stdout) == (0, "● All 2 trainable parameters get a gradient from loss.\n")


def test_a_script_that_only_infers_has_no_loss(tmp_path: Path) -> None:
    text = "import torch\nnet = torch.nn.Linear(2, 1)\nwith torch.no_grad():\n    out = net(torch.ones(2))\n"
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    assert document(graphscope(tmp_path, "explain", "script.py", "--json"))["hazards"] == []


def test_check_counts_leaves_where_there_is_no_module(tmp_path: Path) -> None:
    text = "import torch\na, b = (torch.ones(2, requires_grad=True) for _ in range(2))\n"
    text += "loss = (a.detach() * b).sum()\nloss.backward()\n"
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    run = graphscope(tmp_path, "explain", "script.py", "--check")
    assert (run.status, run.messages) == (3, ["graphscope: --check: 1 leaf that requires grad without gradient: a"])


def test_before_there_is_a_result_no_verdict_is_given(tmp_path: Path) -> None:
    text = "import torch\nnet = torch.nn.Linear(2, 1)\nnet(torch.ones(3)).sum().backward()\n"
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    run = graphscope(tmp_path, "explain", "script.py")
    assert run.status == 1
    assert "gradient" not in run.stdout
    assert run.stdout.endswith("script.py:3  net(torch.ones(3)).sum().backward()\n")


TWO_PLAYERS = """
import torch

generator, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
unused = torch.nn.Linear(2, 2)
for _ in range(2):
    made = generator(torch.randn(4, 2))
    loss = critic(made.detach()).mean()
    loss.backward()
    loss = -critic(made).mean()
    loss.backward()
"""


def test_of_all_backwards_one_has_to_reach_a_parameter(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO_PLAYERS)
    first = graphscope(tmp_path, "explain", "two.py", "--check", "--allow", "unused.*")
    assert first.status == 3
    assert "2 trainable parameters without gradient: generator.weight, generator.bias" in first.stderr
    assert "that was backward 1 of 4. --at all --check" in first.stderr
    both = graphscope(tmp_path, "explain", "two.py", "--check", "--at", "all", "--allow", "unused.*")
    assert (both.status, both.stderr) == (0, "")
    none = graphscope(tmp_path, "explain", "two.py", "--check", "--at", "all")
    assert none.status == 3
    assert none.stderr == "graphscope: --check: 2 trainable parameters without gradient: unused.weight, unused.bias\n"
