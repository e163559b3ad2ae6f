"""The font that drawings are made with.

Slim containers have no font, and Graphviz then draws empty boxes in PNG and PDF. A PyPI package brings Arimo
(SIL Open Font License, letters as wide as those of Helvetica and Arial); the drawing process gets a fontconfig
file that lists it before the user's own fonts, which stay in reach for what Arimo lacks, Chinese for one.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from graphscope.render.escape import to_markup

FAMILIES = "Arimo, Helvetica, Arial, 'Liberation Sans', 'Noto Sans CJK SC', 'Noto Sans SC', 'PingFang SC', sans-serif"
"""What an SVG asks the viewer for: all as wide as Arimo as far as there are letters."""

_SYSTEM_FILES = ("/etc/fonts/fonts.conf", "/opt/homebrew/etc/fonts/fonts.conf", "/usr/local/etc/fonts/fonts.conf")
_SYSTEM_FOLDERS = ("/System/Library/Fonts", "/Library/Fonts", "~/Library/Fonts", "WINDOWSFONTDIR")

# Hinting rounds the widths of letters to pixels: pictures would differ from machine to machine, and FreeType 2.10,
# which the wheel carries, spaces the letters of a variable font apart when it hints them.
_RULES = """
  <match target="pattern">
    <edit name="family" mode="prepend_first" binding="strong"><string>Arimo</string></edit>
  </match>
  <match target="font">
    <edit name="hinting" mode="assign"><bool>false</bool></edit>
    <edit name="hintstyle" mode="assign"><const>hintnone</const></edit>
    <edit name="autohint" mode="assign"><bool>false</bool></edit>
  </match>
"""


def bundled_folder() -> Path | None:
    """Folder of the bundled font; None if its package is not installed."""
    found = importlib.util.find_spec("fontpkg_arimo")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "files"
    return folder if folder.is_dir() else None


def to_fontconfig(environment: Mapping[str, str]) -> str:
    """A fontconfig file: the bundled font first, then what the environment would have had.

    Source: fontconfig.org, "User Documentation", Configuration File Format.
    """
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">\n<fontconfig>\n'
        + "".join(f"  {line}\n" for line in _sources(environment))
        + f"{_RULES}</fontconfig>\n"
    )


def _sources(environment: Mapping[str, str]) -> Iterator[str]:
    folder = bundled_folder()
    if folder is not None:
        yield f"<dir>{to_markup(str(folder))}</dir>"
    given = environment.get("FONTCONFIG_FILE")
    for name in (_resolved(given),) if given else _SYSTEM_FILES:
        yield f'<include ignore_missing="yes">{to_markup(name)}</include>'
    if not given:
        yield from (f"<dir>{name}</dir>" for name in _SYSTEM_FOLDERS)
    yield '<cachedir prefix="xdg">fontconfig</cachedir>'


def _resolved(name: str) -> str:
    """The user's file as an absolute path where it can be found from here; else fontconfig looks for it."""
    path = Path(name).expanduser()
    return os.fspath(path.resolve()) if path.exists() else name
