"""Grad mode and training mode mixed up with one another, or switched without effect."""

from __future__ import annotations

from collections.abc import Iterator

from graphscope.analyze.causes import make_hazard
from graphscope.analyze.hazards.retained import kept_bytes
from graphscope.analyze.sight import Sight, listed, quoted
from graphscope.findings import Hazard, Severity, Verdict, to_place
from graphscope.model import Clue, Kind, Location
from graphscope.units import to_bytes_text


def detect(sight: Sight, verdicts: tuple[Verdict, ...]) -> Iterator[Hazard]:
    """Switches that do nothing or too much, and layers in the other mode than was meant."""
    yield from _statements(sight)
    yield from _left_off(sight, verdicts)
    yield from _train_layers(sight)
    yield from _dropouts(sight)
    yield from _eval_records(sight)
    yield from _inference_tensors(sight)


def _statements(sight: Sight) -> Iterator[Hazard]:
    kinds = {
        "lone_switch": "no_grad_without_effect",
        "switch_on_value": "no_grad_on_value",
        "volatile": "volatile_without_effect",
        "missing_call": "call_missing",
        "accumulator_hook": "hook_on_accumulator",
    }
    for subject, kind in kinds.items():
        for one in sight.statements(subject):
            yield make_hazard(kind, one.location, code=one.words[1], word=one.words[0])


def _left_off(sight: Sight, verdicts: tuple[Verdict, ...]) -> Iterator[Hazard]:
    """A fault where something was to train; a script that only infers may do so."""
    trains = any(row.requires_grad and row.kind == "parameter" for row in verdicts)
    for one in sight.evidence[Clue.GRAD_MODE]:
        switch = one.words[1] if one.location is None else f"{quoted(one.location.code)} at {to_place(one.location)}"
        severity = Severity.WARNING if trains and one.words[0] != "unknown" else Severity.NOTE
        yield make_hazard("grad_mode_left_off", one.location, switch=switch, severity=severity)


def _train_layers(sight: Sight) -> Iterator[Hazard]:
    """Dropout drops and running statistics move; on purpose where the loss is made of it, as with a teacher."""
    places: dict[object, list[str]] = {}
    for one in sight.evidence[Clue.TRAINING]:
        places.setdefault(one.location, []).append(one.subject)
    tracked = any(sight.data.by_id[root].outputs[0].requires_grad for root in sight.data.roots)
    for one in sight.evidence[Clue.TRAINING]:
        subjects = dict.fromkeys(places.pop(one.location, ()))
        if not subjects:
            continue
        words = {"dropout": "Dropout", "batch_norm": "Batch normalization"}
        feeds = tracked and sight.flow.cuts[sight.flow.position[one.nodes[0]]] is not None
        layers = listed([words.get(subject, "A layer") for subject in subjects], "and")
        node = sight.data.by_id[one.nodes[0]]
        yield make_hazard(
            "train_layer_in_no_grad",
            one.location,
            layers=layers + (" run" if len(subjects) > 1 else " runs"),
            mode=f"{node.mode}()",
            what="them" if len(subjects) > 1 else "it",
            severity=Severity.NOTE if feeds else Severity.WARNING,
            nodes=one.nodes,
        )


def _dropouts(sight: Sight) -> Iterator[Hazard]:
    for one in sight.evidence[Clue.EVALUATING]:
        if one.subject == "dropout":
            yield make_hazard(
                "dropout_in_eval", one.location, module=one.words[0] if one.words else "its module", nodes=one.nodes
            )


def _eval_records(sight: Sight) -> Iterator[Hazard]:
    """Only where nothing was trained: a backward through a model in eval mode is nobody's mistake."""
    recorded = [one for one in sight.evidence[Clue.EVALUATING] if one.subject == "recorded"]
    if not recorded or sight.evidence[Clue.BACKWARD]:
        return
    reached = {node.id for node in sight.data.nodes if node.reached and node.kind is Kind.OP}
    yield make_hazard(
        "eval_still_records",
        recorded[0].location,
        tuple(one.location for one in recorded[1:4]),
        bytes=to_bytes_text(kept_bytes(sight, reached)),
        nodes=recorded[0].nodes,
    )


def _inference_tensors(sight: Sight) -> Iterator[Hazard]:
    """Read by an op that is recorded and did not raise; told once for the line that made them."""
    told: set[Location | None] = set()
    for node in sight.data.nodes:
        if node.kind is Kind.OUTPUT or node.location in told or not any(info.is_inference for info in node.outputs):
            continue
        readers = (sight.data.by_id[edge.target] for edge in sight.data.outgoing[node.id])
        reader = next((one for one in readers if one.reached and one.kind is Kind.OP and one.mode == "grad"), None)
        if reader is not None:
            told.add(node.location)
            yield make_hazard(
                "inference_tensor_in_grad",
                reader.location,
                (node.location,),
                made_where=to_place(node.location),
                where=to_place(reader.location),
                tensors=node.names[:1],
                nodes=(node.id, reader.id),
            )
