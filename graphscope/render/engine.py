"""DOT to SVG, PNG or PDF: the one place where Graphviz runs. Large SVG does without it, see ``scene_svg``.

Bundled: the Graphviz 14 inside the ``pygraphviz`` wheel, so that no system program is needed. System: a ``dot``
found on PATH. Either runs in a child process with a time limit, and is gone when the caller is interrupted.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from graphscope.errors import EngineError, FormatError
from graphscope.render import engine_child
from graphscope.render.fonts import bundled_folder, to_fontconfig
from graphscope.render.svg import finish_svg

DEFAULT_TIMEOUT = 120.0
"""Seconds. ``dot`` is worse than linear: 1,700 nodes took 6 s, 3,300 took 34 s."""

PNG_DPI = 144
PNG_LIMIT = 8000
"""Pixels along the longer side at most; larger pictures are drawn at fewer dots per inch."""
READABLE_SCALE = 0.6
"""A drawing scaled down further than this may be hard to read."""
PDF_LIMIT = 14_400
"""Points along the longer side at most: larger pages are beyond PDF 1.7 (ISO 32000-1, annex C)."""


_IN_NO_FONT = "\U000f1234"  # private use
_INSTALL = "`pip install pygraphviz` brings Graphviz with it; or install it from graphviz.org/download."


class Engine(StrEnum):
    """Who lays out and draws."""

    AUTO = "auto"
    """Bundled if it is installed, else system."""
    BUNDLED = "bundled"
    SYSTEM = "system"
    DOT = "dot"
    """As ``auto``, with the layout of Graphviz's ``dot`` whatever the size."""
    FAST = "fast"
    """As ``auto``, with the layout of fast-sugiyama whatever the size."""


class Format(StrEnum):
    """What can be drawn."""

    SVG = "svg"
    PNG = "png"
    PDF = "pdf"


class ScaledDownWarning(UserWarning):
    """A picture was too large for its format and was drawn smaller."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EngineReport:
    """What can draw here; ``None`` where something is missing."""

    bundled: str | None
    """Version of the Graphviz inside the pygraphviz wheel."""
    system: str | None
    """What the ``dot`` on PATH says of itself."""
    system_path: str | None
    font: Path | None
    """Folder of the bundled font."""
    chinese: str | None
    """Name of the font that draws Chinese in PNG and PDF. SVG leaves it to the viewer."""


_Choice = TypeVar("_Choice", bound=StrEnum)


def draw(
    dot_text: str,
    format: str,
    *,
    engine: str = Engine.AUTO,
    timeout: float = DEFAULT_TIMEOUT,
    layout: str = "dot",
    id_prefix: str | None = None,
) -> bytes:
    """Draw DOT text.

    Args:
        dot_text: what ``to_dot(data).source`` gives.
        format: ``svg``, ``png`` or ``pdf``.
        engine: a word of ``Engine``; ``dot`` and ``fast`` draw as ``auto``.
        timeout: seconds until the layout is given up.
        layout: Graphviz's name of the layout: ``dot``, or ``nop2`` for a graph that has positions.
        id_prefix: begins the ids in an SVG; made of its content by default.

    Raises:
        FormatError: if the format or the engine is not one of those.
        EngineError: if Graphviz is missing, fails, or takes longer than ``timeout``; the message tells the remedy.

    Warns:
        ScaledDownWarning: if a PNG or PDF would have been too large and was drawn smaller.
    """
    wanted, chosen = _known(Format, format), _chosen(_known(Engine, engine))
    drawn, scale = _drawn(dot_text, wanted, chosen, layout, timeout)
    if scale < READABLE_SCALE:
        warnings.warn(
            f"The drawing is too large for {wanted.upper()}: it was drawn at {scale:.0%} of its size, and small text "
            "may not be readable. SVG has no such limit; folding (--depth 1) gives a smaller graph.",
            ScaledDownWarning,
            stacklevel=2,
        )
    return finish_svg(drawn, prefix=id_prefix) if wanted is Format.SVG else drawn


def report() -> EngineReport:
    """What can draw here, found by trying it; takes about half a second."""
    bundled = _said([*_child(), str(_bundled_folder())]) if _bundled_folder() else None
    system = shutil.which("dot")
    said = _said([system, "-V"]) if system else None
    return EngineReport(
        bundled=bundled or None,
        system=re.sub(r"^dot - graphviz version ", "", said) if said else None,
        system_path=system,
        font=bundled_folder(),
        chinese=_font_of("中") if bundled or system else None,
    )


def _known(kind: type[_Choice], given: str) -> _Choice:
    try:
        return kind(given)
    except ValueError:
        raise FormatError(f"{given!r} is no {kind.__name__.lower()}; choose one of {', '.join(kind)}.") from None


def _chosen(engine: Engine) -> Engine:
    if engine in {Engine.AUTO, Engine.DOT, Engine.FAST}:
        if _bundled_folder() is not None and sys.executable:
            return Engine.BUNDLED
        if shutil.which("dot"):
            return Engine.SYSTEM
        raise EngineError(f"Nothing here can draw. {_INSTALL}")
    if engine is Engine.BUNDLED and _bundled_folder() is None:
        raise EngineError(f"The bundled Graphviz is not installed. {_INSTALL}")
    if engine is Engine.SYSTEM and not shutil.which("dot"):
        raise EngineError("No `dot` on PATH. Install Graphviz (graphviz.org/download), or use the bundled engine.")
    return engine


def _bundled_folder() -> Path | None:
    """Folder that holds the pygraphviz package."""
    found = importlib.util.find_spec("pygraphviz")
    return Path(found.origin).parent.parent if found is not None and found.origin is not None else None


def _child() -> list[str]:
    return [sys.executable, "-I", "-S", engine_child.__file__]


def _drawn(dot_text: str, wanted: Format, engine: Engine, layout: str, timeout: float) -> tuple[bytes, float]:
    """The file that Graphviz writes, and how much it scaled the drawing."""
    attributes = _page_attributes(wanted)
    with tempfile.TemporaryDirectory(prefix="graphscope-") as folder:
        source, target, plain = (Path(folder, name) for name in ("graph.dot", f"graph.{wanted}", "graph.plain"))
        source.write_text(dot_text, encoding="utf-8", errors="backslashreplace")
        if engine is Engine.BUNDLED:
            command = [*_child(), str(_bundled_folder()), str(math.ceil(timeout) + 5), layout, wanted]
            command += [str(source), str(target), *attributes]
        else:
            command = ["dot", f"-K{layout}", f"-T{wanted}", f"-o{target}", *(f"-G{each}" for each in attributes)]
            command += ["-Tplain", f"-o{plain}", str(source)] if attributes else [str(source)]
        told = _run(command, Path(folder), timeout)
        if not target.exists():
            raise EngineError(f"The {engine} Graphviz wrote no {wanted}, and told no fault.")
        if plain.exists():
            told = plain.read_bytes()
        return target.read_bytes(), _scale(told)


def _scale(plain: bytes) -> float:
    """The second word of Graphviz's plain format, ``graph scale width height`` (graphviz.org/docs/outputs/plain)."""
    words = plain.split(maxsplit=2)
    return float(words[1]) if len(words) > 1 and words[0] == b"graph" else 1.0


def _page_attributes(wanted: Format) -> list[str]:
    if wanted is Format.PNG:
        return [f"dpi={PNG_DPI}", f"size={(PNG_LIMIT - 20) / PNG_DPI:.3f},{(PNG_LIMIT - 20) / PNG_DPI:.3f}"]
    if wanted is Format.PDF:
        return ["margin=0", f"size={(PDF_LIMIT - 10) / 72:.3f},{(PDF_LIMIT - 10) / 72:.3f}"]
    return []


def _run(command: list[str], folder: Path, timeout: float) -> bytes:
    """Run an engine with our fonts and return what it wrote to stdout."""
    fonts = folder / "fonts.conf"
    fonts.write_text(to_fontconfig(os.environ), encoding="utf-8")
    environment = {**os.environ, "FONTCONFIG_FILE": str(fonts), "PANGOCAIRO_BACKEND": "fc"}
    try:
        done = subprocess.run(  # noqa: S603 - our own child or `dot`, with files that we named
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"Graphviz had not laid the graph out after {timeout:g} s. Fold it (--depth 1), look at a part of it "
            "(--focus NAME), or give it more time."
        ) from None
    except OSError as error:
        raise EngineError(f"Graphviz cannot be started ({error}). {_INSTALL}") from error
    if done.returncode != 0:
        raise EngineError(f"Graphviz failed ({_ending(done.returncode)}): {_told(done.stderr)}")
    return done.stdout


def _ending(status: int) -> str:
    if status < 0:
        return f"ended by signal {signal.Signals(-status).name}"
    return f"exit status {status}"


def _told(stderr: bytes) -> str:
    """What the engine said, without the font library's remarks on its own configuration."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    told = [line for line in lines if line.strip() and not line.startswith(("Fontconfig", "Warning:"))]
    return " ".join(told[-3:]) or "it gave no reason"


def _said(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)  # noqa: S603 - as in _run
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout or done.stderr
    return said.decode(errors="replace").strip().splitlines()[-1] if done.returncode == 0 and said.strip() else None


def _font_of(text: str) -> str | None:
    """The font that a text is drawn with: a PDF names its fonts. Where none has the letter, digits stand in a box."""
    try:
        drawn, stand_in = (
            draw(f'digraph {{ a [fontname=Helvetica label="{letters}"] }}', Format.PDF, timeout=20)
            for letters in (text, _IN_NO_FONT)
        )
    except EngineError:
        return None
    fonts, others = (re.findall(rb"/BaseFont /(?:[A-Z]{6}\+)?([^\s/<>]+)", each) for each in (drawn, stand_in))
    return fonts[0].decode(errors="replace") if fonts and fonts != others else None
