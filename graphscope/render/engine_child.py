"""Runs the Graphviz that the pygraphviz wheel carries; started as a program by ``render.engine``.

A layout holds the GIL and cannot be interrupted, hence a process of its own. It is started by its path under
``python -I -S``, so it loads nothing of the user's and nothing of graphscope, and takes about 0.1 s.

Arguments: folder of the pygraphviz package, seconds of CPU at most, layout, format, DOT file, file to write,
and any number of ``name=value`` attributes that the graph gets; if there are some, it tells the first line of
Graphviz's plain format, which says how much the drawing was scaled. With the folder alone it tells the version.
"""

from __future__ import annotations

import signal
import sys


def main(arguments: list[str]) -> int:
    """Draw one graph; the exit status is 0, or 1 with the fault on stderr."""
    folder, *rest = arguments
    sys.path.append(folder)
    from pygraphviz import graphviz as gv

    if not rest:
        sys.stdout.write(f"{gv.GRAPHVIZ_MAJOR_VERSION}.{gv.GRAPHVIZ_MINOR_VERSION}.{gv.GRAPHVIZ_PATCH_VERSION}")
        return 0
    seconds, layout, format, source, target, *attributes = rest
    _limit(int(seconds))
    with open(source, "rb") as file:  # noqa: PTH123 - importing pathlib would cost as much as a small drawing
        try:
            graph = gv.agread(file, None)
        except ValueError:
            sys.stderr.write("this is no DOT text")
            return 1
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        gv.agsafeset(graph, name.encode(), value.encode(), b"")
    context = gv.gvContextWithBuiltins()
    if gv.gvLayout(context, graph, layout.encode()) != 0:
        sys.stderr.write(f"Graphviz cannot lay this out with {layout}")
        return 1
    with open(target, "wb") as file:  # noqa: PTH123
        if gv.gvRender(context, graph, format.encode(), file) != 0:
            sys.stderr.write(f"Graphviz cannot write {format}")
            return 1
    if attributes:
        _, told = gv.gvRenderData(context, graph, b"plain")
        sys.stdout.buffer.write(told.partition(b"\n")[0])
    return 0


def _limit(seconds: int) -> None:
    """Die at once on Ctrl-C, and do not go on for long if the parent was killed and nobody waits."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        import resource
    except ImportError:  # Windows has none
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
