"""The options that commands share, each with its words of help."""

from __future__ import annotations

from typing import Annotated

import typer

from graphscope.render.dot import Direction
from graphscope.render.engine import Engine
from graphscope.render.formats import FORMATS, SHOWABLE
from graphscope.render.palette import Theme

_TAKING, _DRAWING, _WRITING = "What to take", "How to draw", "Where to write"

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="[b]script.py[/b] is run, and the graph taken at its first backward(). [b]script.py:name[/b] and "
        "[b]package.module:name[/b] are imported; the name is a tensor, a module (with --input), or a function that "
        "returns some. [b]graph.json[/b] is a saved graph.",
    ),
]
ScriptArguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="The script's own arguments, after --.")
]
OutputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        rich_help_panel=_WRITING,
        help=f"File to write; its suffix picks the format: {', '.join(FORMATS)}. May be given several times. -.svg is "
        "SVG on stdout. Without a file the graph is printed.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", rich_help_panel=_WRITING, help="Print the graph as JSON.")]
AtOption = Annotated[
    str,
    typer.Option(
        metavar="N|all",
        rich_help_panel=_TAKING,
        help="Number of the backward() or autograd.grad() at which to take the graph. With all, files get a number: "
        "g.1.svg, g.2.svg.",
    ),
]
StopOption = Annotated[
    bool, typer.Option("--stop", rich_help_panel=_TAKING, help="End the script once the graph is taken.")
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="SIZES[:DTYPE]",
        rich_help_panel=_TAKING,
        help="A tensor to call a module with, as 1,3,224,224 or 1,16:int64; once for each argument.",
    ),
]
FakeOption = Annotated[
    bool,
    typer.Option(
        "--fake",
        rich_help_panel=_TAKING,
        help="Call the function or module on fake tensors, which have shapes but no numbers: any size, in no memory. A "
        "function may build the model and return it (with --input) or its loss.",
    ),
]
NoRecordOption = Annotated[
    bool,
    typer.Option(
        "--no-record",
        rich_help_panel=_TAKING,
        help="Only walk what autograd kept: no operations that it did not record, no reasons, no source lines.",
    ),
]
RootOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_TAKING,
        help="A tensor to start from; may be given several times. By default what backward() is called on, else loss, "
        "else the tensors that no other leads to.",
    ),
]
NamesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,…",
        rich_help_panel=_TAKING,
        help="Variables (modules, dicts, tensors) that may name tensors. By default all in sight.",
    ),
]
DepthOption = Annotated[
    str,
    typer.Option(
        metavar="N|auto|full",
        rich_help_panel=_DRAWING,
        help="Levels of modules to draw open; auto folds to about 120 boxes, full folds nothing.",
    ),
]
ExpandOption = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE,…", rich_help_panel=_DRAWING, help="Modules to draw open whatever the depth."),
]
FocusOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", rich_help_panel=_DRAWING, help="Only what leads to a tensor or module, or from it."),
]
PathOption = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="FROM TO", rich_help_panel=_DRAWING, help="Only what lies between two tensors or modules."),
]
HideOption = Annotated[
    list[str] | None,
    typer.Option(metavar="WHAT,…", rich_help_panel=_DRAWING, help="Roles, operations, modules, tensors to leave out."),
]
ForceOption = Annotated[
    bool, typer.Option("--force", rich_help_panel=_DRAWING, help="Draw every box, however many there are.")
]
ShowOption = Annotated[
    list[str] | None,
    typer.Option(metavar="WORD,…", rich_help_panel=_DRAWING, help=f"Tell more: {', '.join(SHOWABLE)}."),
]
ThemeOption = Annotated[
    Theme, typer.Option(rich_help_panel=_DRAWING, case_sensitive=False, help="Ground of the picture.")
]
DirectionOption = Annotated[
    Direction,
    typer.Option(rich_help_panel=_DRAWING, case_sensitive=False, help="Data flows down (TB) or to the right (LR)."),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        rich_help_panel=_DRAWING, case_sensitive=False, help="Graphviz: the bundled one, or the system's dot."
    ),
]
