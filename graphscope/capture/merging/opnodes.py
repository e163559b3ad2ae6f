"""What is told of each recorded op and leaf: facts of its outputs, line, module, region."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from graphscope.capture.code.source import Line, assigned_name, expression_at, to_location
from graphscope.capture.code.switches import GRAD
from graphscope.capture.merging.claims import Place, recorded_output
from graphscope.capture.merging.reasons import last_word
from graphscope.capture.recording.oprecords import (
    AUTOCAST,
    DIRECT,
    IN_BACKWARD,
    INFERENCE_TENSOR,
    IS_LEAF,
    NEEDS_GRAD,
    OP,
    RAISED,
    UNTOLD,
    VIEW,
    Entry,
    Leaf,
    Op,
    Run,
    Source,
    Unseen,
    signature_of,
)
from graphscope.capture.recording.record import Recorder
from graphscope.capture.recording.regions import CHECKPOINT, CUSTOM
from graphscope.capture.walking.names import Names
from graphscope.capture.walking.tensors import shape_of
from graphscope.kinds import RAISED_NOTE
from graphscope.model import Call, Kind, Location, Node, Region, Role, TensorInfo

_CONSTANTS = {"lift_fresh": "tensor"}
"""Ops that a factory of another name calls for its result."""

_SHORT = 40
"""Longest text of an expression that is told."""

_LASTING = frozenset({"statement", "generator", "unknown"})
"""Ways to switch gradients off that no end of a block undoes."""

_new = tuple.__new__


class Options(NamedTuple):
    """How a recording becomes a graph."""

    base: Path | None = None
    """Folder that file names are told from."""
    all_frames: bool = False
    """Name the innermost line that is not torch's, also inside installed packages."""
    every_module: bool = False


class Describer:
    """Makes the nodes of one recording; what many ops share is looked up once."""

    def __init__(self, recorder: Recorder, names: Names, options: Options) -> None:
        """Read the modules in sight; nothing of the recording yet."""
        self._recorder, self._log, self._names, self._options = recorder, recorder.log, names, options
        paths = {id(module): path for path, module in reversed(names.modules)}
        modules = [
            paths.get(id(module), kind) if (module := reference()) is not None else kind
            for kind, reference in recorder.modules
        ]
        self._modules = [modules[number] for number, _ in recorder.calls]
        """Path of the module of each call."""
        self._locations: dict[int, Location | None] = {}
        self._in_source: dict[int, tuple[tuple[str, ...], str | None]] = {}
        self._outputs: dict[tuple[int, int], tuple[TensorInfo, ...]] = {}
        self._notes: dict[tuple[int, str | None], str | None] = {}
        self._regions: list[Region] = []
        self._chain: list[tuple[Entry, str]] = []
        """Entries of the regions that the op before stood in, outermost first, and their ids."""
        self._last_run: Run | None = None

    def calls(self, ids: Mapping[int, str]) -> tuple[Call, ...]:
        """The calls of modules, with the ops that ran directly in them; ``ids`` has those of the ops by number."""
        own: list[list[str]] = [[] for _ in self._modules]
        for index, op in enumerate(self._log.ops):
            if op.module >= 0 and index in ids:
                own[op.module].append(ids[index])
        return tuple(
            Call(module, None if outer < 0 else outer, tuple(nodes))
            for module, (_, outer), nodes in zip(self._modules, self._recorder.calls, own, strict=True)
        )

    def op(self, index: int, op: Op, walked: Node | None, names: Mapping[Place, Iterable[str]]) -> Node:
        """The node of an op, with what the walk knows of its backward node; ids and writes come later."""
        line = (op.inner if self._options.all_frames else op.line) or op.inner
        note = None if walked is None else walked.note
        if note is not None or op.circumstances & (IN_BACKWARD | AUTOCAST | RAISED):
            note = self._note(op.circumstances & (IN_BACKWARD | AUTOCAST | RAISED), note)
        outputs = self._told_outputs(index, walked, names)
        name = signature_of(op.func).name.rstrip("_")
        module = self._modules[op.module] if op.module >= 0 else None
        where, region = self.location(line), self._region_of(op)
        record: tuple[Any, ...]
        if walked is None:
            record = (
                "", Kind.OP, outputs, False, None, name, None, None, None, False, 0,
                (), (), False, op.mode, module, where, region, (), note,
            )  # fmt: skip
        else:
            record = (
                "", Kind.OP, outputs, walked.reached, None, name, walked.backward, None, None, walked.retains_grad,
                walked.hooks, walked.saved, walked.without_gradient, walked.stopped, op.mode, module, where, region, (),
                note,
            )  # fmt: skip
        return _new(Node, record)

    def _told_outputs(
        self, index: int, walked: Node | None, names: Mapping[Place, Iterable[str]]
    ) -> tuple[TensorInfo, ...]:
        outputs = self.outputs(index)
        if len(outputs) == 1 and (index, 0) not in names:
            told = walked.outputs[0] if walked is not None else None
            if told is None or (not told.names and told.version is None and outputs[0].requires_grad):
                return outputs
        if walked is not None:
            changed = list(outputs)
            for number, info in enumerate(walked.outputs):
                place = recorded_output(self._log, index, walked, number)
                if info.names or info.version is not None or not changed[place].requires_grad:
                    changed[place] = changed[place]._replace(
                        names=info.names, requires_grad=True, is_leaf=False, version=info.version
                    )
            outputs = tuple(changed)
        if any((index, number) in names for number in range(len(outputs))):
            outputs = tuple(
                info._replace(names=tuple(dict.fromkeys((*names.get((index, number), ()), *info.names))))
                for number, info in enumerate(outputs)
            )
        return outputs

    def outputs(self, index: int) -> tuple[TensorInfo, ...]:
        """What an op returned, with its flags right after."""
        infos, flags = self._log.outputs[index], self._log.flags[index]
        if not isinstance(flags, int):
            untracked = _surely_untracked(self._log.ops[index])
            return tuple(_with_flags(info, one, untracked=untracked) for info, one in zip(infos, flags, strict=True))
        if flags == UNTOLD and _surely_untracked(self._log.ops[index]):
            flags = UNTOLD - 1
        key = (id(infos), flags)
        known = self._outputs.get(key)
        if known is None:
            known = self._outputs[key] = (_with_flags(infos[0], flags, untracked=flags == UNTOLD - 1),)
        return known

    def tracked(self, index: int, output: int) -> bool:
        """An output of an op required grad."""
        flags = self._log.flags[index]
        told = flags if isinstance(flags, int) else flags[output]
        return told != UNTOLD and bool(told & NEEDS_GRAD)

    def made_a_node(self, index: int) -> bool:
        """Whether autograd tracked an op that the walk did not meet.

        Of results that died at once torch's counter tells: it has moved since the op before.
        """
        flags = self._log.flags[index]
        told = [flags] if isinstance(flags, int) else flags
        if any(one != UNTOLD for one in told):
            return any(one != UNTOLD and one & NEEDS_GRAD for one in told)
        op = self._log.ops[index]
        return op.number > self._number_before(index) and any(one.requires_grad for one in op.inputs)

    def _number_before(self, index: int) -> int:
        for earlier in range(index - 1, -1, -1):
            number = self._log.ops[earlier].number
            if number >= 0:
                return number
        return 0

    def _note(self, circumstances: int, walked: str | None) -> str | None:
        known = self._notes.get((circumstances, walked))
        if known is None:
            notes = [walked] if walked else []
            if circumstances & IN_BACKWARD:
                notes.append("ran during a backward")
            if circumstances & AUTOCAST:
                notes.append("inside autocast")
            if circumstances & RAISED:
                notes.append(RAISED_NOTE)
            known = self._notes[circumstances, walked] = "; ".join(notes)
        return known

    def location(self, line: Line | None) -> Location | None:
        """A line as people know it."""
        if line is None:
            return None
        known = self._locations.get(id(line))
        if known is None:
            known = self._locations[id(line)] = to_location(line, self._options.base)
        return known

    def location_of_leaf(self, leaf: Leaf) -> Location | None:
        """The line of the factory that made a leaf."""
        return None if leaf.maker is None else self.location(leaf.maker.line or leaf.maker.inner)

    def is_inner(self, source: Source) -> bool:
        """What an op in the forward of a custom Function returned."""
        return self._call_of(source) is not None

    def location_of_call(self, source: Source) -> Location | None:
        """The line that called the custom Function in whose forward an op ran."""
        entry = self._call_of(source)
        return None if entry is None else self.location(entry.line)

    def _call_of(self, source: Source) -> Entry | None:
        """What called the custom Function in whose forward an op ran; a reentrant checkpoint is one."""
        run = self._log.ops[source.index].run if source.kind == OP else None
        entries = () if run is None else (run.entry, *run.outside)
        return next((entry for entry in entries if entry.mode in {CUSTOM, CHECKPOINT}), None)

    def leaf(self, leaf: Leaf, names: tuple[str, ...]) -> Node:
        """A leaf that only the recording knows."""
        named, made_by = ((), None) if names else self._told_in_source(leaf)
        names = names or named
        held = leaf.tensor()
        info = leaf.info if held is None else leaf.info._replace(shape=shape_of(held))  # it may have been resized
        role = self._role(leaf, names)
        info, place = info._replace(names=names), self.location_of_leaf(leaf)
        return Node("", Kind.LEAF, (info,), role=role, location=place, note=made_by and f"made by {made_by}")

    def _told_in_source(self, leaf: Leaf) -> tuple[tuple[str, ...], str | None]:
        """A tensor whose variable is gone still has the name that its line gave it, or the text that made it."""
        maker = leaf.maker
        if maker is None or maker.line is None or not maker.circumstances & DIRECT:
            return (), None
        known = self._in_source.get(id(maker.line))
        if known is None:
            known = self._in_source[id(maker.line)] = _told_at(maker.line, signature_of(maker.func).name)
        return known

    def _role(self, leaf: Leaf, names: tuple[str, ...]) -> Role:
        held = leaf.tensor()
        known = self._names.roles.get(id(held)) if held is not None else None
        if known is not None:
            return known
        if leaf.parameter:
            return Role.PARAMETER
        return Role.CONSTANT if leaf.maker is not None and not names else Role.INPUT

    def unseen(self, unseen: Unseen) -> Node:
        """A backward node that the walk did not come to, and that no op was seen to make."""
        kind = unseen.kind
        name = kind.op if kind.custom else None
        return Node("", Kind.OP, (unseen.info,), op=name, backward=kind.name, note=kind.note)

    def _region_of(self, op: Op) -> str | None:
        """Ops of one run stand in one region; coming back to the line later makes a new one.

        Back in a block whose region is still around the last one, it is that region again.
        """
        if op.run is None:
            self._chain.clear()
            self._last_run = None
            return None
        if op.run is not self._last_run:
            self._last_run = op.run
            wanted = [*reversed(op.run.outside), op.run.entry]
            kept = 0
            while kept < min(len(wanted), len(self._chain)) and self._chain[kept][0] == wanted[kept]:
                kept += 1
            if kept == len(wanted) == len(self._chain):
                kept -= 1
            del self._chain[kept:]
            for entry in wanted[kept:]:
                self._chain.append((entry, self._add_region(entry)))
        return self._chain[-1][1]

    def _add_region(self, entry: Entry) -> str:
        identity = f"r{len(self._regions)}"
        parent = self._chain[-1][1] if self._chain else None
        self._regions.append(Region(identity, entry.mode, entry.entered, self.location(entry.line), parent))
        return identity

    def regions(self) -> tuple[Region, ...]:
        """The regions of the ops described so far."""
        left, last = self._recorder.left_on, self._last_run
        if left is None or last is None or last.entry.mode != left.mode or last.entry.entered not in _LASTING:
            return tuple(self._regions)
        return tuple(one._replace(left_on=one.id == self._chain[-1][1]) for one in self._regions)

    def notices(self) -> Iterator[str]:
        """What a reader must know about the recording."""
        recorder = self._recorder
        if recorder.backward_ops:
            yield f"{recorder.backward_ops:,} operations of backward passes ran and are not shown."
        if recorder.puzzles:
            named = ", ".join(dict.fromkeys(recorder.puzzles))
            yield f"{len(recorder.puzzles):,} operations could not be read and are not shown ({named})."


def _with_flags(info: TensorInfo, flags: int, *, untracked: bool) -> TensorInfo:
    if flags < 0:  # dead before it could be asked; by torch's rules it may still be certain
        return info._replace(requires_grad=False, is_leaf=True) if untracked else info
    return info._replace(
        requires_grad=bool(flags & NEEDS_GRAD),
        is_leaf=bool(flags & IS_LEAF),
        is_inference=bool(flags & INFERENCE_TENSOR),
        is_view=bool(flags & VIEW),
    )


def _surely_untracked(op: Op) -> bool:
    """By torch's rules no output of this op can require grad."""
    return op.mode != GRAD or not any(one.requires_grad for one in op.inputs)


def _told_at(line: Line, made: str) -> tuple[tuple[str, ...], str | None]:
    """The name in ``x = torch.rand(3)``; in a larger expression the part that made the tensor, if it is short."""
    expression = expression_at(line)
    if last_word(expression) not in {made, _CONSTANTS.get(made)}:
        return (), None
    name = assigned_name(line)
    if name:
        return (name,), None
    return (), expression if len(expression) <= _SHORT and expression.isprintable() else None
