"""What only the running program can tell and the analysis of its graph needs: optimizers, overwritten memory, modes.

Everything is noted as an ``Evidence``, a plain record that names nodes of the graph; ``analyze`` judges it when the
program is gone. Nothing is changed, no hook runs and no saved tensor is unpacked.
"""

from __future__ import annotations

import bisect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from graphscope.capture.code import suspects
from graphscope.capture.code.source import Owner, owner_of, shown_file, to_location
from graphscope.capture.evidence.functions import inputs_without_gradient
from graphscope.capture.evidence.optimizers import find_optimizers
from graphscope.capture.evidence.singular import singular_nodes
from graphscope.capture.recording.memory import extent_of
from graphscope.capture.recording.oprecords import Op, Source, StorageWrite, signature_of
from graphscope.capture.recording.record import Recorder
from graphscope.capture.recording.regions import CHECKPOINT, CUSTOM, GRAD, Entry, current_mode
from graphscope.capture.walking import tensors
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.search import module_dictionary
from graphscope.capture.walking.walk import Walked
from graphscope.model import Clue, Evidence, GraphData, Location, SavedTensor, State

_STATEMENTS = 300
"""Findings told of one file at most."""

_OF_HOLDERS = frozenset({suspects.KEEP, suspects.ATTRIBUTE, suspects.ADD})
"""Findings that say something only of what holds a tensor with history."""

_NEED_NO_OP = frozenset(
    {suspects.FREEZE, suspects.REQUIRE, suspects.ATTRIBUTE, suspects.COMPILE, suspects.NEW_PARAMETER}
)
"""Findings that say something also of a function in which no op ran."""

_TENSOR_FLAGS = frozenset({"requires_grad", "requires_grad_"})
_DROPOUTS = frozenset({"native_dropout", "dropout", "alpha_dropout", "feature_dropout", "bernoulli"})
_NORMALIZATIONS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm"})
_BY_TORCH = frozenset({CUSTOM, CHECKPOINT})
"""Switches that no program means as one: gradients are off inside, and come by another way."""

_LINES_TOLD = 8
"""Places told of one kind."""


class Links(NamedTuple):
    """A recording, and how it leads to the nodes of the graph made of it."""

    recorder: Recorder
    walked: Walked
    names: Names
    data: GraphData
    id_of: Callable[[Source], str | None]
    """Id in the graph of what the recording knows; ``None`` of what was left out."""
    id_of_walked: Callable[[str], str | None]
    """The same of a node of the walk."""
    claims: dict[str, int]
    """Recorded op of each backward node of the walk, by its id there."""
    base: Path | None

    def id_of_op(self, index: int) -> str | None:
        """Id of a recorded op."""
        return self.id_of(Source("op", index))

    def id_of_tensor(self, tensor: torch.Tensor) -> str | None:
        """Id of what made a tensor, or of the leaf that it is."""
        source = self.recorder.log.known_source(tensor)
        found = self.id_of(source) if source is not None else None
        if found is None and id(tensor) in self.walked.leaves:
            return self.id_of_walked(self.walked.leaves[id(tensor)])
        return found

    def location_of(self, op: Op) -> Location | None:
        """The program's line of an op."""
        return to_location(op.lines.user or op.lines.inner, self.base)


def gather(links: Links) -> tuple[Evidence, ...]:
    """All evidence, kind by kind, each in the order of the program."""
    return (
        *_optimizers(links),
        *_attributes(links),
        *_unregistered(links),
        *_reassigned(links),
        *_backwards(links),
        *_overwrites(links),
        *_grad_mode(links),
        *_layers(links),
        *_returning_none(links),
        *_singular(links),
        *_statements(links),
    )


def _optimizers(links: Links) -> Iterator[Evidence]:
    for name, optimizer in find_optimizers(links.names.searched):
        held = [one for group in optimizer.param_groups for one in group["params"] if tensors.is_tensor(one)]
        known = [identity for one in held if (identity := links.id_of_tensor(one)) is not None]
        strangers = [one for one in held if id(one) not in links.names.roles]
        shapes = ["×".join(map(str, tensors.shape_of(one) or ())) or "scalar" for one in strangers]
        words = (type(optimizer).__name__, *shapes[:_LINES_TOLD])
        yield Evidence(
            Clue.OPTIMIZER, name, tuple(dict.fromkeys(known)), words=words, numbers=(len(held), len(strangers))
        )


def _attributes(links: Links) -> Iterator[Evidence]:
    """``param.require_grad = False`` and ``module.requires_grad = False``: stored, and read by nobody."""
    found: dict[tuple[str, str, bool], list[str]] = {}
    for tensor in links.names.all_tensors():
        for key, value in tensors.attributes_of(tensor).items():
            meant = suspects.nearest(key, _TENSOR_FLAGS) if type(value) is bool else None
            if meant is not None and value is not tensors.requires_grad(tensor):
                identity = links.id_of_tensor(tensor)
                found.setdefault((key, "requires_grad", value), []).extend([identity] if identity else [])
    for path, module in links.names.modules:
        for key, value in module_dictionary(module).items():
            if type(value) is bool and suspects.nearest(key, _TENSOR_FLAGS) and key not in vars(type(module)):
                own = [one for one in module.parameters() if tensors.requires_grad(one) is not value]
                ids = [identity for one in own if (identity := links.id_of_tensor(one)) is not None]
                if ids:
                    found.setdefault((key, f"{path or 'model'}.requires_grad_", value), []).extend(ids)
    for (key, meant, value), nodes in found.items():
        where = [place for finding, place in _findings(links, {suspects.ATTRIBUTE}) if finding.word == key]
        location = where[0] if where else None
        yield Evidence(
            Clue.ATTRIBUTE, key, tuple(dict.fromkeys(nodes)), location, tuple(where[1:]), (meant, str(value))
        )


def _unregistered(links: Links) -> Iterator[Evidence]:
    """Modules, parameters and trainable tensors that a module holds and that its ``parameters()`` does not find."""
    registered: set[int] = set()
    owners: dict[str, Any] = {}
    for path, module in links.names.modules:
        parent = next((part for part in _parents(path) if part in owners), None)
        owners[path] = module
        is_new = parent is not None and id(module) not in registered
        registered.update(map(id, module.modules()))
        if parent is not None and is_new:
            ids = [links.id_of_tensor(one) for one in module.parameters()]
            yield _left_out(links, path, parent, owners[parent], ids)
    for tensor in links.names.all_tensors():
        if id(tensor) in links.names.roles or not tensors.requires_grad(tensor) or not tensors.is_leaf(tensor):
            continue
        for name in links.names.of(tensor)[:1]:
            parent = next((part for part in _parents(name) if part in owners), None)
            if parent is not None:
                yield _left_out(links, name, parent, owners[parent], [links.id_of_tensor(tensor)])


def _left_out(links: Links, path: str, parent: str, owner: object, ids: list[str | None]) -> Evidence:
    attribute = path[len(parent) :].lstrip(".").partition("[")[0]
    known = tuple(identity for identity in ids if identity is not None)
    where = _attribute_line(links, owner, attribute)
    return Evidence(Clue.UNREGISTERED, path, known, where, words=(attribute, type(owner).__name__))


def _parents(path: str) -> Iterator[str]:
    """``model.layers``, ``model`` of ``model.layers[0]``."""
    while path:
        cut = max(path.rfind("."), path.rfind("["))
        path = path[: max(cut, 0)]
        yield path


def _attribute_line(links: Links, owner: object, attribute: str) -> Location | None:
    """Where a class sets an attribute."""
    source: str = getattr(sys.modules.get(type(owner).__module__), "__file__", None) or ""
    for finding in suspects.findings_in(source):
        if finding.name == suspects.ATTRIBUTE and finding.word == attribute:
            return _place(links, source, finding)
    return next((place for finding, place in _findings(links, {suspects.ATTRIBUTE}) if finding.word == attribute), None)


def _reassigned(links: Links) -> Iterator[Evidence]:
    log = links.recorder.log
    for tensor in links.names.all_tensors():
        log.notice_other_memory(tensor)
    for leaf, origin in dict.fromkeys(log.reassigned):
        nodes = (links.id_of(Source("leaf", leaf)), links.id_of(origin))
        if nodes[0] is not None and nodes[1] is not None:
            where = links.location_of(log.ops[origin.index])
            yield Evidence(Clue.REASSIGNED, "", (nodes[0], nodes[1]), where)


def _backwards(links: Links) -> Iterator[Evidence]:
    for backward in links.recorder.backwards:
        before = next(
            (identity for index in range(backward.time - 1, -1, -1) if (identity := links.id_of_op(index))), None
        )
        if before is None:
            continue
        roots = (identity for root in backward.roots if (identity := links.id_of(root)) is not None)
        flags = {"retain_graph": backward.retains, "create_graph": backward.creates}
        words = tuple(word for word, given in flags.items() if given)
        where = to_location(backward.lines.user or backward.lines.inner, links.base)
        yield Evidence(Clue.BACKWARD, "", (before, *roots), where, words=words)


def _overwrites(links: Links) -> Iterator[Evidence]:
    """Saved tensors whose memory was written after the op that saved them."""
    log, walked = links.recorder.log, links.walked
    if not log.memory.writes:
        return
    keys = {identity: key for key, identity in walked.storages.items()}
    times = _Times(log.ops, walked)
    for node in walked.data.nodes:
        for saved in node.saved:
            writes = log.memory.writes.get(keys[saved.storage]) if saved.storage is not None else None
            if not writes or saved.state is not State.LIVE:
                continue
            index = links.claims.get(node.id)
            time = times.of(node.id) if index is None else index
            later = [write for write in writes if time is not None and write.op > time]
            found = _overwrite(links, node.id, saved, later)
            if found is not None:
                yield found


def _overwrite(links: Links, identity: str, saved: SavedTensor, later: list[StorageWrite]) -> Evidence | None:
    log = links.recorder.log
    if not saved.modified:
        later = _silent(links, identity, saved, later)
    saver = links.id_of_walked(identity)
    first = next((write for write in later if links.id_of_op(write.op) is not None), None)
    if first is None or saver is None:
        return None
    writer = links.id_of_op(first.op)
    assert writer is not None  # noqa: S101  it was asked for just above
    last = later[-1].version
    versions = (first.version, last + 1) if first.version is not None and last is not None else ()
    words = () if saved.modified else ("silent",)
    return Evidence(
        Clue.OVERWRITE, saved.name, (saver, writer), links.location_of(log.ops[first.op]), (), words, versions
    )


def _silent(links: Links, identity: str, saved: SavedTensor, later: list[StorageWrite]) -> list[StorageWrite]:
    """Writes through ``.data`` into the very elements that are saved: they have a version counter of their own."""
    if saved.modified is None or not later:
        return []
    kept = getattr(links.walked.nodes().get(identity), f"_raw_saved_{saved.name}", None)
    data = getattr(kept, "data", None)
    if data is None or not tensors.is_tensor(data):
        return []
    extent = extent_of(data)
    return [write for write in later if write.extent == extent]


class _Times:
    """When a backward node that no op claims was made, as a count of ops."""

    def __init__(self, ops: list[Op], walked: Walked) -> None:
        self._stops = [(op.number, index) for index, op in enumerate(ops) if op.number >= 0]
        self._numbers = {identity: number for number, identity in walked.numbers.items()}

    def of(self, identity: str) -> int | None:
        """The op that ran right after it was made."""
        number = self._numbers.get(identity)
        if number is None:
            return None
        place = bisect.bisect_right(self._stops, (number, sys.maxsize))
        return self._stops[place][1] - 1 if place < len(self._stops) else None


def _grad_mode(links: Links) -> Iterator[Evidence]:
    """Gradients that are off with nothing in force that switched them off and will switch them on again."""
    recorder = links.recorder
    entry: Entry | None = recorder.left_on
    if entry is None and recorder.is_active and current_mode() not in {GRAD, recorder.grad_mode_before}:
        entry = recorder.find_entry(sys._getframe(), current_mode())
        if entry.entered in {"with", "decorator", "library"}:
            return
    if entry is not None:
        yield Evidence(
            Clue.GRAD_MODE, entry.mode, (), to_location(entry.line, links.base), words=(entry.entered, entry.word)
        )


def _layers(links: Links) -> Iterator[Evidence]:
    """Dropout and normalization against the mode of their module, and what eval mode does not switch off."""
    found: dict[tuple[Clue, str, str | None, Location | None], list[str]] = {}
    log = links.recorder.log
    for index, op in enumerate(log.ops):
        if op.training is None or op.raised or op.in_backward or (op.entry is not None and op.entry.mode in _BY_TORCH):
            continue
        inner, outer = op.training
        name = signature_of(op.func).name.rstrip("_")
        is_dropout = name in _DROPOUTS and (name != "bernoulli" or _is_functional_dropout(log.ops, index))
        key: tuple[Clue, str] | None = None
        if inner and op.mode != GRAD and (is_dropout or name in _NORMALIZATIONS):
            key = Clue.TRAINING, "dropout" if is_dropout else "batch_norm"
        elif inner is False and is_dropout:
            key = Clue.EVALUATING, "dropout"
        elif outer is False and op.mode == GRAD and log.is_tracked(index):
            key = Clue.EVALUATING, "recorded"
        identity = links.id_of_op(index) if key is not None else None
        if key is not None and identity is not None:
            node = links.data.by_id[identity]
            module = node.module if key[1] != "recorded" else None
            found.setdefault((*key, module, node.location), []).append(identity)
    for (clue, subject, module, where), nodes in found.items():
        words = () if module is None else (module,)
        yield Evidence(clue, subject, tuple(nodes[:_LINES_TOLD]), where, (), words, (len(nodes),))


def _is_functional_dropout(ops: list[Op], index: int) -> bool:
    """A mask that is made, drawn and scaled at one line, as ``torch.dropout`` does; not the program's own sampling."""
    names = [signature_of(op.func).name.rstrip("_") for op in ops[max(index - 1, 0) : index + 2]]
    return names[0] in {"empty_like", "new_empty"} and names[-1] == "div"


def _returning_none(links: Links) -> Iterator[Evidence]:
    for found in inputs_without_gradient(links.walked):
        nodes = (links.id_of_walked(found.node), links.id_of_walked(found.source))
        if nodes[0] is not None and nodes[1] is not None:
            where = to_location(found.line, links.base)
            yield Evidence(Clue.NO_GRADIENT, "", (nodes[0], nodes[1]), where)


def _singular(links: Links) -> Iterator[Evidence]:
    for identity, count in singular_nodes(links.walked):
        node = links.id_of_walked(identity)
        if node is not None:
            yield Evidence(Clue.SINGULAR, "", (node,), links.data.by_id[node].location, numbers=(count,))


def _statements(links: Links) -> Iterator[Evidence]:
    holders = {part for tensor, known in links.names.tracked() for name in known for part in _holders(name)}
    for finding, place in _findings(links, None):
        if finding.name not in _OF_HOLDERS or finding.word in holders or finding.word.rpartition(".")[2] in holders:
            yield Evidence(
                Clue.STATEMENT, finding.name, (), place, words=(finding.word, finding.text), numbers=(finding.last,)
            )


def _holders(name: str) -> Iterator[str]:
    """``history`` of ``history[0]``; ``attention`` and ``model.attention`` of ``model.attention``."""
    base = name.partition("[")[0]
    yield base
    yield base.rpartition(".")[2]


def _findings(links: Links, wanted: set[str] | None) -> Iterator[tuple[suspects.Finding, Location]]:
    """Findings in the program's own files, of functions that ran as far as is known."""
    ran = links.recorder.scopes
    for file in dict.fromkeys([*links.recorder.files, *(code.co_filename for code in ran)]):
        if owner_of(file) is not Owner.USER:
            continue
        scopes = {code.co_firstlineno for code in ran if code.co_filename == file} | {0}
        told: Iterable[suspects.Finding] = suspects.findings_in(file)[:_STATEMENTS]
        for finding in told:
            needs_no_op = finding.name in _NEED_NO_OP
            if (wanted is None or finding.name in wanted) and (needs_no_op or finding.scope in scopes):
                yield finding, _place(links, file, finding)


def _place(links: Links, file: str, finding: suspects.Finding) -> Location:
    return Location(shown_file(file, links.base), finding.line, linecache.getline(file, finding.line).strip())
