"""Methods of the Analyzer that a deep trace answers, each a view over all ranks."""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Literal, NamedTuple, TypeVar

import polars as pl

from haiprof.answers import kept_overview, late_ranks, one_trace, unknown
from haiprof.answers.linked_traces import Links
from haiprof.answers.matched import Matched, Session
from haiprof.answers.over_ranks import Whose
from haiprof.answers.rank_columns import placed, session_of, stacked
from haiprof.common import asked
from haiprof.common.choices import quoted
from haiprof.common.choices import unknown as unknown_word
from haiprof.errors import HaiprofError
from haiprof.findings.deep import recommendation, rules
from haiprof.runs import ROLE_NODE, Process
from haiprof.views import clock as clock_view
from haiprof.views.intervals import Times
from haiprof.views.run import imbalance
from haiprof.views.trace import bandwidth as bandwidth_view
from haiprof.views.trace import compare as compare_view
from haiprof.views.trace import (
    differences,
    distributed,
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
from haiprof.views.trace.as_other_tools import msprof_op_statistics, msprof_step_trace
from haiprof.views.trace.critical_path import path as path_view
from haiprof.views.trace.linking.linked import Linked

_Result = TypeVar("_Result")


class OverviewFrames(NamedTuple):
    """Frames of :class:`haiprof.views.trace.overview.Overview`, of all ranks.

    ``ranks`` has one row per trace: its mean step and what of it each part took (ns), and the
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

    ``transfers`` and ``collectives`` come of matching the ranks of one session with each other.
    """

    steps: pl.DataFrame
    transfers: pl.DataFrame
    collectives: pl.DataFrame


class Traced(abc.ABC):
    """What the Analyzer answers from a deep trace, of one rank or of all.

    Frames begin with ``node``, ``rank``, ``pid`` and ``session`` (which of the times that a worker
    was profiled, from 1; null of a run that haiprof recorded). Their other columns are those of the
    view that each method names, where its formula stands too. A run without operators (haiprof's
    own records of kernels) has the views of its kernels, and no rows in the others; unless deep
    traces lie in its folders, which then answer those.
    """

    _executor: Executor | None
    _links: Links

    @property
    @abc.abstractmethod
    def _where(self) -> str:
        """What is analysed, as errors name it."""

    @abc.abstractmethod
    def _choose(self, rank: int | None) -> list[Process]:
        """Return the processes of a rank, or all."""

    @abc.abstractmethod
    def _map(
        self, work: Callable[[Whose], _Result], processes: Sequence[Whose]
    ) -> Iterable[tuple[Whose, _Result]]:
        """Do the work for each process, on the executor where there is one.

        A process whose work fails is named among the problems, and left out.
        """

    def _in_detail(self, rank: int | None) -> Traced:
        """Return who answers what only a deep trace tells: of operators, calls and memory."""
        return self

    @property
    def traced(self) -> bool:
        """Whether any process of the run is known by a deep trace."""
        return any(process.trace is not None for process in self._choose(None))

    def overview(self, rank: int | None = None) -> OverviewFrames:
        """Return how busy and how well used the GPUs were, and what the steps spent.

        See :func:`haiprof.views.trace.overview.overview`.
        """
        chosen = self._traces(rank)
        made = list(self._map(functools.partial(one_trace.overview_of, links=self._local), chosen))
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
            for _, each in made
        ]
        whose = [process for process, _ in made]
        return OverviewFrames(
            stacked(zip(whose, scalars, strict=True)),
            *(
                stacked((process, getattr(each, name)) for process, each in made)
                for name in ("devices", "steps", "timeline")
            ),
        )

    def keep_overview(self) -> None:
        """Keep the overview of each trace in its process folder, where it is found from then on.

        Raises:
            OSError: it cannot be written.
        """
        for process in self._traces(None):
            if process.trace is not None and kept_overview.read(process.folder) is None:
                kept_overview.keep(process.folder, one_trace.overview_of(process, self._local))

    def operators(
        self, rank: int | None = None, *, by: operators.By = "name", compat: bool = False
    ) -> pl.DataFrame:
        """Return what operators cost, by ``name``, ``shapes``, ``stack`` or ``shapes+stack``.

        See :func:`haiprof.views.trace.operators.operators`.

        Raises:
            HaiprofError: ``by`` is none of these.
        """
        asked.one_of("by", by, operators.FURTHER)
        return self._in_detail(rank)._view(
            rank, functools.partial(operators.operators, by=by, compat=compat)
        )

    def _kernel_table(
        self,
        rank: int | None,
        by: Literal["name", "launch"],
        compat: bool,
    ) -> pl.DataFrame:
        asked.one_of("by", by, tuple(kernel_view.COLUMNS))
        work = functools.partial(kernel_view.kernels, by=by, compat=compat)
        return self._view(rank, work, None if compat else kernel_view.COLUMNS[by])

    def memory(self, rank: int | None = None, *, points: int | None = None) -> MemoryFrames:
        """Return memory over time, what was allocated by whom, and what made the peak.

        See :mod:`haiprof.views.trace.memory`. ``points`` thins the curve for drawing.

        Raises:
            HaiprofError: ``points`` is no number from 1 on.
        """
        asked.whole("points", points, 1)
        made = self._in_detail(rank)._linked(
            rank, functools.partial(one_trace.memory_of, points=points), allocations=True
        )
        return MemoryFrames(
            *(
                stacked((process, frames[i]) for process, frames in made)
                for i in range(len(MemoryFrames._fields))
            )
        )

    def modules(self, rank: int | None = None) -> pl.DataFrame:
        """Return what each ``nn.Module`` of the model cost.

        See :func:`haiprof.views.trace.modules.modules`.
        """
        return self._in_detail(rank)._view(rank, modules.modules)

    def flames(
        self, rank: int | None = None, *, of: Literal["python", "calls"] = "python"
    ) -> pl.DataFrame:
        """Return a flame graph: what each path of calls cost.

        See :func:`haiprof.views.trace.modules.flames`.

        Raises:
            HaiprofError: ``of`` is neither.
        """
        asked.one_of("of", of, modules.OF)
        return self._in_detail(rank)._view(rank, functools.partial(modules.flames, of=of))

    def distributed(self, rank: int | None = None) -> DistributedFrames:
        """Return computing and communicating by step; moving data and waiting; collectives.

        Of ``rank`` alone, its steps; what it waited for the others needs their traces, too, and is
        of all ranks. See :mod:`haiprof.views.trace.distributed`.
        """
        matched = self._matched()
        alone = rank is not None
        steps = self._view(rank, distributed.breakdown) if alone else matched.steps
        return DistributedFrames(steps, matched.transfers, matched.collectives)

    def stragglers(self) -> pl.DataFrame:
        """Return how long each rank let the others wait, the worst first.

        See :func:`haiprof.views.trace.stragglers.stragglers`.
        """
        return self._matched().stragglers

    def imbalance(self) -> pl.DataFrame:
        """Return which ranks are late, since when and in what, the worst first.

        Columns: those of :func:`haiprof.views.run.imbalance.imbalance`, ``evidence`` (what was
        sampled of its process, GPU and node in these steps that the other ranks did not have; null
        where there is nothing) and ``words``. Of a run that haiprof recorded it is made from the
        phases of all its steps, of deep traces from the parts of their steps without the waiting in
        collectives.
        """
        steps = self.overview().steps
        matched = self._matched()
        nothing = pl.lit(None, pl.String()).alias("evidence")
        groups = [
            group for each in matched.sessions for group in late_ranks.at_once(each.whose, steps)
        ]
        return pl.concat(
            late_ranks.told(
                imbalance.imbalance(
                    late_ranks.traced_parts(group, steps, matched.transfers)
                ).with_columns(nothing),
                group,
            )
            for group in groups or [{}]
        )

    def clock(self) -> pl.DataFrame:
        """Return by how much the clock of each host is off, and how well that is known.

        Columns: ``node``, ``since``, ``until``, ``offset`` (ns that it is ahead of the reference
        at ``since``), ``drift`` (ppm), ``bound`` (ns, of the error of the correction),
        ``residual``, ``residual_p99`` (ns), ``pairs``, ``corrected``, ``how``. A clock that was set
        has several rows. See :mod:`haiprof.views.clock`.
        """
        made = self._clock()
        deep = self if made.pieces else self._in_detail(None)
        return made.frame if deep is self else deep._clock().frame

    def on_one_clock(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame of several hosts with the times of all by the clock of the reference.

        Args:
            frame: has ``node``, and ``start``, ``end`` or ``time`` (ns); of one host it is
                returned as it is.
        """
        several = frame["node"].n_unique() > 1 if frame.height else False
        return self._clock().applied(frame) if several else frame

    def clock_by_node(self) -> dict[str, Callable[[Times], Times]]:
        """Return for each node what puts its times (ns) on the clock of the reference.

        Empty where all processes are of one node.
        """
        nodes = {process.node for process in self._choose(None)}
        if len(nodes) < 2:
            return {}
        clock = self._clock()
        return {node: functools.partial(clock.corrected, node) for node in nodes}

    def temporal(self, rank: int | None = None, *, drop_last_step: bool = False) -> pl.DataFrame:
        """Return how the time of each GPU divides into idle, computing and the rest.

        See :func:`haiprof.views.trace.temporal.temporal`.
        """
        work = functools.partial(temporal.temporal, drop_last_step=drop_last_step)
        return self._view(rank, work, temporal.COLUMNS)

    def idle(self, rank: int | None = None, *, drop_last_step: bool = False) -> pl.DataFrame:
        """Return why streams were idle: waiting for the host, between kernels, other.

        See :func:`haiprof.views.trace.idle.idle`.
        """
        return self._view(rank, functools.partial(idle.idle, drop_last_step=drop_last_step))

    def overlap(self, rank: int | None = None, *, drop_last_step: bool = False) -> pl.DataFrame:
        """Return how much of the communication computation hides.

        See :func:`haiprof.views.trace.overlap.overlap`.
        """
        return self._view(rank, functools.partial(overlap.overlap, drop_last_step=drop_last_step))

    def launches(self, rank: int | None = None) -> pl.DataFrame:
        """Return each kernel's launch: how long the call took, and when the kernel began after it.

        See :func:`haiprof.views.trace.launches.launches`.
        """
        return self._in_detail(rank)._view(rank, launches.launches)

    def queue_length(self, rank: int | None = None) -> pl.DataFrame:
        """Return how many launched activities waited on each stream over time.

        See :func:`haiprof.views.trace.queue_length.queue_length`.
        """
        return self._in_detail(rank)._view(rank, queue_length.queue_length)

    def bandwidth(self, rank: int | None = None) -> pl.DataFrame:
        """Return the bandwidth of copies and sets over time.

        See :func:`haiprof.views.trace.bandwidth.bandwidth`.
        """
        return self._view(rank, bandwidth_view.bandwidth)

    def kernel_kinds(
        self, rank: int | None = None, *, drop_last_step: bool = False
    ) -> pl.DataFrame:
        """Return the time of computation, communication and memory, each alone and overlapping.

        See :func:`haiprof.views.trace.kernel_breakdown.by_kind`.
        """
        return self._view(
            rank, functools.partial(kernel_breakdown.by_kind, drop_last_step=drop_last_step)
        )

    def step_trace(self, rank: int | None = None) -> pl.DataFrame:
        """Return what each step did on the device: forward and backward, refresh, interval.

        See :func:`haiprof.views.trace.as_other_tools.msprof_step_trace.step_trace`.
        """
        return self._view(rank, msprof_step_trace.step_trace)

    def op_statistics(self, rank: int | None = None) -> pl.DataFrame:
        """Return the device's time by operator and kind of unit: tensor cores, vector, copies.

        See :func:`haiprof.views.trace.as_other_tools.msprof_op_statistics.op_statistics`.
        """
        return self._in_detail(rank)._view(rank, msprof_op_statistics.op_statistics)

    def hardware_counters(self, rank: int | None = None) -> pl.DataFrame:
        """Return CUPTI's counters of each kernel with the operators around it.

        See :func:`haiprof.views.trace.cupti_counters.cupti_counters`.
        """
        deep = self._in_detail(rank)
        chosen = deep._traces(rank)
        return stacked(
            deep._map(functools.partial(one_trace.counters_of, links=deep._local), chosen)
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
            HaiprofError: no operator has that in its name, or ``shortest`` is no number from 1 on.
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
                raise HaiprofError(f"{self._where}: has no operator {quoted(operator)}: {there}")
        return found

    def critical_path(
        self, rank: int | None = None, *, step: int | None = None, inside: str | None = None
    ) -> dict[str, path_view.CriticalPath]:
        """Return the critical path of each trace by its label: what would make it end sooner.

        Args:
            rank: of one rank only.
            step: of this step, of the traces that have it; by default of the one that took longest.
            inside: of the first range of this name instead of a step.

        Raises:
            HaiprofError: no trace has such a step or range.

        See :mod:`haiprof.views.trace.critical_path.path`.
        """
        asked.whole("step", step)
        asked.texts("inside", inside)
        made = self._in_detail(rank)._linked(
            rank, functools.partial(one_trace.path_of, step=step, inside=inside)
        )
        found = {process.label: path for process, path in made if not isinstance(path, str)}
        if made and not found:
            raise HaiprofError(f"{self._where}: {next(str(lacks) for _, lacks in made)}")
        return found

    def recommendations(self, rank: int | None = None) -> pl.DataFrame:
        """Return what to change about the job, what saves most of a rank's time first.

        Columns: ``kind``, ``problem``, ``advice``, ``evidence``, ``saves_ns``, ``share`` (of the
        recorded steps), ``step``, ``operator``, ``stack``. See :mod:`haiprof.findings.deep.rules`.
        """
        deep = self._in_detail(rank)
        if deep is not self:
            return deep.recommendations(rank)
        chosen = self._traces(rank)
        work = functools.partial(one_trace.findings_of, links=self._local)
        found = list(self._map(work, chosen))
        if len(chosen) > 1 and rank is None:
            late = rules.stragglers(self.stragglers(), self.overview().steps)
            for process, made in found:
                made += late.get((process.node, process.rank, process.pid, session_of(process)), [])
        told = stacked((process, recommendation.frame(each)) for process, each in found)
        if not told.height:
            return told
        return told.sort("saves_ns", descending=True, nulls_last=True, maintain_order=True)

    def unknown(self, view: str | None = None, rank: int | None = None) -> pl.DataFrame:
        """Return what views cannot tell of these traces, and why: one row for each want of a view.

        Columns: ``view`` (the method's name), ``missing`` (a table, ``table.column``, or
        ``spans[category]``), ``consequence`` (what of the view is lost) and ``why``, with the fix.

        Args:
            view: only what this view lacks.
            rank: of one rank only.

        See :mod:`haiprof.views.trace.requirements`.

        Raises:
            HaiprofError: there is no such view.
        """
        if view is not None:
            asked.one_of("view", view, {want.view for want in requirements.WANTS})
        deep = self._in_detail(rank)
        chosen = deep._traces(rank)
        return stacked(deep._map(functools.partial(unknown.unknown_of, view=view), chosen))

    def compare(self, after: Traced, rank: int | None = None) -> dict[str, compare_view.Comparison]:
        """Compare each trace of this run with the same rank's in a later run, by label.

        See :func:`haiprof.views.trace.compare.compare`: what is chance is not called a change.

        Raises:
            HaiprofError: the runs have no rank in common.
        """
        return {
            process.label: compare_view.compare(before, later)
            for process, before, later in self._pairs(after, rank)
        }

    def differences(
        self, after: Traced, rank: int | None = None, *, of: differences.Of = "operators"
    ) -> pl.DataFrame:
        """Return operators or kernels that are called more or less often, or longer, in ``after``.

        See :func:`haiprof.views.trace.differences.differences`.

        Raises:
            HaiprofError: the runs have no rank in common, or ``of`` is neither.
        """
        asked.one_of("of", of, differences.OF)
        return stacked(
            (process, differences.differences(before, later, of))
            for process, before, later in self._pairs(after, rank)
        )

    # -- how they are made -----------------------------------------------------------------------

    @property
    def _local(self) -> Links | None:
        """Linked traces of this process; another process of an executor has its own."""
        return self._links if self._executor is None else None

    def _traces(self, rank: int | None) -> list[Process]:
        return [p for p in self._choose(rank) if p.role != ROLE_NODE]

    def _linked(
        self,
        rank: int | None,
        work: Callable[..., _Result],
        *,
        columns: Sequence[str] | None = None,
        allocations: bool = False,
    ) -> list[tuple[Process, _Result]]:
        """Do the work for the linked trace of each process.

        ``columns`` are those of kernels that it needs of a trace without calls; by default all.
        """
        chosen = self._traces(rank)
        call = functools.partial(
            one_trace.apply, work=work, links=self._local, columns=columns, allocations=allocations
        )
        return list(self._map(call, chosen))

    def _view(
        self,
        rank: int | None,
        work: Callable[[Linked], pl.DataFrame],
        columns: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        return stacked(self._linked(rank, work, columns=columns))

    def _matched(self) -> Matched:
        """Match the communication of all ranks, session by session.

        Done once: several views are made of it.
        """
        if self._links.matched is not None:
            return self._links.matched
        sessions: dict[int | None, Session] = {}
        steps = []
        work = functools.partial(one_trace.communicated, links=self._local)
        for process, (broken_down, packed) in self._map(work, self._traces(None)):
            steps.append((process, broken_down))
            sessions.setdefault(session_of(process), Session()).add(process, packed)
        sessions = sessions or {None: Session()}
        views = [each.views(span) for span, each in sessions.items()]
        transfers, collectives, caused = (
            pl.concat(each, how="diagonal_relaxed") for each in zip(*views, strict=True)
        )
        self._links.matched = Matched(
            stacked(steps), transfers, collectives, caused, tuple(sessions.values())
        )
        return self._links.matched

    def _clock(self) -> clock_view.Clock:
        """Hold the clocks of all hosts against that of the first rank's; done once."""
        if self._links.clock is None:
            met, sent = [], []
            ranked: dict[str, int] = {}
            for process in sorted(self._traces(None), key=lambda p: (p.rank is None, p.rank or 0)):
                ranked.setdefault(process.node, len(ranked))
            for number, session in enumerate(self._matched().sessions):
                nodes = {label: process.node for label, process in session.whose.items()}
                ranks = {label: process.rank for label, process in session.whose.items()}
                shared, alone = [], []
                for batch in itertools.chain([distributed.match({})], session.batches()):
                    shared.append(clock_view.by_host(batch, nodes))
                    alone.append(clock_view.one_sided(batch))
                met.append(clock_view.meetings(_whole(shared), number))
                sent.append(clock_view.messages(_whole(alone), nodes, ranks))
            errors = {
                process.node: process.machine.clock_error_ns
                for process in self._choose(None)
                if process.machine is not None and process.machine.clock_error_ns is not None
            }
            self._links.clock = clock_view.clock(
                pl.concat(met), pl.concat(sent), list(ranked), errors
            )
        return self._links.clock

    def _pairs(self, after: Traced, rank: int | None) -> Iterable[tuple[Process, Linked, Linked]]:
        if not isinstance(after, Traced):
            raise HaiprofError(f"after={quoted(after)}: give the Analyzer of the later run")
        mine, later = placed(self._traces(rank)), placed(after._traces(rank))
        if len(mine) == len(later) == 1:
            later = dict(zip(mine, later.values(), strict=True))
        shared = [place for place in mine if place in later]
        if not shared:
            raise HaiprofError("the two runs have no rank in common, so nothing can be compared")
        for place in shared:
            process = mine[place]
            yield process, self._links.of(process), after._links.of(later[place])


def _whole(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames, how="vertical_relaxed")
