"""What each nanosecond of each rank went to, see :mod:`haiprof.views.run.ledger`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from haiprof import schema
from haiprof.answers import collectives as collective_answers
from haiprof.answers import goodput, host_clocks, window
from haiprof.answers.rank_columns import WHO
from haiprof.answers.ranks import Ranks
from haiprof.common import asked
from haiprof.findings.recorded.hot import shares_between
from haiprof.runs import ROLE_RANK, Process
from haiprof.sources import tables
from haiprof.sources.arrays import of_frame
from haiprof.views.intervals import Times
from haiprof.views.run import collectives as collective_view
from haiprof.views.run import goodput as goodput_view
from haiprof.views.run import ledger as view
from haiprof.views.run import slow_steps, slower
from haiprof.views.run import stacks as stack_views
from haiprof.views.run.goodput import Life
from haiprof.views.run.hot_lines import LINES_SCHEMA, hot_lines
from haiprof.views.run.rank_parts import most_steps
from haiprof.views.trace.overview import OTHER, PARTS

#: What is known of an operation over all ranks.
_MATCHED: Final = ("group", "op", "source", "target", "sequence", "start", "last", "late_rank")
_MESSAGES: Final = ("send", "recv")
_SAMPLE_COLUMNS: Final = ("time", "metric", "instance", "value", "flags")


class Charged(NamedTuple):
    """One process: its ledger, without its time line, and what only that can say.

    Attributes:
        ledger: see :class:`view.Ledger`.
        lines: see :func:`haiprof.views.run.hot_lines.hot_lines`.
        between: see :func:`haiprof.findings.recorded.hot.shares_between`.
        slow: see :func:`haiprof.views.run.slow_steps.excess`.
        problems: what could not be read.
    """

    ledger: view.Ledger
    lines: pl.DataFrame
    between: dict[str, float]
    slow: view.Numbers
    problems: list[str]


def charged(ranks: Ranks) -> list[tuple[Process, Charged]]:
    """Return what each process of a rank was charged with, and others that had steps; made once."""
    return ranks.once("charged", lambda: _charged(ranks))


def _charged(ranks: Ranks) -> list[tuple[Process, Charged]]:
    # Of another time it is not known what it was spent on, or who ran meanwhile.
    names = (schema.SPANS.name, schema.COLLECTIVES.name, schema.STACKS.name)
    run = window.complete(ranks.run, *names)
    lived = goodput.lives(run, ranks.map, ranks.note)
    several = sum(process.role == ROLE_RANK for process, _ in lived) > 1
    operations = collective_answers.matched(ranks).select(_MATCHED) if several else None
    clocks = host_clocks.by_node(ranks) if several else {}
    most = min(view.MOST_STEPS, most_steps(len(lived)))
    work = [
        (process, (life, operations, clocks.get(process.node), most)) for process, life in lived
    ]
    found = []
    for (process, _), one in ranks.map(_charge, work):
        ranks.note(one.problems)
        found.append((process, one))
    return found


def _charge(
    item: tuple[Process, tuple[Life, pl.DataFrame | None, Callable[[Times], Times] | None, int]],
) -> Charged:
    process, (life, operations, clock, most) = item
    spans = tables.read(process, schema.SPANS, view.COLUMNS, {"category": view.CATEGORIES})
    samples = tables.read(process, schema.SAMPLES, _SAMPLE_COLUMNS, {"metric": [view.CPU_WAIT]})
    pieces = goodput_view.pieces(of_frame(spans.frame), life._replace(loses=False))
    waits, pending = _collectives(process, spans.frame, life, operations, clock)
    own = view.ledger(pieces, spans.frame, waits, pending, samples.frame, most)
    stacks, frames = (tables.read(process, table) for table in (schema.STACKS, schema.FRAMES))
    lines = pl.DataFrame(schema=LINES_SCHEMA)
    if stacks.frame.height:
        tree = stack_views.Tree(frames.frame)
        threads = spans.frame.filter(pl.col("category") == "step")["thread"].value_counts(sort=True)
        training = int(threads["thread"][0]) if threads.height else process.pid
        placed = stack_views.rooted(stacks.frame, tree)
        slow, since = slow_steps.slow(own), slower.since(own)
        lines = hot_lines(placed, tree, own, slow, since, process.pid, training)
    problems = [each for read in (spans, samples, stacks, frames) for each in read.problems]
    logged = any(name.startswith(view.LOGGING) for name in own.parts)
    between = shares_between(lines, logged=logged)
    return Charged(own.without_timeline(), lines, between, slow_steps.excess(own), problems)


def _collectives(
    process: Process,
    spans: pl.DataFrame,
    life: Life,
    operations: pl.DataFrame | None,
    clock: Callable[[Times], Times] | None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return when the training thread was blocked, and what for: see :func:`view.ledger`."""
    columns = (*collective_view.ROW_COLUMNS, "thread")
    rows = tables.read(process, schema.COLLECTIVES, columns)
    threads = spans["thread"].to_numpy()[(spans["category"] == "step").to_numpy()]
    mine = pl.Series(np.isin(rows.frame["thread"].to_numpy(), threads))
    waits = rows.frame.filter(pl.col("side") == "wait", mine).select(
        "start", (pl.col("start") + pl.col("duration")).alias("end")
    )
    own = collective_answers.of_rank(process, rows=rows).frame
    operations_of = own[["group", "op", "source", "target", "sequence", "start", "end"]]
    nobody = (pl.lit(None, pl.Int64()).alias("last"), pl.lit(None, pl.UInt32()).alias("late_rank"))
    if operations is None or not own.height:
        return waits, operations_of.with_columns(nobody)
    begun = operations_of["start"].to_numpy()
    here = operations_of.with_columns(
        _operation().alias("op"),
        pl.when(_is_message()).then("source").alias("source"),
        pl.when(_is_message()).then("target").alias("target"),
        pl.Series("asked", begun if clock is None else clock(begun)),
    )
    low, high = (int(each) for each in _on(clock, life.begin, life.end))
    of_all = operations.filter(pl.col("start").is_between(low, high)).lazy()
    named = of_all.with_columns(
        pl.when(pl.col("op") == "message").then("source").alias("source"),
        pl.when(pl.col("op") == "message").then("target").alias("target"),
    )
    key = ["group", "op", "source", "target", "sequence"]
    last_of = named.drop("start").unique(key, keep="last", maintain_order=True)
    joined = here.lazy().join(last_of, on=key, how="left", nulls_equal=True, maintain_order="left")
    # How much later the last rank came is the same on every clock.
    last = pl.col("start") + (pl.col("last") - pl.col("asked"))
    return waits, joined.select("start", last.alias("last"), "end", "late_rank").collect()


def _is_message() -> pl.Expr:
    return pl.col("op").is_in(_MESSAGES)


def _operation() -> pl.Expr:
    return pl.when(_is_message()).then(pl.lit("message")).otherwise("op")


def _on(clock: Callable[[Times], Times] | None, *times: int) -> Times:
    values = np.array(times, np.int64)
    return values if clock is None else clock(values)


def frame(ranks: Ranks, rank: int | None, step: int | None) -> pl.DataFrame:
    """Return rows of all ranks, or of one; of all the time, or of one step.

    Columns: ``node``, ``rank``, ``pid``, then those of :func:`view.rows`. The time in which a rank
    had no process is in rows without a ``pid``.
    """
    folders = {process.folder for process in ranks.choose(rank)}
    every = [(process, one.ledger) for process, one in charged(ranks)]
    found = [(p, own) for p, own in every if p.folder in folders]
    between = {process.folder: one.between for process, one in charged(ranks)}
    if step is not None:
        known = {n for _, own in found for n in own.group.tolist() if own.width == 1}
        several = any(step // own.width in own.group for _, own in found if own.width > 1)
        if step not in known and not several:
            raise asked.steps(f"{ranks.where}: ledger()", step, known)
        parts = [(p, _of_step(own, step)) for p, own in found]
    else:
        parts = [(p, view.rows(own, between[p.folder])) for p, own in found]
    rows = [pl.DataFrame(schema={**_LEADING, **view.LEDGER_SCHEMA})]
    rows += [_leading(p, p.pid, part) for p, part in parts if part.height]
    if step is None:
        rows += [_leading(p, None, part) for p, part in _without_process(every, found)]
    return pl.concat(rows)


_LEADING: Final = {name: kind for name, kind in WHO.items() if name in ("node", "rank", "pid")}


def _leading(process: Process, pid: int | None, part: pl.DataFrame) -> pl.DataFrame:
    return part.select(
        pl.lit(process.node).cast(_LEADING["node"]).alias("node"),
        pl.lit(process.rank, pl.Int64()).alias("rank"),
        pl.lit(pid, pl.Int64()).alias("pid"),
        pl.all(),
    )


def of_traces(steps: pl.DataFrame, waits: pl.DataFrame, step: int | None) -> pl.DataFrame:
    """Return the ledger of deep traces: the parts of their steps, as the longest of each rank.

    Causes are the parts of :func:`haiprof.views.trace.overview.overview`; of ``communication``,
    what was waiting for other ranks is ``waiting``, the rest ``transfer``, where that is known.

    Args:
        steps: of the traces, with their parts.
        waits: ``steps`` of :meth:`haiprof.answers.deep.TraceAnswers.distributed`.
        step: of this one only.
    """
    if not steps.height or "step" not in steps.columns:
        return pl.DataFrame(schema={**_LEADING, **view.LEDGER_SCHEMA})
    if step is not None:
        steps = steps.filter(pl.col("step") == step)
    known = waits.select(*WHO, "step", "waiting") if waits.height else None
    named = steps.rename({"dataloader": "input"})
    causes = ["input" if part == "dataloader" else part for part in (*PARTS, OTHER)]
    if known is not None:
        waited = pl.min_horizontal("waiting", "communication")
        moved = pl.when(pl.col("waiting").is_not_null()).then(pl.col("communication") - waited)
        named = named.join(known, on=[*WHO, "step"], how="left", nulls_equal=True).with_columns(
            waited.fill_null(0).alias("waiting"),
            moved.fill_null(0).alias("transfer"),
            pl.when(moved.is_null()).then("communication").otherwise(0).alias("communication"),
        )
        causes += ["waiting", "transfer"]
    long = named.unpivot(causes, index=list(_LEADING), variable_name="cause", value_name="ns")
    sums = long.group_by(*_LEADING, "cause", maintain_order=True).agg(pl.col("ns").sum())
    whole = pl.col("ns").sum().over(list(_LEADING))
    rows = sums.with_columns((pl.col("ns") / whole).alias("share")).filter(pl.col("ns") != 0)
    return rows.select(
        *_LEADING,
        "cause",
        pl.lit(None, pl.Int64()).alias("culprit"),
        pl.col("ns").alias("duration"),
        "share",
        pl.lit(None, pl.String()).alias("part"),
    ).sort("rank", "duration", descending=[False, True], maintain_order=True)


def _of_step(own: view.Ledger, step: int) -> pl.DataFrame:
    rows = np.flatnonzero(own.group == step // own.width)
    culprits = {rank: int(ns[rows].sum()) for rank, ns in own.culprits.items()}
    parts = {name: int(ns[rows].sum()) for name, ns in own.parts.items()}
    return view.frame(own.causes[rows].sum(0), culprits, parts)


def _without_process(
    every: Sequence[tuple[Process, view.Ledger]], found: Sequence[tuple[Process, view.Ledger]]
) -> list[tuple[Process, pl.DataFrame]]:
    """Return the time of each rank before its first process, between two, and after the last."""
    begin = min((own.begin for _, own in every), default=0)
    end = max((own.end for _, own in every), default=0)
    by_rank: dict[object, list[tuple[Process, view.Ledger]]] = {}
    for process, own in found:
        key = process.rank if process.rank is not None else process.folder
        by_rank.setdefault(key, []).append((process, own))
    rows = []
    for several in by_rank.values():
        several.sort(key=lambda pair: pair[1].begin)
        by_cause = np.zeros(len(view.CAUSES), np.int64)
        reached = begin
        for number, (_, own) in enumerate(several):
            gap = max(own.begin - reached, 0)
            by_cause[view.CODE["startup" if number == 0 else "down"]] += gap
            reached = max(reached, own.end)
        by_cause[view.CODE["shutdown"]] += max(end - reached, 0)
        if by_cause.any():
            rows.append((several[0][0], view.frame(by_cause, {}, {})))
    return rows
