"""What an analysis says of a graph: verdicts on tensors, hazards, the story of an error, the memory that is kept.

Records without torch, made by ``analyze`` and shown by ``render``; their ``to_json`` follows
``schema/explain-1.json`` and ``schema/memory-1.json``.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Any, NamedTuple

from graphscope.model import Location


class Cause(StrEnum):
    """Why a tensor gets no gradient."""

    FROZEN = "frozen"
    """It is a parameter with ``requires_grad=False``."""
    CONSTANT = "constant"
    """It is an input, a buffer or a label, and nothing asked for its gradient."""
    UNUSED = "unused"
    """Nothing that the roots depend on read it."""
    NO_GRAD = "no_grad"
    INFERENCE_MODE = "inference_mode"
    DETACH = "detach"
    DATA = "data"
    INTEGER_DTYPE = "integer_dtype"
    NON_DIFFERENTIABLE = "non_differentiable"
    LEFT_PYTORCH = "left_pytorch"
    CUSTOM_FUNCTION = "custom_function"
    NON_LEAF = "non_leaf"
    """The gradient goes on to the leaf behind it."""
    NOT_IN_GRAPH = "not_in_graph"
    """Another tensor took its place."""
    UNKNOWN = "unknown"


INNOCENT = frozenset({Cause.FROZEN, Cause.CONSTANT, Cause.NON_LEAF})
"""Causes that are as they should be, unless somebody expected a gradient there."""


class Severity(StrEnum):
    """How bad a hazard is."""

    ERROR = "error"
    """Backward or a later step will raise, or be wrong."""
    WARNING = "warning"
    """Probably not what was meant."""
    NOTE = "note"
    """Worth knowing."""


class Because(NamedTuple):
    """One cause, and the line that did it."""

    cause: Cause
    location: Location | None = None
    nodes: tuple[str, ...] = ()
    """The two ends of the edge that was cut, or the node where the way ends."""


class Verdict(NamedTuple):
    """Whether one tensor gets a gradient, and if not, why."""

    name: str
    kind: str
    """``parameter``, ``buffer``, ``input``, ``constant`` or ``result``."""
    requires_grad: bool | None
    is_leaf: bool | None
    shape: tuple[int | str, ...] | None
    dtype: str | None
    receives_grad: bool
    """A backward from the roots would fill its ``.grad``."""
    cause: Cause | None = None
    location: Location | None = None
    also: tuple[Because, ...] = ()
    """Further causes on other paths, nearest to the root first."""
    message: str = ""
    remedy: str = ""
    aliases: tuple[str, ...] = ()
    """Further names of the same tensor."""
    node: str = ""
    """Id in the graph."""
    nodes: tuple[str, ...] = ()
    """As ``Because.nodes``."""

    @property
    def is_missing(self) -> bool:
        """A trainable parameter that gets no gradient."""
        return self.kind == "parameter" and bool(self.requires_grad) and not self.receives_grad

    @property
    def is_cut_leaf(self) -> bool:
        """A leaf of no module that wants a gradient, is used, and gets none."""
        wants = (
            self.kind not in {"parameter", "result"}
            and bool(self.requires_grad)
            and bool(self.is_leaf)
            and not self.receives_grad
        )
        return wants and self.cause not in {Cause.UNUSED, Cause.NOT_IN_GRAPH, Cause.UNKNOWN}

    def to_json(self) -> dict[str, Any]:
        """As a row of ``tensors``."""
        row: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "requires_grad": self.requires_grad,
            "is_leaf": self.is_leaf,
            "shape": None if self.shape is None else list(self.shape),
            "dtype": self.dtype,
            "receives_grad": self.receives_grad,
            "cause": None if self.cause is None else self.cause.value,
            "location": place_to_json(self.location),
            "also": [{"cause": one.cause.value, "location": place_to_json(one.location)} for one in self.also],
            "message": self.message,
            "remedy": self.remedy,
        }
        return row | ({"aliases": list(self.aliases)} if self.aliases else {})


class Hazard(NamedTuple):
    """Something that will raise, be wrong, or cost more than it should."""

    kind: str
    severity: Severity
    location: Location | None
    also: tuple[Location, ...]
    message: str
    remedy: str
    tensors: tuple[str, ...] = ()
    """Names of the tensors concerned."""
    nodes: tuple[str, ...] = ()
    """Ids of the nodes concerned, the culprit first."""

    def to_json(self) -> dict[str, Any]:
        """As a member of ``hazards``."""
        return {
            "kind": self.kind,
            "severity": self.severity.value,
            "location": place_to_json(self.location),
            "also": [place_to_json(one) for one in self.also],
            "message": self.message,
            "remedy": self.remedy,
            "tensors": list(self.tensors),
        }


class Raised(NamedTuple):
    """An exception of the program, as far as the program itself tells."""

    type: str
    text: str
    places: tuple[Location, ...] = ()
    """The program's own lines that were running, innermost first."""
    in_backward: bool = False
    """It was raised in torch's engine, below ``backward()`` or ``autograd.grad()``."""
    module: str | None = None
    """Type of the innermost module of torch whose code was running."""

    @property
    def location(self) -> Location | None:
        """The program's line that raised."""
        return self.places[0] if self.places else None


class Failure(NamedTuple):
    """What the program raised, and what led to it."""

    type: str
    text: str
    location: Location | None
    """The line at fault, not only the one that raised."""
    also: tuple[Location, ...]
    message: str
    remedy: str

    def to_json(self) -> dict[str, Any]:
        """As ``error``."""
        return {
            "type": self.type,
            "text": self.text,
            "location": place_to_json(self.location),
            "also": [place_to_json(one) for one in self.also],
            "message": self.message,
            "remedy": self.remedy,
        }


class Group(NamedTuple):
    """Parameters that miss their gradient for the same reason, told together."""

    names: tuple[str, ...]
    """Module paths that stand for all their parameters, and parameters that stand alone."""
    rows: tuple[Verdict, ...]
    message: str
    remedy: str

    @property
    def first(self) -> Verdict:
        """One for all: cause, location and further causes are the same."""
        return self.rows[0]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """Who gets a gradient, who does not and why, and what else is wrong."""

    roots: tuple[str, ...]
    """Names of the tensors that a backward would start from."""
    tensors: tuple[Verdict, ...]
    """Every parameter of every module in sight, and every named tensor."""
    hazards: tuple[Hazard, ...] = ()
    """Worst first."""
    error: Failure | None = None
    recorded: bool = False
    groups: tuple[Group, ...] = ()
    """The missing ones by reason, most first."""

    @property
    def missing(self) -> tuple[Verdict, ...]:
        """Trainable parameters that get no gradient."""
        return tuple(row for row in self.tensors if row.is_missing)

    @property
    def unmet(self) -> tuple[Verdict, ...]:
        """As ``missing``; without any parameter in sight, the leaves that want a gradient and get none."""
        if any(row.kind == "parameter" for row in self.tensors):
            return self.missing
        return tuple(
            row
            for row in self.tensors
            if row.requires_grad and row.is_leaf and row.kind != "result" and not row.receives_grad
        )

    def to_json(self) -> dict[str, Any]:
        """The document of ``graphscope/schema/explain-1.json``."""
        return {
            "format": "graphscope.explain",
            "version": 1,
            "recorded": self.recorded,
            "roots": list(self.roots),
            "tensors": [row.to_json() for row in self.tensors],
            "hazards": [hazard.to_json() for hazard in self.hazards],
            "error": None if self.error is None else self.error.to_json(),
        }


def place_to_json(location: Location | None) -> dict[str, Any] | None:
    """File, line and text of a place."""
    return None if location is None else {"file": location.file, "line": location.line, "code": location.code}


def to_place(location: Location | None) -> str:
    """``train.py:12`` for people.

    >>> to_place(Location("train.py", 12, "y = x.detach()")), to_place(None)
    ('train.py:12', 'a line that is not known')
    """
    return "a line that is not known" if location is None else f"{location.file}:{location.line}"


class Share(NamedTuple):
    """What one op, module or line keeps for backward."""

    name: str
    bytes: int
    """Each storage once, given to the first op that saved it; parameters and buffers left out."""
    tensors: int
    """Saved tensors, those of parameters left out."""
    location: Location | None = None
    operations: int = 0


class KeptStorage(NamedTuple):
    """One storage that saved tensors keep alive."""

    id: str
    bytes: int
    parameter: bool
    """It belongs to a parameter or buffer, which exists anyway."""
    savers: tuple[tuple[str, str, Location | None], ...]
    """Op, slot and line of everything that keeps it."""
    shape: tuple[int | str, ...] | None
    dtype: str | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What backward keeps in memory."""

    roots: tuple[str, ...]
    bytes: int
    """Each storage once, without parameters and buffers: what backward alone keeps."""
    parameter_bytes: int
    """Storages of parameters and buffers that are saved too."""
    states: dict[str, int]
    """Saved tensors by state: live, freed, packed, checkpointed, unavailable."""
    by_op: tuple[Share, ...]
    by_module: tuple[Share, ...]
    by_line: tuple[Share, ...]
    storages: tuple[KeptStorage, ...]
    """Largest first."""
    checkpoint_saves: tuple[Share, ...]
    """By module: what only ops inside it keep, so that a checkpoint around it would do without."""
    recorded: bool = False

    def to_json(self) -> dict[str, Any]:
        """The document of ``graphscope/schema/memory-1.json``."""
        return {
            "format": "graphscope.memory",
            "version": 1,
            "recorded": self.recorded,
            "roots": list(self.roots),
            "bytes": self.bytes,
            "parameter_bytes": self.parameter_bytes,
            "states": dict(self.states),
            "by_op": [_share_to_json(one, "op") for one in self.by_op],
            "by_module": [_share_to_json(one, "module") for one in self.by_module],
            "by_line": [
                {"location": place_to_json(one.location), "bytes": one.bytes, "tensors": one.tensors}
                for one in self.by_line
            ],
            "storages": [_storage_to_json(one) for one in self.storages],
            "would_save": {
                "no_grad": self.bytes,
                "checkpoint": [{"module": one.name, "bytes": one.bytes} for one in self.checkpoint_saves],
            },
        }


def _share_to_json(share: Share, key: str) -> dict[str, Any]:
    return {key: share.name, "bytes": share.bytes, "tensors": share.tensors, "operations": share.operations}


def _storage_to_json(storage: KeptStorage) -> dict[str, Any]:
    return {
        "id": storage.id,
        "bytes": storage.bytes,
        "parameter": storage.parameter,
        "shape": None if storage.shape is None else list(storage.shape),
        "dtype": storage.dtype,
        "saved_by": [{"op": op, "name": slot, "location": place_to_json(place)} for op, slot, place in storage.savers],
    }
