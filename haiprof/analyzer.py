"""The analysis of one run: opens it, reads the tables that a question needs, and answers."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import polars as pl

from haiprof import schema
from haiprof.answers.efficiency import Efficiency, efficiency
from haiprof.answers.goodput import Goodput, goodput
from haiprof.errors import HaiprofError
from haiprof.sources import tables
from haiprof.sources.open import Opened, open_path, open_traces
from haiprof.sources.own import ROLE_NODE, ROLE_RANK, Process, Run, readable
from haiprof.traced import late
from haiprof.traced.links import Links
from haiprof.traced.over_ranks import Whose, over_ranks
from haiprof.traced.questions import Traced
from haiprof.views import busy as busy_views
from haiprof.views import device_steps as device_views
from haiprof.views import efficiency as efficiency_view
from haiprof.views import efficiency_words, evidence, pipeline_words, trace_headline
from haiprof.views import gpu_use as use_views
from haiprof.views import gpus as gpu_views
from haiprof.views import headline as headline_view
from haiprof.views import kernels as kernel_views
from haiprof.views import overhead as overhead_view
from haiprof.views import pipeline as pipeline_view
from haiprof.views import recorded as recorded_views
from haiprof.views import steps as step_views
from haiprof.views.clock import Clock
from haiprof.views.overview import Summary, add_gpus, fold_ranges, summarise

if TYPE_CHECKING:
    from haiprof.show.shown import Shown

_Result = TypeVar("_Result")

_SUMMARY_SAMPLES = ("time", "metric", "instance", "value", "flags")
#: Points of all step series of an overview together; each rank has between these two.
_TREND_POINTS = 40_000
_TREND_POINTS_RANK = (400, 2_000)
#: No run lasts longer: ns of more do not fit.
_LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class GpuTables:
    """What one process recorded of its GPUs, and of the host beside them.

    ``kernels`` has the columns of :data:`haiprof.views.kernels.COLUMNS` and ``stream``; it is only
    read if the ``intervals`` in which kernels were recorded hold any. ``phases`` are the device
    phases, ``spans`` the host's steps and phases.
    """

    kernels: pl.DataFrame
    phases: pl.DataFrame
    intervals: pl.DataFrame
    spans: pl.DataFrame
    cut: int
    problems: list[str]


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
        began = self._run.created_ns
        first, last = (
            began + int(min(max(seconds, 0.0), _LONGEST_S) * 1e9) for seconds in (start, end)
        )
        made = self._between(first, last)
        if made is None:
            ends = [end for p in self._run.processes for _, end in [_life(p)] if end is not None]
            lasted = f"lasted {(max(ends) - began) / 1e9:.6g} s" if ends else "has no end yet"
            until = "on" if end == math.inf else f"to {end:g} s"
            raise HaiprofError(
                f"{self._where}: has nothing from {start:g} s {until}: it {lasted}: "
                "choose other times"
            )
        return made

    def _between(self, first: int, last: int) -> Analyzer | None:
        parts = [part for p in self._run.processes if (part := _cut(p, first, last)) is not None]
        if not any(part.role != ROLE_NODE for part in parts):
            return None
        made = Analyzer.__new__(Analyzer)
        made._told = None
        run = replace(self._run, processes=tuple(parts))
        made._take(Opened(run, self._temporary), self._executor)
        made._part_of = self, (first, last)
        return made

    def _clock(self) -> Clock:
        return super()._clock() if self._part_of is None else self._part_of[0]._clock()

    def problems(self) -> list[str]:
        """Return one line for each folder or file that cannot be read and is left out.

        Of deep traces in the run's folders, once they have been read.
        """
        for _, lines in self._map(_check, self._run.processes):
            self.note(lines)
        if self._deep is not None:
            self.note(self._deep.problems())
        return list(self._problems)

    def processes(self) -> pl.DataFrame:
        """Return one row per process: who it was, when it ran, how it ended, and what it lost.

        ``cut_files`` counts files that end within a record batch: of a live run the batch being
        written, of a run whose recorder was killed its last batch.
        """
        processes = self._run.processes
        cut = {process.folder: count for process, count in self._map(_count_cut, processes)}
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
                "cut_files": pl.Series([cut.get(p.folder) for p in processes], dtype=pl.Int64()),
                "folder": [readable(str(p.folder)) for p in processes],
            }
        )

    def steps(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step that ended: ``step``, ``start``, ``duration``.

        Of a deep trace, steps with their device work, and what of each its parts took (``kernel``,
        ``memcpy``, …, ``other``). See :func:`haiprof.views.trace.overview.overview`.
        """
        if self.traced:
            return self.overview(rank).steps
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
        by: Literal["name", "launch"] | None = None,
        kind: str | Collection[str] | None = None,
        name: str | Collection[str] | None = None,
        compat: bool = False,
    ) -> pl.DataFrame:
        """Return GPU activities, of the given kinds and (mangled) names only if any are given.

        Further columns: ``step`` and ``phase`` (of the device phase in which it starts),
        ``demangled`` and ``short``, its name for people. See
        :func:`haiprof.views.kernels.described`.

        With ``by``, what kernels cost instead: by ``name``, or by ``launch`` properties and
        operator. See :func:`haiprof.views.trace.kernels.kernels`.
        """
        if by is not None:
            return self._kernel_table(rank, by, compat)
        read = functools.partial(_kernels, keep=_kept({"kind": kind, "name": name}))
        columns = {c.name: tables.polars_type(c) for c in schema.KERNELS.columns}
        columns.update(kernel_views.DESCRIBED_SCHEMA)
        return self._frames(read, self._choose(rank), columns)

    def device_spans(
        self,
        rank: int | None = None,
        *,
        category: str | Collection[str] | None = None,
        name: str | Collection[str] | None = None,
    ) -> pl.DataFrame:
        """Return intervals on streams, of the given categories and names only if any are given."""
        return self._table(schema.DEVICE_SPANS, rank, {"category": category, "name": name})

    def device_phases(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step and device phase: how long it took, and how busy the GPU was.

        Columns: ``step``, ``name``, ``device``, ``stream``, ``start``, ``duration``, ``busy``,
        ``idle``, ``kernels``; the last three are null in steps in which kernels were not recorded.
        See :func:`haiprof.views.kernels.device_phases`.
        """
        return self._frames(_device_phases, self._choose(rank), kernel_views.PHASES_SCHEMA)

    def kernel_totals(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per process and name of GPU activity, those with most time first.

        Columns: ``kind``, ``demangled``, ``calls``, ``total``, ``mean``, ``min``, ``max`` (ns),
        ``share``, ``phases``. See :func:`haiprof.views.kernels.totals`.
        """
        return self._frames(_kernel_totals, self._choose(rank), kernel_views.TOTALS_SCHEMA)

    def kernels_recorded(self, rank: int | None = None) -> pl.DataFrame:
        """Return when kernels were recorded, and the whole steps within each such interval.

        Columns: ``start``, ``end`` (null while it lasts), ``mode``, ``begun_by``, ``ended_by``
        (null if the process ended first), ``first_step``, ``last_step``, ``steps``. See
        :func:`haiprof.views.recorded.recorded`.
        """
        return self._frames(_recorded, self._choose(rank), recorded_views.RECORDED_SCHEMA)

    def pipeline(self, step: int | None = None) -> pipeline_view.Pipeline:
        """Return the pipeline of the job: lanes of all ranks, bubbles, the critical stage.

        Frames ``jobs``, ``lanes``, ``steps`` and ``stages``, without rows where no rank tells of
        microbatches; ``step``: of this one only. See :mod:`haiprof.views.pipeline`.
        """
        told = self._frames(_pipeline_jobs, self._choose(None), pipeline_view.JOBS)
        return pipeline_view.pipeline(self.on_one_clock(told), step)

    def overhead(self, rank: int | None = None) -> pl.DataFrame:
        """Return the newest measured overhead of each process that measured it.

        Columns: ``time``, ``overhead``, ``low``, ``high`` (shares of one), ``confidence``,
        ``windows``, ``steps_inside``, ``steps_outside``, ``share`` (of the time, in which kernels
        are recorded), ``spent`` (part of the time that was metered, where there is nothing to
        compare with), ``budget``, ``mode``, ``stepped_down_to``, ``cost_thread_ns``,
        ``cost_cupti_ns``, ``text``. See :func:`haiprof.views.overhead.newest`.
        """
        return self._frames(_overhead, self._choose(rank), overhead_view.SCHEMA)

    def imbalance(self) -> pl.DataFrame:
        """Return which ranks are late, since when and in what, the worst first.

        See :meth:`haiprof.traced.questions.Traced.imbalance`.
        """
        if self.traced:
            return super().imbalance()
        # A rank that was started again is as fast as it is now.
        latest = {p.rank: p for p in self._run.processes if p.role == ROLE_RANK}
        ranks = list(latest.values()) if len(latest) > 1 else []
        made = list(self._map(_phase_parts, ranks))
        for _, read in made:
            self.note(read.problems)
        return late.of_run(
            [process for process, _ in made],
            [read.frame for _, read in made],
            self.on_one_clock,
            self._evidence,
            lambda process: [g for found in self.gpu_instances([process]).values() for g in found],
        )

    def _evidence(self) -> pl.DataFrame:
        return self._table(schema.SAMPLES, None, {"metric": evidence.METRICS})

    def efficiency(self, peak_flops: float | None = None) -> Efficiency:
        """Return MFU and HFU, throughput, and the energy of a step and of a token.

        Args:
            peak_flops: what each GPU can do at most, FLOP/s; by default as the option of that name
                says, else as its maker does.

        See :mod:`haiprof.views.efficiency`, where they are defined.
        """
        return efficiency(self._run, self._map, self.note, peak_flops)

    def goodput(self) -> Goodput:
        """Return what the job's whole life was spent on, over all its attempts, and its ETTR.

        See :mod:`haiprof.views.goodput`, where the parts are defined.
        """
        return goodput(self._run, self._map, self.note)

    def summaries(self) -> tuple[list[Summary], list[Summary]]:
        """Return the summed-up rank processes and nodes; read once, then kept.

        A process without a rank that had steps counts as a rank: jobs run without a launcher too.
        """
        if self._summaries is None:
            processes = [p for p in self._run.processes if p.rank is None or p.role == ROLE_RANK]
            made = self._summed_up(processes)
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
            made = self._summed_up([*processes, *around])
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

    def _summed_up(self, processes: Sequence[Process]) -> list[Summary]:
        low, high = _TREND_POINTS_RANK
        points = max(low, min(high, _TREND_POINTS // max(len(processes), 1)))
        work = functools.partial(_summarise, points=points)
        made = [summary for _, summary in self._map(work, processes)]
        for summary in made:
            self.note(summary.problems)
        fold_ranges(made)
        return made

    def headline(self) -> list[str]:
        """Return the three most telling lines about this run; found once, then kept."""
        if self._headline is None:
            self._headline = self._found_headline()
        return list(self._headline)

    def _found_headline(self) -> list[str]:
        if self.traced:
            overview = self.overview()
            made = trace_headline.headline(
                overview.steps,
                overview.devices,
                self.recommendations(),
                marked=any(summary.steps for summary in self.summaries()[0]),
            )
            # A trace of a pipeline tells of nothing else.
            return [made[0], *told] if (told := pipeline_words.lines(self.pipeline())) else made
        ranks, nodes = self.summaries()
        kinds = (*headline_view.EVENT_KINDS, efficiency_view.MODEL, efficiency_view.FLOPS)
        events = self.events(kind=kinds)
        lines = headline_view.headline(ranks, nodes, events, self.imbalance())
        of_model = pl.col("kind").is_in([efficiency_view.MODEL, efficiency_view.FLOPS])
        added: list[str] = []
        if events.filter(of_model).height:
            added += map(efficiency_words.utilisation, self.efficiency().run.iter_rows(named=True))
        if len({s.rank for s in ranks}) < len(ranks):
            added += map(efficiency_words.ettr, self.goodput().summary.iter_rows(named=True))
        lines[0] = "; ".join([lines[0], *filter(None, added)])
        return lines

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

    def read(
        self,
        process: Process,
        table: schema.Table,
        columns: Sequence[str],
        keep: Mapping[str, Collection[str]] | None = None,
    ) -> pl.DataFrame:
        """Read some columns of one table of one process; of text columns the values to ``keep``."""
        read = tables.read(process, table, columns, keep)
        self.note(read.problems)
        return read.frame

    def read_gpu(self, process: Process) -> GpuTables:
        """Read what one process recorded of its GPUs."""
        made = _read_gpu(process)
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
            raise HaiprofError(f"{self._where}: has no rank {rank}: {_describe(self.ranks)}")
        return chosen

    def _table(
        self,
        table: schema.Table,
        rank: int | None,
        keep: Mapping[str, str | Collection[str] | None],
    ) -> pl.DataFrame:
        columns = {c.name: tables.polars_type(c) for c in table.columns}
        read = functools.partial(_read, table=table, keep=_kept(keep))
        return self._frames(read, self._choose(rank), columns)

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


def _describe(ranks: list[int]) -> str:
    if not ranks:
        return "it has no ranks"
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"it has ranks {ranks[0]} to {ranks[-1]}"
    listed = ", ".join(map(str, ranks[:20]))
    more = " and more" if len(ranks) > 20 else ""
    return f"it has {'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"


def _kept(
    keep: Mapping[str, str | Collection[str] | None],
) -> dict[str, Collection[str]]:
    return {
        name: frozenset([values] if isinstance(values, str) else values)
        for name, values in keep.items()
        if values is not None
    }


def _life(process: Process) -> tuple[int | None, int | None]:
    """Return when a process, or its trace, began and ended, ns UTC; None where that is not told."""
    trace = process.trace
    return (process.started_ns, process.ended_ns) if trace is None else (trace.begin, trace.end)


def _cut(process: Process, first: int, last: int) -> Process | None:
    """Return the part of a process that is in a window, ns UTC; None where there is none."""
    begin, end = _life(process)
    if last <= first or (begin or 0) >= last or (end is not None and end < first):
        return None
    begin, end = max(begin or 0, first), last if end is None else min(end, last)
    trace = None if process.trace is None else replace(process.trace, begin=begin, end=end)
    # Of a window no process is older than it.
    born = process.process_started_ns
    return replace(
        process,
        started_ns=begin,
        ended_ns=end,
        process_started_ns=None if born is None else max(born, first),
        trace=trace,
        window=(first, last),
    )


# What runs on an executor stands at the top level, so that another process can import it.


def _check(process: Process) -> list[str]:
    return tables.check(process.folder)


def _count_cut(process: Process) -> int:
    return tables.count_cut(process.folder)


def _read(
    process: Process, table: schema.Table, keep: Mapping[str, Collection[str]]
) -> tables.Read:
    return tables.read(process, table, keep=keep)


def _samples_beneath(process: Process, prefix: str) -> tables.Read:
    read = tables.read(process, schema.SAMPLES)
    read.frame = read.frame.filter(pl.col("metric").cat.starts_with(prefix))
    return read


def _read_phase_spans(process: Process) -> tables.Read:
    keep = {"category": step_views.CATEGORIES}
    return tables.read(process, schema.SPANS, step_views.COLUMNS, keep)


def _steps(process: Process) -> tables.Read:
    keep = {"category": ("step",)}
    read = tables.read(process, schema.SPANS, step_views.COLUMNS, keep)
    read.frame = step_views.steps(read.frame)
    return read


def _phases(process: Process) -> tables.Read:
    read = _read_phase_spans(process)
    read.frame = step_views.phases(read.frame, step_views.steps(read.frame))
    return read


def _phase_parts(process: Process) -> tables.Read:
    read, phases = _read_phase_spans(process), _read_phases(process)
    read.frame = late.recorded_parts(read.frame, phases.frame)
    read.problems += phases.problems
    return read


def _summarise(process: Process, points: int) -> Summary:
    spans = _read_phase_spans(process)
    samples = tables.read(process, schema.SAMPLES, _SUMMARY_SAMPLES)
    summary = summarise(process, spans.frame, samples.frame, points)
    summary.cut = spans.cut + samples.cut
    summary.problems = [*spans.problems, *samples.problems]
    if process.role != ROLE_NODE:
        events = _read_events(process, recorded_views.EVENT_KIND, overhead_view.EVENT_KIND)
        gpu = _read_gpu(process, spans, events)
        if gpu.intervals.height or gpu.phases.height:
            summary.gpu = use_views.use(gpu.kernels, gpu.spans, gpu.phases, gpu.intervals)
        summary.overhead = next(iter(overhead_view.newest(events.frame).to_dicts()), None)
        summary.cut += gpu.cut
        summary.problems += gpu.problems
    return summary


def _read_phases(process: Process) -> tables.Read:
    columns, keep = device_views.SPAN_COLUMNS, {"category": ("phase",)}
    read = tables.read(process, schema.DEVICE_SPANS, columns, keep)
    read.frame = device_views.segments(read.frame)
    return read


def _read_events(process: Process, *kinds: str) -> tables.Read:
    columns = ("time", "kind", "text", "attributes")
    return tables.read(process, schema.EVENTS, columns, {"kind": kinds})


def _read_gpu(
    process: Process, spans: tables.Read | None = None, events: tables.Read | None = None
) -> GpuTables:
    spans = spans or _read_phase_spans(process)
    events = events or _read_events(process, recorded_views.EVENT_KIND)
    phases = _read_phases(process)
    columns = (*kernel_views.COLUMNS, "stream")
    if (events.frame["kind"] == recorded_views.EVENT_KIND).any():
        kernels = tables.read(process, schema.KERNELS, columns)
    else:
        wanted = [c for c in schema.KERNELS.columns if c.name in columns]
        kernels = tables.Read(tables.empty(wanted))
    reads = [phases, events, kernels]
    return GpuTables(
        kernels.frame,
        phases.frame,
        recorded_views.recorded(
            events.frame,
            recorded_views.host_steps(spans.frame),
            device_views.device_steps(phases.frame),
            process.ended_ns,
            busy_views.last_end(kernels.frame),
        ),
        spans.frame,
        sum(read.cut for read in reads),
        [problem for read in reads for problem in read.problems],
    )


def _kernels(process: Process, keep: Mapping[str, Collection[str]]) -> tables.Read:
    read = tables.read(process, schema.KERNELS, keep=keep)
    if read.frame.height:
        phases = _read_phases(process)
        read.frame = kernel_views.described(read.frame, phases.frame)
        read.problems += phases.problems
    return read


def _device_phases(process: Process) -> tables.Read:
    gpu = _read_gpu(process)
    on_device = device_views.device_steps(gpu.phases)
    on_host = recorded_views.host_steps(gpu.spans)
    told = recorded_views.windows(gpu.intervals, on_device, on_host)
    frame = kernel_views.device_phases(gpu.kernels, gpu.phases, told)
    return tables.Read(frame, gpu.cut, gpu.problems)


def _kernel_totals(process: Process) -> tables.Read:
    read = tables.read(process, schema.KERNELS, kernel_views.COLUMNS)
    phases = _read_phases(process)
    read.frame = kernel_views.totals(read.frame, phases.frame)
    read.problems += phases.problems
    return read


def _recorded(process: Process) -> tables.Read:
    gpu = _read_gpu(process)
    return tables.Read(gpu.intervals, gpu.cut, gpu.problems)


def _pipeline_jobs(process: Process) -> tables.Read:
    view = pipeline_view
    keep = {"category": view.CATEGORIES}
    table = schema.DEVICE_SPANS
    columns: Sequence[str] = view.DEVICE_COLUMNS
    reads = [tables.read(process, table, columns, keep)]
    made = view.of_device(reads[-1].frame)
    if not made.height:
        table, columns = schema.SPANS, view.SPAN_COLUMNS
        reads.append(tables.read(process, table, columns, keep))
        made = view.of_host(reads[-1].frame)
    if made.height:  # of the many runs without a pipeline the phases need not be read
        updates = {"category": ("phase",), "name": (view.OPTIMIZER,)}
        reads.append(tables.read(process, table, columns, updates))
        made = view.with_updates(made, reads[-1].frame)
    lines = [line for read in reads for line in read.problems]
    return tables.Read(made, sum(read.cut for read in reads), lines)


def _overhead(process: Process) -> tables.Read:
    read = _read_events(process, overhead_view.EVENT_KIND)
    read.frame = overhead_view.newest(read.frame)
    return read
