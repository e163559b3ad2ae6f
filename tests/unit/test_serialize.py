from __future__ import annotations

import copy
import dataclasses
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from graphscope.errors import FormatError
from graphscope.model import (
    Call,
    Clue,
    Edge,
    Evidence,
    GraphData,
    Kind,
    Location,
    Module,
    Node,
    Reason,
    Region,
    Role,
    SavedTensor,
    State,
    Storage,
    TensorInfo,
    View,
)
from graphscope.serialize import dumps, from_json, loads, to_json
from tests.strategies import graphs

SCHEMA = json.loads(files("graphscope").joinpath("schema/graph-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

EXAMPLE: dict[str, Any] = json.loads("""
{"format": "graphscope.graph", "version": 1, "torch": "2.13.0", "recorded": true, "roots": ["n7"],
 "nodes": [{"id": "n0", "kind": "leaf", "role": "parameter", "names": ["model.fc.weight"], "requires_grad": true,
            "is_leaf": true, "reached": true, "tensor": {"shape": [2, 5], "dtype": "float32", "device": "cpu"},
            "accumulate": "AccumulateGrad", "grad": null},
           {"id": "n3", "kind": "op", "op": "addmm", "backward": "AddmmBackward0", "reached": true, "mode": "grad",
            "outputs": [{"names": ["h"], "shape": [4, 2], "dtype": "float32", "device": "cpu", "requires_grad": true,
                         "is_leaf": false}],
            "module": "model.fc", "location": {"file": "train.py", "line": 12, "code": "h = fc(x)"}, "writes": [],
            "saved": [{"name": "mat1", "storage": "s0", "shape": [4, 5], "dtype": "float32", "bytes": 80,
                       "state": "live", "modified": false}]},
           {"id": "n7", "kind": "output", "names": ["loss"]}],
 "edges": [{"from": "n0", "output": 0, "to": "n3", "slot": 2, "argument": "mat2", "gradient": true, "reason": null},
           {"from": "n3", "output": 0, "to": "n7", "slot": 0, "argument": null, "gradient": true, "reason": null}],
 "storages": [{"id": "s0", "bytes": 80, "parameter": false}], "modules": [], "regions": [], "view": {"hidden": 0}}
""")
"""The document of docs/architecture.md; its format is promised."""


FULL_TENSOR = TensorInfo(
    (2, "s0"), "float32", "cuda:1", ("w", "tied"), True, True, False, True, 3, "jagged", "MyTensor"
)
PLACE = Location("train.py", 12, "h = fc(x)", "forward")
SAVED = SavedTensor("mat1", State.PACKED, (4, 5), "float32", 80, "s0", True)
FULL = GraphData(
    nodes=(
        Node(
            "n0",
            Kind.LEAF,
            (FULL_TENSOR,),
            reached=True,
            role=Role.PARAMETER,
            accumulate="AccumulateGrad",
            grad=FULL_TENSOR,
            retains_grad=True,
            hooks=2,
            note="a leaf",
        ),
        Node(
            "n1",
            Kind.OP,
            (FULL_TENSOR, TensorInfo()),
            reached=True,
            op="topk",
            backward="TopkBackward0",
            saved=(SAVED,),
            without_gradient=(1,),
            stopped=True,
            mode="no_grad",
            module="model.fc",
            location=PLACE,
            region="r1",
            writes=("n0",),
            note="an op",
        ),
        Node("n2", Kind.OUTPUT, (FULL_TENSOR,), reached=True),
        Node("n3", Kind.OUTPUT, (TensorInfo(),)),
    ),
    edges=(
        Edge("n0", 0, "n1", 0, True, None, "self"),
        Edge("n1", 0, "n2", 0, True),
        Edge("n1", 1, "n3", 0, False, Reason.INTEGER_DTYPE),
    ),
    roots=("n2",),
    torch="2.13.0",
    recorded=True,
    storages=(Storage("s0", 4096, True),),
    modules=(Module("model.fc", "Linear", True, 10, 5),),
    regions=(Region("r0", "enable_grad", "decorator"), Region("r1", "no_grad", "with", PLACE, "r0", True)),
    notices=("the walk stopped early",),
    view=View(3, ("two layers are folded",)),
    calls=(Call("model"), Call("model.fc", 0, ("n1",))),
    evidence=(Evidence(Clue.OVERWRITE, "s0", ("n1", "n1"), PLACE, (PLACE,), ("silent",), (1, 2)),),
)
"""Every field of every record says something somewhere."""


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, but every field must be described in it."""
    closed = copy.deepcopy(schema)
    definitions = closed["$defs"]
    tensors = [definitions[kind]["properties"]["tensor"] for kind in ("leaf", "output")]
    records = ["node", "edge", "storage", "module", "region", "location", "saved", "result", "gradient", "evidence"]
    for place in [closed, closed["properties"]["view"], *(definitions[name] for name in records), *tensors]:
        place["unevaluatedProperties"] = False
    return closed


STRICT = jsonschema.Draft202012Validator(strict(SCHEMA))


def places(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of all values in a document, the document itself left out."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(document: Any, path: tuple[str | int, ...], value: object) -> Any:
    """A copy of the document with the value at ``path`` replaced, or taken away if it is ``...``."""
    copied = copy.deepcopy(document)
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copied


def refusal(document: object) -> str:
    """What ``from_json`` says against the document; empty if it takes it."""
    try:
        from_json(document)
    except FormatError as error:
        return str(error)
    return ""


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_documented_example_is_valid_and_read() -> None:
    VALIDATOR.validate(EXAMPLE)
    VALIDATOR.validate(EXAMPLE | {"edges": EXAMPLE["edges"][:1]})
    data = from_json(EXAMPLE)
    assert [node.kind for node in data.nodes] == [Kind.LEAF, Kind.OP, Kind.OUTPUT]
    assert data.by_id["n0"].outputs == (TensorInfo((2, 5), "float32", "cpu", ("model.fc.weight",), True, True),)
    assert data.by_id["n3"].saved == (SavedTensor("mat1", State.LIVE, (4, 5), "float32", 80, "s0", False),)
    assert data.by_id["n3"].location == Location("train.py", 12, "h = fc(x)")
    assert data.by_id["n7"].reached
    assert data.edges[0] == Edge("n0", 0, "n3", 2, True, None, "mat2")
    assert data.storages == (Storage("s0", 80),)


def test_the_documented_example_is_written_again() -> None:
    written = to_json(from_json(EXAMPLE))
    expected = copy.deepcopy(EXAMPLE)
    expected["nodes"][2] |= {
        "reached": True,
        "requires_grad": None,
        "is_leaf": None,
        "tensor": {"shape": None, "dtype": None, "device": None},
    }
    assert written == expected
    assert [list(node) for node in written["nodes"][:2]] == [list(node) for node in EXAMPLE["nodes"][:2]]


@given(graphs())
def test_nothing_is_lost(data: GraphData) -> None:
    document = to_json(data)
    STRICT.validate(document)
    assert from_json(document) == data
    assert from_json(json.loads(json.dumps(document))) == data


@given(graphs())
def test_the_text_holds_the_same(data: GraphData) -> None:
    for text in (dumps(data), dumps(data, indent=2)):
        assert loads(text) == data
        assert loads(text.encode("utf-8")) == data
        assert json.loads(text) == to_json(data)


ONLY_IN_A_VIEW = {"groups", "frames", "bundles", "missing", "whole"}
"""What JSON leaves out, because it is always the whole graph."""


def test_the_full_graph_is_full() -> None:
    """A field added to a record must be given in FULL, and so be written and read."""
    records: list[Any] = [*FULL.nodes, *FULL.edges, *FULL.storages, *FULL.modules, *FULL.regions, FULL.view]
    records += [FULL_TENSOR, SAVED, PLACE]
    for record_type in {type(record) for record in records}:
        alike = [record for record in records if type(record) is record_type]
        for field, default in record_type._field_defaults.items():
            if record_type is View and field in ONLY_IN_A_VIEW:
                continue
            assert any(getattr(record, field) != default for record in alike), f"{record_type.__name__}.{field}"
    for field in dataclasses.fields(GraphData):
        assert field.default is dataclasses.MISSING or getattr(FULL, field.name) != field.default, field.name


def test_the_full_graph_comes_back() -> None:
    STRICT.validate(to_json(FULL))
    assert from_json(to_json(FULL)) == FULL
    assert loads(dumps(FULL)) == FULL


def test_values_are_plain() -> None:
    plain = {str, int, bool, type(None), list, dict}
    document = to_json(FULL)
    for path in places(document):
        value = document
        for key in path:
            value = value[key]  # type: ignore[index]
        assert type(value) in plain, path


@pytest.mark.parametrize("value", [..., None, True, 0, -1, 1.5, "x", [], {}, [None]], ids=repr)
def test_reader_and_schema_agree(value: object) -> None:
    """Whatever stands at any place of a document: it is read just where the schema allows it."""
    document = to_json(FULL)
    for path in places(document):
        mutant = changed(document, path, value)
        said = refusal(mutant)
        assert VALIDATOR.is_valid(mutant) == (said == "" or "well-formed but no graph" in said), (path, said)


def test_an_older_document_gets_defaults() -> None:
    """Without any of the optional fields, the graph is the same but for them."""
    document = to_json(FULL)
    fields = [path for path in places(document) if isinstance(path[-1], str) and path != ("nodes", 3, "reached")]
    optional = [path for path in fields if VALIDATOR.is_valid(changed(document, path, ...))]
    expected = {"notices", "hooks", "note", "stopped", "is_view", "function", "parent", "left_on", "notes", "reached"}
    assert {path[-1] for path in optional} >= expected
    for path in reversed(optional):
        document = changed(document, path, ...)
    data = from_json(document)
    assert data.notices == ()
    assert data.nodes[0] == Node(
        "n0",
        Kind.LEAF,
        (FULL_TENSOR._replace(is_inference=None, is_view=None, version=None, layout=None, subclass=None),),
        reached=True,
        role=Role.PARAMETER,
        accumulate="AccumulateGrad",
        grad=TensorInfo((2, "s0"), "float32", "cuda:1"),
    )


def test_fields_of_a_newer_document_are_passed_over() -> None:
    document = to_json(FULL) | {"colour": "red"}
    document["nodes"][1]["novelty"] = {"a": 1}
    VALIDATOR.validate(document)
    assert from_json(document) == FULL


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"format": "graphscope.explain"},
            ["'graphscope.explain'", "'graphscope.graph'", "render TARGET -o graph.json"],
        ),
        ({"format": None}, ["format is None"]),
        ({"version": 2}, ["version 2", "up to 1", "pip install -U torch-graphscope"]),
        ({"version": "1"}, ["version is '1'", "expected 1"]),
        ({"version": True}, ["version is True"]),
        ({"roots": "n2"}, ["roots: expected a list, found 'n2'"]),
        ({"roots": ["n9"]}, ["no graph", "root n9 is no output node"]),
        ({"nodes": [{"kind": "leaf"}]}, ["nodes[0].id: expected a value, found only kind"]),
        ({"nodes": [{"id": "n0", "kind": "loop"}]}, ["nodes[0]: expected a node with a kind of leaf, op, output"]),
        ({"nodes": [7]}, ["nodes[0]: expected a node", "found 7"]),
        ({"edges": []}, ["no graph", "output n2 has 0 sources"]),
        ({"torch": "x" * 500, "view": [1] * 500}, ["view: expected an object, found [1, 1", "…"]),
    ],
)
def test_a_wrong_document_is_told_apart(change: dict[str, object], said: list[str]) -> None:
    message = refusal(to_json(FULL) | change)
    assert [part for part in said if part not in message] == []
    assert len(message) < 300


def test_a_wrong_value_is_found_deep_inside() -> None:
    document = changed(to_json(FULL), ("nodes", 1, "outputs", 0, "shape", 1), 1.5)
    assert "nodes[1].outputs[0].shape[1]: expected an integer or the text of a symbolic size, found 1.5" in refusal(
        document
    )


@pytest.mark.parametrize("document", [None, 3, "graph", [], [1], True])
def test_something_else_than_an_object(document: object) -> None:
    assert f"the JSON holds a {type(document).__name__}" in refusal(document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "stops in the middle (line 1, column 1)"),
        ("   \n", "stops in the middle"),
        ("import torch\n", "this is no JSON (Expecting value, line 1, column 1)"),
        (b"\x89PNG\r\n\x1a\n\x00", "no text"),
        ("[" * 200_000, "cannot be read"),
        ("[NaN]", "NaN is not a JSON value"),
        ("[-Infinity]", "-Infinity is not a JSON value"),
        ("[" + "9" * 5000 + "]", "cannot be read"),
        ('{"a": 1} trailing', "this is no JSON (Extra data"),
    ],
    ids=["empty", "blank", "script", "image", "nested", "nan", "infinity", "number", "trailing"],
)
def test_a_hostile_file_is_refused_in_words(text: str | bytes, said: str) -> None:
    with pytest.raises(FormatError) as caught:
        loads(text)
    assert said in str(caught.value)


def test_a_file_cut_anywhere_is_refused() -> None:
    text = dumps(FULL).rstrip()
    for end in range(len(text)):
        with pytest.raises(FormatError, match="stops in the middle"):
            loads(text[:end])


def test_a_byte_order_mark_is_read() -> None:
    assert loads(b"\xef\xbb\xbf" + dumps(FULL).encode()) == FULL


def test_lone_surrogates_survive() -> None:
    place = Location("caf\udce9/权重.py", 1)
    data = dataclasses.replace(FULL, nodes=tuple(node._replace(location=place) for node in FULL.nodes))
    text = dumps(data)
    assert "caf\\udce9/权重.py" in text
    assert loads(text.encode("utf-8")) == data


def test_one_record_stands_on_a_line() -> None:
    lines = dumps(FULL).splitlines()
    assert sum(line.lstrip().startswith(('{"id": "n', '{"from": ')) for line in lines) == len(FULL.nodes) + len(
        FULL.edges
    )
    assert dumps(FULL).endswith("}\n")


def test_the_text_is_the_same_in_another_process() -> None:
    program = (
        "import sys; from graphscope.serialize import loads, dumps; sys.stdout.write(dumps(loads(sys.stdin.read())))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-X", "utf8", "-c", program],
            input=dumps(FULL),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            encoding="utf-8",
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {dumps(FULL)}


def test_a_folded_view_is_refused() -> None:
    group = FULL.nodes[1]._replace(kind=Kind.GROUP)
    with pytest.raises(FormatError, match="JSON is the whole graph"):
        to_json(dataclasses.replace(FULL, nodes=(FULL.nodes[0], group, *FULL.nodes[2:])))


def test_the_garbage_collector_is_left_as_it_was() -> None:
    gc.disable()
    try:
        loads(dumps(FULL))
        assert not gc.isenabled()
    finally:
        gc.enable()
    loads(dumps(FULL))
    assert gc.isenabled()
    with pytest.raises(FormatError):
        loads("[")
    assert gc.isenabled()


def test_a_graph_of_40_000_nodes_takes_seconds_at_most() -> None:
    """About 1 s to write and to read on an idle machine; the bound leaves room for a busy one."""
    saved = (SAVED, SAVED._replace(name="mat2"))
    node = FULL.nodes[1]._replace(saved=saved, region=None, writes=())
    ops = [node._replace(id=f"n{index}") for index in range(40_000)]
    edges = [Edge(f"n{index - 1}", 0, f"n{index}", slot, True) for index in range(1, len(ops)) for slot in (0, 1)]
    mark = FULL.nodes[2]._replace(id="n40000")
    edges.append(Edge("n39999", 0, "n40000", 0, True))
    data = GraphData(nodes=(*ops, mark), edges=tuple(edges), roots=("n40000",), torch="2.13.0", storages=FULL.storages)
    started = time.perf_counter()
    text = dumps(data)
    written = time.perf_counter()
    assert loads(text) == data
    assert written - started < 5
    assert time.perf_counter() - written < 6
