"""What a node says and which part it plays: one place for all renderers.

A renderer asks ``look_of`` for the part a node plays, ``title_of`` and ``details_of`` for its words,
``edge_look`` and ``edge_words`` for an edge, and draws them in its own way. Nothing here knows a
format: escaping is the renderer's task, ``visible`` only makes sure that there is something to see.
"""

from __future__ import annotations

from graphscope.style.details import (
    describe,
    details_of,
    edge_words,
    node_note,
    saved_words,
    stub_slots,
    stub_words,
    summary_line,
)
from graphscope.style.groups import GRADIENT_WORDS, call_words, frame_words
from graphscope.style.looks import (
    EDGE_LINES,
    EDGE_MEANINGS,
    FORMS,
    GLYPHS,
    MEANINGS,
    EdgeLook,
    Form,
    Look,
    edge_look,
    is_alarming,
    look_of,
)
from graphscope.style.words import (
    MODE_WORDS,
    NAME_LIMIT,
    ODD_NODES,
    REASON_WORDS,
    elide,
    short_backward,
    tensor_words,
    title_of,
    visible,
)

__all__ = [
    "EDGE_LINES",
    "EDGE_MEANINGS",
    "FORMS",
    "GLYPHS",
    "GRADIENT_WORDS",
    "MEANINGS",
    "MODE_WORDS",
    "NAME_LIMIT",
    "ODD_NODES",
    "REASON_WORDS",
    "EdgeLook",
    "Form",
    "Look",
    "call_words",
    "describe",
    "details_of",
    "edge_look",
    "edge_words",
    "elide",
    "frame_words",
    "is_alarming",
    "look_of",
    "node_note",
    "saved_words",
    "short_backward",
    "stub_slots",
    "stub_words",
    "summary_line",
    "tensor_words",
    "title_of",
    "visible",
]
