"""A graph with the questions that verdicts and hazards ask of it, each answered once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from functools import cached_property

from graphscope.analyze.causes import (
    CAUSES,
    CHECKPOINTED,
    DETACHED_INSIDE,
    NAME_GIVEN_AWAY,
    NEW_LEAF,
    NONE_RETURNED,
    Words,
)
from graphscope.analyze.flow import ASSIGNED, Flow, gives_name_away, is_custom
from graphscope.analyze.replaced import Replacements
from graphscope.findings import Because, Cause, Verdict, to_place
from graphscope.model import Clue, Evidence, GraphData, Kind, Location, Node, Role, TensorInfo, reached_from

_NAMES_TOLD = 3
_ENDS = 16
"""Dead ends of one tensor that are looked at."""
_CONVERSIONS = re.compile(r"\b(tensor|as_tensor|asarray|from_numpy|array|Tensor|FloatTensor)\(")
"""What makes a tensor of numbers."""
_LEAVES = re.compile(r"\b(numpy|tolist|item|__array__)\b|\bnp\.|\bfloat\(")
"""What takes the values of a tensor out of torch."""
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
"""torch turns some round: ``x > w`` with a parameter w is ``lt``."""
_COMMENT = re.compile(r"\s*#[^'\"]*$")
_WORDS = re.compile(r"[^\W\d]\w*")
_MODE_WORDS = {"no_grad": "no_grad()", "inference_mode": "inference_mode()"}


_NEEDED: dict[Clue, tuple[int, int, int]] = {
    Clue.OPTIMIZER: (0, 1, 2),
    Clue.ATTRIBUTE: (0, 2, 0),
    Clue.STATEMENT: (0, 2, 0),
    Clue.BACKWARD: (1, 0, 0),
    Clue.OVERWRITE: (2, 0, 0),
    Clue.REASSIGNED: (2, 0, 0),
    Clue.GRAD_MODE: (0, 2, 0),
    Clue.UNREGISTERED: (0, 2, 0),
    Clue.TRAINING: (1, 0, 0),
    Clue.EVALUATING: (1, 0, 0),
    Clue.NO_GRADIENT: (2, 0, 0),
    Clue.SINGULAR: (1, 0, 1),
}
"""How many nodes, words and numbers an evidence must have at least."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sight:
    """What the detectors look at."""

    data: GraphData
    flow: Flow
    starts_backward: bool = False
    """The roots are what a backward was started from."""

    @cached_property
    def evidence(self) -> dict[Clue, list[Evidence]]:
        """By clue; what lacks something, as after half of its nodes were left out, tells nothing."""
        found: dict[Clue, list[Evidence]] = {clue: [] for clue in Clue}
        for one in self.data.evidence:
            nodes, words, numbers = _NEEDED.get(one.clue, (0, 0, 0))
            if len(one.nodes) >= nodes and len(one.words) >= words and len(one.numbers) >= numbers:
                found[one.clue].append(one)
        return found

    def statements(self, name: str) -> list[Evidence]:
        """Findings in the source."""
        return [one for one in self.evidence[Clue.STATEMENT] if one.subject == name]

    @cached_property
    def replacements(self) -> Replacements:
        """Tensors that stand in the place of parameters."""
        return Replacements(data=self.data, flow=self.flow)

    @cached_property
    def root_names(self) -> tuple[str, ...]:
        """Best name of each root."""
        roots = (self.data.by_id[root] for root in self.data.roots)
        return tuple(root.names[0] if root.names else "output" for root in roots)

    @property
    def root_words(self) -> str:
        """The roots in a sentence."""
        return listed(self.root_names, "or") or "the result"

    @cached_property
    def made(self) -> list[Node]:
        """What the roots are the results of, or the leaves that they are."""
        return [self.data.by_id[edge.source] for root in self.data.roots for edge in self.data.incoming[root]]

    def backward_reaching(self, node: Node) -> str | None:
        """Where a backward ran that reached a leaf, if one did."""
        place = next((place for place, reached in self._backwards if node.id in reached), None)
        return None if place is None else to_place(place)

    @cached_property
    def _backwards(self) -> list[tuple[Location, set[str]]]:
        """Every line that ran backward, with all that it reached."""
        return [
            (one.location, reached_from(self.data, one.nodes[1:]))
            for one in self.evidence[Clue.BACKWARD]
            if one.location is not None and len(one.nodes) > 1
        ]

    @cached_property
    def modules_called(self) -> frozenset[str]:
        """Paths of the modules in which an op ran, their parents included."""
        found: set[str] = set()
        for path in {node.module for node in self.data.nodes if node.kind is Kind.OP and node.module is not None}:
            while path and path not in found:
                found.add(path)
                path = path.rpartition(".")[0]  # noqa: PLW2901  up the tree
        return frozenset(found)

    def uncalled_module(self, verdict: Verdict) -> str | None:
        """The outermost module on the path of a parameter in which no op ran."""
        if any(name.rpartition(".")[0] in self.modules_called for name in (verdict.name, *verdict.aliases)):
            return None
        parts = verdict.name.split(".")[:-1]
        paths = (".".join(parts[: count + 1]) for count in range(len(parts)))
        known = {module.path for module in self.data.modules}
        return next((path for path in paths if path in known and path not in self.modules_called), None)

    def frozen_at(self, info: TensorInfo) -> Location | None:
        """The statement that froze a parameter, if only one can have done it, or one names it."""
        found = self.statements("freeze")
        if len(found) > 1:
            parts = [part for name in info.names for part in name.replace("[", ".").replace("]", "").split(".")]
            found = [one for one in found if any(len(part) > 1 and part in _parts(one) for part in parts)]
        return found[0].location if len(found) == 1 else None

    def dead_ends(self, node: Node) -> list[int]:
        """Positions of the last things made of a tensor; empty if only an optimizer or initializer read it."""
        targets = [self.flow.steps[number].target for number in self.flow.outgoing[self.flow.position[node.id]]]
        return sorted({end for target in targets for end in self._ends[target]})[-_ENDS:]

    @cached_property
    def _ends(self) -> list[tuple[int, ...]]:
        """By position of what no root depends on: the dead ends that it leads to, itself included; the latest ones."""
        found: list[tuple[int, ...]] = [()] * len(self.data.nodes)
        for place in range(len(self.data.nodes) - 1, -1, -1):
            if self.flow.cuts[place] is not None:
                continue
            numbers = self.flow.outgoing[place]
            if not any(self._goes_on(number) for number in numbers):
                node = self.data.nodes[place]
                found[place] = () if self.flow.is_bookkeeping(node) or self._is_update(node) else (place,)
            ways = {found[self.flow.steps[number].target] for number in numbers} - {()}
            if len(ways) == 1 and not found[place]:
                (found[place],) = ways
            elif ways:
                found[place] = tuple(sorted({*found[place], *(end for way in ways for end in way)})[-_ENDS:])
        return found

    def _is_update(self, node: Node) -> bool:
        """``p.data -= …`` of a leaf is no use of it, nor is the ``p.data`` of one that came no further."""
        edge = next(iter(self.data.incoming[node.id]), None)
        if edge is None or (node.op != "detach" and not node.writes):
            return False
        if node.location is not None and _LEAVES.search(node.location.code):
            return False
        written = self.data.by_id[edge.source]
        while written.op == "detach" and self.data.incoming[written.id]:
            written = self.data.by_id[self.data.incoming[written.id][0].source]
        return written.kind is Kind.LEAF and written.outputs[0].requires_grad is True

    def _followers(self, node: Node) -> list[int]:
        return [
            place
            for place in self.flow.followers(self.flow.position[node.id])
            if not self.flow.is_bookkeeping(self.data.nodes[place])
        ]

    def _goes_on(self, number: int) -> bool:
        return not self.flow.is_bookkeeping(self.data.nodes[self.flow.steps[number].target])

    def reenters_after(self, left: Because) -> bool:
        """A tensor that a root depends on may have been made of numbers after a value left PyTorch."""
        time = self.flow.position[left.nodes[-1]]
        roots = {self.flow.position[node.id] for node in self.made}
        for place, node in enumerate(self.data.nodes):
            if node.kind is Kind.LEAF and node.role in {Role.CONSTANT, Role.INPUT} and not _is_factory_made(node):
                readers = [self.flow.steps[number].target for number in self.flow.outgoing[place]]
                if self.flow.cuts[place] is not None and any(reader > time for reader in readers):
                    return True
            elif place in roots and node.kind is Kind.LEAF and node.role is not Role.PARAMETER:
                return True
        return False

    def came_back(self, node: Node) -> list[Because]:
        """Constants that a root depends on, made by ``torch.tensor`` of numbers that came of a tensor."""
        if not self._made_of_numbers:
            return []
        followers = [self.data.nodes[place] for place in self._followers(node)]
        lines = {one.location for one in followers if one.location is not None}
        names = {name for one in followers for name in one.names}
        names |= {match[1] for one in lines if (match := ASSIGNED.match(one.code)) is not None}
        return [
            Because(Cause.LEFT_PYTORCH, leaf.location, (leaf.id,))
            for leaf, words in self._made_of_numbers
            if leaf.location in lines or names.intersection(words)
        ]

    @cached_property
    def _made_of_numbers(self) -> list[tuple[Node, list[str]]]:
        """Leaves that a root depends on and that ``torch.tensor`` made, with the words of the line."""
        return [
            (leaf, _WORDS.findall(leaf.location.code))
            for place, leaf in enumerate(self.data.nodes)
            if leaf.kind is Kind.LEAF
            and leaf.location is not None
            and self.flow.cuts[place] is not None
            and _CONVERSIONS.search(leaf.location.code)
        ]

    @cached_property
    def is_stopped(self) -> bool:
        """The walk that the graph comes from did not go to its end."""
        return any(node.stopped for node in self.data.nodes)

    @cached_property
    def is_marked_once(self) -> bool:
        """A root depends on a gradient whose Function is marked ``@once_differentiable``."""
        return any(node.reached and node.backward == "Error" for node in self.data.nodes)

    def leaving(self, ends: Iterable[int]) -> list[Because]:
        """Dead ends at which values left torch, last first."""
        nodes = [self.data.nodes[place] for place in sorted(ends, reverse=True)]
        return [
            Because(Cause.LEFT_PYTORCH, node.location, (node.id,))
            for node in nodes
            if node.location is not None
            and node.op in {"detach", "local_scalar_dense"}
            and (
                _LEAVES.search(node.location.code) or (node.op == "local_scalar_dense" and self._hands_on_number(node))
            )
        ]

    def _hands_on_number(self, node: Node) -> bool:
        """``item()``, ``float()`` or ``int()``, not the truth value that an ``if`` asks for."""
        (edge, *_) = self.data.incoming[node.id] or (None,)
        return edge is not None and self.data.by_id[edge.source].outputs[edge.output].dtype != "bool"

    def leaves_behind(self, node: Node) -> str:
        """The leaves that a gradient at ``node`` goes on to, in words."""
        names: dict[str, None] = {}
        seen = {node.id}
        waiting = [node.id]
        while waiting and len(names) <= _NAMES_TOLD:
            for edge in self.data.incoming[waiting.pop()]:
                if not edge.gradient or edge.source in seen:
                    continue
                seen.add(edge.source)
                source = self.data.by_id[edge.source]
                if source.kind is Kind.LEAF:
                    names[source.names[0] if source.names else _unnamed(source)] = None
                else:
                    waiting.append(edge.source)
        return listed(list(names), "and") or "the leaves behind it"

    def template(self, because: Because) -> Words:
        """The sentences for a cause, as the place of it asks for."""
        nodes = [self.data.by_id[identity] for identity in because.nodes]
        if because.cause is Cause.NO_GRAD and self.is_checkpointed(nodes[-1] if nodes else None):
            return CHECKPOINTED
        if because.cause is Cause.NO_GRAD and len(nodes) > 1 and gives_name_away(nodes[0], nodes[-1]):
            return NAME_GIVEN_AWAY
        if because.cause is Cause.DETACH and because.location is not None and "detach" not in because.location.code:
            return DETACHED_INSIDE
        if because.cause is Cause.DATA and because.location is not None and "Parameter(" in because.location.code:
            return NEW_LEAF
        if because.cause is Cause.CUSTOM_FUNCTION and len(nodes) > 1 and is_custom(nodes[-1]):
            return NONE_RETURNED
        return CAUSES[because.cause]

    def is_checkpointed(self, node: Node | None) -> bool:
        """An op that a reentrant checkpoint ran with gradients off."""
        return node is not None and any(one.id == node.region and one.mode == "checkpoint" for one in self.data.regions)

    def switch_words(self, because: Because, target: Node | None) -> str:
        """What switched gradients off, and where."""
        nodes = [target, *(self.data.by_id[identity] for identity in because.nodes)]
        stands_in = next((node.region for node in nodes if node is not None and node.region is not None), None)
        region = next((one for one in self.data.regions if one.id == stands_in), None)
        where = to_place(because.location)
        if (
            because.location is not None
            and because.location.code
            and region is not None
            and region.entered != "library"
        ):
            return f"{quoted(because.location.code)} at {where}"
        if because.cause is Cause.INFERENCE_MODE:
            return f"inference_mode at {where}"
        return f"no_grad at {where}"


def to_op_words(node: Node | None) -> str:
    """An op to begin a sentence with; a conversion says to what."""
    if node is None or not node.op:
        return "An operation"
    if node.op in _COMPARISONS:
        return "A comparison"
    if node.op == "to_copy" and node.outputs:
        return f"A conversion to {node.outputs[0].dtype}"
    return node.op


def _is_factory_made(node: Node) -> bool:
    """Made by ``torch.rand`` and the like, not of numbers that somebody had."""
    return node.location is not None and not _CONVERSIONS.search(node.location.code)


def _parts(one: Evidence) -> set[str]:
    """Words of a statement, to be compared with the parts of a name."""
    text = "".join(character if character.isidentifier() or character.isdigit() else " " for character in one.words[1])
    return set(text.split()) - {"requires_grad", "requires_grad_", "self", "model"}


def quoted(code: str) -> str:
    """A line of code in a sentence, without its comment and the colon at its end.

    >>> quoted("with torch.no_grad():  # only a copy"), quoted("x['#'] = 1")
    ('with torch.no_grad()', "x['#'] = 1")
    """
    return _COMMENT.sub("", code).rstrip(": ")


def _unnamed(node: Node) -> str:
    return "an unnamed tensor" if node.location is None else f"the tensor made at {to_place(node.location)}"


def listed(names: Iterable[str], word: str, most: int = _NAMES_TOLD) -> str:
    """Names in a sentence.

    >>> listed(["a"], "and"), listed(["a", "b"], "or"), listed(["a", "b", "c", "d", "e"], "and")
    ('a', 'a or b', 'a, b, c and 2 more')
    """
    every = list(names)
    if len(every) > most + 1:
        return f"{', '.join(every[:most])} and {len(every) - most} more"
    return f" {word} ".join(part for part in (", ".join(every[:-1]), *every[-1:]) if part)
