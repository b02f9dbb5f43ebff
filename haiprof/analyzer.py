"""The analysis of one run: opens it, reads the tables that a question needs, and answers."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.sources import own, tables
from haiprof.sources.own import ROLE_NODE, ROLE_RANK, Process, Run, readable
from haiprof.views import headline as headline_view
from haiprof.views import steps as step_views
from haiprof.views.overview import Summary, fold_ranges, summarise

if TYPE_CHECKING:
    from haiprof.show.shown import Shown

_Result = TypeVar("_Result")

_SUMMARY_SAMPLES = ("time", "metric", "instance", "value")
#: Points of all step series of an overview together; each rank has between these two.
_TREND_POINTS = 40_000
_TREND_POINTS_RANK = (400, 2_000)


class Analyzer:
    """One run of haiprof.

    Frames are polars DataFrames with the leading columns ``node``, ``rank`` (null for what belongs
    to a node) and ``pid``, then those of the view or of the table (``haiprof/schema.py``). Times
    are int64 ns UTC, durations int64 ns. Tables are read when they are asked for, by column.

    Args:
        path: a run folder, or a log directory that holds exactly one run.
        executor: runs the per-rank work; any ``concurrent.futures.Executor``, also that of a
            cluster that sees the same files. By default a few threads of this process.

    Raises:
        HaiprofError: there is no such run, or this version cannot read it.
    """

    def __init__(self, path: str | Path, executor: Executor | None = None) -> None:
        """Open the run; only its small JSON files are read."""
        self._run = own.open_run(path)
        self._executor = executor
        self._problems = dict.fromkeys(self._run.problems)
        self._summaries: tuple[list[Summary], list[Summary]] | None = None

    def __repr__(self) -> str:
        """Name the run's folder and size."""
        return f"Analyzer({str(self._run.folder)!r}): {len(self.ranks)} ranks"

    @property
    def run(self) -> Run:
        """The run: its name, command, and processes."""
        return self._run

    @property
    def ranks(self) -> list[int]:
        """The ranks that can be read, ascending."""
        return sorted(
            {p.rank for p in self._run.processes if p.role == ROLE_RANK and p.rank is not None}
        )

    def problems(self) -> list[str]:
        """Return one line for each folder or file that cannot be read and is left out."""
        for lines in self._map(_check, self._run.processes):
            self._note(lines)
        return list(self._problems)

    def processes(self) -> pl.DataFrame:
        """Return one row per process: who it was, when it ran, how it ended, and what it lost.

        ``cut_files`` counts files that end within a record batch: of a live run the batch being
        written, of a run whose recorder was killed its last batch.
        """
        processes = self._run.processes
        return pl.DataFrame(
            {
                "node": pl.Series([p.node for p in processes], dtype=pl.Categorical()),
                "rank": pl.Series([p.rank for p in processes], dtype=pl.Int64()),
                "pid": pl.Series([p.pid for p in processes], dtype=pl.Int64()),
                "role": [p.role for p in processes],
                "host": [p.host for p in processes],
                "local_rank": pl.Series([p.local_rank for p in processes], dtype=pl.Int64()),
                "world_size": pl.Series([p.world_size for p in processes], dtype=pl.Int64()),
                "attempt": pl.Series([p.attempt for p in processes], dtype=pl.Int64()),
                "started": pl.Series([p.started_ns for p in processes], dtype=pl.Int64()),
                "ended": pl.Series([p.ended_ns for p in processes], dtype=pl.Int64()),
                "state": [p.state for p in processes],
                "lost_records": [p.lost.get("records", 0) for p in processes],
                "cut_files": list(self._map(_count_cut, processes)),
                "folder": [readable(str(p.folder)) for p in processes],
            }
        )

    def steps(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step that ended: ``step``, ``start``, ``duration``."""
        return self._frames(_steps, self._choose(rank), step_views.STEPS_SCHEMA)

    def phases(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step and phase, for the steps that ended.

        Columns: ``step``, ``name``, ``category`` (``phase``, ``user``, ``other``), ``duration``
        (self time), ``count`` (spans), ``start`` (of the first). See
        :func:`haiprof.views.steps.phases`.
        """
        return self._frames(_phases, self._choose(rank), step_views.PHASES_SCHEMA)

    def samples(self, metric: str | None = None, rank: int | None = None) -> pl.DataFrame:
        """Return samples of one ``metric``, of all beneath a prefix (``gpu.*``), or all.

        With ``rank``, those of that rank's processes; those of its node have a null rank.
        """
        if metric is None or not metric.endswith("*"):
            return self._table(schema.SAMPLES, rank, {"metric": metric})
        read = functools.partial(_samples_beneath, prefix=metric.removesuffix("*"))
        columns = {c.name: tables.polars_type(c) for c in schema.SAMPLES.columns}
        return self._frames(read, self._choose(rank), columns)

    def spans(
        self,
        rank: int | None = None,
        *,
        category: str | Collection[str] | None = None,
        name: str | Collection[str] | None = None,
    ) -> pl.DataFrame:
        """Return spans, of the given categories and names only if any are given."""
        return self._table(schema.SPANS, rank, {"category": category, "name": name})

    def events(
        self, rank: int | None = None, *, kind: str | Collection[str] | None = None
    ) -> pl.DataFrame:
        """Return events, of the given kinds only if any are given."""
        return self._table(schema.EVENTS, rank, {"kind": kind})

    def kernels(
        self,
        rank: int | None = None,
        *,
        kind: str | Collection[str] | None = None,
        name: str | Collection[str] | None = None,
    ) -> pl.DataFrame:
        """Return GPU activities, of the given kinds and (mangled) names only if any are given."""
        return self._table(schema.KERNELS, rank, {"kind": kind, "name": name})

    def device_spans(
        self,
        rank: int | None = None,
        *,
        category: str | Collection[str] | None = None,
        name: str | Collection[str] | None = None,
    ) -> pl.DataFrame:
        """Return intervals on GPU streams, of the given categories and names only if any are given.

        They come from CUDA events, so a stream's idle time within an interval is part of it.
        """
        return self._table(schema.DEVICE_SPANS, rank, {"category": category, "name": name})

    def summaries(self) -> tuple[list[Summary], list[Summary]]:
        """Return the summed-up rank processes and nodes; read once, then kept.

        A process without a rank that had steps counts as a rank: jobs run without a launcher too.
        """
        if self._summaries is None:
            processes = [p for p in self._run.processes if p.rank is None or p.role == ROLE_RANK]
            made = self._summed_up(processes)
            nodes = [s for s in made if s.process.role == ROLE_NODE]
            others = [s for s in made if s.process.role != ROLE_NODE]
            self._summaries = ([s for s in others if s.process.role == ROLE_RANK or s.steps], nodes)
        return self._summaries

    def summaries_of(self, processes: Sequence[Process]) -> list[Summary]:
        """Return the summed-up ``processes``, without reading any other."""
        if self._summaries is None:
            return self._summed_up(processes)
        folders = {p.folder for p in processes}
        return [s for s in self._summaries[0] if s.process.folder in folders]

    def _summed_up(self, processes: Sequence[Process]) -> list[Summary]:
        low, high = _TREND_POINTS_RANK
        points = max(low, min(high, _TREND_POINTS // max(len(processes), 1)))
        made = list(self._map(functools.partial(_summarise, points=points), processes))
        for summary in made:
            self._note(summary.problems)
        fold_ranges(made)
        return made

    def headline(self) -> list[str]:
        """Return the three most telling lines about this run."""
        ranks, nodes = self.summaries()
        return headline_view.headline(ranks, nodes, self.events(kind="disk"))

    def show_overview(self) -> Shown:
        """Show all ranks and nodes side by side."""
        from haiprof.show import overview

        return overview.show(self)

    def show_one_rank(self, rank: int) -> Shown:
        """Show one rank over time: phases, CPU, memory, IO, network, pressure, GPUs, events."""
        from haiprof.show import one_rank

        processes = [p for p in self._choose(rank) if p.role == ROLE_RANK]
        return one_rank.show(self, processes)

    def report(self, path: str | Path) -> Path:
        """Write the report as one HTML file that needs no network; return its path."""
        from haiprof.show import report

        return report.write(self, Path(path))

    def read(self, process: Process, table: schema.Table, columns: Sequence[str]) -> pl.DataFrame:
        """Read some columns of one table of one process."""
        read = tables.read_table(process.folder, table, columns)
        self._note(read.problems)
        return read.frame

    def _choose(self, rank: int | None) -> list[Process]:
        if rank is None:
            return list(self._run.processes)
        chosen = [p for p in self._run.processes if p.rank == rank and p.role != ROLE_NODE]
        if not any(p.role == ROLE_RANK for p in chosen):
            raise HaiprofError(f"{self._run.folder}: has no rank {rank}: {_describe(self.ranks)}")
        return chosen

    def _table(
        self,
        table: schema.Table,
        rank: int | None,
        keep: Mapping[str, str | Collection[str] | None],
    ) -> pl.DataFrame:
        kept = {
            name: frozenset([values] if isinstance(values, str) else values)
            for name, values in keep.items()
            if values is not None
        }
        columns = {c.name: tables.polars_type(c) for c in table.columns}
        return self._frames(
            functools.partial(_read, table=table, keep=kept), self._choose(rank), columns
        )

    def _frames(
        self,
        read: Callable[[Process], tables.Read],
        processes: list[Process],
        columns: Mapping[str, pl.DataType],
    ) -> pl.DataFrame:
        leading = {"node": pl.Categorical(), "rank": pl.Int64(), "pid": pl.Int64()}
        frames = [pl.DataFrame(schema={**leading, **columns})]
        for process, made in zip(processes, self._map(read, processes), strict=True):
            self._note(made.problems)
            if made.frame.height:
                frames.append(
                    made.frame.select(
                        pl.lit(process.node).cast(pl.Categorical()).alias("node"),
                        pl.lit(process.rank, pl.Int64()).alias("rank"),
                        pl.lit(process.pid, pl.Int64()).alias("pid"),
                        pl.all(),
                    )
                )
        return pl.concat(frames)

    def _map(
        self, work: Callable[[Process], _Result], processes: Sequence[Process]
    ) -> Iterable[_Result]:
        if self._executor is not None:
            return self._executor.map(work, processes, chunksize=max(1, len(processes) // 1024))
        if len(processes) < 2:
            return [work(process) for process in processes]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return list(pool.map(work, processes))

    def _note(self, problems: Iterable[str]) -> None:
        self._problems.update(dict.fromkeys(problems))


def _describe(ranks: list[int]) -> str:
    if not ranks:
        return "it has no ranks"
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"it has ranks {ranks[0]} to {ranks[-1]}"
    listed = ", ".join(map(str, ranks[:20]))
    more = " and more" if len(ranks) > 20 else ""
    return f"it has {'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"


# What runs on an executor stands at the top level, so that another process can import it.


def _check(process: Process) -> list[str]:
    return tables.check(process.folder)


def _count_cut(process: Process) -> int:
    return tables.count_cut(process.folder)


def _read(
    process: Process, table: schema.Table, keep: Mapping[str, Collection[str]]
) -> tables.Read:
    return tables.read_table(process.folder, table, keep=keep)


def _samples_beneath(process: Process, prefix: str) -> tables.Read:
    read = tables.read_table(process.folder, schema.SAMPLES)
    read.frame = read.frame.filter(pl.col("metric").cat.starts_with(prefix))
    return read


def _read_phase_spans(process: Process) -> tables.Read:
    keep = {"category": step_views.CATEGORIES}
    return tables.read_table(process.folder, schema.SPANS, step_views.COLUMNS, keep)


def _steps(process: Process) -> tables.Read:
    keep = {"category": ("step",)}
    read = tables.read_table(process.folder, schema.SPANS, step_views.COLUMNS, keep)
    read.frame = step_views.steps(read.frame)
    return read


def _phases(process: Process) -> tables.Read:
    read = _read_phase_spans(process)
    read.frame = step_views.phases(read.frame, step_views.steps(read.frame))
    return read


def _summarise(process: Process, points: int) -> Summary:
    spans = _read_phase_spans(process)
    samples = tables.read_table(process.folder, schema.SAMPLES, _SUMMARY_SAMPLES)
    summary = summarise(process, spans.frame, samples.frame, points)
    summary.cut = spans.cut + samples.cut
    summary.problems = [*spans.problems, *samples.problems]
    return summary
