"""What haiprof's own records answer, of one rank or of all.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from haiprof import schema
from haiprof.answers import collectives as collective_answers
from haiprof.answers import (
    gpu,
    host_clocks,
    late_ranks,
    metrics,
    one_process,
    pipeline,
    slowdown,
    sql,
    visited,
)
from haiprof.answers import ledger as ledger_answers
from haiprof.answers import nccl as nccl_answers
from haiprof.answers import processes as process_rows
from haiprof.answers import stacks as stack_answers
from haiprof.answers import steps as step_answers
from haiprof.answers.chosen_ranks import in_detail
from haiprof.answers.efficiency import Efficiency, efficiency
from haiprof.answers.goodput import Goodput, goodput
from haiprof.answers.ranks import Ranks
from haiprof.answers.summaries import Sums, summed_up
from haiprof.common import asked
from haiprof.common.choices import quoted
from haiprof.common.wait_graph import Stuck
from haiprof.errors import HaiprofError
from haiprof.findings import endings
from haiprof.findings.recorded import hang_rules
from haiprof.runs import ROLE_NODE, ROLE_RANK, Process
from haiprof.sources import tables
from haiprof.views.intervals import Times
from haiprof.views.run import collectives as collective_view
from haiprof.views.run import evidence
from haiprof.views.run import gpus as gpu_views
from haiprof.views.run import graphs as graph_views
from haiprof.views.run import kernels as kernel_views
from haiprof.views.run import nccl as nccl_view
from haiprof.views.run import overhead as overhead_view
from haiprof.views.run import pipeline as pipeline_view
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run import stacks as stack_views
from haiprof.views.run import steps as step_views
from haiprof.views.run.ledger import Ledger
from haiprof.views.run.overview import Summary, add_gpus
from haiprof.views.run.slowdown import causes as slowdown_view


class End(NamedTuple):
    """How a job failed or was interrupted."""

    #: In words, without for whom the others waited; None: it did not, or nothing is known.
    sentence: str | None
    #: The process that failed first; None: none did, or that is not known.
    first: Process | None
    #: For whom the others waited in vain, and the line it was at; None: for none, or not known.
    awaited: tuple[Stuck, str | None] | None


class RecordedAnswers:
    """What haiprof's own records answer; of traces, what they have of the same tables.

    Frames are polars DataFrames with the leading columns ``node``, ``rank`` (null for what belongs
    to a node) and ``pid``, then those of the view or of the table (``haiprof/schema.py``).
    """

    def __init__(self, ranks: Ranks) -> None:
        """Read nothing yet."""
        self._ranks = ranks

    def processes(self) -> pl.DataFrame:
        """Return one row per process: who it was, when it ran, how it ended, and what it lost.

        ``end``, ``exit_code``, ``signal``, ``reason`` and ``how`` (in words) are null while it runs
        and where that is not known; of a node they are of the launched command. See
        :class:`haiprof.runs.Ending`.

        ``cut_files`` counts files that end within a record batch: of a live run the batch being
        written, of a run whose recorder was killed its last batch.

        Example:
            >>> run.processes().select("rank", "state").rows()
            [(0, 'closed'), (1, 'closed'), (None, 'closed')]
        """
        processes = self._ranks.run.processes
        cut = {
            process.folder: count
            for process, count in self._ranks.map(one_process.count_cut, processes)
        }
        return process_rows.rows(processes, cut)

    def steps(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step that ended: ``step``, ``start``, ``duration``."""
        return self._ranks.frames(
            step_answers.steps, self._ranks.choose(rank), step_views.STEPS_SCHEMA
        )

    def phases(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step and phase, for the steps that ended.

        Columns: ``step``, ``name``, ``category`` (``phase``, ``user``, ``other``), ``duration``
        (self time), ``count`` (spans), ``start`` (of the first). See
        :func:`haiprof.views.run.steps.phases`.

        Example:
            >>> run.phases(rank=0).select("name", "duration").rows()[:2]
            [('dataloader', 1000000), ('forward', 4000000)]
        """
        return self._ranks.frames(
            step_answers.phases, self._ranks.choose(rank), step_views.PHASES_SCHEMA
        )

    def samples(self, metric: str | None = None, rank: int | None = None) -> pl.DataFrame:
        """Return samples of one ``metric``, of all beneath a prefix (``gpu.*``), or all.

        With ``rank``, those of that rank's processes; those of its node have a null rank. Of what
        haiprof samples elsewhere but not here, as GPUs, there are no rows.

        Raises:
            HaiprofError: neither the run nor haiprof has such a metric.

        Example:
            >>> run.samples("proc.*", rank=0)["metric"].unique().sort().to_list()
            ['proc.cpu.percent', 'proc.rss.bytes']
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
        found = self._ranks.frames(read, self._ranks.choose(rank), columns)
        known = functools.partial(self._values, schema.SAMPLES, "metric")
        asked.metric(self._ranks.where, metric, found.height > 0, known)
        return found

    def metrics(self, rank: int | None = None) -> pl.DataFrame:
        """Return which metrics were sampled: one row per metric of each process or node.

        Columns: ``metric``, ``instances`` (0: it has none), ``samples``, ``first`` and ``last``
        (times), ``min``, ``mean``, ``max`` (in the unit that the metric's name ends in).

        Example:
            >>> run.metrics(rank=0)["metric"].to_list()[-2:]
            ['proc.cpu.percent', 'proc.rss.bytes']
        """
        return self._ranks.frames(metrics.metrics, self._ranks.choose(rank), metrics.SCHEMA)

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

        Example:
            >>> run.spans(rank=0, category="phase").select("step", "name").rows()[:2]
            [(0, 'dataloader'), (0, 'forward')]
        """
        return self._table(schema.SPANS, rank, {"category": category, "name": name})

    def events(
        self, rank: int | None = None, *, kind: str | Collection[str] | None = None
    ) -> pl.DataFrame:
        """Return events, of the given kinds only if any are given.

        Raises:
            HaiprofError: neither the run nor haiprof knows such a kind.

        Example:
            >>> run.events(rank=0, kind="kernels")["text"].to_list()
            ['Kernels are recorded from now on', 'Kernels are not recorded any more']
        """
        wanted = self._asked({"kind": kind})
        found = visited.events(self._ranks, wanted["kind"]) if rank is None and wanted else None
        if found is None:
            return self._table(schema.EVENTS, rank, {"kind": kind})
        return self._known(schema.EVENTS, wanted, found)

    def kernels(
        self,
        rank: int | None = None,
        *,
        kind: str | Collection[str] | None = None,
        name: str | Collection[str] | None = None,
    ) -> pl.DataFrame:
        """Return GPU activities, of the given kinds and (mangled) names only if any are given.

        Further columns: ``step`` and ``phase`` (of the device phase in which it starts),
        ``demangled`` and ``short``, its name for people. See
        :func:`haiprof.views.run.kernels.described`.

        Raises:
            HaiprofError: the run has no such kind or name.
        """
        keep = self._asked({"kind": kind, "name": name})
        read = functools.partial(gpu.kernels, keep=keep)
        columns = {c.name: tables.polars_type(c) for c in schema.KERNELS.columns}
        columns.update(kernel_views.DESCRIBED_SCHEMA)
        return self._known(
            schema.KERNELS, keep, self._ranks.frames(read, self._ranks.choose(rank), columns)
        )

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

        Example:
            >>> run.device_spans(rank=0, category="phase").select("step", "name").rows()[:2]
            [(0, 'forward'), (0, 'backward')]
        """
        return self._table(schema.DEVICE_SPANS, rank, {"category": category, "name": name})

    def device_phases(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per step and device phase: how long it took, and how busy the GPU was.

        Columns: ``step``, ``name``, ``device``, ``stream``, ``start``, ``duration``, ``busy``,
        ``idle``, ``kernels``; the last three are null in steps in which kernels were not recorded.
        See :func:`haiprof.views.run.kernels.device_phases`.

        Example:
            >>> run.device_phases(rank=0).select("step", "name", "duration").rows()[:2]
            [(0, 'forward', 4000000), (0, 'backward', 5000000)]
        """
        return self._ranks.frames(
            gpu.device_phases, self._ranks.choose(rank), kernel_views.PHASES_SCHEMA
        )

    def kernel_totals(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per process and name of GPU activity, those with most time first.

        Columns: ``kind``, ``demangled``, ``calls``, ``total``, ``mean``, ``min``, ``max`` (ns),
        ``share``, ``phases``. See :func:`haiprof.views.run.kernels.totals`.

        Example:
            >>> run.kernel_totals(rank=0).select("kind", "calls").rows()[:2]
            [('kernel', 10), ('kernel', 40)]
        """
        return self._ranks.frames(
            gpu.kernel_totals, self._ranks.choose(rank), kernel_views.TOTALS_SCHEMA
        )

    def graph_replays(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per process, device and CUDA graph, those with most time first.

        Columns: ``device``, ``name``, ``replays``, ``steps``, ``total``, ``mean``, ``p50``,
        ``p95``, ``max`` (ns), ``share`` (of the time of steps that replayed it). See
        :func:`haiprof.views.run.graphs.replays`.

        Example:
            >>> run.graph_replays().columns[2:6]
            ['name', 'replays', 'steps', 'total']
        """
        return self._ranks.frames(
            gpu.graph_replays, self._ranks.choose(rank), graph_views.REPLAYS_SCHEMA
        )

    def kernels_recorded(self, rank: int | None = None) -> pl.DataFrame:
        """Return when kernels were recorded, and the whole steps within each such interval.

        Columns: ``start``, ``end`` (null while it lasts), ``mode``, ``begun_by``, ``ended_by``
        (null if the process ended first), ``first_step``, ``last_step``, ``steps``. See
        :func:`haiprof.views.run.recorded.recorded`.

        Example:
            >>> run.kernels_recorded(rank=0).select("first_step", "last_step").rows()
            [(10, 19)]
        """
        return self._ranks.frames(
            gpu.recorded, self._ranks.choose(rank), recorded_views.RECORDED_SCHEMA
        )

    def stacks(
        self,
        rank: int | None = None,
        *,
        phase: str | Collection[str] | None = None,
        threads: stack_views.Threads = "all",
    ) -> pl.DataFrame:
        """Return the sampled Python stacks, of the given phases and threads only if any are given.

        Columns: ``start``, ``duration`` (of wall time that the row stands for), ``samples``,
        ``process``, ``thread``, ``state``, ``waits_in``, ``gil`` (whether the thread had it),
        ``step`` and ``phase`` (of the rank at that time), ``function``, ``file`` and ``line`` of
        the innermost frame, ``stack``. See :func:`haiprof.views.run.stacks.described`; of a part of
        the run: ``run.between(60, 120).stacks()``.

        Args:
            rank: of this one only.
            phase: of these phases only.
            threads: ``training``: only of the thread that steps; ``workers``: only of the main
                threads of processes that the rank forked, as those of a DataLoader.

        Raises:
            HaiprofError: the run has no such phase, or ``threads`` is none of these.

        Example:
            >>> run.stacks(rank=0, phase="forward").select("function", "line").unique().rows()
            [('Model.forward', 12)]
        """
        asked.one_of("threads", threads, stack_views.THREADS)
        phases = asked.texts("phase", phase)
        read = functools.partial(stack_answers.stacks, phases=phases, threads=threads)
        found = self._ranks.frames(read, self._ranks.jobs(rank), stack_views.STACKS_SCHEMA)
        self._phases_known(phases, found.height > 0)
        return found

    def flame(
        self,
        rank: int | None = None,
        *,
        phase: str | Collection[str] | None = None,
        threads: stack_views.Threads = "all",
        by: stack_views.By = "line",
        by_phase: bool = False,
    ) -> pl.DataFrame:
        """Return where the wall time of threads goes, as a flame graph draws it.

        One row per process and path of calls: ``path`` (its number), ``parent`` (that of its
        caller), ``depth``, ``function``, ``file``, ``line``, ``total``, ``self`` and ``running``
        (ns), ``samples``. See :func:`haiprof.views.run.stacks.flame`. In the training
        thread, phases share the samples as they shared its time: see
        :func:`haiprof.views.run.stacks.weighed`.

        Args:
            rank: of this one only.
            phase: of these phases only.
            threads: as of :meth:`stacks`.
            by: what makes two frames the same: their ``line``, or their ``function``.
            by_phase: put the paths of each phase under a row with its name.

        Raises:
            HaiprofError: the run has no such phase, or ``threads`` or ``by`` is none of these.

        Example:
            >>> run.flame(rank=0).filter(depth=1).select("function", "line", "total").rows()[:2]
            [('load', 88, 126315788), ('Model.forward', 12, 505263156)]
        """
        asked.one_of("by", by, stack_views.BY)
        asked.one_of("threads", threads, stack_views.THREADS)
        phases = asked.texts("phase", phase)
        read = functools.partial(
            stack_answers.flame, phases=phases, threads=threads, by=by, by_phase=by_phase
        )
        found = self._ranks.frames(read, self._ranks.jobs(rank), stack_views.FLAME_SCHEMA)
        self._phases_known(phases, found.height > 0)
        return found

    def stack_changes(
        self, after: RecordedAnswers, rank: int | None = None, *, by: stack_views.By = "function"
    ) -> pl.DataFrame:
        """Return what a step of each rank spends in which function, before and after.

        Of the training thread, by sampled stacks. See
        :func:`haiprof.views.run.stack_changes.changes`.
        """
        asked.one_of("by", by, stack_views.BY)
        return stack_answers.changes(self._ranks, after._ranks, rank, by)

    def _phases_known(self, phases: Collection[str] | None, found: bool) -> None:
        """Check that the run has these phases, where nothing was found of them."""
        if phases is not None and not found:

            def known() -> set[str]:
                return set(self.phases()["name"].cast(pl.String).unique())

            asked.present(self._ranks.where, "phase", phases, [], known)

    def sql(self, question: str) -> pl.DataFrame:
        """Return the answer to a question in SQL over the tables of all processes.

        Tables and columns are those of ``haiprof/schema.py`` (``kernels``, ``spans``, ``samples``,
        ``events``, …), with ``node``, ``rank`` and ``pid`` in front; times are int64 ns. The
        dialect is that of polars. Deep traces in the folders of a recorded run are a run of their
        own: ``run.deep.sql(…)``.

        Raises:
            HaiprofError: it is no ``SELECT``, or names a table or a column that is not there.

        Example:
            >>> run.sql("select rank, count(*) as n from kernels group by rank").sort("rank").rows()
            [(0, 70), (1, 70)]
        """
        if not isinstance(question, str):
            raise HaiprofError(f"sql({quoted(question)}): give a question in SQL, as a text")
        return sql.query(self._ranks, question)

    def pipeline(self, step: int | None = None) -> pipeline_view.Pipeline:
        """Return the pipeline of the job: lanes of all ranks, bubbles, the critical stage.

        Frames ``jobs``, ``lanes``, ``steps`` and ``stages``, without rows where no rank tells of
        microbatches; ``step``: of this one only. See :mod:`haiprof.views.run.pipeline`.

        Raises:
            HaiprofError: there is no such step.

        Example:
            >>> run.pipeline().stages.columns[:4]
            ['stage', 'busy', 'forward', 'backward']
        """
        asked.whole("step", step)
        jobs = pipeline.of_all(self._ranks)
        if step is not None and step not in (there := jobs["step"].drop_nulls().unique()):
            raise asked.steps(f"{self._ranks.where}: pipeline()", step, there)
        return pipeline_view.pipeline(jobs, step)

    def slowdown(self) -> slowdown_view.Slowdown:
        """Return what slows the steps down, and how long they would take without each cause.

        Of a pipeline its operations are replayed, else the parts of the steps of all ranks.
        """

        def parts() -> late_ranks.AllParts:
            found = step_answers.all_parts(self._ranks, self._sums())
            late_ranks.leave_waiting_out(found.parts)
            return found

        def charged() -> list[tuple[Process, Ledger]]:
            some = in_detail(self._ranks, self.summaries, self.imbalance)
            found = ledger_answers.charged(some)
            latest = {p.rank: (p, one.ledger) for p, one in found if p.role == ROLE_RANK}
            return list(latest.values())

        return self._ranks.once("slowdown", lambda: slowdown.slowdown(self._ranks, parts, charged))

    def overhead(self, rank: int | None = None) -> pl.DataFrame:
        """Return the newest measured overhead of each process that measured it.

        Columns: ``time``, ``overhead``, ``low``, ``high`` (shares of one), ``confidence``,
        ``windows``, ``steps_inside``, ``steps_outside``, ``share`` (of the time, in which kernels
        are recorded), ``spent`` (part of the time that was metered, where there is nothing to
        compare with), ``budget``, ``mode``, ``stepped_down_to``, ``cost_thread_ns``,
        ``cost_cupti_ns``, ``text``. See :func:`haiprof.views.run.overhead.newest`.

        Example:
            >>> run.overhead().select("rank", "overhead").rows()
            [(0, 0.004), (1, 0.004)]
        """
        return self._ranks.frames(gpu.overhead, self._ranks.choose(rank), overhead_view.SCHEMA)

    def collectives(self, rank: int | None = None) -> pl.DataFrame:
        """Return the collectives and messages of torch.distributed, matched over the ranks.

        One row per operation: ``group``, ``purpose`` (what that is for: ``data``, ``tensor``,
        ``pipeline``, ``expert``, ``other``; null: not known; see
        :mod:`haiprof.views.run.group_purposes`), ``sequence`` (its number in the group), ``op``,
        ``step``, ``bytes``, ``start`` and ``last`` (when the first and the last rank asked for
        it), ``end``, ``late_rank``, ``late`` (ns that it came after the one before it), ``waited``
        (ns: sum of the others' waiting), ``exposed`` (ns that every rank was blocked),
        ``transfer`` (ns), ``bus_bandwidth`` (bytes/s), … See
        :func:`haiprof.views.run.collectives.matched`.

        Args:
            rank: of this one only, as it saw them: one row per operation that it took part in. See
                :func:`haiprof.views.run.collectives.by_rank`.

        Example:
            >>> run.collectives().select("op", "late_rank", "late").row(0)
            ('all_reduce', 1, 3000000)
        """
        if rank is None:
            return collective_answers.with_purposes(self._ranks)
        return self._ranks.frames(
            collective_answers.of_rank, self._ranks.jobs(rank), collective_view.BY_RANK_SCHEMA
        )

    def nccl(self, rank: int | None = None) -> pl.DataFrame:
        """Return what NCCL says of its operations, whoever asked for them.

        One row per operation of a process: ``communicator`` (NCCL's id of it, the same on all
        ranks), ``place`` (the process's rank in it), ``op``, ``sequence`` (among those of that
        function in the communicator), ``bytes``, ``algorithm``, ``protocol``, ``channels``,
        ``start`` and ``enqueued`` (the host's part), ``network_start`` and ``network_end`` (null
        within a node), ``transfers``, … See :func:`haiprof.views.run.nccl.operations`.

        Args:
            rank: of this one only; all if not given.

        Example:
            >>> run.nccl().select("op", "bytes", "algorithm", "protocol", "channels").row(0)
            ('all_reduce', 4194304, 'RING', 'SIMPLE', 16)
        """
        return self._ranks.frames(
            nccl_answers.of_process, self._ranks.jobs(rank), nccl_view.NCCL_SCHEMA
        )

    def waits(self) -> pl.DataFrame:
        """Return for which ranks the others waited in collectives, the longest first.

        Columns: ``late_rank``, ``group``, ``op``, ``operations`` (for which it came last),
        ``waited`` (ns, sum over the others), ``median`` and ``longest`` (of ``late``, ns),
        ``share`` (of all waiting), ``phase`` and ``line`` (of the job, in which the rank was
        meanwhile; null where that is not known). On several nodes these two are null.

        Example:
            >>> run.waits().select("late_rank", "op", "operations").row(0)
            (1, 'all_reduce', 10)
        """
        return collective_answers.waits(self._ranks)

    def imbalance(self) -> pl.DataFrame:
        """Return which ranks are late, since when and in what, from the phases of all steps."""
        return self._ranks.once("imbalance", self._imbalance).clone()

    def _imbalance(self) -> pl.DataFrame:
        found = step_answers.all_parts(self._ranks, self._sums())
        return late_ranks.of_run(
            found.processes,
            found.parts,
            functools.partial(self._sampled, clocks=host_clocks.by_node(self._ranks)),
            lambda process: [g for found in self.gpu_instances([process]).values() for g in found],
        )

    def _sampled(
        self,
        windows: Sequence[evidence.Window],
        processes: Sequence[Process],
        clocks: Mapping[str, Callable[[Times], Times]],
    ) -> list[evidence.Means]:
        """Return what was sampled of processes and their nodes, on average.

        In windows of the clock of the reference.
        """

        def by_clock_of(node: str) -> list[evidence.Window]:
            if node not in clocks:
                return list(windows)
            begins = np.array([low for low, _ in windows])
            ahead = (begins - clocks[node](begins)).tolist()
            return [(low + by, high + by) for (low, high), by in zip(windows, ahead, strict=True)]

        on = {process.node for process in processes}
        nodes = [p for p in self._ranks.run.processes if p.role == ROLE_NODE and p.node in on]
        placed = [(process, by_clock_of(process.node)) for process in [*processes, *nodes]]
        found = []
        for (process, _), read in self._ranks.map(one_process.sampled_means, placed):
            self._ranks.note(read.problems)
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

        Example:
            >>> run.efficiency().run.columns[:4]
            ['ranks', 'step_ns', 'mfu', 'hfu']
        """
        if peak_flops is not None:
            asked.number("peak_flops", peak_flops, positive=True)
        ranks = self._ranks
        return ranks.once(
            f"efficiency {peak_flops}",
            lambda: efficiency(
                ranks.run, ranks.map, ranks.note, peak_flops, visited.unstated(ranks)
            ),
        )

    def goodput(self) -> Goodput:
        """Return what the job's whole life was spent on, over all its attempts, and its ETTR.

        See :mod:`haiprof.views.run.goodput`, where the parts are defined.

        Example:
            >>> run.goodput().summary.columns[:4]
            ['begin', 'end', 'wall_ns', 'productive_ns']
        """
        ranks = self._ranks
        return ranks.once(
            "goodput",
            lambda: goodput(
                ranks.run,
                ranks.map,
                ranks.note,
                host_clocks.of_ends(ranks),
                visited.seen(ranks),
            ),
        )

    def summaries(self) -> tuple[list[Summary], list[Summary]]:
        """Return the summed-up rank processes and nodes; read once, then kept.

        A process without a rank that had steps counts as a rank: jobs run without a launcher too.

        Example:
            >>> [summary.steps for summary in run.summaries()[0]]
            [118, 118]
        """
        return self._ranks.once("summaries", self._summed_up)

    def _sums(self) -> list[Sums]:
        def made() -> list[Sums]:
            every = self._ranks.run.processes
            processes = [p for p in every if p.rank is None or p.role == ROLE_RANK]
            return summed_up(processes, self._ranks.map, self._ranks.note, self._ranks.run.warmup)

        return self._ranks.once("sums", made)

    def _summed_up(self) -> tuple[list[Summary], list[Summary]]:
        summaries = [each.summary for each in self._sums()]
        nodes = [s for s in summaries if s.process.role == ROLE_NODE]
        others = [s for s in summaries if s.process.role != ROLE_NODE]
        add_gpus(others, nodes)
        self._put_on_one_clock(others)
        return [s for s in others if s.process.role == ROLE_RANK or s.steps], nodes

    def summaries_of(self, processes: Sequence[Process]) -> list[Summary]:
        """Return the summed-up ``processes``, without reading any other.

        Example:
            >>> [summary.steps for summary in run.summaries_of(run.run.processes[:2])]
            [118, 118]
        """
        chosen = {p.folder for p in processes}
        known: tuple[list[Summary], list[Summary]] | None = self._ranks.kept("summaries")
        if known is None:
            folders = self.gpu_instances(processes)
            around = [p for p in self._ranks.run.processes if p.folder.name in folders]
            found = summed_up(
                [*processes, *around], self._ranks.map, self._ranks.note, self._ranks.run.warmup
            )
            summaries = [each.summary for each in found]
            own = [s for s in summaries if s.process.folder in chosen]
            add_gpus(own, [s for s in summaries if s.process.folder not in chosen])
            return own
        return [s for s in known[0] if s.process.folder in chosen]

    def _put_on_one_clock(self, summaries: Sequence[Summary]) -> None:
        """Correct when the steps of ranks began, which is what ranks are compared by."""
        if len({s.process.node for s in summaries if s.steps}) < 2:
            return
        clock = host_clocks.clock(self._ranks)
        for summary in summaries:
            summary.trend_start = clock.corrected(summary.process.node, summary.trend_start)

    def failure(self) -> str | None:
        """Return in a sentence how the job failed or was interrupted; None: it did not.

        Example:
            >>> print(run.failure())
            None
        """
        ended = self.end()
        if ended.sentence is None or ended.awaited is None:
            return ended.sentence
        return f"{hang_rules.never_came(*ended.awaited)}. {ended.sentence}"

    def end(self) -> End:
        """Return how the job failed or was interrupted, in parts."""
        processes = self._ranks.run.processes
        if self._ranks.traced or endings.failure(processes) is None:
            return End(None, None, None)
        steps = {s.process.folder.name: s.steps for s in self.summaries()[0]}
        aligned = host_clocks.of_ends(self._ranks)
        first = endings.first_failed(processes, aligned)
        in_vain = first is not None and endings.gave_up(first)
        awaited = collective_answers.left_waiting(self._ranks) if in_vain else None
        return End(endings.failure(processes, steps, aligned), first, awaited)

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

        Example:
            >>> run.read(run.run.processes[0], schema.SPANS, ["name", "start"]).columns
            ['start', 'name']
        """
        asked.columns(table.name, [*columns, *(keep or {})], [c.name for c in table.columns])
        read = tables.read(process, table, columns, keep)
        self._ranks.note(read.problems)
        return read.frame

    def read_gpu(self, process: Process) -> gpu.GpuTables:
        """Read what one process recorded of its GPUs.

        Example:
            >>> run.read_gpu(run.run.processes[0]).kernels.height
            70
        """
        recorded = gpu.read_gpu(process)
        self._ranks.note(recorded.problems)
        return recorded

    def gpu_instances(self, processes: Sequence[Process]) -> dict[str, list[str]]:
        """Return the GPUs of these processes as their nodes name them: folder -> ``gpu0``, ….

        Example:
            >>> run.gpu_instances(run.run.processes)
            {'n0': ['gpu0', 'gpu1']}
        """
        found: dict[str, list[str]] = {}
        for process in processes:
            for folder, names in gpu_views.instances(process, self._ranks.run.processes).items():
                known = found.setdefault(folder, [])
                known += [name for name in names if name not in known]
        return found

    def _table(
        self,
        table: schema.Table,
        rank: int | None,
        keep: Mapping[str, str | Collection[str] | None],
    ) -> pl.DataFrame:
        columns = {c.name: tables.polars_type(c) for c in table.columns}
        wanted = self._asked(keep)
        read = functools.partial(one_process.read, table=table, keep=wanted)
        return self._known(
            table, wanted, self._ranks.frames(read, self._ranks.choose(rank), columns)
        )

    def _asked(
        self, given: Mapping[str, str | Collection[str] | None]
    ) -> dict[str, Collection[str]]:
        """Return which values of which columns are asked for; None is any."""
        chosen = {name: asked.texts(name, values) for name, values in given.items()}
        return {name: values for name, values in chosen.items() if values is not None}

    def _known(
        self, table: schema.Table, wanted: Mapping[str, Collection[str]], found: pl.DataFrame
    ) -> pl.DataFrame:
        """Return the rows that were found of values of a table; all of these must be known."""
        for column, values in wanted.items():
            asked.present(
                self._ranks.where,
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
        return {
            text for _, texts in self._ranks.map(read, self._ranks.run.processes) for text in texts
        }
