"""The analysis of one run: opens it, reads the tables that a question needs, and answers."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import polars as pl

from haiprof import schema
from haiprof.answers import gpu, late_ranks, one_process, pipeline, window
from haiprof.answers import processes as process_rows
from haiprof.answers import steps as step_answers
from haiprof.answers.deep import Traced
from haiprof.answers.efficiency import Efficiency, efficiency
from haiprof.answers.goodput import Goodput, goodput
from haiprof.answers.headline import headline
from haiprof.answers.linked_traces import Links
from haiprof.answers.over_ranks import Whose, over_ranks
from haiprof.answers.summaries import summed_up
from haiprof.common import asked
from haiprof.errors import HaiprofError
from haiprof.findings.endings import failure
from haiprof.runs import ROLE_NODE, ROLE_RANK, Process, Run
from haiprof.sources import tables
from haiprof.sources.open import Opened, open_path, open_traces
from haiprof.views.clock import Clock
from haiprof.views.intervals import Times
from haiprof.views.run import evidence
from haiprof.views.run import gpus as gpu_views
from haiprof.views.run import graphs as graph_views
from haiprof.views.run import kernels as kernel_views
from haiprof.views.run import overhead as overhead_view
from haiprof.views.run import pipeline as pipeline_view
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run import steps as step_views
from haiprof.views.run.overview import Summary, add_gpus
from haiprof.views.run.rank_parts import RankParts, most_steps

if TYPE_CHECKING:
    from haiprof.show.shown import Shown

_Result = TypeVar("_Result")


class Analyzer(Traced):
    """One run: what haiprof recorded, or traces of torch.profiler or of another tool.

    Frames are polars DataFrames with the leading columns ``node``, ``rank`` (null for what belongs
    to a node) and ``pid``, then those of the view or of the table (``haiprof/schema.py``). Times
    are int64 ns UTC, durations int64 ns. Tables are read when they are asked for, by column.

    Traces are read once, into a temporary folder that is removed with this object, unless an import
    of them is kept beside them (``haiprof import``). Of a run with deep traces in its folders
    (``haiprof trace``) what only those tell comes from them, see :attr:`deep`.

    Args:
        path: a run folder, a log directory that holds exactly one run, a trace file, a folder of
            them, or a URL of fsspec.
        executor: runs the per-rank work; any ``concurrent.futures.Executor``, also that of a
            cluster that sees the same files. By default a few threads of this process.
        told: while traces are read, is called with bytes that were read, from any thread.

    Raises:
        HaiprofError: there is no such run, or this version cannot read it.
    """

    def __init__(
        self,
        path: str | Path,
        executor: Executor | None = None,
        told: Callable[[int], None] | None = None,
    ) -> None:
        """Open the run; of one that was recorded or imported only small JSON files are read."""
        asked.path("path", path)
        self._told = told
        self._take(open_path(path, executor, told), executor)

    def _take(self, opened: Opened, executor: Executor | None) -> None:
        self._run, self._temporary = opened
        self._executor = executor
        self._deep: Analyzer | None = None
        self._deep_asked = False
        self._deep_lock = threading.Lock()
        self._problems = dict.fromkeys(self._run.problems)
        self._summaries: tuple[list[Summary], list[Summary]] | None = None
        self._headline: list[str] | None = None
        self._links = Links()
        #: What this is a part of, and which, ns UTC.
        self._part_of: tuple[Analyzer, tuple[int, int]] | None = None

    def __repr__(self) -> str:
        """Name the run's folder and size."""
        return f"Analyzer({self._where!r}): {len(self.ranks)} ranks"

    @property
    def _where(self) -> str:
        return self._run.source or str(self._run.folder)

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

    @property
    def deep(self) -> Analyzer | None:
        """The deep traces of the run, as a run of their own; None where it has none.

        Of traces this very object. Of a run that haiprof recorded, those in its folders, by its
        ranks: they are read when this or a view of them is first asked for, once, and kept as
        ``haiprof import`` keeps them if the folder can be written.
        """
        if self.traced:
            return self
        with self._deep_lock:
            if not self._deep_asked:
                self._deep_asked = True
                self._deep = self._open_deep()
        return self._deep

    def _open_deep(self) -> Analyzer | None:
        if self._part_of is not None:
            whole, window = self._part_of
            return None if whole.deep is None else whole.deep._between(*window)
        try:
            opened = open_traces(self._run, self._executor, self._told)
        except HaiprofError as error:  # what haiprof recorded is there all the same
            self.note([str(error)])
            return None
        if opened is None:
            return None
        deep = Analyzer.__new__(Analyzer)
        deep._told = None
        deep._take(opened, self._executor)
        return deep

    def _in_detail(self, rank: int | None) -> Traced:
        deep = self.deep
        return self if deep is None or (rank is not None and rank not in deep.ranks) else deep

    def between(self, start: float = 0.0, end: float = math.inf) -> Analyzer:
        """Return a part of the run as a run of its own: what goes on at an edge is cut there.

        Clocks of hosts are held against each other by the whole run.

        Args:
            start: s since the run began, as its report counts them.
            end: likewise.

        Raises:
            HaiprofError: there is nothing of the run in it.
        """
        asked.number("start", start)
        asked.number("end", end)
        made = self._between(window.at(self._run, start), window.at(self._run, end))
        if made is None:
            seconds = window.lasted(self._run)
            lasted = "has no end yet" if seconds is None else f"lasted {seconds:.6g} s"
            until = "on" if end == math.inf else f"to {end:g} s"
            raise HaiprofError(
                f"{self._where}: no data from {start:g} s {until}; the run {lasted}. "
                "Choose another window"
            )
        return made

    def _between(self, first: int, last: int) -> Analyzer | None:
        run = window.part(self._run, first, last)
        if run is None:
            return None
        made = Analyzer.__new__(Analyzer)
        made._told = None
        made._take(Opened(run, self._temporary), self._executor)
        made._part_of = self, (first, last)
        return made

    def _clock(self) -> Clock:
        return super()._clock() if self._part_of is None else self._part_of[0]._clock()

    def problems(self) -> list[str]:
        """Return one line for each folder or file that cannot be read and is left out.

        Of deep traces in the run's folders, once they have been read.
        """
        for _, lines in self._map(one_process.check, self._run.processes):
            self.note(lines)
        if self._deep is not None:
            self.note(self._deep.problems())
        return list(self._problems)

    def processes(self) -> pl.DataFrame:
        """Return one row per process: who it was, when it ran, how it ended, and what it lost.

        ``end``, ``exit_code``, ``signal``, ``reason`` and ``how`` (in words) are null while it runs
        and where that is not known; of a node they are of the launched command. See
        :class:`haiprof.runs.Ending`.

        ``cut_files`` counts files that end within a record batch: of a live run the batch being
        written, of a run whose recorder was killed its last batch.
        """
        processes = self._run.processes
        cut = {
            process.folder: count for process, count in self._map(one_process.count_cut, processes)
        }
        return process_rows.rows(processes, cut)

    def steps(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step that ended: ``step``, ``start``, ``duration``.

        Of a deep trace, steps with their device work, and what of each its parts took (``kernel``,
        ``memcpy``, …, ``other``). See :func:`haiprof.views.trace.overview.overview`.
        """
        if self.traced:
            return self.overview(rank).steps
        return self._frames(step_answers.steps, self._choose(rank), step_views.STEPS_SCHEMA)

    def phases(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step and phase, for the steps that ended.

        Columns: ``step``, ``name``, ``category`` (``phase``, ``user``, ``other``), ``duration``
        (self time), ``count`` (spans), ``start`` (of the first). See
        :func:`haiprof.views.run.steps.phases`.
        """
        return self._frames(step_answers.phases, self._choose(rank), step_views.PHASES_SCHEMA)

    def samples(self, metric: str | None = None, rank: int | None = None) -> pl.DataFrame:
        """Return samples of one ``metric``, of all beneath a prefix (``gpu.*``), or all.

        With ``rank``, those of that rank's processes; those of its node have a null rank. Of what
        haiprof samples elsewhere but not here, as GPUs, there are no rows.

        Raises:
            HaiprofError: neither the run nor haiprof has such a metric.
        """
        if metric is None:
            return self._table(schema.SAMPLES, rank, {})
        asked.texts("metric", [metric])
        columns = {c.name: tables.polars_type(c) for c in schema.SAMPLES.columns}
        if metric.endswith("*"):
            read = functools.partial(one_process.samples_beneath, prefix=metric.removesuffix("*"))
        else:
            keep = {"metric": frozenset([metric])}
            read = functools.partial(one_process.read, table=schema.SAMPLES, keep=keep)
        found = self._frames(read, self._choose(rank), columns)
        known = functools.partial(self._values, schema.SAMPLES, "metric")
        asked.metric(self._where, metric, found.height > 0, known)
        return found

    def spans(
        self,
        rank: int | None = None,
        *,
        category: str | Collection[str] | None = None,
        name: str | Collection[str] | None = None,
    ) -> pl.DataFrame:
        """Return spans, of the given categories and names only if any are given.

        Raises:
            HaiprofError: the run has no such category or name.
        """
        return self._table(schema.SPANS, rank, {"category": category, "name": name})

    def events(
        self, rank: int | None = None, *, kind: str | Collection[str] | None = None
    ) -> pl.DataFrame:
        """Return events, of the given kinds only if any are given.

        Raises:
            HaiprofError: neither the run nor haiprof knows such a kind.
        """
        return self._table(schema.EVENTS, rank, {"kind": kind})

    def kernels(
        self,
        rank: int | None = None,
        *,
        by: Literal["name", "launch"] | None = None,
        kind: str | Collection[str] | None = None,
        name: str | Collection[str] | None = None,
        compat: bool = False,
    ) -> pl.DataFrame:
        """Return GPU activities, of the given kinds and (mangled) names only if any are given.

        Further columns: ``step`` and ``phase`` (of the device phase in which it starts),
        ``demangled`` and ``short``, its name for people. See
        :func:`haiprof.views.run.kernels.described`.

        With ``by``, what kernels cost instead: by ``name``, or by ``launch`` properties and
        operator. See :func:`haiprof.views.trace.kernels.kernels`.

        Raises:
            HaiprofError: the run has no such kind or name, or ``by`` is neither.
        """
        keep = self._asked({"kind": kind, "name": name})
        if by is not None:
            return self._kernel_table(rank, by, compat)
        read = functools.partial(gpu.kernels, keep=keep)
        columns = {c.name: tables.polars_type(c) for c in schema.KERNELS.columns}
        columns.update(kernel_views.DESCRIBED_SCHEMA)
        return self._known(schema.KERNELS, keep, self._frames(read, self._choose(rank), columns))

    def device_spans(
        self,
        rank: int | None = None,
        *,
        category: str | Collection[str] | None = None,
        name: str | Collection[str] | None = None,
    ) -> pl.DataFrame:
        """Return intervals on streams, of the given categories and names only if any are given.

        Raises:
            HaiprofError: the run has no such category or name.
        """
        return self._table(schema.DEVICE_SPANS, rank, {"category": category, "name": name})

    def device_phases(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step and device phase: how long it took, and how busy the GPU was.

        Columns: ``step``, ``name``, ``device``, ``stream``, ``start``, ``duration``, ``busy``,
        ``idle``, ``kernels``; the last three are null in steps in which kernels were not recorded.
        See :func:`haiprof.views.run.kernels.device_phases`.
        """
        return self._frames(gpu.device_phases, self._choose(rank), kernel_views.PHASES_SCHEMA)

    def kernel_totals(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per process and name of GPU activity, those with most time first.

        Columns: ``kind``, ``demangled``, ``calls``, ``total``, ``mean``, ``min``, ``max`` (ns),
        ``share``, ``phases``. See :func:`haiprof.views.run.kernels.totals`.
        """
        return self._frames(gpu.kernel_totals, self._choose(rank), kernel_views.TOTALS_SCHEMA)

    def graph_replays(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per process, device and CUDA graph, those with most time first.

        Columns: ``device``, ``name``, ``replays``, ``steps``, ``total``, ``mean``, ``p50``,
        ``p95``, ``max`` (ns), ``share`` (of the time of steps that replayed it). See
        :func:`haiprof.views.run.graphs.replays`.
        """
        return self._frames(gpu.graph_replays, self._choose(rank), graph_views.REPLAYS_SCHEMA)

    def kernels_recorded(self, rank: int | None = None) -> pl.DataFrame:
        """Return when kernels were recorded, and the whole steps within each such interval.

        Columns: ``start``, ``end`` (null while it lasts), ``mode``, ``begun_by``, ``ended_by``
        (null if the process ended first), ``first_step``, ``last_step``, ``steps``. See
        :func:`haiprof.views.run.recorded.recorded`.
        """
        return self._frames(gpu.recorded, self._choose(rank), recorded_views.RECORDED_SCHEMA)

    def pipeline(self, step: int | None = None) -> pipeline_view.Pipeline:
        """Return the pipeline of the job: lanes of all ranks, bubbles, the critical stage.

        Frames ``jobs``, ``lanes``, ``steps`` and ``stages``, without rows where no rank tells of
        microbatches; ``step``: of this one only. See :mod:`haiprof.views.run.pipeline`.

        Raises:
            HaiprofError: there is no such step.
        """
        asked.whole("step", step)
        told = self._frames(pipeline.jobs, self._choose(None), pipeline_view.JOBS)
        if step is not None and step not in (there := told["step"].drop_nulls().unique()):
            raise asked.steps(f"{self._where}: pipeline()", step, there)
        return pipeline_view.pipeline(self.on_one_clock(told), step)

    def overhead(self, rank: int | None = None) -> pl.DataFrame:
        """Return the newest measured overhead of each process that measured it.

        Columns: ``time``, ``overhead``, ``low``, ``high`` (shares of one), ``confidence``,
        ``windows``, ``steps_inside``, ``steps_outside``, ``share`` (of the time, in which kernels
        are recorded), ``spent`` (part of the time that was metered, where there is nothing to
        compare with), ``budget``, ``mode``, ``stepped_down_to``, ``cost_thread_ns``,
        ``cost_cupti_ns``, ``text``. See :func:`haiprof.views.run.overhead.newest`.
        """
        return self._frames(gpu.overhead, self._choose(rank), overhead_view.SCHEMA)

    def imbalance(self) -> pl.DataFrame:
        """Return which ranks are late, since when and in what, the worst first.

        See :meth:`haiprof.answers.deep.Traced.imbalance`.
        """
        if self.traced:
            return super().imbalance()
        # A rank that was started again is as fast as it is now.
        latest = {p.rank: p for p in self._run.processes if p.role == ROLE_RANK}
        ranks = list(latest.values()) if len(latest) > 1 else []
        clocks = self.clock_by_node() if ranks else {}
        work = functools.partial(step_answers.phase_parts, most=most_steps(len(ranks)))
        parts, whose = RankParts(), {}
        for process, read in self._map(work, ranks):
            self.note(read.problems)
            parts.add(process.label, read.frame, clocks.get(process.node))
            whose[process.label] = process
        return late_ranks.of_run(
            whose,
            parts,
            functools.partial(self._sampled, clocks=clocks),
            lambda process: [g for found in self.gpu_instances([process]).values() for g in found],
        )

    def _sampled(
        self,
        windows: Sequence[evidence.Window],
        clocks: Mapping[str, Callable[[Times], Times]],
    ) -> list[evidence.Means]:
        """Return what was sampled of all in windows of the clock of the reference, on average."""

        def by_clock_of(node: str) -> list[evidence.Window]:
            if node not in clocks:
                return list(windows)
            begins = np.array([low for low, _ in windows])
            ahead = (begins - clocks[node](begins)).tolist()
            return [(low + by, high + by) for (low, high), by in zip(windows, ahead, strict=True)]

        placed = [(process, by_clock_of(process.node)) for process in self._choose(None)]
        found = []
        for (process, _), read in self._map(one_process.sampled_means, placed):
            self.note(read.problems)
            found.append(
                read.frame.with_columns(
                    pl.lit(process.node).alias("node"),
                    pl.lit(process.rank, pl.Int64()).alias("rank"),
                    pl.lit(process.pid, pl.Int64()).alias("pid"),
                )
            )
        rows = pl.concat(found)
        return [
            evidence.Means(rows.filter(pl.col("window") == number))
            for number in range(len(windows))
        ]

    def efficiency(self, peak_flops: float | None = None) -> Efficiency:
        """Return MFU and HFU, throughput, and the energy of a step and of a token.

        Args:
            peak_flops: what each GPU can do at most, FLOP/s; by default as the option of that name
                says, else as its maker does.

        See :mod:`haiprof.views.run.efficiency`, where they are defined.

        Raises:
            HaiprofError: ``peak_flops`` is no such number.
        """
        if peak_flops is not None:
            asked.number("peak_flops", peak_flops, positive=True)
        return efficiency(self._run, self._map, self.note, peak_flops)

    def goodput(self) -> Goodput:
        """Return what the job's whole life was spent on, over all its attempts, and its ETTR.

        See :mod:`haiprof.views.run.goodput`, where the parts are defined.
        """
        return goodput(self._run, self._map, self.note)

    def summaries(self) -> tuple[list[Summary], list[Summary]]:
        """Return the summed-up rank processes and nodes; read once, then kept.

        A process without a rank that had steps counts as a rank: jobs run without a launcher too.
        """
        if self._summaries is None:
            processes = [p for p in self._run.processes if p.rank is None or p.role == ROLE_RANK]
            made = summed_up(processes, self._map, self.note)
            nodes = [s for s in made if s.process.role == ROLE_NODE]
            others = [s for s in made if s.process.role != ROLE_NODE]
            add_gpus(others, nodes)
            self._put_on_one_clock(others)
            self._summaries = ([s for s in others if s.process.role == ROLE_RANK or s.steps], nodes)
        return self._summaries

    def summaries_of(self, processes: Sequence[Process]) -> list[Summary]:
        """Return the summed-up ``processes``, without reading any other."""
        chosen = {p.folder for p in processes}
        if self._summaries is None:
            folders = self.gpu_instances(processes)
            around = [p for p in self._run.processes if p.folder.name in folders]
            made = summed_up([*processes, *around], self._map, self.note)
            own = [s for s in made if s.process.folder in chosen]
            add_gpus(own, [s for s in made if s.process.folder not in chosen])
            return own
        return [s for s in self._summaries[0] if s.process.folder in chosen]

    def _put_on_one_clock(self, summaries: Sequence[Summary]) -> None:
        """Correct when the steps of ranks began, which is what ranks are compared by."""
        if len({s.process.node for s in summaries if s.steps}) < 2:
            return
        clock = self._clock()
        for summary in summaries:
            summary.trend_start = clock.corrected(summary.process.node, summary.trend_start)

    def failure(self) -> str | None:
        """Return in a sentence how the job failed or was interrupted; None: it did not."""
        processes = self._run.processes
        if self.traced or failure(processes) is None:
            return None
        steps = {s.process.folder.name: s.steps for s in self.summaries()[0]}
        failing = {p.node for p in processes if p.ending is not None}
        clock = self._clock() if len(failing) > 1 else None

        def aligned(node: str, time_ns: int) -> int:
            if clock is None:
                return time_ns
            return int(clock.corrected(node, np.array([time_ns]))[0])

        return failure(processes, steps, aligned)

    def headline(self) -> list[str]:
        """Return the three most telling lines about this run; found once, then kept.

        Of a job that failed or was interrupted, how it did comes before them.
        """
        if self._headline is None:
            self._headline = headline(self)
        return list(self._headline)

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

        return report.write(self, asked.path("path", path))

    def read(
        self,
        process: Process,
        table: schema.Table,
        columns: Sequence[str],
        keep: Mapping[str, Collection[str]] | None = None,
    ) -> pl.DataFrame:
        """Read some columns of one table of one process; of text columns the values to ``keep``.

        Raises:
            HaiprofError: the table has no such column.
        """
        asked.columns(table.name, [*columns, *(keep or {})], [c.name for c in table.columns])
        read = tables.read(process, table, columns, keep)
        self.note(read.problems)
        return read.frame

    def read_gpu(self, process: Process) -> gpu.GpuTables:
        """Read what one process recorded of its GPUs."""
        made = gpu.read_gpu(process)
        self.note(made.problems)
        return made

    def gpu_instances(self, processes: Sequence[Process]) -> dict[str, list[str]]:
        """Return the GPUs of these processes as their nodes name them: folder -> ``gpu0``, …."""
        found: dict[str, list[str]] = {}
        for process in processes:
            for folder, names in gpu_views.instances(process, self._run.processes).items():
                known = found.setdefault(folder, [])
                known += [name for name in names if name not in known]
        return found

    def _choose(self, rank: int | None) -> list[Process]:
        if rank is None:
            return list(self._run.processes)
        chosen = [p for p in self._run.processes if p.rank == rank and p.role != ROLE_NODE]
        if not any(p.role == ROLE_RANK for p in chosen):
            raise HaiprofError(
                f"{self._where}: has no rank {rank}: {process_rows.described(self.ranks)}"
            )
        return chosen

    def _table(
        self,
        table: schema.Table,
        rank: int | None,
        keep: Mapping[str, str | Collection[str] | None],
    ) -> pl.DataFrame:
        columns = {c.name: tables.polars_type(c) for c in table.columns}
        wanted = self._asked(keep)
        read = functools.partial(one_process.read, table=table, keep=wanted)
        return self._known(table, wanted, self._frames(read, self._choose(rank), columns))

    def _asked(
        self, given: Mapping[str, str | Collection[str] | None]
    ) -> dict[str, Collection[str]]:
        """Return which values of which columns are asked for; None is any."""
        made = {name: asked.texts(name, values) for name, values in given.items()}
        return {name: values for name, values in made.items() if values is not None}

    def _known(
        self, table: schema.Table, wanted: Mapping[str, Collection[str]], found: pl.DataFrame
    ) -> pl.DataFrame:
        """Return the rows that were found of values of a table; all of these must be known."""
        for column, values in wanted.items():
            asked.present(
                self._where,
                column,
                values,
                found[column].unique().cast(pl.String).to_list(),
                functools.partial(self._values, table, column),
                asked.WORDS.get((table.name, column), ()),
            )
        return found

    def _values(self, table: schema.Table, column: str) -> set[str]:
        """Return the texts that a column has in any process of the run."""
        read = functools.partial(one_process.values, table=table, column=column)
        return {text for _, texts in self._map(read, self._run.processes) for text in texts}

    def _frames(
        self,
        read: Callable[[Process], tables.Read],
        processes: list[Process],
        columns: Mapping[str, pl.DataType],
    ) -> pl.DataFrame:
        leading = {"node": pl.Categorical(), "rank": pl.Int64(), "pid": pl.Int64()}
        frames = [pl.DataFrame(schema={**leading, **columns})]
        for process, made in self._map(read, processes):
            self.note(made.problems)
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

    def each(
        self, work: Callable[[Whose], _Result], whose: Sequence[Whose]
    ) -> Iterable[tuple[Whose, _Result]]:
        """Do large work for some processes: one at a time, or as the executor does it."""
        if self._executor is None:
            return ((one, work(one)) for one in whose)
        return self._map(work, whose)

    def _map(
        self, work: Callable[[Whose], _Result], processes: Sequence[Whose]
    ) -> Iterable[tuple[Whose, _Result]]:
        return over_ranks(work, processes, self._executor, lambda line: self.note([line]))

    def note(self, problems: Iterable[str]) -> None:
        """Remember what could not be read, for :meth:`problems`."""
        self._problems.update(dict.fromkeys(problems))
