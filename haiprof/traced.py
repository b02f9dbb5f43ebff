"""The questions that a deep trace answers: methods of the Analyzer, each a view over all ranks."""

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import polars as pl

from haiprof import kept_overview, schema
from haiprof.diagnose import finding, recommend
from haiprof.errors import HaiprofError
from haiprof.sources import tables
from haiprof.sources.arrow_memory import give_back
from haiprof.sources.own import ROLE_NODE, Process
from haiprof.views import busy, recorded
from haiprof.views.device_steps import STEPS_SCHEMA
from haiprof.views.intervals import Times
from haiprof.views.trace import bandwidth as bandwidth_view
from haiprof.views.trace import (
    communication,
    cupti_counters,
    differences,
    distributed,
    idle,
    kernel_breakdown,
    launches,
    memory,
    modules,
    op_statistics,
    operators,
    overlap,
    overview,
    queue_length,
    sequences,
    step_trace,
    stragglers,
    temporal,
)
from haiprof.views.trace import compare as compare_view
from haiprof.views.trace import critical_path as path_view
from haiprof.views.trace import kernels as kernel_view
from haiprof.views.trace.linked import Linked, link
from haiprof.views.trace.unlinked import unlinked, without_calls

_Result = TypeVar("_Result")

#: Columns in front of every frame: whose rows they are.
WHO = {"node": pl.Categorical(), "rank": pl.Int64(), "pid": pl.Int64(), "session": pl.UInt32()}
_SPAN_COLUMNS = tuple(c.name for c in schema.SPANS.columns if c.name != "attributes")
#: Of each session the matched communications, and whose traces the labels in them are.
Matched: TypeAlias = dict[int | None, tuple[pl.DataFrame, dict[str, Process]]]
#: Linked traces are kept up to this many rows of spans and kernels together; the last one always.
_KEPT_ROWS = 4_000_000


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

    @abc.abstractmethod
    def _choose(self, rank: int | None) -> list[Process]:
        """Return the processes of a rank, or all."""

    @abc.abstractmethod
    def _map(
        self, work: Callable[[Process], _Result], processes: Sequence[Process]
    ) -> Iterable[_Result]:
        """Do the work for each process, on the executor where there is one."""

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
        told = self._map(functools.partial(_overview, links=self._local), chosen)
        made = list(zip(chosen, told, strict=True))
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
            _stacked(zip(whose, scalars, strict=True)),
            *(
                _stacked((process, getattr(each, name)) for process, each in made)
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
                kept_overview.keep(process.folder, _overview(process, self._local))

    def operators(
        self, rank: int | None = None, *, by: operators.By = "name", compat: bool = False
    ) -> pl.DataFrame:
        """Return what operators cost, by ``name``, ``shapes``, ``stack`` or ``shapes+stack``.

        See :func:`haiprof.views.trace.operators.operators`.
        """
        return self._in_detail(rank)._view(
            rank, functools.partial(operators.operators, by=by, compat=compat)
        )

    def _kernel_table(
        self,
        rank: int | None,
        by: Literal["name", "launch"],
        compat: bool,
    ) -> pl.DataFrame:
        work = functools.partial(kernel_view.kernels, by=by, compat=compat)
        return self._view(rank, work, None if compat else kernel_view.COLUMNS[by])

    def memory(self, rank: int | None = None, *, points: int | None = None) -> MemoryFrames:
        """Return memory over time, what was allocated by whom, and what made the peak.

        See :mod:`haiprof.views.trace.memory`. ``points`` thins the curve for drawing.
        """
        made = self._in_detail(rank)._linked(
            rank, functools.partial(_memory, points=points), allocations=True
        )
        return MemoryFrames(
            *(
                _stacked((process, frames[i]) for process, frames in made)
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
        """
        return self._in_detail(rank)._view(rank, functools.partial(modules.flames, of=of))

    def distributed(self, rank: int | None = None) -> DistributedFrames:
        """Return computing and communicating by step; moving data and waiting; collectives.

        Of ``rank`` alone, its steps; what it waited for the others needs their traces, too, and is
        of all ranks. See :mod:`haiprof.views.trace.distributed`.
        """
        steps = self._view(rank, distributed.breakdown)
        matched = self._matched()
        return DistributedFrames(
            steps,
            _by_label(matched, distributed.transfer),
            _by_label(matched, distributed.statistics),
        )

    def stragglers(self) -> pl.DataFrame:
        """Return how long each rank let the others wait, the worst first.

        See :func:`haiprof.views.trace.stragglers.stragglers`.
        """
        return _by_label(self._matched(), stragglers.stragglers)

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

        See :func:`haiprof.views.trace.step_trace.step_trace`.
        """
        return self._view(rank, step_trace.step_trace)

    def op_statistics(self, rank: int | None = None) -> pl.DataFrame:
        """Return the device's time by operator and kind of unit: tensor cores, vector, copies.

        See :func:`haiprof.views.trace.op_statistics.op_statistics`.
        """
        return self._in_detail(rank)._view(rank, op_statistics.op_statistics)

    def hardware_counters(self, rank: int | None = None) -> pl.DataFrame:
        """Return CUPTI's counters of each kernel with the operators around it.

        See :func:`haiprof.views.trace.cupti_counters.cupti_counters`.
        """
        deep = self._in_detail(rank)
        chosen = deep._traces(rank)
        made = deep._map(functools.partial(_counters, links=deep._local), chosen)
        return _stacked(zip(chosen, made, strict=True))

    def sequences(
        self, rank: int | None = None, *, operator: str = "", shortest: int = sequences.SHORTEST
    ) -> pl.DataFrame:
        """Return the sequences of kernels that operators launch again and again.

        Args:
            rank: of one rank only.
            operator: part of the names of the operators; by default all.
            shortest: shorter sequences are left out.

        See :func:`haiprof.views.trace.sequences.sequences`.
        """
        work = functools.partial(sequences.sequences, operator=operator, shortest=shortest)
        return self._in_detail(rank)._view(rank, work)

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

        See :mod:`haiprof.views.trace.critical_path`.
        """
        made = self._in_detail(rank)._linked(
            rank, functools.partial(_path, step=step, inside=inside)
        )
        found = {process.label: path for process, path in made if not isinstance(path, str)}
        if made and not found:
            raise HaiprofError(next(str(lacks) for _, lacks in made))
        return found

    def recommendations(self, rank: int | None = None) -> pl.DataFrame:
        """Return what to change about the job, what saves most of a rank's time first.

        Columns: ``kind``, ``problem``, ``advice``, ``evidence``, ``saves_ns``, ``share`` (of the
        recorded steps), ``step``, ``operator``, ``stack``. See :mod:`haiprof.diagnose.recommend`.
        """
        deep = self._in_detail(rank)
        if deep is not self:
            return deep.recommendations(rank)
        chosen = self._traces(rank)
        found = list(self._map(functools.partial(_recommend, links=self._local), chosen))
        if len(chosen) > 1 and rank is None:
            late = recommend.stragglers(self.stragglers(), self.overview().steps)
            found = [
                [*made, *late.get((process.node, process.rank, process.pid, _session(process)), [])]
                for process, made in zip(chosen, found, strict=True)
            ]
        told = _stacked(
            (process, finding.frame(each)) for process, each in zip(chosen, found, strict=True)
        )
        if not told.height:
            return told
        return told.sort("saves_ns", descending=True, nulls_last=True, maintain_order=True)

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
            HaiprofError: the runs have no rank in common.
        """
        return _stacked(
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
            _apply, work=work, links=self._local, columns=columns, allocations=allocations
        )
        return list(zip(chosen, self._map(call, chosen), strict=True))

    def _view(
        self,
        rank: int | None,
        work: Callable[[Linked], pl.DataFrame],
        columns: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        return _stacked(self._linked(rank, work, columns=columns))

    def _matched(self) -> Matched:
        """Match the communication of all ranks, session by session; ranks go by their label.

        Done once: several views are made of it.
        """
        if self._links.matched is not None:
            return self._links.matched
        spans: dict[int | None, dict[str, pl.DataFrame]] = {}
        whose: dict[int | None, dict[str, Process]] = {}
        chosen = self._traces(None)
        told = self._map(functools.partial(_communications, links=self._local), chosen)
        for process, found in zip(chosen, told, strict=True):
            span = _session(process)
            spans.setdefault(span, {})[process.label] = found
            whose.setdefault(span, {})[process.label] = process
        made = {span: (distributed.match(ranks), whose[span]) for span, ranks in spans.items()}
        self._links.matched = made or {None: (distributed.match({}), {})}
        return self._links.matched

    def _pairs(self, after: Traced, rank: int | None) -> Iterable[tuple[Process, Linked, Linked]]:
        mine, later = _placed(self._traces(rank)), _placed(after._traces(rank))
        if len(mine) == len(later) == 1:
            later = dict(zip(mine, later.values(), strict=True))
        shared = [place for place in mine if place in later]
        if not shared:
            raise HaiprofError("the two runs have no rank in common, so nothing can be compared")
        for place in shared:
            process = mine[place]
            yield process, self._links.of(process), after._links.of(later[place])


class Links:
    """Linked traces, kept while they are asked for again and again."""

    def __init__(self) -> None:
        """Keep none yet."""
        #: What :meth:`Traced._matched` made of all ranks.
        self.matched: Matched | None = None
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Linked] = OrderedDict()

    def of(self, process: Process, columns: Sequence[str] | None = None) -> Linked:
        """Return the linked trace of a process, reading it where it is not kept.

        Of a trace without calls only those ``columns`` of its activities are read; by default all.
        """
        key = str(process.folder)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and _has(kept, columns):
                self._kept.move_to_end(key)
                return kept
        made = _read(process, columns, kept)
        give_back()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > 1 and sum(map(_rows, self._kept.values())) > _KEPT_ROWS:
                self._kept.popitem(last=False)
        return made


def _has(linked: Linked, columns: Sequence[str] | None) -> bool:
    wanted = ("row", "step") if columns is None else columns
    return set(wanted) <= set(linked.activities.columns)


def _rows(linked: Linked) -> int:
    return linked.ops.height + linked.activities.height


def _session(process: Process) -> int | None:
    return process.trace.span if process.trace else None


def _placed(processes: list[Process]) -> dict[tuple[object, ...], Process]:
    """Name each by what is the same in another run: rank, session, and without a rank the worker.

    A worker alone need not have the same name. Of a rank that was started again the last counts.
    """
    unranked = {process.node for process in processes if process.rank is None}
    return {
        (
            process.rank,
            process.node if process.rank is None and len(unranked) > 1 else None,
            _session(process),
        ): process
        for process in processes
    }


def _stacked(made: Iterable[tuple[Process, pl.DataFrame]]) -> pl.DataFrame:
    frames = [
        # As literals: what is the same of millions of rows takes no room.
        frame.select(
            *(
                pl.lit(value, WHO[name]).alias(name)
                for name, value in zip(
                    WHO,
                    (process.node, process.rank, process.pid, _session(process)),
                    strict=True,
                )
            ),
            *(pl.col(name) for name in frame.columns if name not in WHO),
        )
        for process, frame in made
    ]
    if not frames:
        return pl.DataFrame(schema=WHO)
    same = all(frame.schema == frames[0].schema for frame in frames)
    return pl.concat(frames, how="vertical" if same else "diagonal_relaxed")


def _by_label(
    matched: Matched,
    view: Callable[[pl.DataFrame], pl.DataFrame],
) -> pl.DataFrame:
    """Apply a view of matched ranks to each session; a rank's label becomes who it is."""
    frames = []
    for span, (frame, whose) in matched.items():
        made = view(frame)
        labels = made["rank"].cast(pl.String).to_list()
        who = [whose[label] for label in labels]
        frames.append(
            made.select(
                pl.Series("node", [p.node for p in who], pl.Categorical()),
                pl.Series("rank", [p.rank for p in who], pl.Int64()),
                pl.Series("pid", [p.pid for p in who], pl.Int64()),
                pl.lit(span, pl.UInt32()).alias("session"),
                pl.all().exclude("rank"),
            )
        )
    return pl.concat(frames, how="diagonal_relaxed")


# What runs on an executor stands at the top level, so that another process can import it.


def _read(
    process: Process, columns: Sequence[str] | None = None, known: Linked | None = None
) -> Linked:
    """Read and link a trace; of one without calls only ``columns`` of kernels, where they are told.

    ``known`` is what was read of it before, with other columns.
    """
    if known is not None and columns is not None:
        lacking = [name for name in columns if name not in known.activities.columns]
        more = tables.read_table(process.folder, schema.KERNELS, lacking).frame
        # A run that still records may have more rows by now.
        if more.height == known.activities.height:
            return known.widened(more)

    def table(which: schema.Table, columns: Sequence[str] | None = None) -> pl.DataFrame:
        return tables.read_table(process.folder, which, columns).frame

    collectives, flows, device_spans = (
        functools.partial(table, which)
        for which in (schema.COLLECTIVES, schema.FLOWS, schema.DEVICE_SPANS)
    )
    if process.trace is not None:
        # No name here: the spans are put in another order, and there may be millions of them.
        return link(
            table(schema.SPANS, _SPAN_COLUMNS),
            table(schema.KERNELS),
            collectives,
            flows,
            device_spans,
        )
    spans = table(schema.SPANS, _SPAN_COLUMNS)
    narrow = columns is not None and without_calls(spans)
    kernels = table(schema.KERNELS, columns if narrow else None)
    times = None
    if kernels.height:
        spans, times = _recorded(process, spans, kernels)
    if narrow:
        host = link(spans, tables.empty(schema.KERNELS.columns), collectives, flows, device_spans)
        made = unlinked(host, kernels)
    else:
        made = link(spans, kernels, collectives, flows, device_spans)
    return dataclasses.replace(made, recorded=times)


def _recorded(
    process: Process, spans: pl.DataFrame, kernels: pl.DataFrame
) -> tuple[pl.DataFrame, tuple[Times, Times] | None]:
    """Leave out the steps in which haiprof did not record kernels; tell when it did.

    None where it is not known when, so that all the time is meant.
    """
    kind = {"kind": (recorded.EVENT_KIND,)}
    events = tables.read_table(process.folder, schema.EVENTS, keep=kind).frame
    on_host = recorded.host_steps(spans)
    last = busy.last_end(kernels)
    on_device = pl.DataFrame(schema=STEPS_SCHEMA)
    intervals = recorded.recorded(events, on_host, on_device, process.ended_ns, last)
    steps = on_host.with_row_index("group").with_columns(device=pl.lit(0, pl.UInt16()))
    found = recorded.windows(intervals, steps, on_host)
    is_step = pl.col("category") == "step"
    told = spans.filter(is_step.not_() | pl.col("start").is_in(found["start"].implode()))
    return told, recorded.times(intervals, last)


def _link(process: Process, links: Links | None, columns: Sequence[str] | None = None) -> Linked:
    return _read(process, columns) if links is None else links.of(process, columns)


def _allocations(process: Process, columns: Sequence[str] | None = None) -> pl.DataFrame:
    return tables.read_table(process.folder, schema.ALLOCATIONS, columns).frame


def _apply(
    process: Process,
    work: Callable[..., Any],
    links: Links | None,
    columns: Sequence[str] | None,
    allocations: bool,
) -> Any:
    linked = _link(process, links, columns)
    return work(linked, _allocations(process)) if allocations else work(linked)


def _overview(process: Process, links: Links | None) -> overview.Overview:
    known = None if process.trace is None else kept_overview.read(process.folder)
    if known is not None:
        return known
    made: overview.Overview = _apply(process, overview.overview, links, overview.COLUMNS, False)
    return made


def _communications(process: Process, links: Links | None) -> pl.DataFrame:
    told = process.trace.distributed.get("world_size") if process.trace else None
    ranks = process.world_size or (told if isinstance(told, int) else None)
    return communication.communications(_link(process, links), world_size=ranks)


def _memory(linked: Linked, told: pl.DataFrame, points: int | None) -> tuple[pl.DataFrame, ...]:
    give_back()  # as in _recommend: this needs more room than the views before it
    records = memory.Records(linked, told)
    peak = memory.peak(records)
    return (
        memory.curve(records, points),
        memory.blocks(records),
        memory.operators(records),
        peak.peaks,
        peak.holders,
    )


def _counters(process: Process, links: Links | None) -> pl.DataFrame:
    spans = tables.read_table(process.folder, schema.SPANS, keep={"category": ("counters",)})
    return cupti_counters.cupti_counters(_link(process, links), spans.frame)


def _path(linked: Linked, step: int | None, inside: str | None) -> path_view.CriticalPath | str:
    """The path, or what the trace lacks."""
    if step is None and linked.steps.height:
        lengths = linked.steps["end"] - linked.steps["start"]
        step = int(linked.steps["step"][lengths.arg_max() or 0])
    try:
        if inside is not None:
            return path_view.of_range(linked, inside)
        if step is not None:
            return path_view.of_step(linked, step)
    except ValueError as error:
        return str(error)
    return path_view.critical_path(linked)


def _recommend(process: Process, links: Links | None) -> list[finding.Finding]:
    devices = [
        recommend.Device(g.name, g.memory_bytes, g.capability, g.device) for g in process.gpus
    ]
    told = process.trace.distributed.get("backend") if process.trace else None
    # "nccl", or one for each kind of device: "cpu:gloo,cuda:nccl".
    backends = [word.rpartition(":")[2] for word in str(told or "").split(",") if word]
    linked = _link(process, links)
    give_back()
    if process.trace is None and not linked.stepped and linked.activities.height:
        return []
    return recommend.recommendations(
        linked, _allocations(process, recommend.ALLOCATIONS), devices, list(dict.fromkeys(backends))
    )
