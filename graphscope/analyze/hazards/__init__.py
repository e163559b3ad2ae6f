"""What will raise, be wrong, or cost more than it should: one small detector for each family of hazards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphscope.analyze.hazards import attributes, derivatives, modes, overwrites, retained, roots
from graphscope.analyze.sight import Sight
from graphscope.findings import Hazard, Severity, Verdict

Detector = Callable[[Sight, tuple[Verdict, ...]], Iterator[Hazard]]

_DETECTORS: tuple[Detector, ...] = (
    roots.detect,
    overwrites.detect,
    retained.detect,
    modes.detect,
    derivatives.detect,
    attributes.detect,
)
_ORDER = {severity: place for place, severity in enumerate(Severity)}


def find_hazards(sight: Sight, verdicts: tuple[Verdict, ...]) -> tuple[Hazard, ...]:
    """Every hazard once, worst first."""
    found = dict.fromkeys(hazard for detect in _DETECTORS for hazard in detect(sight, verdicts))
    checkpoints = {hazard.location for hazard in found if hazard.kind == "reentrant_checkpoint_cut"}
    told = (one for one in found if one.kind != "loss_without_history" or one.location not in checkpoints)
    return tuple(sorted(told, key=lambda hazard: _ORDER[hazard.severity]))
