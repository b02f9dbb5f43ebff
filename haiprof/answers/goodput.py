"""What a job's whole life was spent on, from the folder of its run alone.

Tests: tests/views/run/test_goodput.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from haiprof import schema
from haiprof.answers import window
from haiprof.findings import endings
from haiprof.runs import ROLE_NODE, ROLE_RANK, Process, Run
from haiprof.sources import arrays, tables
from haiprof.views.intervals import Times
from haiprof.views.run import goodput as views

#: Does work for each of many, in their order.
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[tuple[Any, Any]]]

#: The kind of event of a process that was recorded from its middle on.
ATTACHED: Final = "attach"

_PART_NS = {f"{part}_ns": pl.Int64() for part in views.PARTS}
_SUMMARY = {
    "begin": pl.Int64(),
    "end": pl.Int64(),
    "wall_ns": pl.Int64(),
    "productive_ns": pl.Int64(),
    "ettr": pl.Float64(),
    "ranks": pl.Int64(),
    "attempts": pl.Int64(),
    "died": pl.Int64(),
    "checkpoints": pl.Int64(),
}
_PARTS = {"part": pl.String(), "duration": pl.Int64(), "share": pl.Float64()}
_RESTARTS = {
    "attempt": pl.Int64(),
    "time": pl.Int64(),
    "rank": pl.Int64(),
    "reason": pl.String(),
    "down_ns": pl.Int64(),
    "lost_ns": pl.Int64(),
    "startup_ns": pl.Int64(),
}
_ATTEMPTS = {
    "node": pl.String(),
    "rank": pl.Int64(),
    "pid": pl.Int64(),
    "attempt": pl.Int64(),
    "begin": pl.Int64(),
    "end": pl.Int64(),
    "state": pl.String(),
    "how": pl.String(),
    "kept": pl.Int64(),
    **_PART_NS,
}


class Goodput(NamedTuple):
    """Frames; parts as :mod:`haiprof.views.run.goodput` defines them, times ns UTC, durations ns.

    ``summary`` has one row: ``begin``, ``end``, ``wall_ns``, ``productive_ns``, ``ettr`` (their
    ratio), ``ranks``, ``attempts`` (the most of any rank), ``died`` (processes that did not end in
    order) and ``checkpoints`` (saved). ``parts`` has a row for each part: ``duration`` and
    ``share`` of the wall-clock time. ``timeline`` is the run's, ``attempts`` has a row for each
    process, with how it ended in words (``how``), when the last checkpoint was begun that it lived
    to see saved (``kept``) and the time of its parts. ``restarts`` has a row for each attempt that
    followed another one: when it began (``time``), the ``reason`` in words, the ``rank`` that
    failed first, and what it cost of the run's time: ``lost_ns`` and ``down_ns`` since the attempt
    before began, and ``startup_ns`` until training went on, checkpoints loaded. All are empty for
    traces, which do not cover a whole life.
    """

    summary: pl.DataFrame
    parts: pl.DataFrame
    timeline: pl.DataFrame
    attempts: pl.DataFrame
    restarts: pl.DataFrame


class Seen(NamedTuple):
    """What a job's life depends on, of one process."""

    steps: int
    saves: Times
    last: int | None
    attached: bool
    problems: list[str]
    #: Its time line, if nothing is known of any other process but its own life.
    alone: tuple[views.Life, views.Packed] | None


def goodput(
    run: Run,
    each: Map,
    note: Callable[[list[str]], None],
    aligned: endings.Aligned,
    known: Mapping[Path, Seen],
) -> Goodput:
    """Return what the life of the job was spent on; see :mod:`haiprof.views.run.goodput`.

    If spans were removed to stay below a limit, that is of the time since.

    Args:
        run: the run.
        each: does work for each of many, possibly elsewhere.
        note: called with one line per problem.
        aligned: the clock by which the ends of processes on several nodes are compared.
        known: of processes that were read before, by their folders.
    """
    whole, run = run, window.complete(run, schema.SPANS.name)
    chosen, lives = _lived(run, each, note, known if run is whole else {})
    if not chosen:
        return _nothing()
    attempts = {}
    others = []
    for process, seen in chosen:
        life = lives[process.folder.name]
        if seen.alone is not None and views.decisive(seen.alone[0]) == views.decisive(life):
            attempts[process.folder] = views.unpacked(seen.alone[1])
        else:
            others.append((process, life))
    attempts |= {process.folder: own for (process, _), own in each(_pieces, others)}
    chosen = [(process, seen) for process, seen in chosen if process.folder in attempts]
    if not chosen:
        return _nothing()
    begin, end = min(x.begin for x in lives.values()), max(x.end for x in lives.values())
    by_rank: dict[object, list[tuple[views.Life, views.Pieces]]] = {}
    identities: dict[object, set[object]] = {}
    for process, _ in chosen:
        life = lives[process.folder.name]
        by_rank.setdefault(_who(process), []).append((life, attempts[process.folder]))
        identities.setdefault(_who(process), set()).add(process.identity)
    for several in by_rank.values():
        several.sort(key=lambda pair: pair[0].begin)
    line = views.together(views.attempts(its, begin, end) for its in by_rank.values())
    assert line is not None
    total = views.totals(line)
    wall = end - begin
    summary = {
        "begin": begin,
        "end": end,
        "wall_ns": wall,
        "productive_ns": total["productive"],
        "ettr": total["productive"] / wall if wall else None,
        "ranks": len(by_rank),
        "attempts": max(len(its) for its in identities.values()),
        "died": sum(lives[process.folder.name].died for process, _ in chosen),
        "checkpoints": len(np.unique(np.concatenate([seen.saves for _, seen in chosen]))),
    }
    parts = [
        {"part": part, "duration": ns, "share": ns / wall if wall else None}
        for part, ns in total.items()
    ]
    return Goodput(
        pl.DataFrame([summary], schema=_SUMMARY),
        pl.DataFrame(parts, schema=_PARTS),
        views.timeline(line),
        pl.DataFrame(
            [
                _attempt(process, lives[process.folder.name], attempts[process.folder])
                for process, _ in chosen
            ],
            schema=_ATTEMPTS,
        ),
        _restarts(
            run, {process.folder.name: seen.steps for process, seen in chosen}, line, aligned
        ),
    )


def _restarts(
    run: Run, steps: Mapping[str, int], line: views.Pieces, aligned: endings.Aligned
) -> pl.DataFrame:
    found = endings.restarts(run.processes, steps, aligned)
    begun = [int(line.start[0]), *(each.begin_ns for each in found), line.end]
    rows = []
    for number, each in enumerate(found, 1):
        before = views.totals(views.between(line, begun[number - 1], begun[number]))
        after = views.totals(views.between(line, begun[number], begun[number + 1]))
        rows.append(
            {
                "attempt": number,
                "time": each.begin_ns,
                "rank": each.rank,
                "reason": each.reason,
                "down_ns": before["down"],
                "lost_ns": before["lost"],
                "startup_ns": after["startup"] + after["load"],
            }
        )
    return pl.DataFrame(rows, schema=_RESTARTS)


def lives(
    run: Run, each: Map, note: Callable[[list[str]], None]
) -> list[tuple[Process, views.Life]]:
    """Return the processes of ranks, and others that had steps, with when each lived."""
    chosen, found = _lived(run, each, note, {})
    return [(process, found[process.folder.name]) for process, _ in chosen]


def _lived(
    run: Run, each: Map, note: Callable[[list[str]], None], known: Mapping[Path, Seen]
) -> tuple[list[tuple[Process, Seen]], dict[str, views.Life]]:
    candidates = [p for p in run.processes if p.role != ROLE_NODE and p.trace is None]
    rest = [process for process in candidates if process.folder not in known]
    looks = each(functools.partial(_look, warmup=run.warmup), rest)
    found = {**known, **{process.folder: seen for process, seen in looks}}
    chosen: list[tuple[Process, Seen]] = []
    for process in candidates:
        if (seen := found.get(process.folder)) is None:
            continue
        note(seen.problems)
        if process.started_ns is not None and (process.role == ROLE_RANK or seen.steps):
            chosen.append((process, seen))
    if not chosen:
        return [], {}
    processes, several = zip(*chosen, strict=True)
    return chosen, _lives(processes, several, run.warmup)


def _nothing() -> Goodput:
    schemas = (_SUMMARY, _PARTS, views.TIMELINE_SCHEMA, _ATTEMPTS, _RESTARTS)
    return Goodput(*(pl.DataFrame(schema=each) for each in schemas))


def _who(process: Process) -> object:
    return process.rank if process.rank is not None else (process.node, process.pid)


def _lives(
    processes: Sequence[Process], seen: Sequence[Seen], warmup: float
) -> dict[str, views.Life]:
    """Return by folder when each process lived, and what became of its work."""
    saves = np.sort(np.concatenate([each.saves for each in seen]))
    attached = {p.folder.name for p, its in zip(processes, seen, strict=True) if its.attached}
    ends = {p.folder.name: _end(p, each) for p, each in zip(processes, seen, strict=True)}
    failed: dict[int | None, int] = {}
    for process in processes:
        if process.ending is not None and _broke_off(process):
            at = process.ending.failed_ns
            failed[process.attempt] = min(failed.get(process.attempt, at), at)
    known: set[object] = set()
    same: dict[object, list[Process]] = {}
    for process in processes:
        same.setdefault(_who(process), []).append(process)
    lives = {}
    for process in sorted(processes, key=lambda p: p.started_ns or 0):
        name, started = process.folder.name, process.started_ns or 0
        identity = process.identity
        continued = identity in known
        known.add(identity)
        begin = started
        # What was before a warmup or an attach is not known: it may have trained long since.
        ran_before = continued or warmup > 0 or name in attached
        if process.process_started_ns is not None and not ran_before:
            begin = min(started, process.process_started_ns)
        followed = any(
            (p.started_ns or 0) >= ends[name] and p.identity != identity
            for p in same[_who(process)]
        )
        mine = saves[(saves >= begin) & (saves <= ends[name])]
        lives[name] = views.Life(
            begin,
            max(ends[name], begin),
            loses=_broke_off(process) or followed,
            kept=int(mine[-1]) if len(mine) else None,
            ran_before=ran_before,
            live=process.state == "live",
            died=_broke_off(process),
            failed=failed.get(process.attempt),
        )
    return lives


def _broke_off(process: Process) -> bool:
    """Say whether a process did not end in order."""
    return process.state == "died" or endings.failed(process) or endings.interrupted(process)


def _end(process: Process, seen: Seen) -> int:
    return max(process.ended_ns or seen.last or 0, process.started_ns or 0)


def _attempt(process: Process, life: views.Life, own: views.Pieces) -> dict[str, object]:
    return {
        "node": process.node,
        "rank": process.rank,
        "pid": process.pid,
        "attempt": process.attempt,
        "begin": life.begin,
        "end": life.end,
        "state": process.state,
        "how": process.ending.text if process.ending is not None else None,
        "kept": life.kept,
        **{f"{part}_ns": ns for part, ns in views.totals(own).items()},
    }


def _read(process: Process) -> arrays.Arrays:
    keep = {"category": views.CATEGORIES}
    return arrays.read(process, schema.SPANS, views.COLUMNS, keep)


def _look(process: Process, warmup: float) -> Seen:
    spans = _read(process)
    attached = arrays.read(process, schema.EVENTS, ("time", "kind"), {"kind": (ATTACHED,)})
    found = seen(process, spans, attached.rows > 0, warmup)
    problems = [*spans.problems, *attached.problems]
    if process.state == "live":  # while it hangs, it is sampled all the same
        sampled = tables.read(process, schema.SAMPLES, ("time",))
        last = [found.last, sampled.frame.select(pl.col("time").max()).item()]
        problems += sampled.problems
        known = [at for at in last if at is not None]
        found = found._replace(last=max(known, default=None), alone=None)
    return found._replace(problems=problems)


def seen(process: Process, spans: arrays.Arrays, attached: bool, warmup: float) -> Seen:
    """Return what is known of a process by its spans; of one that lives, samples are later.

    Args:
        process: the process.
        spans: its spans, as :mod:`haiprof.views.run.goodput` has them.
        attached: whether it was recorded from its middle on.
        warmup: of the run, s.
    """
    found = Seen(views.count(spans), views.saves(spans), views.last_end(spans), attached, [], None)
    if process.started_ns is None:
        return found
    life = _lives([process], [found], warmup)[process.folder.name]
    return found._replace(alone=(life, views.packed(views.pieces(spans, life))))


def _pieces(lived: tuple[Process, views.Life]) -> views.Pieces:
    process, life = lived
    return views.pieces(_read(process), life)
