"""What the ranks of a run asked of each other, and for whom they waited."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

import polars as pl

from haiprof import schema
from haiprof.answers import host_clocks
from haiprof.answers.one_process import read_phase_spans
from haiprof.answers.ranks import Ranks
from haiprof.common.wait_graph import Stuck
from haiprof.runs import ROLE_RANK, Process
from haiprof.sources import tables
from haiprof.views.intervals import Times
from haiprof.views.run import collectives as view
from haiprof.views.run import group_purposes, late_places
from haiprof.views.run import left_waiting as left_waiting_view
from haiprof.views.run import stacks as stack_views

#: The event that says who is in a group (``haiprof/capture/hooks/collectives.py``).
GROUP: Final = "group"
#: Operations of all ranks that are matched at once, each of 150 bytes or so.
MOST_ROWS: Final = 8_000_000
_KEY: Final = ("late_rank", "group", "op")
#: A rank that came this much later than the one before it, ns, is worth a look at what it did.
WORTH_NS: Final = 1_000_000


def of_rank(process: Process, every: int = 1, rows: tables.Read | None = None) -> tables.Read:
    """Return the operations of one process, see :func:`view.by_rank`.

    Args:
        process: whose.
        every: only those whose number is a multiple of it, the same ones on all ranks.
        rows: its table ``collectives``, where at least :data:`view.ROW_COLUMNS` have been read.
    """
    read = rows or tables.read(process, schema.COLLECTIVES, view.ROW_COLUMNS)
    if every > 1:
        read.frame = read.frame.filter(pl.col("sequence") % every == 0)
    events = tables.read(process, schema.EVENTS, ("kind", "text", "attributes"), {"kind": [GROUP]})
    members = _members(events.frame, process.rank)
    found = view.by_rank(read.frame, members)
    return tables.Read(found, read.cut, read.problems + events.problems)


def _members(events: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """Return which rank of each group a process is."""
    places = {
        name: ranks.index(rank) for name, (ranks, _) in _groups(events).items() if rank in ranks
    }
    return pl.DataFrame(
        {"group": list(places), "place": list(places.values())},
        {"group": pl.String(), "place": pl.UInt32()},
    )


def _groups(events: pl.DataFrame) -> dict[str, tuple[list[int], str]]:
    """Return the ranks of each group that a process is in, and the job's words for it."""
    groups = {}
    for name, text in events.select("text", "attributes").iter_rows():
        try:
            about = json.loads(text)
            ranks = [operator.index(rank) for rank in about["ranks"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # of a damaged file
        groups[name] = ranks, str(about.get("purpose", ""))
    return groups


def matched(ranks: Ranks) -> pl.DataFrame:
    """Return the operations of all ranks, matched, see :func:`view.matched`; computed once."""
    return ranks.once("collectives", lambda: _matched(ranks)).clone()


def with_purposes(ranks: Ranks) -> pl.DataFrame:
    """Return :func:`matched`, and what each group is for (:mod:`group_purposes`)."""
    purposes = ranks.once("group_purposes", lambda: _purposes(ranks))
    found = matched(ranks).join(purposes, on="group", how="left", maintain_order="left")
    return found.select("group", "purpose", pl.exclude("group", "purpose"))


def _purposes(ranks: Ranks) -> pl.DataFrame:
    latest = {p.rank: p for p in ranks.run.processes if p.role == ROLE_RANK and p.rank is not None}
    # None are absent: then each need not carry the others' numbers.
    whole = max(latest, default=-1) == len(latest) - 1
    work = functools.partial(_purposes_of, known=None if whole else frozenset(latest))
    found = []
    for _, read in ranks.map(work, list(latest.values())):
        ranks.note(read.problems)
        found.append(read.frame)
    return group_purposes.joined(found)


def _purposes_of(process: Process, known: Set[int] | None) -> tables.Read:
    """Return what those groups are for whose first known rank a process is; None: all are known."""
    read = tables.read(process, schema.EVENTS, ("kind", "text", "attributes"), {"kind": [GROUP]})
    first = {
        name: group_purposes.said(words)
        for name, (ranks, words) in _groups(read.frame).items()
        if min((r for r in ranks if known is None or r in known), default=None) == process.rank
    }
    read.frame = pl.DataFrame(list(first.items()), group_purposes.SCHEMA, orient="row").drop_nulls()
    unsaid = [name for name, purpose in first.items() if purpose is None]
    if unsaid:
        rows, spans = of_rank(process), read_phase_spans(process)
        read.problems += rows.problems + spans.problems
        used = group_purposes.used_for(
            rows.frame.filter(pl.col("group").is_in(unsaid)), spans.frame
        )
        read.frame = pl.concat([read.frame, used])
    return read


def _matched(ranks: Ranks) -> pl.DataFrame:
    processes = [process for process in ranks.run.processes if process.role == ROLE_RANK]
    # The one that ran for longest says how many there are: ranks do about the same.
    processes.sort(key=lambda each: (each.started_ns or 0) - (each.ended_ns or 0))
    clocks = host_clocks.by_node(ranks) if len(processes) > 1 else {}
    attempts: dict[int | None, list[pl.DataFrame]] = {}
    every = 1

    def add(process: Process, rows: pl.DataFrame) -> None:
        rank = pl.lit(process.rank, pl.UInt32()).alias("rank")
        placed = _on(clocks.get(process.node), rows).with_columns(rank)
        attempts.setdefault(process.attempt, []).append(placed)

    for process, read in ranks.map(of_rank, processes[:1]):
        ranks.note(read.problems)
        every = max(1, -(-read.frame.height * len(processes) // MOST_ROWS))
        add(process, read.frame.filter(pl.col("sequence") % every == 0))
    if every > 1:
        ranks.note([f"collectives: there are so many that one in {every} of each group is matched"])
    for process, read in ranks.map(functools.partial(of_rank, every=every), processes[1:]):
        ranks.note(read.problems)
        add(process, read.frame)
    found = [view.matched(pl.concat(rows)) for rows in attempts.values()]
    whole = pl.concat(found) if found else pl.DataFrame(schema=view.COLLECTIVES_SCHEMA)
    return whole.sort("start", maintain_order=True)


def _on(clock: Callable[[Times], Times] | None, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with their times on the reference's clock."""
    if clock is None:
        return rows
    times = {
        name: pl.Series(clock(rows[name].fill_null(0).to_numpy())) for name in ("start", "end")
    }
    return rows.with_columns(
        pl.when(pl.col(name).is_not_null()).then(values).alias(name)
        for name, values in times.items()
    )


def waits(ranks: Ranks) -> pl.DataFrame:
    """Return for whom the others waited, and what those did instead; see :func:`view.waits`.

    Further columns: ``phase`` and ``line`` in which most of that time went, null where neither is
    known.
    """
    operations = matched(ranks)
    return ranks.once("waits", lambda: _waits(ranks, operations)).clone()


def _waits(ranks: Ranks, operations: pl.DataFrame) -> pl.DataFrame:
    found = view.waits(operations)
    worth = operations.filter(pl.col("late") >= WORTH_NS)
    late: dict[int, dict[tuple[str, str], list[tuple[int, int]]]] = {}
    columns = worth.select("late_rank", "group", "op", "last", "late")
    for rank, group, op, last, ns in columns.iter_rows():
        late.setdefault(rank, {}).setdefault((group, op), []).append((last - ns, last))
    latest = {p.rank: p for p in ranks.run.processes if p.role == ROLE_RANK}
    # The tables of another node's ranks are on its own clock.
    several = bool(host_clocks.by_node(ranks)) if len(latest) > 1 else False
    pairs = [(latest[rank], of_rank) for rank, of_rank in late.items() if rank in latest]
    places = [pl.DataFrame(schema={**dict.fromkeys(_KEY, pl.String()), **late_places.SCHEMA})]
    places[0] = places[0].cast({"late_rank": pl.UInt32})
    for (process, _), read in ranks.map(_places, [] if several else pairs):
        ranks.note(read.problems)
        late_rank = pl.lit(process.rank, pl.UInt32()).alias("late_rank")
        places.append(read.frame.select(late_rank, pl.all()))
    return found.join(pl.concat(places), on=_KEY, how="left", maintain_order="left")


def left_waiting(ranks: Ranks) -> tuple[Stuck, str | None] | None:
    """Return for whom the others waited in vain as the job ended, and the line that one was at.

    None: nobody did, or that is not known; no line: it was not sampled.
    """
    return ranks.once("left_waiting", lambda: _left_waiting(ranks))


def _left_waiting(ranks: Ranks) -> tuple[Stuck, str | None] | None:
    latest: dict[int, Process] = {}
    for process in sorted(ranks.run.processes, key=lambda p: (p.attempt or 0, p.started_ns or 0)):
        if process.role == ROLE_RANK and process.rank is not None:
            latest[process.rank] = process
    progress, ends = {}, []
    for process, read in ranks.map(_newest, list(latest.values())):
        ranks.note(read.problems)
        progress[process.rank or 0] = left_waiting_view.progress(read.frame)
        ends += (
            read.frame.filter(pl.col("failed") == 1)
            .select("start", (pl.col("start") + pl.col("duration")).alias("end"))
            .rows()
        )
    found = left_waiting_view.left_waiting(progress)
    if found is None:
        return None
    window = min(start for start, _ in ends), max(end for _, end in ends)
    first = latest[found.culprits[0]]
    key = found.wait.group or "", found.wait.operation
    ((_, places),) = ranks.map(_places, [(first, {key: [window]})])
    ranks.note(places.problems)
    return found, next(iter(places.frame["line"]), None)


def _newest(process: Process) -> tables.Read:
    """Return the newest operations of each group that one process asked for."""
    read = tables.read(process, schema.COLLECTIVES, left_waiting_view.COLUMNS)
    read.frame = read.frame.filter(pl.col("sequence") == pl.col("sequence").max().over("group"))
    return read


def _places(
    item: tuple[Process, Mapping[tuple[str, str], Sequence[tuple[int, int]]]],
) -> tables.Read:
    """Return where one rank was while the others waited for it: a row per group and operation."""
    process, late = item
    spans = read_phase_spans(process)
    stacks, frames = (tables.read(process, table) for table in (schema.STACKS, schema.FRAMES))
    tree = stack_views.Tree(frames.frame)
    samples = stack_views.placed(stacks.frame, tree, spans.frame)
    samples = stack_views.of_threads(samples, spans.frame, process.pid, "training")
    described = stack_views.described(samples, tree)
    rows = [
        late_places.place(intervals, spans.frame, described).select(
            pl.lit(group).alias("group"), pl.lit(op).alias("op"), pl.all()
        )
        for (group, op), intervals in late.items()
    ]
    return tables.Read(
        pl.concat(rows), spans.cut, spans.problems + stacks.problems + frames.problems
    )
