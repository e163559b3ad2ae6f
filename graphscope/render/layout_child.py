"""Runs fast-sugiyama; started as a program by ``render.layout``.

A layout holds the GIL and cannot be interrupted, hence a process of its own, as for Graphviz (``engine_child``). It is
started by its path under ``python -I -S`` and loads nothing of the user's.

Arguments: folder of the fast_sugiyama package, and seconds of CPU at most. The edges come on stdin as a JSON list of
pairs of numbers from 0 on, with none left out. Told on stdout: for each connected part the numbers with their places,
and the edges, split at bends; numbers beyond the largest are bends.
"""

from __future__ import annotations

import json
import signal
import sys


def main(arguments: list[str]) -> int:
    """Lay out one graph."""
    folder, seconds = arguments
    sys.path.append(folder)
    from fast_sugiyama import from_edges

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    except ImportError:  # Windows has none
        pass
    edges = [tuple(edge) for edge in json.load(sys.stdin)]
    found = from_edges(edges, dummy_vertices=True, dummy_size=1, vertex_spacing=10, ranking_type="minimize")
    json.dump([[positions, split] for positions, _, _, split in found], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
