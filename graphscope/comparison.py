"""What ``compare`` returns: runs side by side, as a value to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphscope.bands import BAND_LIMIT, fold_rows
from graphscope.errors import FormatError
from graphscope.model import GraphData
from graphscope.runs import Compared, Row, Run

if TYPE_CHECKING:
    import graphviz
    from rich.console import RenderableType

    from graphscope.render.formats import RenderOptions


class Comparison:
    """Runs of one computation, or tensors of one run, or two graphs, aligned op by op.

    Prints itself in a terminal (rich) and shows itself as the last expression of a notebook cell.

    Example:
        >>> import torch, graphscope
        >>> x = torch.ones(3, requires_grad=True)
        >>> result = graphscope.compare(lambda: x * 2 + 1, modes=("grad", "no_grad"))
        >>> [(row.op, *(node.backward for node in row.cells)) for row in result.rows]
        [('mul', 'MulBackward0', None), ('add', 'AddBackward0', None)]
    """

    def __init__(self, compared: Compared, *, spread: bool = False) -> None:
        """Wrap what was compared; ``spread`` lets the JSON tell how far the times lie apart."""
        self._compared = compared
        self._spread = spread

    @property
    def data(self) -> Compared:
        """The records themselves: runs, figures, rows."""
        return self._compared

    @property
    def runs(self) -> tuple[Run, ...]:
        """One for each mode, tensor or graph, with its graph and what was measured."""
        return self._compared.runs

    @property
    def rows(self) -> tuple[Row, ...]:
        """One for each op, in the order in which they ran, with the node of each run."""
        return self._compared.rows

    def to_json(self) -> dict[str, Any]:
        """The whole comparison as JSON data, by the schema ``graphscope/schema/compare-1.json``."""
        from graphscope.render.compare_json import compared_to_json

        return compared_to_json(self._compared, spread=self._spread)

    def to_dot(self) -> graphviz.Digraph:
        """The side-by-side picture as a ``graphviz.Digraph``; positions are in it (layout ``nop2``)."""
        from graphscope.render.compare_dot import compared_to_dot

        return compared_to_dot(self._compared, fold_rows(self.rows, BAND_LIMIT))

    def to(self, format: str, options: RenderOptions | None = None) -> str | bytes:
        """The comparison as ``svg``, ``png``, ``pdf``, ``dot``, ``json`` or ``txt``: text, or bytes of an image.

        Raises:
            FormatError: for any other format.
            EngineError: if drawing failed.
        """
        key = format.lower().removeprefix(".")
        write = FORMATS.get(key)
        if write is None:
            raise FormatError(f"{format!r} is no format of a comparison. It is written as {', '.join(FORMATS)}.")
        return write(self, options)

    def save(self, path: str | Path, options: RenderOptions | None = None) -> Path:
        """Write the comparison to a file; the suffix picks the format, as in ``to``. Returns the path.

        Raises:
            FormatError: if the suffix is that of no format of a comparison.
            EngineError: if drawing failed; nothing is written then.
            OSError: if the file cannot be written.
        """
        path = Path(path)
        if not path.suffix:
            raise FormatError(f"{path.name!r} has no suffix. The suffix picks the format: {', '.join(FORMATS)}.")
        written = self.to(path.suffix, options)
        path.write_bytes(written.encode("utf-8", "backslashreplace") if isinstance(written, str) else written)
        return path

    def __repr__(self) -> str:
        """One line: what was compared, and how many rows differ."""
        names = ", ".join(run.mode for run in self.runs)
        differing = sum(1 for row in self.rows if row.differs)
        return f"<Comparison of {names}: {len(self.rows)} rows, {differing} differ>"

    def __str__(self) -> str:
        """The comparison as plain text."""
        return str(self.to("txt"))

    def __rich__(self) -> RenderableType:
        """The comparison for a rich console."""
        from graphscope.render.compare_terminal import renderable
        from graphscope.render.terminal_lines import LineOptions

        return renderable(self._compared, LineOptions())

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        from graphscope.notebook import bundle
        from graphscope.render.compare_dot import LAYOUT
        from graphscope.render.compare_terminal import render
        from graphscope.render.engine import draw
        from graphscope.render.terminal_lines import LineOptions

        def picture(timeout: float, prefix: str) -> bytes:
            return draw(str(self.to_dot().source), "svg", timeout=timeout, layout=LAYOUT, id_prefix=prefix)

        return bundle(
            picture,
            lambda width: render(self._compared, LineOptions(width=width)),
            include=include,
            exclude=exclude,
        )


def compare_graphs(graphs: Sequence[tuple[str, GraphData]]) -> Comparison:
    """Two or more graphs under their names; line and module make it likelier that two ops are the same."""
    from graphscope.analyze.compare import compare_runs

    return Comparison(compare_runs([Run(name, data) for name, data in graphs], same_program=False))


def _drawn(format: str) -> Callable[[Comparison, RenderOptions | None], str | bytes]:
    def write(comparison: Comparison, options: RenderOptions | None) -> bytes:
        from graphscope.render.compare_dot import LAYOUT
        from graphscope.render.engine import draw
        from graphscope.render.formats import RenderOptions

        chosen = options or RenderOptions()
        return draw(_dot(comparison, chosen), format, engine=chosen.engine, timeout=chosen.timeout, layout=LAYOUT)

    return write


def _dot(comparison: Comparison, options: RenderOptions | None) -> str:
    from graphscope.render.compare_dot import compared_to_dot
    from graphscope.render.dot import DotOptions

    bands = fold_rows(comparison.rows, BAND_LIMIT)
    return str(compared_to_dot(comparison.data, bands, DotOptions(theme=options.theme) if options else None).source)


def _json(comparison: Comparison, _: RenderOptions | None) -> str:
    from graphscope.render.compare_json import dumps

    return dumps(comparison.to_json())


def _text(comparison: Comparison, _: RenderOptions | None) -> str:
    from graphscope.render.compare_terminal import render
    from graphscope.render.terminal_lines import LineOptions

    return render(comparison.data, LineOptions(width=100, limit=None))


FORMATS: dict[str, Callable[[Comparison, RenderOptions | None], str | bytes]] = {
    "svg": _drawn("svg"),
    "png": _drawn("png"),
    "pdf": _drawn("pdf"),
    "dot": _dot,
    "json": _json,
    "txt": _text,
}
"""How a comparison is written, by suffix."""
