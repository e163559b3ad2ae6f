"""graphscope shows what PyTorch autograd really did.

``import graphscope`` costs next to nothing: the public names are loaded when they are first used
(PEP 562), and torch, rich, IPython and pygraphviz with them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphscope.api import compare, explain, load, memory, record, recording, show, walk
    from graphscope.errors import GraphscopeError
    from graphscope.graph import Graph
    from graphscope.model import Edge, Node, TensorInfo

__version__ = "0.1.0"

__all__ = [
    "Edge",
    "Graph",
    "GraphscopeError",
    "Node",
    "TensorInfo",
    "__version__",
    "compare",
    "explain",
    "load",
    "memory",
    "record",
    "recording",
    "show",
    "walk",
]

_HOMES = {
    "Edge": "graphscope.model",
    "Graph": "graphscope.graph",
    "GraphscopeError": "graphscope.errors",
    "Node": "graphscope.model",
    "TensorInfo": "graphscope.model",
    "compare": "graphscope.api",
    "explain": "graphscope.api",
    "load": "graphscope.api",
    "memory": "graphscope.api",
    "record": "graphscope.api",
    "recording": "graphscope.api",
    "show": "graphscope.api",
    "walk": "graphscope.api",
}

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would take any name for public

    def __getattr__(name: str) -> object:
        """Load a public name at its first use.

        Raises:
            AttributeError: if the name is not public.
        """
        home = _HOMES.get(name)
        if home is None:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value: object = getattr(import_module(home), name)
        globals()[name] = value  # so that the next use does not come here
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
