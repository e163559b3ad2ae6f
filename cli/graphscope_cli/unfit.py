"""Options that say nothing to a kind of target."""

from __future__ import annotations

from graphscope.errors import InputError
from graphscope_cli.request import Request
from graphscope_cli.targets import Name, SavedGraph, Script, Target


def refuse_what_does_not_apply(target: Target, request: Request, arguments: list[str]) -> None:
    """Check that what was given fits the target.

    Raises:
        InputError: with the option that has no use.
    """
    of_scripts = {"--at": request.at != Request().at, "--stop": request.stop}
    of_names = {"--input": bool(request.inputs)}
    of_programs = {"--root": bool(request.roots), "--names": bool(request.namers), "an argument": bool(arguments)}
    taken, refused = {
        Script: ("is run as a script", of_names),
        Name: ("is imported", of_scripts),
        SavedGraph: ("is a saved graph", {**of_scripts, **of_names, **of_programs}),
    }[type(target)]
    for option, given in refused.items():
        if given:
            raise InputError(f"{option} has no use here: {target.given} {taken}.")
    if request.fake:
        _refuse_fake(target)
    if request.stop and request.at is None:
        raise InputError("--stop ends the script after one graph, --at all asks for every one. Give --at a number.")


def _refuse_fake(target: Target) -> None:
    """A script as a whole is not run on fake tensors: it may save a model, over one with numbers."""
    if isinstance(target, SavedGraph):
        raise InputError(f"--fake has no use here: {target.given} is a saved graph.")
    if isinstance(target, Script):
        raise InputError(
            f"--fake calls one function, and {target.given} is run as a whole: what it then saves would have no "
            "numbers. Name a function in it that returns the model (with --input) or the loss: "
            f"{target.given}:build --fake"
        )
