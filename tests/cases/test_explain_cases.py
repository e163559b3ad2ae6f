"""Every case explained: who is reached, the line at fault, and no alarm where nothing is wrong. Prints the score."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from graphscope.analyze.explain import explain
from graphscope.analyze.failures import explain_failure
from graphscope.capture.program.choose import Choice, graph_of_value
from graphscope.capture.program.failure import graph_of_failure, read_error
from graphscope.capture.recording.record import Recorded, Recorder
from graphscope.findings import Cause, Explained, Severity
from tests.cases.test_cases import CASES, load

KINDS = {
    "a": "a grad is None / not training",
    "b": "in-place and version counter",
    "c": "backward twice, retained graphs",
    "d": "grad-mode confusion",
    "e": "visualiser failures",
    "f": "custom Functions, higher order, compile, exotic tensors",
}

NOTHING_TO_BLAME = {
    "029": "fixed in torch: the line that used to lose the gradient is right today",
    "066": "fixed in torch: the line that used to lose the mode is right today",
    "073": "fixed in torch: the view that used to lead a walker in circles",
    "084": "the names are Chinese, nothing is wrong",
    "087": "modules that make no node, nothing is wrong",
    "088": "a 0-dim output, nothing is wrong",
    "093": "fixed in torch: the second derivative is there today",
    "096": "a compiled graph is opaque, nothing is wrong",
    "098": "fixed in torch: the compiled mode agrees with the eager one",
    "110": "a checkpoint that works, nothing is wrong",
}
"""Cases whose ``fault_lines`` name the subject, not a fault: no line can be blamed, and none must be."""


class Score(NamedTuple):
    kind: str
    reached: bool | None
    """The set of unreached parameters is torch's; ``None`` where no module is in sight."""
    line: bool | None
    """The line at fault was named; ``None`` where there is none."""
    quiet: bool | None
    """No error or warning; ``None`` where something is wrong."""


SCORES: dict[str, Score] = {}


@pytest.fixture(params=CASES, ids=lambda folder: folder.name)
def case(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    folder: Path = request.param
    return folder, json.loads((folder / "facts.json").read_text(encoding="utf-8"))


@contextmanager
def a_program() -> Iterator[None]:
    """Whatever it warns of, and leaves switched, is its own business."""
    grad_enabled, modules = torch.is_grad_enabled(), set(sys.modules)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_grad_enabled(grad_enabled)
            if "torch._dynamo" in sys.modules and "torch._dynamo" not in modules:
                torch._dynamo.reset()


def explain_build(folder: Path, facts: dict[str, Any]) -> Explained:
    """As ``graphscope explain case.py:build`` does."""
    root = facts.get("graph", {}).get("root")
    with a_program():
        recorder = Recorder()
        with recorder.active():
            built = load(folder / "case.py").build()
        recorded = Recorded(recorder, folder)
        data = graph_of_value(built, "build", choice=Choice(roots=(root,) if root else ()), recorded=recorded)
    return explain(data.check())


def explain_fail(folder: Path) -> Explained:
    """As ``graphscope explain case.py:fail`` does."""
    with a_program():
        recorder = Recorder()
        module = load(folder / "case.py")
        try:
            with recorder.active():
                module.fail()
        except Exception as error:  # noqa: BLE001  whatever the case raises
            raised = read_error(error, folder)
            data = graph_of_failure(error, Recorded(recorder, folder))
            return explain_failure(data.check(), raised)
    pytest.fail("the case did not raise")


def lines_of(explained: Explained) -> set[int]:
    """Lines that are blamed."""
    places = [row.location for row in explained.tensors if not row.receives_grad]
    places += [because.location for row in explained.tensors for because in row.also]
    places += [hazard.location for hazard in explained.hazards]
    return {place.line for place in places if place is not None}


def test_case_is_explained(case: tuple[Path, dict[str, Any]]) -> None:
    folder, facts = case
    number, wrong = folder.name[:3], facts["fault_lines"]
    explained = explain_build(folder, facts)
    expected = facts.get("graph", {}).get("parameters_without_path")
    unreached = {
        name
        for row in explained.tensors
        if row.kind == "parameter" and not row.receives_grad
        for name in [row.name.removeprefix("model.")]
    }
    reached = None if expected is None else unreached == set(expected)
    raises = facts.get("fail_raises")
    line: bool | None = None
    if number not in NOTHING_TO_BLAME and wrong:
        if raises:
            error = explain_fail(folder).error
            assert error is not None
            assert error.type == raises[0]
            line = error.location is not None and error.location.line in wrong
        else:
            line = bool(lines_of(explained) & set(wrong))
    harmless = facts["status"] == "control" or number in NOTHING_TO_BLAME
    quiet = all(hazard.severity is Severity.NOTE for hazard in explained.hazards) if harmless else None
    SCORES[folder.name] = Score(facts["kind"], reached, line, quiet)
    assert reached is not False, unreached.symmetric_difference(expected)
    assert line is not False, (wrong, sorted(lines_of(explained)))
    assert quiet is not False, explained.hazards


def test_frozen_and_trainable_are_told_apart(case: tuple[Path, dict[str, Any]]) -> None:
    folder, facts = case
    if "frozen_parameters" not in facts.get("graph", {}):
        return
    explained = explain_build(folder, facts)
    frozen = {row.name.removeprefix("model.") for row in explained.tensors if row.cause is Cause.FROZEN}
    assert frozen == set(facts["graph"]["frozen_parameters"])
    assert all(row.message and row.cause for row in explained.tensors if not row.receives_grad)


def test_the_score_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    if set(SCORES) != {folder.name for folder in CASES}:
        pytest.skip("the table needs the whole file in one process")
    rows: list[tuple[str, ...]] = [("kind", "cases", "reached set", "line named", "no false alarm")]
    for kind, words in KINDS.items():
        scores = [score for score in SCORES.values() if score.kind == kind]
        rows.append((words, str(len(scores)), *(_share(scores, field) for field in ("reached", "line", "quiet"))))
    rows.append(("all", str(len(SCORES)), *(_share(list(SCORES.values()), field) for field in Score._fields[1:])))
    with capsys.disabled():
        print()  # noqa: T201  the table is what this test is for
        for row in rows:
            print(f"{row[0]:<56}{row[1]:>6}{row[2]:>13}{row[3]:>12}{row[4]:>16}")  # noqa: T201
        for number, reason in NOTHING_TO_BLAME.items():
            print(f"  no line to name in {number}: {reason}")  # noqa: T201
    assert all(score.line is not False and score.reached is not False for score in SCORES.values())


def _share(scores: list[Score], field: str) -> str:
    told = [value for score in scores if (value := getattr(score, field)) is not None]
    return f"{sum(told)}/{len(told)}" if told else "–"
