"""``haiprof sql``: answers a question in SQL over the tables of a run."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

from haiprof.cli.process.console import spinner
from haiprof.cli.report import open_run, say_problems
from haiprof.show.grid import NOTHING, Grid

#: Rows of a table; a terminal is for reading.
_ROWS: Final = 100


def answer(path: str, question: str, *, as_csv: bool) -> None:
    """Print the answer: a table of its first rows, or all as CSV.

    Args:
        path: a run folder, a log directory with one run, or traces.
        question: one ``SELECT``.
        as_csv: print all rows as CSV, texts without formulas.

    Raises:
        HaiprofError: the run cannot be read, or the question cannot be answered.
    """
    from haiprof.export.csv import without_formulas

    opened = open_run(path)
    with spinner("reading the tables"):
        rows = opened.sql(question)
    say_problems(opened)
    if as_csv:
        sys.stdout.write(without_formulas(rows).write_csv())
        return
    note = f"{rows.height} rows, of which these are the first; --csv prints all"
    grid = Grid(
        "",
        rows.columns,
        [[_cell(value) for value in row] for row in rows.head(_ROWS).iter_rows()],
        frozenset(i for i, kind in enumerate(rows.dtypes) if kind.is_numeric()),
        note if rows.height > _ROWS else "",
    )
    Console(highlight=False).print(grid.to_rich())


def _cell(value: object) -> str:
    if value is None:
        return NOTHING
    return f"{value:.6g}" if isinstance(value, float) else str(value)
