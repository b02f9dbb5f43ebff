"""``haiprof sql``: answers a question in SQL over the tables of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from haiprof.cli.arguments import UsageError
from haiprof.cli.logged import one_run
from haiprof.cli.process.console import spinner
from haiprof.cli.report import open_run, say_problems
from haiprof.show.grid import NOTHING, Grid

#: Rows of a table; a terminal is for reading.
_ROWS: Final = 100


def answer(words: Sequence[str], *, last: bool = False, as_csv: bool) -> None:
    """Print the answer: a table of its first rows, or all as CSV.

    Args:
        words: a run folder, a log directory with one run, or traces; then one ``SELECT``.
        last: the newest run of the log directory, or of the one that is named.
        as_csv: print all rows as CSV, texts without formulas.

    Raises:
        HaiprofError: the run cannot be read, or the question cannot be answered.
        UsageError: the words are more, or name no run.
    """
    from haiprof.export.csv import without_formulas

    *named, question = words
    if len(named) > 1:
        raise UsageError("sql takes one run and one question: put the question in quotes")
    opened = open_run(one_run(named[0] if named else None, last=last))
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
