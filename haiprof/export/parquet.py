"""Every table of every process as Parquet: ``spans/rank_0.parquet``, …, read all at once by ``*``.

Who a row is of stands in its columns ``node``, ``rank`` and ``pid``, not in the names of folders,
from which readers would guess types.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq

from haiprof import schema
from haiprof.export import target
from haiprof.export.chosen import Chosen, chosen, done
from haiprof.export.chrome import distinct_names

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer


def write(
    analyzer: Analyzer,
    folder: Path,
    rank: int | None = None,
    on_process: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write ``processes.parquet``, and a folder for each table; return the files.

    Columns are ``node``, ``rank``, ``pid`` and those of :mod:`haiprof.schema`. Deep traces in a
    run's folders are processes of their own.

    Args:
        analyzer: the run.
        folder: must not be there.
        rank: this one and its node only.
        on_process: called with each process's label before it is written.

    Raises:
        HaiprofError: ``folder`` is there or cannot be written, or there is no such rank.
    """
    processes = chosen(analyzer, rank)
    written = [folder / "processes.parquet"]
    with target.whole(folder) as partial:
        partial.mkdir()
        _write(analyzer.processes(), partial / "processes.parquet")
        names = [f"{name}.parquet" for name in distinct_names(processes)]
        jobs = [(each, partial, name) for each, name in zip(processes, names, strict=True)]
        for _, files in done(analyzer, _write_tables, jobs, on_process):
            written += [folder / file for file in files]
    return written


def _write_tables(each: Chosen, folder: Path, name: str) -> list[str]:
    """Write the tables of one process that have rows; return their places in the folder."""
    process = each.process
    files = []
    for table in schema.TABLES.values():
        frame = each.read(table)
        if frame.height:
            (folder / table.name).mkdir(exist_ok=True)
            who = frame.select(
                pl.lit(process.node).alias("node"),
                pl.lit(process.rank, pl.Int64).alias("rank"),
                pl.lit(process.pid, pl.Int64).alias("pid"),
                pl.all(),
            )
            _write(who, folder / table.name / name)
            files.append(f"{table.name}/{name}")
    return files


def _write(frame: pl.DataFrame, file: Path) -> None:
    # By Arrow: the error of polars for a full disk has no errno.
    with file.open("xb") as out:
        pq.write_table(frame.to_arrow(), out, compression="zstd")
