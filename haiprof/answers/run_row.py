"""One run summed up in one row: who, what, when, how fast, how busy, and what its hours went to.

Hours are those of its GPUs, and of its ranks: their number times the time that the run lasted, from
the start of its first process to the end of its last one. They are lost to what stops the whole
job, so that an instant counts for all of its GPUs, whichever rank is to blame:

===================== ==========================================================================
down, startup, load,  as :mod:`haiprof.views.run.goodput` defines them. Evaluation is not lost, and
save, data, hang,     of time that was not recorded (``other``) nothing is known
lost, shutdown
exposed_communication of the rest of the steps: communication that hides nothing, by the steps in
                      which kernels were recorded; where none were, the time that the training
                      thread was blocked in collectives
idle                  of the rest of the steps: the GPU had nothing to do, but not while the loop
                      waited for data, by the steps in which kernels were recorded
===================== ==========================================================================

Tests: tests/answers/test_all_runs.py.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from haiprof.answers import findings as finding_answers
from haiprof.answers import ledger as ledger_answers
from haiprof.answers.chosen_ranks import keeping_tables
from haiprof.answers.goodput import Goodput
from haiprof.answers.listed import LIVE, lasted_s, state_of
from haiprof.answers.ranks import Ranks
from haiprof.answers.recorded import RecordedAnswers
from haiprof.common.printable import readable
from haiprof.errors import HaiprofError
from haiprof.findings.endings import newest_of_each_rank
from haiprof.runs import ROLE_NODE, Run
from haiprof.sources.own import read_processes, read_run
from haiprof.views.run.gpu_use import Use, added
from haiprof.views.run.ledger import Ledger
from haiprof.views.run.overview import Summary

#: What hours are lost to, in the order in which they are shown.
CAUSES: Final = (
    "down",
    "startup",
    "load",
    "save",
    "data",
    "hang",
    "lost",
    "shutdown",
    "exposed_communication",
    "idle",
)
_OF_STEPS: Final = ("exposed_communication", "idle")
#: Columns of a row. Shares are of 1, times ns UTC, durations ns; null is not known.
SCHEMA: Final = {
    "run": pl.String(),
    "user": pl.String(),
    "host": pl.String(),
    "command": pl.String(),
    "started": pl.Int64(),
    "ended": pl.Int64(),
    "duration": pl.Int64(),
    "state": pl.String(),
    "running": pl.Boolean(),
    "nodes": pl.Int64(),
    "ranks": pl.Int64(),
    "gpus": pl.Int64(),
    "gpu": pl.String(),
    "steps": pl.Int64(),
    "step_ns": pl.Float64(),
    "step_trend": pl.Float64(),
    "data_share": pl.Float64(),
    "exposed_communication_share": pl.Float64(),
    "gpu_busy_share": pl.Float64(),
    "gpu_power_watts": pl.Float64(),
    "mfu": pl.Float64(),
    "goodput": pl.Float64(),
    "rank_hours": pl.Float64(),
    "rank_hours_lost": pl.Float64(),
    "gpu_hours": pl.Float64(),
    "gpu_hours_lost": pl.Float64(),
    "lost_shares": pl.Struct(dict.fromkeys(CAUSES, pl.Float64())),
    "findings": pl.List(pl.String()),
    "finding": pl.String(),
    "problem": pl.String(),
}
#: Steps of a rank without which there is no trend.
_ENOUGH: Final = 40
_HOUR_NS: Final = 3600 * 10**9
#: Letters of a name, and of a text, from a run.
_NAME: Final = 120
_TEXT: Final = 400
#: Findings that a row names.
_FINDINGS: Final = 20
_COLLECTIVES: Final = ("waiting", "transfer", "unmatched")

Row = dict[str, Any]


def row_of(folder: Path) -> Row:
    """Return the row of a run, as :data:`SCHEMA` has it.

    What is wrong with the run is its ``problem``, in one line; the row has what could be read.
    """
    row: Row = dict.fromkeys(SCHEMA)
    row["run"] = _cut(folder.name, _NAME)
    try:
        _fill(row, folder)
    except HaiprofError as error:
        row["problem"] = _of_error(folder, str(error))
    except (Exception, pl.exceptions.PanicException) as error:  # a run's tables may be anything
        first = next(iter(str(error).splitlines()), "")
        row["problem"] = _cut(f"cannot be summed up: {type(error).__name__}: {first}", _TEXT)
    return _checked(row)


def _checked(row: Row) -> Row:
    """Return the row without what is no number; one bad figure must not cost the others."""
    for name, kind in SCHEMA.items():
        value = row[name]
        if isinstance(value, float) and not math.isfinite(value):
            row[name] = value = None
        try:
            pl.Series([value], dtype=kind, strict=True)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            row[name] = None
    return row


def empty_row(name: str, problem: str) -> Row:
    """Return the row of a run of which nothing can be read."""
    return {**dict.fromkeys(SCHEMA), "run": _cut(name, _NAME), "problem": _cut(problem, _TEXT)}


def _fill(row: Row, folder: Path) -> None:
    run = read_run(folder)
    processes, problems = read_processes(folder)
    run = replace(run, processes=tuple(processes), problems=(*run.problems, *problems))
    row |= _of_documents(run)
    row["problem"] = _of_error(folder, run.problems[0]) if run.problems else None
    # A trace does not say what its run was before and after.
    if processes and all(process.trace is None for process in processes):
        _add_tables(row, run)


def _add_tables(row: Row, run: Run) -> None:
    """Add what the tables of the run say."""
    ranks = Ranks(run, None)
    with keeping_tables(ranks):
        _add_answers(row, ranks)
    if ranks.problems:
        row["problem"] = _of_error(run.folder, next(iter(ranks.problems)))


def _add_answers(row: Row, ranks: Ranks) -> None:
    records = RecordedAnswers(ranks)
    life = records.goodput()
    for its in life.summary.iter_rows(named=True):
        row["duration"], row["goodput"] = its["wall_ns"], its["ettr"]
        row["ended"] = None if row["running"] else its["end"]
        if row["ranks"] is None:  # without a launcher, whoever had steps counts as a rank
            row["ranks"] = its["ranks"]
    for unit in ("rank", "gpu"):
        if row["duration"] is not None and row[f"{unit}s"] is not None:
            row[f"{unit}_hours"] = row[f"{unit}s"] * row["duration"] / _HOUR_NS
    summaries, _ = records.summaries()
    row |= _of_steps(summaries)
    row |= _of_gpus(summaries)
    some = finding_answers.looked_at(ranks, records)
    ledgers = [one.ledger for _, one in ledger_answers.charged(some)]
    row["step_trend"] = _trend(ledgers)
    use = added(s.gpu for s in summaries if s.gpu is not None)
    row["exposed_communication_share"] = exposed = _exposed(use, ledgers)
    row["lost_shares"] = lost = _lost(life, row["data_share"] is not None, exposed, use)
    if lost is not None:
        share = sum(each for each in lost.values() if each is not None)
        for unit in ("rank", "gpu"):
            hours = row[f"{unit}_hours"]
            row[f"{unit}_hours_lost"] = None if hours is None else hours * share
    if (of_run := records.efficiency().run).height:
        row["mfu"] = of_run["mfu"][0]
    found = finding_answers.recorded(ranks, records)
    row["findings"] = [one.kind for one in found[:_FINDINGS]]
    row["finding"] = _cut(found[0].sentence(), _TEXT) if found else None


def _of_documents(run: Run) -> Row:
    """Return what is known without a table."""
    own = [p for p in run.processes if p.role != ROLE_NODE]
    newest = newest_of_each_rank(own)
    running = any(p.state == LIVE for p in run.processes)
    lasted = lasted_s(run.created_ns, run.processes)
    duration = None if lasted is None else round(lasted * 1e9)
    gpus = {
        (process.node, gpu.uuid or gpu.device): gpu.name
        for process in newest or own
        for gpu in process.gpus
    }
    names = Counter(name for name in gpus.values() if name)
    return {
        "run": _cut(run.name, _NAME),
        "user": _cut(run.user, _NAME) or None,
        "host": _cut(run.host, _NAME) or None,
        "command": _cut(" ".join(run.command), _TEXT) or None,
        "started": run.created_ns,
        "ended": None if running or duration is None else run.created_ns + duration,
        "duration": duration,
        "state": state_of(run.folder, run.processes),
        "running": running,
        "nodes": len({p.node for p in run.processes}) or None,
        "ranks": len(newest) or None,
        "gpus": len(gpus) or None,
        "gpu": _cut(names.most_common(1)[0][0], _NAME) if names else None,
    }


def _of_steps(summaries: Sequence[Summary]) -> Row:
    """Return how many steps the rank with most made in all its attempts, and how they went."""
    stepped = [s for s in summaries if s.steps]
    made: Counter[object] = Counter()
    for summary in stepped:
        process = summary.process
        made[(process.node, process.pid) if process.rank is None else process.rank] += summary.steps
    medians = [s.median_ns for s in stepped if s.median_ns is not None]
    total = sum(s.step_ns for s in stepped)
    waits = [s.phase_ns["dataloader"] for s in stepped if "dataloader" in s.phase_ns]
    return {
        "steps": max(made.values(), default=None),
        "step_ns": statistics.median(medians) if medians else None,
        "data_share": sum(waits) / total if waits and total else None,
    }


def _of_gpus(summaries: Sequence[Summary]) -> Row:
    """Return how busy a GPU of the run was, and what it drew, on average; each counts once."""
    sampled = {(s.process.node, name): of for s in summaries for name, of in s.gpu_stats.items()}

    def mean(metric: str) -> float | None:
        found = [of[metric].mean for of in sampled.values() if metric in of]
        return statistics.fmean(found) if found else None

    busy = mean("gpu.util.percent")
    return {
        "gpu_busy_share": None if busy is None else busy / 100,
        "gpu_power_watts": mean("gpu.power.watts"),
    }


def _trend(ledgers: Sequence[Ledger]) -> float | None:
    """Return how much longer a step of the last quarter takes than one of the first, as a share.

    By the medians of each rank, and of those the median: one rank does not make a trend.
    """
    changes = []
    for one in ledgers:
        if one.count.sum() < _ENOUGH or len(one.count) < 4:
            continue
        each = one.duration / np.maximum(one.count, 1)
        quarter = len(each) // 4
        first, last = float(np.median(each[:quarter])), float(np.median(each[-quarter:]))
        if first > 0:
            changes.append(last / first - 1)
    return statistics.median(changes) if changes else None


def _exposed(use: Use, ledgers: Sequence[Ledger]) -> float | None:
    """Return the share of the steps in communication that hides nothing; None: not measured."""
    if use.recorded_ns and use.communication_ns:
        return use.exposed_ns / use.recorded_ns
    blocked = sum(int(one.of(*_COLLECTIVES).sum()) for one in ledgers)
    stepped = sum(one.stepped for one in ledgers)
    return blocked / stepped if blocked and stepped else None


def _lost(
    life: Goodput, data_known: bool, exposed: float | None, use: Use
) -> dict[str, float | None] | None:
    """Return which share of the run's time was lost to what; None: not known."""
    shares: dict[str, float | None] = dict.fromkeys(CAUSES)
    parts = dict(life.parts.select("part", "share").iter_rows())
    if not parts or any(share is None for share in parts.values()):
        return None
    shares |= {cause: parts[cause] for cause in CAUSES if cause not in _OF_STEPS}
    if not data_known:
        shares["data"] = None
    stepping = parts["productive"] + (shares["data"] or 0.0)
    # What is measured in a few steps is taken for all; no more can be lost than there was.
    left = parts["productive"]
    of_steps = {"exposed_communication": exposed, "idle": _idle(use)}
    for cause, share in of_steps.items():
        if share is not None:
            shares[cause] = min(share * stepping, left)
            left -= shares[cause] or 0.0
    return shares


def _idle(use: Use) -> float | None:
    """Return the share of the steps in which a GPU had nothing to do, data loading aside."""
    if not use.recorded_ns:
        return None
    waited = use.idle_ns.get("dataloader", 0)
    return (sum(use.idle_ns.values()) - waited) / use.recorded_ns


def _of_error(folder: Path, line: str) -> str:
    return _cut(line.removeprefix(f"{folder}/"), _TEXT)


def _cut(text: str, most: int) -> str:
    text = readable(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
