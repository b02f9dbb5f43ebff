"""What each nanosecond of a rank's life went to: every instant is charged to one cause.

Causes in the order in which they take an instant, the most specific first; the first eight are
like those of :mod:`haiprof.views.run.goodput`:

=========== ====================================================================================
down        the rank has no process
startup     from the start of a process to its first step, and what made the first step longer
load        loading checkpoints
save        saving checkpoints, as far as the training thread waits for it
evaluation  evaluating, its data included
hang        no step ended for far longer than usual
lost        the step that the end of the process interrupted; earlier training that a crash made
            useless is what it was, see :mod:`haiprof.views.run.goodput`
shutdown    from the last step to the end of a process that ends in order
compilation compiling (torch.compile)
deep_trace  beginning and ending a deep trace of haiprof's own
collector   Python's garbage collector
waiting     in a collective that another rank had not reached yet; ``culprit`` is that rank
transfer    in a collective that all ranks had reached
unmatched   in a collective of which the other ranks' side is not known
cpu_queue   ready to run, but the CPU ran something else
input       waiting for the DataLoader, or loading where the DataLoader has no workers
forward     … and ``recompute``, ``backward``, ``optimizer``: the rest of these phases
other       the rest of the steps; ``part`` is the name of the range that it is in: one of the job's
            own, or ``logging.wandb`` and its like for calls that log to a tracker
unrecorded  the process was alive, but in none of these, or was not recorded
=========== ====================================================================================

The time that a thread was ready but not running is sampled once a second, as a share; it is taken
from what the thread would have run in that second, in proportion.

The causes of a step sum to its duration, those of a life to its length, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times, distinct, merge
from haiprof.views.run import goodput, ranges
from haiprof.views.run import steps as step_views
from haiprof.views.run.series import usable

CAUSES: Final = (
    "down",
    "startup",
    "load",
    "save",
    "evaluation",
    "hang",
    "lost",
    "shutdown",
    "compilation",
    "deep_trace",
    "collector",
    "waiting",
    "transfer",
    "unmatched",
    "cpu_queue",
    "input",
    "forward",
    "recompute",
    "backward",
    "optimizer",
    "other",
    "unrecorded",
)
CODE: Final = {name: code for code, name in enumerate(CAUSES)}
#: The rank's own work: what it does while nobody and nothing keeps it waiting.
WORK: Final = ("forward", "recompute", "backward", "optimizer", "other")

LEDGER_SCHEMA: Final = {
    "cause": pl.String(),
    "culprit": pl.Int64(),
    "duration": pl.Int64(),
    "share": pl.Float64(),
    "part": pl.String(),
}
#: Columns and categories of spans that this view needs.
COLUMNS: Final = ("start", "duration", "category", "name", "thread", "step")
CATEGORIES: Final = (*goodput.CATEGORIES, "gc", "user")
#: How the names of the ranges begin that haiprof makes of calls that log to a tracker.
LOGGING: Final = "logging."
#: The metric of a thread's time in the queue of a CPU, percent.
CPU_WAIT: Final = "proc.cpu_wait.percent"

#: Phases by what hides what: a later one lies within an earlier one.
_PHASES: Final = ("forward", "backward", "recompute", "optimizer")
_SYNC: Final = "gradient_sync"
#: Spans of the training thread, by the phase or the category that they are of.
_SETS: Final = {
    **{
        name: (pl.col("category") == "phase") & (pl.col("name") == name)
        for name in (*_PHASES, _SYNC, "deep_trace")
    },
    **{category: pl.col("category") == category for category in ("compile", "gc")},
}
#: What goodput says of an instant that this view looks into.
_OPEN: Final = ("productive", "data", "startup", "evaluation")
#: In these the thread runs, or would.
_RUNS: Final = (*WORK, "input", "compilation", "collector", "evaluation", "startup")
#: Of a longer life neighbouring steps are added up.
MOST_STEPS: Final = 65_536
#: In a job of many ranks each is the last one now and then.
MOST_CULPRITS: Final = 16
#: A job may have as many names of ranges as it likes.
MOST_PARTS: Final = 16

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class Ledger:
    """One process's life: ns by cause, for all of it and for groups of steps.

    Attributes:
        begin: when it began, ns UTC.
        end: when it ended, ns UTC.
        total: ns by cause, of shape (causes,).
        width: steps with numbers that are equal after division by this are one group.
        group: number of each group, ascending.
        start: when each group began, ns UTC.
        duration: ns, of the steps of each group.
        count: steps in each group.
        causes: ns of shape (groups, causes); rows sum to ``duration``.
        culprits: for each of the :data:`MOST_CULPRITS` ranks that were waited for most, the ns of
            each group.
        parts: for each of the :data:`MOST_PARTS` names of the job's own ranges that take most of
            ``other``, the ns of each group.
        timeline: from each ``timeline[0]`` (ns UTC) on the cause is ``timeline[1]``, before the
            time in the queue was taken out.
    """

    begin: int
    end: int
    total: Numbers
    width: int
    group: Numbers
    start: Times
    duration: Times
    count: Numbers
    causes: Numbers
    culprits: dict[int, Numbers]
    parts: dict[str, Numbers]
    timeline: tuple[Times, Numbers]

    def without_timeline(self) -> Ledger:
        """Return it without the time line, which takes far more memory than all the rest."""
        none = np.zeros(0, np.int64)
        return replace(self, timeline=(none, none))

    def of(self, *causes: str) -> Numbers:
        """Return the ns of some causes together, by group."""
        found: Numbers = self.causes[:, [CODE[cause] for cause in causes]].sum(1)
        return found

    def spent(self, *causes: str) -> int:
        """Return the ns of some causes together, of the whole life."""
        return int(self.total[[CODE[cause] for cause in causes]].sum())

    @property
    def stepped(self) -> int:
        """Ns of all steps."""
        return int(self.duration.sum())

    def cause_at(self, times: Times) -> Numbers:
        """Return the code of the cause at each instant; -1 outside of the life."""
        edges, codes = self.timeline
        if not len(codes):
            return np.full(len(times), -1, np.int64)
        at = np.searchsorted(edges, times, side="right") - 1
        inside = (at >= 0) & (times < self.end)
        return np.where(inside, codes[np.clip(at, 0, len(codes) - 1)], -1)


def ledger(
    pieces: goodput.Pieces,
    spans: pl.DataFrame,
    waits: pl.DataFrame,
    pending: pl.DataFrame,
    samples: pl.DataFrame,
    most: int = MOST_STEPS,
) -> Ledger:
    """Charge the life of one process.

    Args:
        pieces: its time line, as :func:`haiprof.views.run.goodput.pieces` gives it.
        spans: the columns of :data:`COLUMNS`, of the :data:`CATEGORIES`.
        waits: ``start`` and ``end`` (ns UTC) of each time that its training thread was blocked in a
            collective.
        pending: its operations that other ranks were late for: ``start`` (when it asked), ``last``
            (when the last rank had asked; ns UTC), ``end`` and ``late_rank``; null is not known.
        samples: of :data:`CPU_WAIT`: ``time``, ``metric``, ``instance``, ``value``, ``flags``.
        most: groups of steps; of more steps neighbouring ones are added up.
    """
    begin = int(pieces.start[0]) if len(pieces.start) else pieces.end
    steps = _steps(spans, begin, pieces.end)
    mine = step_views.of_loop(spans) if steps.height else spans.clear()
    blocked = _merged(waits["start"].to_numpy(), waits["end"].to_numpy())
    ran = step_views.ran(mine, _SETS)
    blocked = _merged(*(np.concatenate(sides) for sides in zip(blocked, ran[_SYNC], strict=True)))
    asked = pending.drop_nulls(["start"]).sort("start") if pending.height else pending
    queue = _queue(samples)
    step_start = steps["start"].to_numpy()
    step_end = step_start + steps["duration"].to_numpy()
    layers = [(cause, *ran[cause]) for cause in _PHASES]
    range_start, range_end, names, texts = ranges.between(mine, _together(layers))
    of_compiler, of_trace, of_collector = ran["compile"], ran["deep_trace"], ran["gc"]
    edges = [
        pieces.start,
        step_start,
        step_end,
        *(side for _, low, high in layers for side in (low, high)),
        *blocked,
        *of_compiler,
        *of_trace,
        *of_collector,
        range_start,
        range_end,
        asked["start"].to_numpy(),
        asked["last"].drop_nulls().to_numpy(),
        asked["end"].drop_nulls().to_numpy(),
        queue[0],
        queue[1],
    ]
    end = max(pieces.end, begin)
    points = distinct(np.clip(np.concatenate([np.array([begin, end]), *edges]), begin, end))
    low, length = points[:-1], np.diff(points)
    if not len(low):
        return _nothing(begin, end)
    base = pieces.code[np.searchsorted(pieces.start, low, "right") - 1].astype(np.int64)
    row = _row(low, step_start, step_end)
    code = _translated(base, row)
    is_open = np.isin(base, [goodput.PARTS.index(part) for part in _OPEN])
    works = code == CODE["other"]
    for cause, starts, ends in layers:
        code[_inside(low, points, starts, ends) & works] = CODE[cause]
    waiting = _inside(low, points, *blocked) & works
    code[waiting] = CODE["unmatched"]
    culprit = _blamed(low, asked, waiting, code)
    code[_inside(low, points, *of_collector) & (is_open | works)] = CODE["collector"]
    code[_inside(low, points, *of_trace) & (is_open | works)] = CODE["deep_trace"]
    code[_inside(low, points, *of_compiler) & (is_open | works)] = CODE["compilation"]
    timeline = low, code.copy()
    queued = _queued(low, length, code, queue)
    culprit[code != CODE["waiting"]] = -1
    in_range = _row(low, range_start, range_end)
    named = (code == CODE["other"]) & (in_range >= 0)
    part = np.full(len(low), -1)
    part[named] = names[in_range[named]]
    return _added(
        begin, end, steps, row, length, code, (culprit, part, texts), queued, timeline, most
    )


def rows(charged: Ledger, shares: Mapping[str, float] | None = None) -> pl.DataFrame:
    """Return one row for each cause of a life, the longest first.

    Of ``waiting`` there is one for each rank, of ``other`` one for each part that has a name.
    Columns: ``cause``, ``culprit`` (rank that was waited for; null with other causes), ``duration``
    (ns), ``share`` (of the life), ``part`` (null: without a name).

    Args:
        charged: the life.
        shares: of ``other`` without what trackers take, by the name of a part, for a life in which
            the job has no range of its own.
    """
    parts = {name: int(ns.sum()) for name, ns in charged.parts.items()}
    if shares and all(name.startswith(LOGGING) for name in parts):
        rest = charged.spent("other") - sum(parts.values())
        parts |= {name: int(share * rest) for name, share in shares.items()}
    return frame(charged.total, {r: int(ns.sum()) for r, ns in charged.culprits.items()}, parts)


def frame(
    by_cause: Numbers, by_culprit: Mapping[int, int], by_part: Mapping[str, int]
) -> pl.DataFrame:
    """Return :func:`rows` of any time: ns by cause, of waiting by rank, of other by part."""
    found: list[tuple[str, int | None, str | None, int]] = []
    for cause, ns in zip(CAUSES, by_cause.tolist(), strict=True):
        several: list[tuple[str, int | None, str | None, int]] = []
        if cause == "waiting":
            several = [(cause, rank, None, part) for rank, part in by_culprit.items()]
        elif cause == "other":
            several = [(cause, None, name, part) for name, part in by_part.items()]
        found += several
        found.append((cause, None, None, ns - sum(part for *_, part in several)))
    whole = sum(ns for *_, ns in found)
    table = [(cause, by, ns, ns / whole, part) for cause, by, part, ns in found if ns]
    return pl.DataFrame(table, LEDGER_SCHEMA, orient="row").sort(
        "duration", descending=True, maintain_order=True
    )


def _steps(spans: pl.DataFrame, begin: int, end: int) -> pl.DataFrame:
    """Return the steps within a life, cut to it, none of them before the one before has ended."""
    steps = spans.filter(pl.col("category") == "step").sort("start")
    start = np.clip(steps["start"].to_numpy(), begin, end)
    lasted = np.maximum(steps["duration"].to_numpy(), 0)
    stop = np.clip(steps["start"].to_numpy() + lasted, begin, end)
    # Clocks step back, and a file may be damaged.
    reached = np.concatenate((np.array([begin]), np.maximum.accumulate(stop)[:-1]))
    duration = stop - np.maximum(start, reached[: len(stop)])
    cut = {"step": steps["step"], "start": stop - duration, "duration": duration}
    found = pl.DataFrame(cut)
    return found if (duration > 0).all() else found.filter(pl.col("duration") > 0)


def _merged(start: Times, end: Times) -> tuple[Times, Times]:
    some = end > start
    return merge(start[some].astype(np.int64), end[some].astype(np.int64))


def _together(layers: Sequence[tuple[str, Times, Times]]) -> tuple[Times, Times]:
    low, high = (np.concatenate([each[side] for each in layers]) for side in (1, 2))
    return _merged(low, high)


def _row(low: Times, start: Times, end: Times) -> Index:
    """Return the step in which each piece lies; -1: in none."""
    if not len(start):
        return np.full(len(low), -1)
    row = np.searchsorted(start, low, "right") - 1
    return np.where((row >= 0) & (low < end[row]), row, -1)


def _translated(base: Numbers, row: Index) -> Numbers:
    """Return the causes for what goodput says."""
    known = {"data": "input", "other": "unrecorded", "productive": "other"}
    table = np.array([CODE[known.get(part, part)] for part in goodput.PARTS], np.int64)
    code = table[base]
    # A recording that goes on after goodput's life of it has steps all the same.
    code[(code == CODE["unrecorded"]) & (row >= 0)] = CODE["other"]
    return code


def _inside(low: Times, points: Times, start: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Say of each piece whether it lies in any of some disjoint intervals."""
    depth = np.zeros(len(points) + 1, np.int64)
    np.add.at(depth, np.searchsorted(points, start), 1)
    np.add.at(depth, np.searchsorted(points, end), -1)
    return np.cumsum(depth)[: len(low)] > 0


def _blamed(
    low: Times, asked: pl.DataFrame, waiting: npt.NDArray[np.bool_], code: Numbers
) -> Index:
    """Set what blocked pieces waited for; return the rank that each waited for, -1: none.

    Of several operations under way the one that is complete last counts.
    """
    culprit = np.full(len(low), -1)
    known = asked.drop_nulls("last")
    if not known.height or not waiting.any():
        return culprit
    start, last = known["start"].to_numpy(), known["last"].to_numpy()
    latest = np.maximum.accumulate(last)
    which = np.where(last == latest, np.arange(len(last)), 0)
    which = np.maximum.accumulate(which)
    at = np.searchsorted(start, low, "right") - 1
    begun = waiting & (at >= 0)
    at = np.maximum(at, 0)
    pending = begun & (low < latest[at])
    ranks = known["late_rank"].cast(pl.Int64).fill_null(-1).to_numpy()
    culprit[pending] = ranks[which[at[pending]]]
    code[pending] = np.where(culprit[pending] >= 0, CODE["waiting"], CODE["unmatched"])
    code[begun & ~pending] = CODE["transfer"]
    return culprit


def _queue(samples: pl.DataFrame) -> tuple[Times, Times, npt.NDArray[np.float64]]:
    """Return begin, end and share of the time in which the thread waited for a CPU."""
    if samples.height < 2:
        none = np.zeros(0, np.int64)
        return none, none, np.zeros(0)
    rows = usable(samples).filter(pl.col("metric") == CPU_WAIT, pl.col("instance").is_null())
    rows = rows.sort("time").unique("time", keep="first", maintain_order=True)
    end = rows["time"].to_numpy()
    if len(end) < 2:
        return end[:0], end[:0], np.zeros(0)
    share = np.clip(rows["value"].to_numpy()[1:] / 100, 0, 1)
    return end[:-1], end[1:], share


def _queued(
    low: Times, length: Times, code: Numbers, queue: tuple[Times, Times, npt.NDArray[np.float64]]
) -> Times:
    """Return how much of each piece its thread spent in the queue of a CPU."""
    begin, until, share = queue
    if not len(begin):
        return np.zeros(len(low), np.int64)
    at = np.searchsorted(begin, low, "right") - 1
    inside = (at >= 0) & (low < until[np.maximum(at, 0)])
    runs = inside & np.isin(code, [CODE[name] for name in _RUNS])
    at = np.maximum(at, 0)
    could = np.zeros(len(begin), np.int64)
    np.add.at(could, at[runs], length[runs])
    wanted = share * (until - begin)
    part = np.where(could > 0, np.minimum(wanted / np.maximum(could, 1), 1), 0.0)
    return np.where(runs, (length * part[at]).astype(np.int64), 0)


def _added(
    begin: int,
    end: int,
    steps: pl.DataFrame,
    row: Index,
    length: Times,
    code: Numbers,
    named: tuple[Index, Index, list[str]],
    queued: Times,
    timeline: tuple[Times, Numbers],
    most: int,
) -> Ledger:
    """Add up pieces by step and cause; ``named`` are who or what some of them belong to."""
    culprit, part, texts = named
    number = steps["step"].cast(pl.Int64).fill_null(0).to_numpy()
    width = 1
    while len(number) > most * width:
        width *= 2
    group, of_step = _groups(number, width)
    causes = np.zeros((len(group) + 1, len(CAUSES)), np.int64)
    place = np.where(row >= 0, of_step[row] if len(of_step) else -1, len(group))
    np.add.at(causes, (place, code), length - queued)
    np.add.at(causes[:, CODE["cpu_queue"]], place, queued)
    spent = length - queued
    culprits = _by_number(culprit, place, spent, len(group), MOST_CULPRITS)
    parts = _by_number(part, place, spent, len(group), MOST_PARTS)
    duration, count = (np.zeros(len(group), np.int64) for _ in range(2))
    np.add.at(duration, of_step, steps["duration"].to_numpy())
    np.add.at(count, of_step, 1)
    first = np.zeros(len(group), np.int64)
    first[of_step[::-1]] = steps["start"].to_numpy()[::-1]
    return Ledger(
        begin, end, causes.sum(0), width, group, first, duration, count, causes[:-1], culprits,
        {texts[number]: ns for number, ns in parts.items()}, timeline,
    )  # fmt: skip


def _by_number(
    number: Index, place: Index, ns: Times, groups: int, most: int
) -> dict[int, Numbers]:
    """Return the ns of each group for the numbers that take most; -1 is none."""
    some = number >= 0
    numbers, which = np.unique(number[some], return_inverse=True)
    sums = np.zeros(len(numbers), np.int64)
    np.add.at(sums, which, ns[some])
    found = {}
    for one in numbers[np.argsort(-sums, kind="stable")[:most]].tolist():
        mine = number == one
        by_group = np.zeros(groups + 1, np.int64)
        np.add.at(by_group, place[mine], ns[mine])
        if by_group[:-1].any():
            found[one] = by_group[:-1]
    return found


def _groups(number: Numbers, width: int) -> tuple[Numbers, Index]:
    """Return the number of each group of steps, and the group of each step.

    A job that restarts its count has groups of equal numbers one after another.
    """
    wide = number // width
    new = np.ones(len(wide), bool)
    new[1:] = wide[1:] != wide[:-1]
    return wide[new], np.cumsum(new) - 1


def _nothing(begin: int, end: int) -> Ledger:
    none = np.zeros(0, np.int64)
    shape = np.zeros((0, len(CAUSES)), np.int64)
    return Ledger(
        begin, end, np.zeros(len(CAUSES), np.int64), 1, none, none, none, none, shape, {}, {},
        (none, none),
    )  # fmt: skip


def together(ledgers: Sequence[Ledger]) -> tuple[Numbers, list[Ledger]]:
    """Return ledgers with groups of steps of equal width, and the groups that all of them have."""
    width = max(each.width for each in ledgers)
    wider = [_widened(each, width) for each in ledgers]
    shared = wider[0].group
    for each in wider[1:]:
        shared = np.intersect1d(shared, each.group)
    return shared, wider


def _widened(one: Ledger, width: int) -> Ledger:
    if one.width == width or not len(one.group):
        return one
    group, of = _groups(one.group, width // one.width)
    edges = np.flatnonzero(np.diff(of, prepend=-1))
    culprits = {rank: np.add.reduceat(ns, edges) for rank, ns in one.culprits.items()}
    parts = {name: np.add.reduceat(ns, edges) for name, ns in one.parts.items()}
    return Ledger(
        one.begin, one.end, one.total, width, group, one.start[edges],
        np.add.reduceat(one.duration, edges), np.add.reduceat(one.count, edges),
        np.add.reduceat(one.causes, edges, 0), culprits, parts, one.timeline,
    )  # fmt: skip
