"""Answers from a deep trace: each method is a view over all ranks.

Tests: tests/answers/test_traced.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

import polars as pl

from haiprof.answers import (
    advice,
    host_clocks,
    kept_overview,
    late_ranks,
    one_trace,
    paths,
    slowdown,
    unknown,
)
from haiprof.answers import idle as idle_answers
from haiprof.answers.late_ranks import AllParts
from haiprof.answers.matched import matched
from haiprof.answers.rank_columns import placed, stacked
from haiprof.answers.ranks import Ranks
from haiprof.common import asked
from haiprof.common.choices import quoted
from haiprof.common.choices import unknown as unknown_word
from haiprof.errors import HaiprofError
from haiprof.runs import Process
from haiprof.views.run import imbalance
from haiprof.views.run.rank_parts import RankParts
from haiprof.views.run.slowdown import causes as slowdown_view
from haiprof.views.trace import annotations as annotations_view
from haiprof.views.trace import bandwidth as bandwidth_view
from haiprof.views.trace import compare as compare_view
from haiprof.views.trace import (
    differences,
    idle,
    kernel_breakdown,
    launches,
    modules,
    operators,
    overlap,
    queue_length,
    requirements,
    sequences,
    temporal,
)
from haiprof.views.trace import kernels as kernel_view
from haiprof.views.trace import operator_kernels as operator_kernels_view
from haiprof.views.trace.as_other_tools import msprof_op_statistics, msprof_step_trace
from haiprof.views.trace.critical_path import path as path_view
from haiprof.views.trace.critical_path import what_if as what_if_view
from haiprof.views.trace.idle_causes import frames as idle_frames
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.queue_length import FULL

_Result = TypeVar("_Result")


class OverviewFrames(NamedTuple):
    """Frames of :class:`haiprof.views.trace.overview.Overview`, of all ranks.

    ``ranks`` has one row per trace: its mean step and the time of each part (ns), and the
    shares ``tensor_core`` and ``tensor_core_eligible``.
    """

    ranks: pl.DataFrame
    devices: pl.DataFrame
    steps: pl.DataFrame
    timeline: pl.DataFrame


class MemoryFrames(NamedTuple):
    """Frames of :mod:`haiprof.views.trace.memory`, of all ranks."""

    curve: pl.DataFrame
    blocks: pl.DataFrame
    operators: pl.DataFrame
    peaks: pl.DataFrame
    holders: pl.DataFrame


class DistributedFrames(NamedTuple):
    """Frames of :mod:`haiprof.views.trace.distributed`: ``steps``, ``transfers``, ``collectives``.

    ``transfers`` and ``collectives`` result from matching the ranks of one session.
    """

    steps: pl.DataFrame
    transfers: pl.DataFrame
    collectives: pl.DataFrame


class RooflineFrames(NamedTuple):
    """Frames of :mod:`haiprof.views.trace.roofline`, of all ranks."""

    operators: pl.DataFrame
    gemms: pl.DataFrame
    collectives: pl.DataFrame


class TraceAnswers:
    """Answers from a deep trace, for one rank or all.

    Frames begin with ``node``, ``rank``, ``pid`` and ``session`` (which of the times that a worker
    was profiled, from 1; null for a run that haiprof recorded). Their other columns are those of
    the view that each method names, which also documents its formula. A run without operators
    (haiprof's own records of kernels) has the views of its kernels, and no rows in the others;
    unless its folders contain deep traces, which then provide those.

    Args:
        ranks: of the run.
        in_detail: returns the answers that only a deep trace gives for a rank, or for all: on
            operators, calls and memory.
    """

    def __init__(
        self, ranks: Ranks, in_detail: Callable[[int | None], TraceAnswers] | None = None
    ) -> None:
        """Start without reading anything."""
        self._ranks = ranks
        self._in_detail = in_detail or (lambda _: self)

    def steps(self, rank: int | None = None) -> pl.DataFrame:
        """Return the steps with their device work, and the time of each part."""
        return self.overview(rank).steps

    def overview(self, rank: int | None = None) -> OverviewFrames:
        """Return how busy and how well used the GPUs were, and where the steps' time went.

        See :func:`haiprof.views.trace.overview.overview`.

        Example:
            >>> trace.overview().ranks.select("rank", "kernel").rows()
            [(0, 30000.0), (1, 30000.0)]
        """
        if rank is not None:
            return self._overview(rank)
        kept = self._ranks.once("overview", lambda: self._overview(None))
        return OverviewFrames(*(frame.clone() for frame in kept))

    def _overview(self, rank: int | None) -> OverviewFrames:
        chosen = self._ranks.jobs(rank)
        overviews = list(
            self._ranks.map(
                functools.partial(one_trace.overview_of, links=self._ranks.links), chosen
            )
        )
        scalars = [
            pl.DataFrame(
                {
                    **{name: [value] for name, value in each.mean.items()},
                    "tensor_core": [each.tensor_core],
                    "tensor_core_eligible": [each.tensor_core_eligible],
                },
                schema_overrides=dict.fromkeys(
                    ("tensor_core", "tensor_core_eligible"), pl.Float64()
                ),
            )
            for _, each in overviews
        ]
        processes = [process for process, _ in overviews]
        return OverviewFrames(
            stacked(zip(processes, scalars, strict=True)),
            *(
                stacked((process, getattr(each, name)) for process, each in overviews)
                for name in ("devices", "steps", "timeline")
            ),
        )

    def keep_overview(self) -> None:
        """Store the overview of each trace in its process folder, where later calls read it.

        Raises:
            OSError: it cannot be written.

        Example:
            >>> trace.keep_overview()
        """
        for process in self._ranks.jobs(None):
            if process.trace is not None and kept_overview.read(process.folder) is None:
                kept_overview.keep(
                    process.folder, one_trace.overview_of(process, self._ranks.links)
                )

    def operators(
        self, rank: int | None = None, *, by: operators.By = "name", compat: bool = False
    ) -> pl.DataFrame:
        """Return the cost of operators, by ``name``, ``shapes``, ``stack`` or ``shapes+stack``.

        See :func:`haiprof.views.trace.operators.operators`.

        Raises:
            HaiprofError: ``by`` is none of these.

        Example:
            >>> trace.operators(rank=0).select("name", "calls").rows()[:2]
            [('aten::mm', 2)]
        """
        asked.one_of("by", by, operators.FURTHER)
        return self._in_detail(rank)._view(
            rank, functools.partial(operators.operators, by=by, compat=compat)
        )

    def kernels_by(
        self,
        rank: int | None,
        by: Literal["name", "launch"],
        compat: bool,
    ) -> pl.DataFrame:
        """Return the cost of kernels, by ``name``, or by ``launch`` properties and operator."""
        asked.one_of("by", by, tuple(kernel_view.COLUMNS))
        work = functools.partial(kernel_view.kernels, by=by, compat=compat)
        return self._view(rank, work, None if compat else kernel_view.COLUMNS[by])

    def memory(self, rank: int | None = None, *, points: int | None = None) -> MemoryFrames:
        """Return memory over time, allocations by operator, and the blocks at the peak.

        See :mod:`haiprof.views.trace.memory`. ``points`` thins the curve for drawing.

        Raises:
            HaiprofError: ``points`` is not a positive integer.

        Example:
            >>> trace.memory().peaks.columns[1:5]
            ['kind', 'device', 'time', 'allocated']
        """
        asked.whole("points", points, 1)
        results = self._in_detail(rank)._linked(
            rank, functools.partial(one_trace.memory_of, points=points), allocations=True
        )
        return MemoryFrames(
            *(
                stacked((process, frames[i]) for process, frames in results)
                for i in range(len(MemoryFrames._fields))
            )
        )

    def modules(self, rank: int | None = None) -> pl.DataFrame:
        """Return the cost of each ``nn.Module`` of the model.

        See :func:`haiprof.views.trace.modules.modules`.

        Example:
            >>> trace.modules().columns[1:5]
            ['module', 'parent', 'depth', 'name']
        """
        return self._in_detail(rank)._view(rank, modules.modules)

    def flames(
        self, rank: int | None = None, *, of: Literal["python", "calls"] = "python"
    ) -> pl.DataFrame:
        """Return a flame graph: the cost of each path of calls.

        See :func:`haiprof.views.trace.modules.flames`.

        Raises:
            HaiprofError: ``of`` is neither.

        Example:
            >>> trace.flames(of="calls").columns[1:5]
            ['path', 'parent', 'depth', 'name']
        """
        asked.one_of("of", of, modules.OF)
        return self._in_detail(rank)._view(rank, functools.partial(modules.flames, of=of))

    def distributed(self, rank: int | None = None) -> DistributedFrames:
        """Return computing and communicating by step; moving data and waiting; collectives.

        ``steps`` also has ``waiting``: how much of ``communication`` (alone) was waiting for other
        ranks, ns; null if no other rank's trace shows it.

        For a single ``rank``, its steps; how long it waited for the others needs their traces, too,
        and covers all ranks. See :mod:`haiprof.views.trace.distributed`.

        Example:
            >>> trace.distributed().steps.columns[1:5]
            ['step', 'duration', 'compute', 'overlap']
        """
        chosen = self._ranks.jobs(rank)
        together = matched(self._ranks)
        steps = together.steps
        if rank is not None and chosen and steps.height:
            steps = steps.filter(pl.col("rank") == rank)
        return DistributedFrames(steps, together.transfers, together.collectives)

    def stragglers(self) -> pl.DataFrame:
        """Return how long each rank kept the others waiting, the worst first.

        See :func:`haiprof.views.trace.stragglers.stragglers`.

        Example:
            >>> trace.stragglers().columns[1:5]
            ['collectives', 'last', 'caused', 'ratio']
        """
        return matched(self._ranks).stragglers

    def imbalance(self) -> pl.DataFrame:
        """Return which ranks are late, since when and in what, the worst first.

        Columns: those of :func:`haiprof.views.run.imbalance.imbalance`, ``evidence`` (what was
        sampled of its process, GPU and node in these steps but not of the other ranks'; null if
        there is none) and ``words``. For a run that haiprof recorded it is computed from the phases
        of all its steps, for deep traces from the parts of their steps without the waiting in
        collectives.
        """
        return self._ranks.once("imbalance", self._imbalance).clone()

    def _imbalance(self) -> pl.DataFrame:
        steps = self.overview().steps
        together = matched(self._ranks)
        nothing = pl.lit(None, pl.String()).alias("evidence")
        groups = [
            group
            for each in together.sessions
            for group in late_ranks.at_once(each.by_label, steps)
        ]
        return pl.concat(
            late_ranks.in_columns(
                imbalance.imbalance(
                    late_ranks.traced_parts(group, steps, together.transfers)
                ).with_columns(nothing),
                group,
            )
            for group in groups or [{}]
        )

    def slowdown(self) -> slowdown_view.Slowdown:
        """Return what slows the steps down, and how long they would take without each cause.

        Of a pipeline its operations are replayed, else the parts of the steps of all ranks that
        were traced at the same time: those of the first session, if there are several.
        """

        def parts() -> AllParts:
            steps, together = self.overview().steps, matched(self._ranks)
            for each in together.sessions:
                for group in late_ranks.at_once(each.by_label, steps):
                    return late_ranks.traced_at_once(group, steps, together.transfers)
            return AllParts({}, RankParts(), {})

        return self._ranks.once("slowdown", lambda: slowdown.slowdown(self._ranks, parts))

    def clock(self) -> pl.DataFrame:
        """Return how far the clock of each host is off, and how precisely that is known.

        Columns: ``node``, ``since``, ``until``, ``offset`` (ns that it is ahead of the reference
        at ``since``), ``drift`` (ppm), ``bound`` (ns, of the error of the correction),
        ``residual``, ``residual_p99`` (ns), ``pairs``, ``corrected``, ``how``. A clock that was set
        has several rows. See :mod:`haiprof.views.clock`.

        Example:
            >>> trace.clock().select("node", "corrected").rows()
            [('rank0', False), ('rank1', False)]
        """
        compared = host_clocks.clock(self._ranks)
        if compared.pieces:
            return compared.frame
        return host_clocks.clock(self._in_detail(None)._ranks).frame

    def temporal(self, rank: int | None = None, *, drop_last_step: bool = False) -> pl.DataFrame:
        """Return how the time of each GPU divides into idle, computing and the rest.

        See :func:`haiprof.views.trace.temporal.temporal`.

        Example:
            >>> trace.temporal(rank=0).select("compute", "idle").rows()
            [(60000, 70000)]
        """
        work = functools.partial(temporal.temporal, drop_last_step=drop_last_step)
        return self._view(rank, work, temporal.COLUMNS)

    def idle(
        self,
        rank: int | None = None,
        *,
        by: idle_frames.By = "category",
        drop_last_step: bool = False,
    ) -> pl.DataFrame:
        """Return why streams or devices were idle.

        Args:
            rank: of one rank only.
            by: ``category``, HTA's three of each stream (waiting for the host, between kernels,
                other: :func:`haiprof.views.trace.idle.idle`); ``cause``, each stream's causes;
                ``device``, each device's. The causes are those of
                :mod:`haiprof.views.trace.idle_causes.causes`, the columns those of
                :mod:`haiprof.views.trace.idle_causes.frames`.
            drop_last_step: leave the last step out.

        Raises:
            HaiprofError: ``by`` is none of these.

        Example:
            >>> trace.idle(rank=0).select("stream", "category", "idle").rows()[:2]
            [(7, 'host_wait', 70000), (7, 'kernel_wait', 0)]
            >>> trace.idle(rank=0, by="device").columns[1:4]
            ['device', 'cause', 'idle']
        """
        asked.one_of("by", by, idle_frames.BY)
        if by != "category":
            return idle_answers.idle(self._ranks, rank, by, drop_last_step)
        return self._view(rank, functools.partial(idle.idle, drop_last_step=drop_last_step))

    def overlap(self, rank: int | None = None, *, drop_last_step: bool = False) -> pl.DataFrame:
        """Return how much of the communication computation hides.

        See :func:`haiprof.views.trace.overlap.overlap`.

        Example:
            >>> trace.overlap(rank=0).select("communication", "computation").rows()
            [(0, 60000)]
        """
        return self._view(rank, functools.partial(overlap.overlap, drop_last_step=drop_last_step))

    def launches(self, rank: int | None = None) -> pl.DataFrame:
        """Return each kernel's launch: how long the call took, and when the kernel began after it.

        See :func:`haiprof.views.trace.launches.launches`.

        Example:
            >>> trace.launches(rank=0).columns[1:5]
            ['row', 'runtime', 'call', 'kind']
        """
        return self._in_detail(rank)._view(rank, launches.launches)

    def queue_length(self, rank: int | None = None) -> pl.DataFrame:
        """Return how many launched activities waited on each stream over time.

        See :func:`haiprof.views.trace.queue_length.queue_length`.

        Example:
            >>> trace.queue_length(rank=0).select("time", "length").rows()[:2]
            [(1020000, 1), (1040000, 0)]
        """
        return self._in_detail(rank)._view(rank, queue_length.queue_length)

    def full_queue(self, rank: int | None = None, *, length: int = FULL) -> pl.DataFrame:
        """Return how long each stream's queue was full, and for how long launches waited for it.

        See :func:`haiprof.views.trace.queue_length.full_queue`.

        Raises:
            HaiprofError: ``length``, from which on a queue is full, is not a positive integer.

        Example:
            >>> trace.full_queue(rank=0, length=1).select("stream", "full", "blocked").rows()
            [(7, 40000, 10000)]
        """
        asked.whole("length", length, 1)
        work = functools.partial(queue_length.full_queue, full=length)
        return self._in_detail(rank)._view(rank, work)

    def operator_kernels(self, rank: int | None = None) -> pl.DataFrame:
        """Return the kernels that each operator launches, and the delays until they run.

        See :func:`haiprof.views.trace.operator_kernels.operator_kernels`.

        Example:
            >>> trace.operator_kernels(rank=0).select("operator", "count", "call_delay").rows()
            [('aten::mm', 2, 10000.0)]
        """
        return self._in_detail(rank)._view(rank, operator_kernels_view.operator_kernels)

    def annotations(
        self, rank: int | None = None, *, by: annotations_view.By = "name"
    ) -> pl.DataFrame:
        """Return what the user's ranges and steps cost on host and devices, or their kernels.

        See :func:`haiprof.views.trace.annotations.user_annotations`.

        Raises:
            HaiprofError: ``by`` is neither ``name`` nor ``kernel``.

        Example:
            >>> trace.annotations(rank=0, by="kernel").columns[1:5]
            ['name', 'kernel', 'kind', 'calls']
        """
        asked.one_of("by", by, annotations_view.BY)
        work = functools.partial(annotations_view.user_annotations, by=by)
        return self._in_detail(rank)._view(rank, work)

    def bandwidth(self, rank: int | None = None) -> pl.DataFrame:
        """Return the bandwidth of copies and sets over time.

        See :func:`haiprof.views.trace.bandwidth.bandwidth`.

        Example:
            >>> trace.bandwidth().columns[1:5]
            ['device', 'kind', 'time', 'bandwidth']
        """
        return self._view(rank, bandwidth_view.bandwidth)

    def kernel_kinds(
        self, rank: int | None = None, *, drop_last_step: bool = False
    ) -> pl.DataFrame:
        """Return the time of computation, communication and memory, each alone and overlapping.

        See :func:`haiprof.views.trace.kernel_breakdown.by_kind`.

        Example:
            >>> trace.kernel_kinds(rank=0).columns[1:-3]
            ['device', 'kind', 'time', 'ratio']
        """
        return self._view(
            rank, functools.partial(kernel_breakdown.by_kind, drop_last_step=drop_last_step)
        )

    def roofline(self, rank: int | None = None) -> RooflineFrames:
        """Return operators against what their device can do: FLOPs, bytes, efficiency, bound.

        Three frames: ``operators``, the multiplications of matrices among them (``gemms``) by
        shape, and ``collectives`` by size. See
        :func:`haiprof.views.trace.roofline.operators.operators`,
        :func:`haiprof.views.trace.roofline.gemms.gemms` and
        :func:`haiprof.views.trace.roofline.collectives.collectives`.

        Example:
            >>> trace.roofline(rank=0).operators.select("operator", "kind", "flops").row(0)
            ('aten::mm', 'gemm', 128)
        """
        deep = self._in_detail(rank)
        work = functools.partial(one_trace.roofline_of, links=deep._ranks.links)
        results = list(deep._ranks.map(work, deep._ranks.jobs(rank)))
        return RooflineFrames(
            *(
                stacked((process, frames[i]) for process, frames in results)
                for i in range(len(RooflineFrames._fields))
            )
        )

    def step_trace(self, rank: int | None = None) -> pl.DataFrame:
        """Return what each step did on the device: forward and backward, refresh, interval.

        See :func:`haiprof.views.trace.as_other_tools.msprof_step_trace.step_trace`.

        Example:
            >>> trace.step_trace(rank=0).columns[1:5]
            ['step', 'start', 'duration', 'computing']
        """
        return self._view(rank, msprof_step_trace.step_trace)

    def op_statistics(self, rank: int | None = None) -> pl.DataFrame:
        """Return the device's time by operator and kind of unit: tensor cores, copies, ….

        See :func:`haiprof.views.trace.as_other_tools.msprof_op_statistics.op_statistics`.

        Example:
            >>> trace.op_statistics(rank=0).columns[1:5]
            ['op', 'unit', 'count', 'total']
        """
        return self._in_detail(rank)._view(rank, msprof_op_statistics.op_statistics)

    def hardware_counters(self, rank: int | None = None) -> pl.DataFrame:
        """Return CUPTI's counters of each kernel with the operators around it.

        See :func:`haiprof.views.trace.cupti_counters.cupti_counters`.

        Example:
            >>> trace.hardware_counters().columns[1:5]
            ['start', 'duration', 'name', 'op']
        """
        deep = self._in_detail(rank)
        chosen = deep._ranks.jobs(rank)
        return stacked(
            deep._ranks.map(
                functools.partial(one_trace.counters_of, links=deep._ranks.links), chosen
            )
        )

    def sequences(
        self, rank: int | None = None, *, operator: str = "", shortest: int = sequences.SHORTEST
    ) -> pl.DataFrame:
        """Return the sequences of kernels that operators launch again and again.

        Args:
            rank: of one rank only.
            operator: part of the names of the operators; by default all.
            shortest: shorter sequences are left out.

        See :func:`haiprof.views.trace.sequences.sequences`.

        Raises:
            HaiprofError: no operator's name has that, or ``shortest`` is not a positive integer.

        Example:
            >>> trace.sequences(rank=0, shortest=1).columns[1:5]
            ['operator', 'sequence', 'count', 'device']
        """
        asked.texts("operator", [operator])
        asked.whole("shortest", shortest, 1)
        work = functools.partial(sequences.sequences, operator=operator, shortest=shortest)
        deep = self._in_detail(rank)
        found = deep._view(rank, work)
        if operator and not found.height:
            names = deep.operators()["name"].cast(pl.String).unique().to_list()
            if not any(operator in name for name in names):
                there = unknown_word(operator, names, "it has")
                raise HaiprofError(
                    f"{self._ranks.where}: has no operator {quoted(operator)}: {there}"
                )
        return found

    def critical_path(
        self, rank: int | None = None, *, step: int | None = None, inside: str | None = None
    ) -> dict[str, path_view.CriticalPath]:
        """Return the critical path of each trace by its label: what would make it end sooner.

        Args:
            rank: of one rank only.
            step: of this step, in the traces that have it; by default the longest step.
            inside: of the first range of this name instead of a step.

        Raises:
            HaiprofError: no trace has such a step or range.

        See :mod:`haiprof.views.trace.critical_path.path`.

        Example:
            >>> list(trace.critical_path())
            ['rank 0', 'rank 1']
        """
        asked.whole("step", step)
        asked.texts("inside", inside)
        return paths.critical_paths(self._in_detail(rank)._ranks, rank, step, inside)

    def what_if(
        self,
        rank: int | None = None,
        *,
        step: int | None = None,
        inside: str | None = None,
        operator: str | None = None,
        kernel: str | None = None,
        kind: str | None = None,
        factor: float | None = None,
    ) -> pl.DataFrame:
        """Return how long a step would take if some of its work took less time.

        Args:
            rank: of one rank only.
            step: of this step, in the traces that have it; by default the longest step.
            inside: of the first range of this name instead of a step.
            operator: operators or ranges of this name, with all that they call and launch.
            kernel: kernels and copies with this in their name.
            kind: ``computation``, ``communication``, ``waiting`` (for other ranks, in collectives;
                0 where no other rank was traced, and then a part of the communication), ``memory``
                (copies and sets) or ``host`` (all that threads do, calls and the time between
                launches). Without any of these three: the kinds of work on the critical path, and
                its longest operators and kernels.
            factor: their time times this, from 0 to 1; by default both 0.5 and 0.

        Columns: ``step`` (null inside a range), ``what``, ``name``, ``factor``, ``before``,
        ``after`` and ``saving`` (ns), of each trace the largest saving first. See
        :mod:`haiprof.views.trace.critical_path.what_if`.

        Raises:
            HaiprofError: no trace has such a step, range, operator or kernel.

        Example:
            >>> trace.what_if(rank=0, kind="computation", factor=0.5).columns[2:8]
            ['what', 'name', 'factor', 'before', 'after', 'saving']
        """
        asked.whole("step", step)
        asked.texts("inside", inside)
        asked.texts("operator", operator)
        asked.texts("kernel", kernel)
        if kind is not None:
            asked.one_of("kind", kind, what_if_view.KINDS_OF_WORK)
        asked.share("factor", factor)
        named = {"operator": operator, "kernel": kernel, "kind": kind}
        return paths.what_if(self._in_detail(rank)._ranks, rank, step, inside, named, factor)

    def recommendations(self, rank: int | None = None) -> pl.DataFrame:
        """Return what to change about the job, the largest saving for a rank first.

        Columns: ``kind``, ``problem``, ``advice``, ``evidence``, ``saves_ns``, ``share`` (of the
        recorded steps), ``step``, ``operator``, ``stack``, ``module``, ``step_saves_ns`` (of
        ``step``, by a replay). What is waited for a late rank is saved by the finding about that.
        See :mod:`haiprof.findings.deep.rules`.

        Example:
            >>> trace.recommendations(rank=0)["kind"].to_list()
            ['launch', 'latency', 'utilization']
        """
        deep = self._in_detail(rank)
        if deep is not self:
            return deep.recommendations(rank)
        losses = advice.losses(self._ranks, rank, lambda: self.overview().steps)
        return losses.recommendations.clone()

    def unknown(self, view: str | None = None, rank: int | None = None) -> pl.DataFrame:
        """Return what views cannot show of these traces, and why: one row per missing requirement.

        Columns: ``view`` (the method's name), ``missing`` (a table, ``table.column``, or
        ``spans[category]``), ``consequence`` (what the view then lacks) and ``why``, with the fix.

        Args:
            view: only what this view lacks.
            rank: of one rank only.

        See :mod:`haiprof.views.trace.requirements`.

        Raises:
            HaiprofError: there is no such view.

        Example:
            >>> trace.unknown("memory", rank=0).select("missing", "why").rows()
            [('allocations', 'recorded without profile_memory=True')]
        """
        if view is not None:
            asked.one_of("view", view, {want.view for want in requirements.WANTS})
        deep = self._in_detail(rank)
        chosen = deep._ranks.jobs(rank)
        return stacked(deep._ranks.map(functools.partial(unknown.unknown_of, view=view), chosen))

    def compare(
        self, after: TraceAnswers, rank: int | None = None
    ) -> dict[str, compare_view.Comparison]:
        """Compare each trace of this run with the same rank's in a later run, by label.

        See :func:`haiprof.views.trace.compare.compare`: chance is not reported as a change.

        Raises:
            HaiprofError: the runs have no rank in common.
        """
        return {
            process.label: compare_view.compare(before, later)
            for process, before, later in self._pairs(after, rank)
        }

    def differences(
        self, after: TraceAnswers, rank: int | None = None, *, of: differences.Of = "operators"
    ) -> pl.DataFrame:
        """Return operators or kernels that are called more or less often, or longer, in ``after``.

        Of ``calls``, paths of modules, ranges and operators, with the kernels of either run, which
        may be of different devices. See :func:`haiprof.views.trace.differences.differences`.

        Raises:
            HaiprofError: the runs have no rank in common, or ``of`` is none of these.
        """
        asked.one_of("of", of, differences.OF)
        return stacked(
            (process, differences.differences(before, later, of))
            for process, before, later in self._pairs(after, rank)
        )

    # -- how they are made -----------------------------------------------------------------------

    def _linked(
        self,
        rank: int | None,
        work: Callable[..., _Result],
        *,
        columns: Sequence[str] | None = None,
        allocations: bool = False,
    ) -> list[tuple[Process, _Result]]:
        """Run the work on the linked trace of each process.

        ``columns`` are the kernel columns needed from a trace without calls; by default all.
        """
        chosen = self._ranks.jobs(rank)
        call = functools.partial(
            one_trace.apply,
            work=work,
            links=self._ranks.links,
            columns=columns,
            allocations=allocations,
        )
        return list(self._ranks.map(call, chosen))

    def _view(
        self,
        rank: int | None,
        work: Callable[[Linked], pl.DataFrame],
        columns: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        return stacked(self._linked(rank, work, columns=columns))

    def _pairs(
        self, after: TraceAnswers, rank: int | None
    ) -> Iterable[tuple[Process, Linked, Linked]]:
        ours, theirs = self._ranks, after._ranks
        mine, later = (placed(_chosen(ranks, rank)) for ranks in (ours, theirs))
        if len(mine) == len(later) == 1:
            later = dict(zip(mine, later.values(), strict=True))
        elif len(later) == 1 and theirs.numbers == []:
            later = dict.fromkeys(mine, *later.values())
        elif len(mine) == 1 and ours.numbers == []:
            mine = dict.fromkeys(later, *mine.values())
        shared = [place for place in mine if place in later]
        if not shared:
            raise HaiprofError("the two runs have no rank in common, so nothing can be compared")
        for place in shared:
            process = mine[place]
            if process.rank is None and later[place].rank is not None:
                process = later[place]
            yield process, ours.linked(mine[place]), theirs.linked(later[place])


def _chosen(ranks: Ranks, rank: int | None) -> list[Process]:
    """Return the processes of a rank; of a run whose only process has no rank, that one."""
    alone = ranks.jobs(None) if not ranks.numbers else []
    return alone if len(alone) == 1 else ranks.jobs(rank)
