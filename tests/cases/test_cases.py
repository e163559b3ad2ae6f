"""Every case, built in this process, against what torch itself told of it when its ``facts.json`` was written."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphscope.capture.program.choose import Choice, graph_of_value
from graphscope.model import GraphData, State, TensorInfo

CASES = sorted(folder for folder in Path(__file__).parent.iterdir() if (folder / "facts.json").exists())


@pytest.fixture(params=CASES, ids=lambda folder: folder.name)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[GraphData, dict[str, Any]]]:
    """The graph of a case and its facts; what its program leaves switched is put back."""
    folder: Path = request.param
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    root = facts.get("graph", {}).get("root")
    torch.manual_seed(0)
    grad_enabled, modules = torch.is_grad_enabled(), set(sys.modules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            built = load(folder / "case.py").build()
            assert torch.is_grad_enabled() is facts["grad_mode_after_build"]
            yield graph_of_value(built, "build", choice=Choice(roots=(root,) if root else ())), facts
        finally:
            torch.set_grad_enabled(grad_enabled)
            if "torch._dynamo" in sys.modules and "torch._dynamo" not in modules:
                torch._dynamo.reset()


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"case_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named_tensors(data: GraphData) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    for node in data.nodes:
        for output in node.outputs:
            for name in output.names:
                found.setdefault(name, output)
    return found


def test_case(case: tuple[GraphData, dict[str, Any]]) -> None:
    data, facts = case
    data.check()
    check_tensors(named_tensors(data), facts["tensors"])
    if "graph" in facts:
        check_nodes(data, facts["graph"])
        check_storages(data, facts["graph"])
        check_parameters(data, facts["graph"])


def check_tensors(known: dict[str, TensorInfo], facts: dict[str, Any]) -> None:
    assert set(facts) <= set(known)
    for name, fact in facts.items():
        told = known[name]
        expected = fact["requires_grad"], fact["is_leaf"], tuple(fact["shape"]), fact["dtype"]
        assert (told.requires_grad, told.is_leaf, told.shape, told.dtype) == expected, name


def check_nodes(data: GraphData, facts: dict[str, Any]) -> None:
    reached = [node for node in data.nodes if node.reached]
    types = Counter(name for node in reached for name in (node.backward, node.accumulate) if name)
    assert types == facts["node_types"]
    freed = [node for node in reached if any(saved.state is State.FREED for saved in node.saved)]
    assert len(freed) == facts["freed_nodes"]


def check_storages(data: GraphData, facts: dict[str, Any]) -> None:
    kept = {saved.storage for node in data.nodes if node.reached for saved in node.saved}
    storages = [storage for storage in data.storages if storage.id in kept]
    assert sum(storage.bytes for storage in storages) == facts["saved_bytes"]
    if "saved_bytes_without_parameters" in facts:
        others = sum(storage.bytes for storage in storages if not storage.parameter)
        assert others == facts["saved_bytes_without_parameters"]


def check_parameters(data: GraphData, facts: dict[str, Any]) -> None:
    reached = {name for node in data.nodes if node.reached for name in node.names}
    unreached = {name for node in data.nodes if not node.reached for name in node.names}
    assert {f"model.{path}" for path in facts.get("parameters_with_path", ())} <= reached
    assert {f"model.{path}" for path in facts.get("parameters_without_path", ())} <= unreached
    known = named_tensors(data)
    assert not any(known[f"model.{path}"].requires_grad for path in facts.get("frozen_parameters", ()))


def test_there_are_cases() -> None:
    assert len(CASES) == 58
