"""GraphData to JSON and back.

The document is described by ``graphscope/schema/graph-1.json``. Two rules keep it small and stable:

- The fields that a reader counts on (``required`` in the schema) always stand, null where unknown.
- Every other field stands only where it says something: where it differs from the ``default`` that the schema
  names. Whoever meets no such field takes the default, so a document written before the field existed is
  read in the same way, and a reader that does not know a field passes over it.

A change that old readers would misread raises ``VERSION``; a new optional field does not.

Each kind of record has one codec, which both writes and reads it; they stand at the end, in the order of the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NoReturn

from graphscope.codec import COUNT, FLAG, TEXT, Codec, UnexpectedError, choice, many, maybe, plain, record, shown
from graphscope.errors import FormatError
from graphscope.garbage import collection_paused
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

FORMAT = "graphscope.graph"
VERSION = 1

_SURROGATE = re.compile("[\ud800-\udfff]")
_WANTED = "Expected the file of a saved graph, as written by: graphscope render TARGET -o graph.json"


# ------------------------------------------------------------------------------------- what others call


@collection_paused()
def to_json(data: GraphData) -> dict[str, Any]:
    """A graph as a JSON document of plain dicts, lists, strings, ints, bools and None.

    Raises:
        FormatError: if the graph is a folded view; JSON is always the whole graph.
    """
    if not data.view.is_whole:
        raise FormatError("This is a folded view, and JSON is the whole graph: write the graph, not its view.")
    document: dict[str, Any] = _GRAPH.write(data)
    return document


@collection_paused()
def from_json(document: object) -> GraphData:
    """Read a graph from its JSON document: the opposite of ``to_json``, and nothing is lost.

    Fields that an older version did not write get their defaults; unknown fields are passed over.

    Raises:
        FormatError: if it is the document of something else or of a newer version, if a field is missing or has a
            value of the wrong kind, or if nodes and edges do not fit together.
    """
    _refuse_other_formats(document)
    try:
        data = _GRAPH.read(document)
    except UnexpectedError as error:
        message = f"{error}. The document does not follow graphscope/schema/graph-1.json; make it anew."
        raise FormatError(message) from error
    faults = data.faults()
    if faults:
        message = f"the document is well-formed but no graph: {'; '.join(faults[:3])}. Was it edited? Make it anew."
        raise FormatError(message)
    return data


@collection_paused()
def dumps(data: GraphData, *, indent: int | None = None) -> str:
    r"""A graph as JSON text: the same text for the same graph, one record on a line unless ``indent`` is given.

    Characters stand as themselves, not as ``\u`` escapes. The exception are lone surrogates, which Python puts into
    file names that are not UTF-8 and which UTF-8 cannot hold; a high one right before a low
    one is read back as the one character that the two spell.

    Raises:
        FormatError: if the graph is a folded view.
    """
    document = to_json(data)
    if indent is None:
        text = "".join(_lines(document))
    else:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


@collection_paused()
def loads(text: str | bytes) -> GraphData:
    """Read a graph from JSON text.

    Raises:
        FormatError: if the text is no complete JSON, or for the reasons of ``from_json``.
    """
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        if _is_cut_off(error):
            message = f"the JSON stops in the middle ({place}): it was cut off or never written to its end. {_WANTED}"
        else:
            message = f"this is no JSON ({error.msg}, {place}). {_WANTED}"
        raise FormatError(message) from error
    except UnicodeDecodeError as error:
        message = f"this is no text (byte {error.start} is not {error.encoding}). {_WANTED}"
        raise FormatError(message) from error
    except (RecursionError, ValueError) as error:  # absurd nesting, NaN, integers of thousands of digits
        message = f"this JSON cannot be read ({error}). {_WANTED}"
        raise FormatError(message) from error
    return from_json(document)


def _is_cut_off(error: json.JSONDecodeError) -> bool:
    if error.msg.startswith(("Extra data", "Unterminated")):
        return error.msg.startswith("Unterminated")
    text = error.doc.strip()
    return error.pos >= len(error.doc.rstrip()) or (text.startswith("{") and not text.endswith("}"))


def _lines(document: Mapping[str, object]) -> Iterator[str]:
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    before = "{"
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            records = ",\n  ".join(map(encode, value))
            yield f"{before}{encode(key)}: [\n  {records}]"
        else:
            yield f"{before}{encode(key)}: {encode(value)}"
        before = ",\n "
    yield "}\n"


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not a JSON value"
    raise ValueError(message)


def _refuse_other_formats(document: object) -> None:
    if not isinstance(document, dict):
        message = f"the JSON holds a {type(document).__name__}, not an object. {_WANTED}"
        raise FormatError(message)
    given, version = document.get("format"), document.get("version")
    if given != FORMAT:
        message = f"the document's format is {shown(given)}, not {FORMAT!r}. {_WANTED}"
        raise FormatError(message)
    if type(version) is not int or version < 1:
        message = f"the document's version is {shown(version)}, expected {VERSION}. {_WANTED}"
        raise FormatError(message)
    if version > VERSION:
        message = f"the document has version {version} of {FORMAT}, this graphscope reads versions up to {VERSION}. "
        raise FormatError(message + "Update it: pip install -U torch-graphscope")


# ------------------------------------------------------------------------------------- one codec a record

_NAMES = many(TEXT)
_SHAPE = maybe(many(plain("an integer or the text of a symbolic size", int, str)))

_BASICS: dict[str, Codec[Any]] = {"shape": _SHAPE, "dtype": maybe(TEXT), "device": maybe(TEXT)}
_FLAGS: dict[str, Codec[Any]] = {"requires_grad": maybe(FLAG), "is_leaf": maybe(FLAG)}
_FACTS: dict[str, Codec[Any]] = {
    "is_inference": maybe(FLAG),
    "is_view": maybe(FLAG),
    "version": maybe(COUNT),
    "layout": maybe(TEXT),
    "subclass": maybe(TEXT),
}
_UNKNOWN = TensorInfo._field_defaults
_TENSOR = record(TensorInfo, _BASICS, _FACTS, defaults=_UNKNOWN)
_GRAD = record(TensorInfo, _BASICS, {"names": _NAMES, **_FLAGS, **_FACTS}, defaults=_UNKNOWN)
_OUTPUT = record(TensorInfo, {"names": _NAMES, **_BASICS, **_FLAGS}, _FACTS, defaults=_UNKNOWN)
_LOCATION = record(
    Location,
    {"file": TEXT, "line": COUNT, "code": TEXT},
    {"function": maybe(TEXT)},
    defaults=Location._field_defaults,
)
_SAVED = record(
    SavedTensor,
    {
        "name": TEXT,
        "storage": maybe(TEXT),
        "shape": _SHAPE,
        "dtype": maybe(TEXT),
        "bytes": maybe(COUNT),
        "state": choice(State),
        "modified": maybe(FLAG),
    },
)


def _node_of_one_tensor(
    *,
    names: tuple[str, ...],
    requires_grad: bool | None = None,
    is_leaf: bool | None = None,
    tensor: TensorInfo = TensorInfo(),
    **rest: Any,
) -> Node:
    return Node(outputs=(tensor._replace(names=names, requires_grad=requires_grad, is_leaf=is_leaf),), **rest)


def _output_mark(**fields: Any) -> Node:
    return _node_of_one_tensor(**{"reached": True, **fields})


_NODE_FIELDS: dict[str, Codec[Any]] = {
    "id": TEXT,
    "kind": choice(Kind),
    "role": maybe(choice(Role)),
    "names": _NAMES,
    **_FLAGS,
    "op": maybe(TEXT),
    "backward": maybe(TEXT),
    "reached": FLAG,
    "mode": maybe(TEXT),
    "outputs": many(_OUTPUT),
    "tensor": _TENSOR,
    "accumulate": maybe(TEXT),
    "grad": maybe(_GRAD),
    "module": maybe(TEXT),
    "location": maybe(_LOCATION),
    "writes": _NAMES,
    "saved": many(_SAVED),
    "retains_grad": FLAG,
    "hooks": COUNT,
    "without_gradient": many(COUNT),
    "stopped": FLAG,
    "region": maybe(TEXT),
    "note": maybe(TEXT),
}
_OF_ONE_TENSOR: dict[str, Callable[[Node], Any]] = {
    "names": attrgetter("names"),
    "requires_grad": lambda node: node.outputs[0].requires_grad,
    "is_leaf": lambda node: node.outputs[0].is_leaf,
    "tensor": lambda node: node.outputs[0],
}


def _noderecord(build: Callable[..., Node], required: str, never: str, always: str = "") -> Codec[Node]:
    """The codec of one kind of node; fields named in ``always`` are written always and not required."""
    optional = {key: codec for key, codec in _NODE_FIELDS.items() if key not in {*required.split(), *never.split()}}
    defaults = {key: value for key, value in Node._field_defaults.items() if key not in always.split()}
    needed = {key: _NODE_FIELDS[key] for key in required.split()}
    return record(build, needed, optional, defaults=defaults, get=_OF_ONE_TENSOR)


_NODES = {
    Kind.LEAF: _noderecord(
        _node_of_one_tensor,
        required="id kind role names requires_grad is_leaf reached tensor accumulate grad",
        never="outputs op backward",
    ),
    Kind.OP: _noderecord(
        Node,
        required="id kind op backward reached mode outputs module location writes saved",
        never="tensor names requires_grad is_leaf",
    ),
    Kind.OUTPUT: _noderecord(
        _output_mark,
        required="id kind names",
        never="outputs op backward",
        always="reached requires_grad is_leaf tensor",
    ),
}


def _read_node(value: object) -> Node:
    kind = value.get("kind") if type(value) is dict else None
    for known, codec in _NODES.items():
        if kind == known.value:
            return codec.read(value)
    raise UnexpectedError(f"a node with a kind of {', '.join(_NODES)}", shown(value))


def _write_node(node: Node) -> object:
    codec = _NODES.get(node.kind)
    if codec is None:
        message = f"{node.id} stands for several folded nodes; JSON is the whole graph: write the graph, not its view."
        raise FormatError(message)
    return codec.write(node)


_EDGE = record(
    lambda **fields: Edge(source=fields.pop("from"), target=fields.pop("to"), **fields),
    {
        "from": TEXT,
        "output": COUNT,
        "to": TEXT,
        "slot": COUNT,
        "argument": maybe(TEXT),
        "gradient": FLAG,
        "reason": maybe(choice(Reason)),
    },
    get={"from": attrgetter("source"), "to": attrgetter("target")},
)
_STORAGE = record(Storage, {"id": TEXT, "bytes": COUNT, "parameter": FLAG})
_MODULE = record(Module, {"path": TEXT, "type": TEXT, "training": FLAG, "parameters": COUNT, "trainable": COUNT})
_REGION = record(
    Region,
    {"id": TEXT, "mode": TEXT, "entered": TEXT, "location": maybe(_LOCATION)},
    {"parent": maybe(TEXT), "left_on": FLAG},
    defaults=Region._field_defaults,
)
_CALL = record(Call, {"module": TEXT, "parent": maybe(COUNT), "nodes": _NAMES})
_EVIDENCE = record(
    Evidence,
    {"clue": choice(Clue)},
    {
        "subject": TEXT,
        "nodes": _NAMES,
        "location": maybe(_LOCATION),
        "also": many(_LOCATION),
        "words": _NAMES,
        "numbers": many(plain("an integer", int)),
    },
    defaults=Evidence._field_defaults,
)
_VIEW = record(View, {"hidden": COUNT}, {"notes": _NAMES}, defaults=View._field_defaults)


def _build_graph(**fields: Any) -> GraphData:
    del fields["format"], fields["version"]  # already looked at
    return GraphData(**fields)


_GRAPH: Codec[GraphData] = record(
    _build_graph,
    {
        "format": TEXT,
        "version": COUNT,
        "torch": TEXT,
        "recorded": FLAG,
        "roots": _NAMES,
        "nodes": many(Codec(read=_read_node, write=_write_node)),
        "edges": many(_EDGE),
        "storages": many(_STORAGE),
        "modules": many(_MODULE),
        "regions": many(_REGION),
        "view": _VIEW,
    },
    {"calls": many(_CALL), "notices": _NAMES, "evidence": many(_EVIDENCE)},
    defaults={"calls": (), "notices": (), "evidence": ()},
    get={"format": lambda _: FORMAT, "version": lambda _: VERSION},
)
