"""SQL over the tables of a run, as polars understands it: each table is all processes' together.

The tables are those of :mod:`haiprof.schema`, read lazily: of each process, only the columns that a
question needs are read, and rows that it excludes are dropped at once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final

import polars as pl
from polars.io.plugins import register_io_source

from haiprof import schema
from haiprof.answers.ranks import Ranks
from haiprof.common.choices import quoted, unknown
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources import tables

#: In front of each table's own columns.
WHO: Final = {"node": pl.String(), "rank": pl.Int64(), "pid": pl.Int64()}
_ASKS: Final = re.compile(r"[\s(]*(select|with)\b", re.IGNORECASE)
#: What polars would read from other files: a question is about the run only.
_READS: Final = re.compile(r"\b((?:read|scan)_\w+)[\"`]?\s*\(", re.IGNORECASE)
#: Texts and comments, which may contain anything; and quoted names, which may contain their marks.
_QUOTED: Final = re.compile(
    r"(?P<name>\"(?:[^\"]|\"\")*\")|(?P<text>'(?:[^']|'')*')|--[^\n]*|/\*.*?\*/", re.DOTALL
)
_NO_TABLE: Final = re.compile(r"relation '?\"?([^'\"]+)'?\"? was not found")
_NO_COLUMN: Final = re.compile(
    r"unable to find column \"(?P<name>[^\"]*)\"(?:; valid columns: \[(?P<there>.*?)\])?"
    r"|no column named '(?P<named>[^']*)'",
    re.DOTALL,
)
#: So much of what polars says is shown.
_SAID: Final = 200


def query(ranks: Ranks, text: str) -> pl.DataFrame:
    """Return the answer to a question in SQL.

    Args:
        ranks: of the run.
        text: one ``SELECT``, also ``WITH … SELECT``.

    Raises:
        HaiprofError: it is no question, polars does not understand it, or it names a table or a
            column that is not there.
    """
    bare = _QUOTED.sub(_without_texts, text)
    if _ASKS.match(bare) is None:
        raise HaiprofError(
            f"sql({quoted(text)}): only questions can be asked, which begin with SELECT or WITH"
        )
    if reads := _READS.search(bare):
        raise HaiprofError(
            f"sql(): {reads[1].lower()}() is not available: a question is about the run's tables, "
            f"{', '.join(schema.TABLES)}"
        )
    context = pl.SQLContext(
        {name: _table(ranks, definition) for name, definition in schema.TABLES.items()}
    )
    try:
        return context.execute(text, eager=True)
    except pl.exceptions.PolarsError as error:
        raise HaiprofError(f"sql(): {_reason(str(error))}") from None


def _table(ranks: Ranks, table: schema.Table) -> pl.LazyFrame:
    kinds = {
        column.name: pl.String() if column.kind == "text" else tables.polars_type(column)
        for column in table.columns
    }
    # A table may have a column of such a name itself.
    who = {name: kind for name, kind in WHO.items() if name not in kinds}
    return register_io_source(
        functools.partial(_read, ranks, table, [*who, *kinds]), schema={**who, **kinds}
    )


def _read(
    ranks: Ranks,
    table: schema.Table,
    every: list[str],
    columns: list[str] | None,
    predicate: pl.Expr | None,
    most: int | None,
    _: int | None,
) -> Iterator[pl.DataFrame]:
    """Read the table of one process after the other; polars says what it needs of it."""
    wanted = every if columns is None else columns
    needed = [name for name in wanted if name not in WHO]
    # Without any, how many rows there are.
    always = next(column.name for column in table.columns if not column.nullable)
    for process in ranks.run.processes:
        read = tables.read(process, table, needed or [always])
        ranks.note(read.problems)
        frame = read.frame.select(
            pl.lit(process.node, pl.String()).alias("node"),
            pl.lit(process.rank, pl.Int64()).alias("rank"),
            pl.lit(process.pid, pl.Int64()).alias("pid"),
            # Texts of several processes are compared: none is a number in another's dictionary.
            pl.col(pl.Categorical).cast(pl.String),
            ~pl.selectors.categorical(),
        ).select(wanted)
        if predicate is not None:
            frame = frame.filter(predicate)
        if most is not None:
            frame = frame.head(most)
            most -= frame.height
        if frame.height:
            yield frame
        if most == 0:
            return


def _without_texts(found: re.Match[str]) -> str:
    return found["name"] or ("''" if found["text"] else " ")


def _reason(said: str) -> str:
    """Return what is wrong with a question, in one line."""
    missing = _NO_TABLE.search(said)
    if missing is not None:
        return f"no table {quoted(missing[1])}: {unknown(missing[1], schema.TABLES)}"
    column = _NO_COLUMN.search(said)
    if column is not None:
        name = column["name"] if column["name"] is not None else column["named"]
        there = re.findall(r'"([^"]*)"', column["there"] or "") or sorted(
            {each.name for table in schema.TABLES.values() for each in table.columns} | set(WHO)
        )
        return f"no column {quoted(name)}: {unknown(name, there)}"
    first = next((line for line in said.splitlines() if line.strip()), "?")
    return f"polars does not understand the question: {printable(first)[:_SAID]}"
