"""Results of the ``show_*`` functions: one for a notebook, a terminal, or a program."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from haiprof.common.printable import printable
from haiprof.show import notebook
from haiprof.show.grid import Grid

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Terminal text has no width of its own; this one suits a report in a log file.
_COLUMNS = 180


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """A result: ``title``, ``lines`` of words, ``grids`` (tables) and a plotly ``figure``.

    ``details`` are further figures with another axis.
    """

    title: str
    lines: Sequence[str]
    grids: Sequence[Grid]
    figure: go.Figure
    details: Sequence[go.Figure] = ()

    def __str__(self) -> str:
        """Return the words and tables as text for a terminal."""
        out = io.StringIO()
        console = Console(
            file=out, width=_COLUMNS, color_system=None, highlight=False, force_jupyter=False
        )
        for text in (self.title, *self.lines):
            console.print(printable(text), markup=False, soft_wrap=True)
        for grid in self.grids:
            console.print()
            console.print(grid.to_rich())
        return out.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        """Return the same at Python's prompt."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the result for a notebook: a frame isolates its scripts."""
        figures = (self.figure, *self.details)
        height = (
            sum(int(figure.layout.height or 450) for figure in figures)
            + 160
            + sum(90 + 34 * len(g.rows) for g in self.grids)
        )
        lines = "".join(f'<p class="note">{html.escape(line)}</p>' for line in self.lines)
        tables = "".join(grid.to_html() for grid in self.grids)
        return notebook.output(self.title, lines + tables, figures, height)
