"""Colours of the two themes.

The fills come from the Okabe-Ito set, lightened or darkened until text on them stands out by at
least 4.5 to 1 (WCAG AA). Colour is never the only mark: ``style.FORMS`` and ``style.GLYPHS`` tell
the same without it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from graphscope.style import EdgeLook, Look


class Theme(StrEnum):
    """Which ground a drawing stands on."""

    LIGHT = "light"
    DARK = "dark"


class Colours(NamedTuple):
    """Colours of one look, as ``#RRGGBB``."""

    fill: str
    line: str
    text: str
    muted: str
    """For the further lines of a box."""


class Palette(NamedTuple):
    """One theme. Text stands out from its ground by at least 4.5 to 1; fills differ for colour-blind eyes too."""

    background: str
    text: str
    muted: str
    alarm: str
    """For the words of a cut that may surprise."""
    region: str
    """Ground of a stretch of code that ran under one grad mode."""
    looks: dict[Look, Colours]
    edges: dict[EdgeLook, str]


def _looks(text: str, muted: str, inverse: Colours, lines: dict[Look, tuple[str, str]]) -> dict[Look, Colours]:
    looks = {look: Colours(fill, line, text, muted) for look, (fill, line) in lines.items()}
    return {**looks, Look.OUTPUT: inverse}


PALETTES: dict[Theme, Palette] = {
    Theme.LIGHT: Palette(
        background="#FFFFFF",
        text="#1F2328",
        muted="#57606A",
        alarm="#A83C00",
        region="#F6F8FA",
        looks=_looks(
            "#1F2328",
            "#505862",
            Colours("#24292F", "#24292F", "#FFFFFF", "#D0D7DE"),
            {
                Look.TRAINABLE: ("#BDE8D8", "#00664D"),
                Look.UNREACHED: ("#FBDDCB", "#A83C00"),
                Look.FROZEN: ("#CDE3F6", "#0B5A8A"),
                Look.CONSTANT: ("#F0F2F4", "#6E7781"),
                Look.TRACKED: ("#FFF3D1", "#8F6000"),
                Look.DEAD: ("#E7EAED", "#6E7781"),
                Look.UNTRACKED: ("#FFFFFF", "#57606A"),
                Look.GROUP: ("#EAE3F6", "#6639BA"),
                Look.FROZEN_GROUP: ("#CDE3F6", "#0B5A8A"),
                Look.CUT_GROUP: ("#FBDDCB", "#A83C00"),
                Look.SILENT_GROUP: ("#FFFFFF", "#57606A"),
            },
        ),
        edges={EdgeLook.FLOWS: "#24292F", EdgeLook.DEAD: "#8C959F", EdgeLook.CUT: "#6E7781"},
    ),
    Theme.DARK: Palette(
        background="#0D1117",
        text="#E6EDF3",
        muted="#9DA7B3",
        alarm="#F0A070",
        region="#161B22",
        looks=_looks(
            "#E6EDF3",
            "#B1BAC4",
            Colours("#E6EDF3", "#E6EDF3", "#1F2328", "#4A525B"),
            {
                Look.TRAINABLE: ("#0F4536", "#3FC79A"),
                Look.UNREACHED: ("#522814", "#F0883E"),
                Look.FROZEN: ("#10344F", "#58A6E8"),
                Look.CONSTANT: ("#272D36", "#8B949E"),
                Look.TRACKED: ("#3D310B", "#D9A520"),
                Look.DEAD: ("#1C2128", "#8B949E"),
                Look.UNTRACKED: ("#0D1117", "#9DA7B3"),
                Look.GROUP: ("#2F2356", "#A98EEB"),
                Look.FROZEN_GROUP: ("#10344F", "#58A6E8"),
                Look.CUT_GROUP: ("#522814", "#F0883E"),
                Look.SILENT_GROUP: ("#0D1117", "#9DA7B3"),
            },
        ),
        edges={EdgeLook.FLOWS: "#E6EDF3", EdgeLook.DEAD: "#6E7681", EdgeLook.CUT: "#8B949E"},
    ),
}
