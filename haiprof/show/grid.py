"""A small table of text, for HTML and for the terminal, and its number formats.

Tests: tests/show/test_shown.py.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
from rich.table import Table
from rich.text import Text

from haiprof.common.numbers import energy, milliseconds, percent, size
from haiprof.common.printable import printable

#: Longer texts from a trace are truncated: a report is for reading.
_LONGEST = 300
#: A sentence names several things of a run.
SENTENCE = 1_200
#: Shorter ones are not broken into lines.
_SHORT = 20
#: A cell without a value.
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class Grid:
    """A titled table whose cells are finished text; columns in ``numbers`` are right-aligned.

    ``order`` has the values behind the cells of a column, by which it can be sorted.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    note: str = ""
    order: Mapping[int, Sequence[float | None]] = field(default_factory=dict)

    def to_html(self) -> str:
        """Return the table as HTML, every text escaped."""
        side = ["num" if i in self.numbers else "txt" for i in range(len(self.heads))]
        head = "".join(
            f'<th class="{s}">{html.escape(h)}</th>' for s, h in zip(side, self.heads, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td class="{s}{" one" if len(c) <= _SHORT else ""}">{html.escape(cut(c))}</td>'
                for s, c in zip(side, row, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        title = f"<h3>{html.escape(self.title)}</h3>" if self.title else ""
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f"{title}{note}<div class='wide'><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>"
        )

    def to_rich(self) -> Table:
        """Return the table for a terminal; names from traces are never read as markup."""
        table = Table(
            title=Text(self.title),
            title_justify="left",
            caption_justify="left",
            caption=Text(self.note) if self.note else None,
        )
        for i, name in enumerate(self.heads):
            table.add_column(
                Text(printable(name)), justify="right" if i in self.numbers else "left"
            )
        for row in self.rows:
            table.add_row(*(Text(printable(cut(cell))) for cell in row))
        return table


def frame_grid(title: str, frame: pl.DataFrame, note: str = "") -> Grid:
    """Make a table from a frame whose column names end in their units."""
    kept = [c for c in frame.columns if frame[c].null_count() < frame.height]
    numbers = frozenset(i for i, c in enumerate(kept) if frame[c].dtype.is_numeric())
    rows = [
        [cell(name, value) for name, value in zip(kept, row, strict=True)]
        for row in frame.select(kept).iter_rows()
    ]
    order = {i: frame[kept[i]].cast(pl.Float64).to_list() for i in numbers}
    return Grid(title, [_head(name) for name in kept], rows, numbers, note, order)


def cell(column: str, value: object) -> str:
    """Format one value in the unit that its column's name ends in; null is a dash."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if column.endswith("_ms"):
        return milliseconds(value * 1e6)
    if column.endswith(("_share", "ratio")):
        return percent(value)
    if column.endswith("percent"):
        return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.2g} %"
    if column.endswith("bytes_per_s"):
        return size(value) + "/s"
    if column.endswith("gb_per_s"):
        return f"{_number(value)} GB/s" if value >= 0.9995 else f"{value * 1e3:.3g} MB/s"
    if column.endswith("bytes"):
        return size(value)
    if column.endswith("watts"):
        return f"{value:.0f} W"
    if column.endswith("joules"):
        return energy(value)
    if column.endswith("hertz"):
        return f"{value / 1e9:.2f} GHz"
    return f"{value}" if isinstance(value, int) else _number(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"


def _head(column: str) -> str:
    if column.endswith("_share"):  # of a phase or range, which the user named
        return column.removesuffix("_share")
    if "." in column:
        return column.rsplit(".", 1)[0]
    for unit in (
        "_bytes_per_s",
        "_gb_per_s",
        "_percent",
        "_bytes",
        "_watts",
        "_joules",
        "_hertz",
        "_ms",
        "_ratio",
    ):
        column = column.removesuffix(unit)
    return column.replace("_", " ")


def cut(text: str, most: int = _LONGEST) -> str:
    """Shorten a text from a trace or a job to what a cell has room for."""
    return text if len(text) <= most else text[: most - 1] + "…"
