"""Runs fast-sugiyama; started as a program by ``render.layout``.

A layout holds the GIL and cannot be interrupted, hence a process of its own, as for Graphviz (``engine_child``). It is
started by its path under ``python -I -S`` and loads nothing of the user's.

Arguments: folder of the fast_sugiyama package, and seconds of CPU at most. On stdin stands a JSON list of connected
parts: the edges of each, pairs of numbers from 0 on with none left out. Told on stdout is what ``layers_of`` finds.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any


def main(arguments: list[str]) -> int:
    """Lay out one graph."""
    folder, seconds = arguments
    sys.path.append(folder)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    except ImportError:  # Windows has none
        pass
    sys.stdout.write(json.dumps([layers_of(edges) for edges in json.loads(sys.stdin.read())]))
    return 0


def layers_of(edges: list[tuple[int, int]]) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Of a connected part: its layers from above, each from the left, and its edges, split at bends.

    Numbers beyond the largest are bends. The graph is laid out upside down: fast-sugiyama begins with everything as
    high as possible and then makes edges short; with parameters high above their ops that took five times as long.
    Whole numbers are all that is told: as JSON, places would take longer than the layout.
    """
    import fast_sugiyama

    upwards = [(target, source) for source, target in edges]
    asked: Any = {"dummy_vertices": True, "dummy_size": 1, "vertex_spacing": 10, "ranking_type": "minimize"}
    found: Any = fast_sugiyama.from_edges(upwards, **asked)
    ((positions, _, _, split),) = found
    rows: dict[float, list[tuple[float, int]]] = {}
    for vertex, (x, y) in positions:
        rows.setdefault(y, []).append((x, vertex))
    layers = [[vertex for _, vertex in sorted(rows[y])] for y in sorted(rows)]
    return layers, [(source, target) for target, source in split]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
