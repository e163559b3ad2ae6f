"""DOT to SVG, PNG or PDF: the one place where Graphviz runs.

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
import struct
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
PDF_LIMIT = 14_400
"""Points along the longer side at most: larger pages are beyond PDF 1.7 (ISO 32000-1, annex C)."""


_INSTALL = "`pip install pygraphviz` brings Graphviz with it; or install it from graphviz.org/download."


class Engine(StrEnum):
    """Who lays out and draws."""

    AUTO = "auto"
    """Bundled if it is installed, else system."""
    BUNDLED = "bundled"
    SYSTEM = "system"


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
        engine: ``auto``, ``bundled`` or ``system``.
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
    drawn = _drawn(dot_text, wanted, chosen, layout, timeout)
    _warn_if_scaled(drawn, wanted)
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
    if engine is Engine.AUTO:
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


def _drawn(dot_text: str, wanted: Format, engine: Engine, layout: str, timeout: float) -> bytes:
    attributes = _page_attributes(wanted)
    with tempfile.TemporaryDirectory(prefix="graphscope-") as folder:
        source, target = Path(folder, "graph.dot"), Path(folder, f"graph.{wanted}")
        source.write_text(dot_text, encoding="utf-8", errors="backslashreplace")
        if engine is Engine.BUNDLED:
            seconds = str(math.ceil(timeout) + 5)
            command = [
                *_child(),
                str(_bundled_folder()),
                seconds,
                layout,
                wanted,
                str(source),
                str(target),
                *attributes,
            ]
        else:
            command = ["dot", f"-K{layout}", f"-T{wanted}", f"-o{target}", *(f"-G{each}" for each in attributes)]
            command.append(str(source))
        _run(command, Path(folder), timeout)
        if not target.exists():
            raise EngineError(f"The {engine} Graphviz wrote no {wanted}, and told no fault.")
        return target.read_bytes()


def _page_attributes(wanted: Format) -> list[str]:
    if wanted is Format.PNG:
        return [f"dpi={PNG_DPI}", f"size={(PNG_LIMIT - 20) / PNG_DPI:.3f},{(PNG_LIMIT - 20) / PNG_DPI:.3f}"]
    if wanted is Format.PDF:
        return [f"size={(PDF_LIMIT - 40) / 72:.3f},{(PDF_LIMIT - 40) / 72:.3f}"]
    return []


def _run(command: list[str], folder: Path, timeout: float) -> None:
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


def _ending(status: int) -> str:
    if status < 0:
        return f"ended by signal {signal.Signals(-status).name}"
    return f"exit status {status}"


def _told(stderr: bytes) -> str:
    """What the engine said, without the font library's remarks on its own configuration."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    told = [line for line in lines if line.strip() and not line.startswith(("Fontconfig", "Warning:"))]
    return " ".join(told[-3:]) or "it gave no reason"


def _warn_if_scaled(drawn: bytes, wanted: Format) -> None:
    if wanted is Format.PNG:
        side = max(struct.unpack(">II", drawn[16:24]))
        scaled = side >= PNG_LIMIT - 40
    elif wanted is Format.PDF:
        box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", drawn)
        scaled = box is not None and max(map(float, box.groups())) >= PDF_LIMIT - 80
    else:
        scaled = False
    if scaled:
        warnings.warn(
            f"The drawing is larger than a {wanted.upper()} can well be and was drawn smaller; "
            "SVG has no such limit, and folding (--depth 1) makes it readable.",
            ScaledDownWarning,
            stacklevel=3,
        )


def _said(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)  # noqa: S603 - as in _run
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout or done.stderr
    return said.decode(errors="replace").strip().splitlines()[-1] if done.returncode == 0 and said.strip() else None


def _font_of(text: str) -> str | None:
    """The font that a text is drawn with: a PDF names the fonts it holds, and none if there are only empty boxes."""
    try:
        drawn = draw(f'digraph {{ a [fontname=Helvetica label="{text}"] }}', Format.PDF, timeout=20)
    except EngineError:
        return None
    found = re.search(rb"/BaseFont /(?:[A-Z]{6}\+)?([^\s/<>]+)", drawn)
    return found[1].decode(errors="replace") if found else None
