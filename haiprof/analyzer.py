"""The analysis of one run: opens it, and delegates questions to the answering modules."""

from __future__ import annotations

import functools
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Final, Literal, ParamSpec, TypeVar

import polars as pl

from haiprof.answers import findings as finding_answers
from haiprof.answers import host_clocks, one_process, run_changes, window
from haiprof.answers import ledger as ledger_answers
from haiprof.answers.chosen_ranks import keeping_tables
from haiprof.answers.deep import TraceAnswers
from haiprof.answers.headline import headline
from haiprof.answers.over_ranks import Item
from haiprof.answers.rank_columns import rank_first
from haiprof.answers.ranks import Ranks
from haiprof.answers.recorded import RecordedAnswers
from haiprof.common import asked
from haiprof.common.choices import quoted
from haiprof.errors import HaiprofError
from haiprof.findings.deep.as_findings import as_findings
from haiprof.runs import ROLE_RANK, Run
from haiprof.sources.found import is_url
from haiprof.sources.open import Opened, Temporary, open_path, open_traces
from haiprof.views.intervals import Times
from haiprof.views.trace import compare as compare_view
from haiprof.views.trace import differences as differences_view

if TYPE_CHECKING:
    from haiprof.answers.run_changes import RunChanges
    from haiprof.findings.finding import Finding
    from haiprof.show.shown import Shown
    from haiprof.views.run.slowdown.causes import Slowdown

#: Parts of answers: public for the report and the exports, and no questions of a user's.
_PARTS: Final = frozenset(
    ("clock_by_node", "each", "gpu_instances", "keep_overview", "note", "read", "read_gpu",
     "summaries", "summaries_of")
)  # fmt: skip
#: What has its columns in the order that was asked for, and what the report reads.
_AS_IT_IS: Final = _PARTS | {"sql"}
_Result = TypeVar("_Result")
_Given = ParamSpec("_Given")


def _of_records(
    method: Callable[Concatenate[RecordedAnswers, _Given], _Result],
) -> Callable[Concatenate[Analyzer, _Given], _Result]:
    """Return a method that delegates to the answers from haiprof's own records."""

    @functools.wraps(method)
    def ask(self: Analyzer, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        found = method(self._recorded, *args, **kwargs)
        return found if method.__name__ in _AS_IT_IS else rank_first(found)

    return ask


def _of_traces(
    method: Callable[Concatenate[TraceAnswers, _Given], _Result],
) -> Callable[Concatenate[Analyzer, _Given], _Result]:
    """Return a method that delegates to the answers from deep traces."""

    @functools.wraps(method)
    def ask(self: Analyzer, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        found = method(self._traced, *args, **kwargs)
        return found if method.__name__ in _AS_IT_IS else rank_first(found)

    return ask


class Analyzer:
    """One run: what haiprof recorded, or traces of torch.profiler or of another tool.

    Frames are polars DataFrames. They begin with ``rank`` (null for what belongs to a node), then
    come the columns of the view or of the table (``haiprof/schema.py``), and last ``node`` and
    ``pid`` (of deep traces ``session``, too). Times are int64 ns UTC, durations int64 ns. Tables
    are read on demand, by column.

    Traces are read once, into a temporary folder that is removed with this object, unless an import
    of them is kept beside them (``haiprof import``). If a run's folders contain deep traces
    (``haiprof trace``), these provide whatever only they record, see :attr:`deep`.

    In the examples, ``run`` is the Analyzer of a recorded run of two ranks, and ``trace`` that of
    two ranks' traces.

    Args:
        path: a run folder, a log directory that contains exactly one run, a trace file, a folder of
            them, or a URL of fsspec.
        executor: runs the per-rank work; any ``concurrent.futures.Executor``, also that of a
            cluster that sees the same files. By default a few threads of this process.
        on_bytes: called with the number of bytes read, from any thread, while traces are read.
        told: the former name of ``on_bytes``.

    Raises:
        HaiprofError: there is no such run, or this version cannot read it.
    """

    _ranks: Ranks

    def __init__(
        self,
        path: str | Path,
        executor: Executor | None = None,
        on_bytes: Callable[[int], None] | None = None,
        *,
        told: Callable[[int], None] | None = None,
    ) -> None:
        """Open the run; if it was recorded or imported, only small JSON files are read."""
        asked.path("path", path)
        if told is not None:
            warnings.warn("told= is now on_bytes=", DeprecationWarning, stacklevel=2)
        on_bytes = on_bytes or told
        run, temporary = open_path(path, executor, on_bytes)
        self._take(Ranks(run, executor), temporary, on_bytes)

    @classmethod
    def _of(
        cls,
        opened: Opened,
        executor: Executor | None,
        part_of: tuple[Analyzer, int, int] | None = None,
    ) -> Analyzer:
        """Return the analysis of an open run, or of a part (ns UTC) of another one."""
        whole = None if part_of is None else part_of[0]._ranks
        analyzer = cls.__new__(cls)
        analyzer._take(Ranks(opened.run, executor, whole), opened.temporary, None, part_of)
        return analyzer

    def _take(
        self,
        ranks: Ranks,
        temporary: Temporary | None,
        on_bytes: Callable[[int], None] | None,
        part_of: tuple[Analyzer, int, int] | None = None,
    ) -> None:
        self._temporary = temporary
        self._part_of = part_of
        self._ranks = ranks
        self._recorded = RecordedAnswers(self._ranks)
        # Weakly: a reference cycle would keep the temporary folder until garbage collection.
        analyzer = weakref.ref(self)

        def in_detail(rank: int | None) -> TraceAnswers:
            alive = analyzer()
            assert alive is not None, "asked through its analyzer"
            return alive._in_detail(rank)

        self._traced = TraceAnswers(self._ranks, in_detail)
        #: Answers the questions common to both kinds of run, from the run's own tables.
        self._own: TraceAnswers | RecordedAnswers = (
            self._traced if self._ranks.traced else self._recorded
        )
        self._on_bytes = on_bytes
        self._deep: Analyzer | None = None
        self._deep_asked = False
        self._deep_lock = threading.Lock()

    def __repr__(self) -> str:
        """Name the run's folder and size."""
        return f"Analyzer({self._ranks.where!r}): {len(self.ranks)} ranks"

    def __dir__(self) -> list[str]:
        """List the questions, for whoever completes a name; not what only the report needs."""
        return sorted(name for name in dir(type(self)) if name[0] != "_" and name not in _PARTS)

    @property
    def run(self) -> Run:
        """The run: its name, command, and processes.

        Example:
            >>> run.run.name
            'r'
        """
        return self._ranks.run

    @property
    def ranks(self) -> list[int]:
        """The ranks that can be read, ascending.

        Example:
            >>> run.ranks
            [0, 1]
        """
        return self._ranks.numbers

    @property
    def traced(self) -> bool:
        """Whether the run has a deep trace of any process.

        Example:
            >>> run.traced, trace.traced
            (False, True)
        """
        return self._ranks.traced

    @property
    def deep(self) -> Analyzer | None:
        """The deep traces of the run, as a run of their own; None if it has none.

        For traces, this very object. For a run that haiprof recorded, those in its folders, by its
        ranks: they are read when this or a view of them is first used, once, and kept as
        ``haiprof import`` keeps them if the folder is writable.

        Example:
            >>> run.deep is None, trace.deep is trace
            (True, True)
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
            whole, first, last = self._part_of
            return None if whole.deep is None else whole.deep._between(first, last)
        try:
            opened = open_traces(self.run, self._ranks.executor, self._on_bytes)
        except HaiprofError as error:  # haiprof's own records remain available
            self.note([str(error)])
            return None
        return None if opened is None else Analyzer._of(opened, self._ranks.executor)

    def _in_detail(self, rank: int | None) -> TraceAnswers:
        deep = self.deep
        own = deep is None or (rank is not None and rank not in deep.ranks)
        return self._traced if own or deep is None else deep._traced

    def between(self, start: float = 0.0, end: float = math.inf) -> Analyzer:
        """Return a part of the run as a run of its own: anything that crosses an edge is cut there.

        Clocks of hosts are compared over the whole run.

        Args:
            start: s since the run began, as its report counts them.
            end: likewise.

        Raises:
            HaiprofError: the run has nothing in that time.

        Example:
            >>> run.between(0, 1).ranks
            [0, 1]
        """
        asked.number("start", start)
        asked.number("end", end)
        part = self._between(window.at(self.run, start), window.at(self.run, end))
        if part is None:
            seconds = window.lasted(self.run)
            lasted = "has no end yet" if seconds is None else f"lasted {seconds:.6g} s"
            until = "on" if end == math.inf else f"to {end:g} s"
            raise HaiprofError(
                f"{self._ranks.where}: no data from {start:g} s {until}; the run {lasted}. "
                "Choose another window"
            )
        return part

    def _between(self, first: int, last: int) -> Analyzer | None:
        run = window.part(self.run, first, last)
        if run is None:
            return None
        opened = Opened(run, self._temporary)
        return Analyzer._of(opened, self._ranks.executor, (self, first, last))

    def in_detail(self) -> Analyzer:
        """Return the ranks that findings look at as a run of their own.

        Those are all of up to 128 ranks. Of more they are those that failed first, those that are
        late, the slowest, the fastest, and some of the others, evenly spread over their numbers.

        Example:
            >>> run.in_detail().ranks
            [0, 1]
        """
        if self.traced:
            return self
        some = finding_answers.looked_at(self._ranks, self._recorded)
        if some is self._ranks:
            return self

        def made() -> Analyzer:
            # With what the findings have read of them.
            analyzer = Analyzer.__new__(Analyzer)
            analyzer._take(some, self._temporary, None)
            return analyzer

        return self._ranks.once("in detail, analysed", made)

    def problems(self) -> list[str]:
        """Return one line for each folder or file that cannot be read and is left out.

        Those of deep traces in the run's folders are included once they have been read.

        Example:
            >>> run.problems()
            []
        """
        for _, lines in self._ranks.map(one_process.check, self.run.processes):
            self.note(lines)
        if self._deep is not None:
            self.note(self._deep.problems())
        return list(self._ranks.problems)

    @staticmethod
    def runs(folder: str | Path, executor: Executor | None = None) -> pl.DataFrame:
        """Return one row per run below a folder, those that lost most GPU hours first.

        Columns: ``folder`` (below the given one), ``run``, ``user``, ``started``, ``duration``,
        ``state``, ``ranks``, ``gpus``, ``steps``, ``step_ns`` (the median) and ``step_trend``,
        ``data_share``, ``exposed_communication_share``, ``gpu_busy_share``, ``gpu_power_watts``,
        ``mfu``, ``goodput``, ``gpu_hours``, ``gpu_hours_lost`` and ``lost_to`` (GPU hours by
        cause), ``findings``, ``problem``, …: see docs/runs.md. Null is not known. Rows are kept in
        an index beside the runs, or in this user's cache, and made anew when their run changes.

        Args:
            folder: a log directory, a folder with such folders, a run, or a URL of fsspec.
            executor: sums up the runs; by default a few threads of this process.

        Raises:
            HaiprofError: there is no such folder, or it cannot be read.

        Example:
            >>> Analyzer.runs(run.run.folder.parent).select("run", "ranks", "steps").rows()
            [('r', 2, 118)]
        """
        from haiprof.answers.all_runs import all_runs

        if not is_url(str(folder)):
            asked.path("folder", folder)
        return all_runs(folder, executor)

    # -- of haiprof's own records ----------------------------------------------------------------

    processes = _of_records(RecordedAnswers.processes)
    phases = _of_records(RecordedAnswers.phases)
    metrics = _of_records(RecordedAnswers.metrics)
    samples = _of_records(RecordedAnswers.samples)
    spans = _of_records(RecordedAnswers.spans)
    events = _of_records(RecordedAnswers.events)
    device_spans = _of_records(RecordedAnswers.device_spans)
    device_phases = _of_records(RecordedAnswers.device_phases)
    kernel_totals = _of_records(RecordedAnswers.kernel_totals)
    graph_replays = _of_records(RecordedAnswers.graph_replays)
    stacks = _of_records(RecordedAnswers.stacks)
    flame = _of_records(RecordedAnswers.flame)
    collectives = _of_records(RecordedAnswers.collectives)
    nccl = _of_records(RecordedAnswers.nccl)
    waits = _of_records(RecordedAnswers.waits)
    kernels_recorded = _of_records(RecordedAnswers.kernels_recorded)
    pipeline = _of_records(RecordedAnswers.pipeline)
    overhead = _of_records(RecordedAnswers.overhead)
    efficiency = _of_records(RecordedAnswers.efficiency)
    goodput = _of_records(RecordedAnswers.goodput)
    failure = _of_records(RecordedAnswers.failure)
    summaries = _of_records(RecordedAnswers.summaries)
    summaries_of = _of_records(RecordedAnswers.summaries_of)
    read = _of_records(RecordedAnswers.read)
    read_gpu = _of_records(RecordedAnswers.read_gpu)
    gpu_instances = _of_records(RecordedAnswers.gpu_instances)
    sql = _of_records(RecordedAnswers.sql)

    # -- of deep traces --------------------------------------------------------------------------

    overview = _of_traces(TraceAnswers.overview)
    keep_overview = _of_traces(TraceAnswers.keep_overview)
    operators = _of_traces(TraceAnswers.operators)
    memory = _of_traces(TraceAnswers.memory)
    modules = _of_traces(TraceAnswers.modules)
    flames = _of_traces(TraceAnswers.flames)
    distributed = _of_traces(TraceAnswers.distributed)
    stragglers = _of_traces(TraceAnswers.stragglers)
    clock = _of_traces(TraceAnswers.clock)
    temporal = _of_traces(TraceAnswers.temporal)
    idle = _of_traces(TraceAnswers.idle)
    overlap = _of_traces(TraceAnswers.overlap)
    launches = _of_traces(TraceAnswers.launches)
    queue_length = _of_traces(TraceAnswers.queue_length)
    full_queue = _of_traces(TraceAnswers.full_queue)
    operator_kernels = _of_traces(TraceAnswers.operator_kernels)
    annotations = _of_traces(TraceAnswers.annotations)
    bandwidth = _of_traces(TraceAnswers.bandwidth)
    kernel_kinds = _of_traces(TraceAnswers.kernel_kinds)
    roofline = _of_traces(TraceAnswers.roofline)
    step_trace = _of_traces(TraceAnswers.step_trace)
    op_statistics = _of_traces(TraceAnswers.op_statistics)
    hardware_counters = _of_traces(TraceAnswers.hardware_counters)
    sequences = _of_traces(TraceAnswers.sequences)
    critical_path = _of_traces(TraceAnswers.critical_path)
    what_if = _of_traces(TraceAnswers.what_if)
    unknown = _of_traces(TraceAnswers.unknown)

    # -- of either -------------------------------------------------------------------------------

    def steps(self, rank: int | None = None) -> pl.DataFrame:
        """Return one row per complete step: ``step``, ``start``, ``duration``.

        For a deep trace, steps with their device work, and the time of each part (``kernel``,
        ``memcpy``, …, ``other``). See :func:`haiprof.views.trace.overview.overview`.

        Example:
            >>> run.steps(rank=0).select("step", "duration").rows()[:2]
            [(0, 12000000), (1, 12000000)]
        """
        return rank_first(self._own.steps(rank))

    def imbalance(self) -> pl.DataFrame:
        """Return which ranks are late, since when and in what, the worst first.

        Columns: those of :func:`haiprof.views.run.imbalance.imbalance`, ``evidence`` (what was
        sampled of its process, GPU and node in these steps but not of the other ranks'; null if
        there is none) and ``words``. For a run that haiprof recorded it is computed from the phases
        of all its steps, for deep traces from the parts of their steps without the waiting in
        collectives.

        Example:
            >>> run.imbalance().columns[:5]
            ['rank', 'late', 'share', 'since', 'until']
        """
        return rank_first(self._own.imbalance())

    def slowdown(self) -> Slowdown:
        """Return what slows the steps down, and how long they would take without each cause.

        Frames ``causes`` (the one without which a step is shortest first), ``steps`` and ``whole``,
        without rows if nothing can be replayed; ``why`` then says why, else it is None. See
        :class:`haiprof.views.run.slowdown.causes.Slowdown`.

        Example:
            >>> run.slowdown().causes.columns[:6]
            ['rank', 'kind', 'cause', 'duration', 'without', 'gain']
        """
        return self._own.slowdown()

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
        ``demangled`` and ``short``, its readable name. See
        :func:`haiprof.views.run.kernels.described`.

        With ``by``, the cost of kernels instead: by ``name``, or by ``launch`` properties and
        operator. See :func:`haiprof.views.trace.kernels.kernels`.

        Raises:
            HaiprofError: the run has no such kind or name, or ``by`` is neither.

        Example:
            >>> run.kernels(rank=0).select("step", "phase", "short").row(0)
            (10, 'forward', 'at::native::layer_kernel<float>')
        """
        if by is None:
            return rank_first(self._recorded.kernels(rank, kind=kind, name=name))
        asked.texts("kind", kind)
        asked.texts("name", name)
        return rank_first(self._traced.kernels_by(rank, by, compat))

    def compare(
        self, after: Analyzer, rank: int | None = None
    ) -> dict[str, compare_view.Comparison]:
        """Compare each trace of this run with the same rank's in a later run, by label.

        See :func:`haiprof.views.trace.compare.compare`: chance is not reported as a change.

        Raises:
            HaiprofError: the runs have no rank in common.

        Example:
            >>> list(trace.compare(trace))
            ['rank 0', 'rank 1']
        """
        return self._traced.compare(_another(after, "after", "later")._traced, rank)

    def differences(
        self, after: Analyzer, rank: int | None = None, *, of: differences_view.Of = "operators"
    ) -> pl.DataFrame:
        """Return operators or kernels that are called more or less often, or longer, in ``after``.

        Of ``calls``, paths of modules, ranges and operators, with the kernels of either run, which
        may be of different devices. See :func:`haiprof.views.trace.differences.differences`.

        Raises:
            HaiprofError: the runs have no rank in common, or ``of`` is none of these.

        Example:
            >>> trace.differences(trace, rank=0).columns[1:5]
            ['name', 'control_count', 'test_count', 'control_total']
        """
        later = _another(after, "after", "later")._traced
        return rank_first(self._traced.differences(later, rank, of=of))

    def stack_changes(
        self,
        after: Analyzer,
        rank: int | None = None,
        *,
        by: Literal["line", "function"] = "function",
    ) -> pl.DataFrame:
        """Return in which functions a step spends more or less time in a later run.

        Columns: ``rank``, ``function``, ``file``, ``line`` (null by function), ``before``,
        ``after``, ``difference`` and its standard ``error`` (ns a step), ``before_samples``,
        ``after_samples``, ``verdict``: ``slower``, ``faster`` or ``no difference shown``. Of the
        training thread's sampled stacks; what became slower comes first.

        Raises:
            HaiprofError: a run has no such rank.

        Example:
            >>> run.stack_changes(run)["verdict"].unique().to_list()
            ['no difference shown']
        """
        return self._recorded.stack_changes(
            _another(after, "after", "later")._recorded, rank, by=by
        )

    def changes(self, after: Analyzer, rank: int | None = None) -> RunChanges:
        """Return what changed from this recorded run to a later one.

        Four frames: ``phases``, ``waits``, ``series`` and ``findings``. What the deep traces of two
        runs differ in, :meth:`compare` says.

        Raises:
            HaiprofError: a run has no such rank, or no steps, or is a trace.

        Example:
            >>> run.changes(run).phases["verdict"].unique().to_list()
            ['no difference shown']
        """
        later = _another(after, "after", "later")
        if self.traced or later.traced:
            raise HaiprofError("changes(): give recorded runs; compare() takes traces")
        found = self.findings(rank), later.findings(rank)
        both = (self._ranks, self._recorded), (later._ranks, later._recorded)
        return run_changes.run_changes(*both, found, rank)

    def headline(self) -> list[str]:
        """Return the three most important lines about this run; computed once, then kept.

        If the job failed or was interrupted, a line on that comes before them.

        Example:
            >>> run.headline()[0].split(":")[0]
            '118 steps on each of 2 ranks, median 12 ms (p95 12 ms)'
        """

        def made() -> list[str]:
            with keeping_tables(self._ranks):  # several answers that it rests on read the same
                return headline(self)

        return list(self._ranks.once("headline", made))

    def findings(
        self, rank: int | None = None, *, baseline: Analyzer | None = None
    ) -> list[Finding]:
        """Return what costs the job time or ended it, and who is to blame: most important first.

        Each has ``kind`` (:data:`haiprof.findings.kinds.KINDS`), ``ranks``, ``problem`` and
        ``advice`` in words, ``lost_ns`` with its interval, ``phase``, ``line`` and ``evidence``;
        see :class:`haiprof.findings.finding.Finding`. An empty list says that nothing costs as much
        as 5 % of the time for certain.

        Args:
            rank: what concerns this one only.
            baseline: a recorded run that is known to be good. If steps take longer than in that
                one, in what they do comes first, and which settings differ.

        Raises:
            HaiprofError: there is no such rank, or one of two runs is a trace.

        Example:
            >>> [finding.kind for finding in run.findings(baseline=run)]
            []
        """
        self._ranks.choose(rank)
        if baseline is not None:
            good = _another(baseline, "baseline", "good")
            if self.traced or good.traced:
                raise HaiprofError("baseline: give recorded runs; `haiprof compare` takes traces")
            those = good._ranks, good._recorded
            found = finding_answers.against(self._ranks, self._recorded, *those)
        elif self.traced:
            return as_findings(self.recommendations(rank))
        else:
            found = finding_answers.recorded(self._ranks, self._recorded)
        return [each for each in found if rank is None or not each.ranks or rank in each.ranks]

    def recommendations(self, rank: int | None = None) -> pl.DataFrame:
        """Return what to change about the job, the largest saving for a rank first.

        Columns: ``kind``, ``problem``, ``advice``, ``evidence``, ``saves_ns``, ``share`` (of the
        recorded steps), ``step``, ``operator``, ``stack``, ``module``, ``step_saves_ns``. Of traces
        see :meth:`haiprof.answers.deep.TraceAnswers.recommendations`; :meth:`findings` are the same
        list. Of a recorded run without any they are its :meth:`findings`, one row for each rank
        (``operator`` is the phase, ``stack`` the line, ``step`` the first one), and what the rules
        for traces find of other kinds in its recorded kernels.

        Args:
            rank: of this one only.

        Raises:
            HaiprofError: there is no such rank.

        Example:
            >>> trace.recommendations(rank=0)["kind"].to_list()
            ['launch', 'latency', 'utilization']
        """
        found = self._traced.recommendations(rank)
        if self.traced or self._in_detail(rank) is not self._traced:
            return rank_first(found)
        every = finding_answers.recommendations(self._ranks, self._recorded, found, rank)
        return rank_first(every)

    def ledger(self, rank: int | None = None, step: int | None = None) -> pl.DataFrame:
        """Return what each nanosecond of each rank went to: one row per cause, the longest first.

        Columns: ``cause``, ``culprit`` (of ``waiting``: the rank that was waited for), ``duration``
        (ns), ``share`` and ``part`` (of ``other``: the job's own range; where it has none there, of
        all steps together, what stacks show; null: without a name). Those of a rank sum to the
        length of the run; those of a step to its duration. See :mod:`haiprof.views.run.ledger`.

        Args:
            rank: of this one only.
            step: of this one only.

        Raises:
            HaiprofError: there is no such rank, or step.

        Example:
            >>> run.ledger(rank=0, step=3).select("cause", "duration").rows()[:2]
            [('forward', 4000000), ('backward', 3000000)]
        """
        asked.whole("step", step)
        if not self.traced:
            return rank_first(ledger_answers.frame(self._ranks, rank, step))
        steps, waits = self.steps(rank), self.distributed(rank).steps
        if step is not None and step not in (there := steps["step"].drop_nulls().to_list()):
            raise asked.steps(f"{self._ranks.where}: ledger()", step, there)
        return rank_first(ledger_answers.of_traces(steps, waits, step))

    def on_one_clock(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame of several hosts with all times converted to the reference's clock.

        Args:
            frame: has ``node``, and ``start``, ``end`` or ``time`` (ns); if of one host, it is
                returned unchanged.

        Example:
            >>> run.on_one_clock(run.steps()).height
            236
        """
        return host_clocks.on_one_clock(self._ranks, frame)

    def clock_by_node(self) -> dict[str, Callable[[Times], Times]]:
        """Return for each node what converts its times (ns) to the reference's clock.

        Empty if all processes are on one node.

        Example:
            >>> run.clock_by_node()
            {}
        """
        return host_clocks.by_node(self._ranks)

    def show_overview(self) -> Shown:
        """Show all ranks and nodes side by side.

        Example:
            >>> print(str(run.show_overview()).splitlines()[0])
            Overview
        """
        from haiprof.show import overview

        with keeping_tables(self._ranks):
            return overview.show(self)

    def show_one_rank(self, rank: int) -> Shown:
        """Show one rank over time: phases, CPU, memory, IO, network, pressure, GPUs, events.

        Example:
            >>> print(str(run.show_one_rank(0)).splitlines()[0])
            Rank 0
        """
        from haiprof.show import one_rank

        processes = [p for p in self._ranks.choose(rank) if p.role == ROLE_RANK]
        with keeping_tables(self._ranks):
            return one_rank.show(self, processes)

    def report(self, path: str | Path, *, before: Analyzer | None = None) -> Path:
        """Write the report as one HTML file that needs no network; return its path.

        Args:
            path: the file to write.
            before: another run of the same kind (recorded, or of traces); the report then says
                first what changed from it to this one.

        Raises:
            HaiprofError: the file cannot be written, or the runs cannot be compared: only one is
                of traces, they have no steps, or traces of no rank in common.

        Example:
            >>> run.report("report.html").name
            'report.html'
        """
        from haiprof.show import report

        earlier = None if before is None else _another(before, "before", "earlier")
        with keeping_tables(self._ranks):
            return report.write(self, asked.path("path", path), earlier)

    def each(
        self, work: Callable[[Item], _Result], processes: Sequence[Item]
    ) -> Iterable[tuple[Item, _Result]]:
        """Run expensive work for some processes: one at a time, or as the executor schedules it.

        Example:
            >>> [number for _, number in run.each(lambda process: process.rank, run.run.processes)]
            [0, 1, None]
        """
        return self._ranks.each(work, processes)

    def note(self, problems: Iterable[str]) -> None:
        """Remember what could not be read, for :meth:`problems`.

        Example:
            >>> run.note(["rank 3: its clock is not known"])
        """
        self._ranks.note(problems)


def _another(given: Analyzer, name: str, which: str) -> Analyzer:
    """Return an argument that has to be another run."""
    if not isinstance(given, Analyzer):
        raise HaiprofError(f"{name}={quoted(given)}: give the Analyzer of the {which} run")
    return given
