"""What each tool answers: our sentences, and data of one run or of several.

Each answer names first what matters most. Durations are ms, shares of one.

Tests: tests/cli/test_mcp.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

import polars as pl

from haiprof.agents.below import Below, Place
from haiprof.agents.texts import Rows, first, lines, shown
from haiprof.analyzer import Analyzer
from haiprof.answers.listed import look_at
from haiprof.common.numbers import milliseconds, percent
from haiprof.common.rank_names import ranks_named
from haiprof.errors import HaiprofError
from haiprof.findings.finding import Evidence, Finding
from haiprof.findings.kinds import KINDS
from haiprof.runs import ROLE_RANK
from haiprof.sources.hangs import read_hangs
from haiprof.sources.own import LATEST_NS, created_ns
from haiprof.views.run.stack_changes import NO_DIFFERENCE
from haiprof.views.trace.compare import TOO_FEW, Comparison

#: Rows of a list.
_RUNS: Final = 50
_FINDINGS: Final = 5
_EVIDENCE: Final = 3
_RANKS: Final = 64
_CHANGES: Final = 12
_SLOWEST: Final = 10
_CAUSES: Final = 12
_PROBLEMS: Final = 3
#: Ranks whose comparison is given, those that differ most.
_COMPARED: Final = 4
#: Parts of a run whose steps are summed up.
_PARTS: Final = 10
_NS_PER_MS: Final = 1e6
_NOTHING: Final = "Nothing costs as much as 5 % of the time for certain"
_SAME: Final = (NO_DIFFERENCE, TOO_FEW, "too few samples")


class Answer(NamedTuple):
    """What a tool answers.

    Attributes:
        says: our own sentences.
        data: everything else.
    """

    says: Sequence[str]
    data: Mapping[str, Any]


def runs(below: Below, contains: str = "") -> Answer:
    """Return the runs below the folder, the newest first."""
    found = [(created_ns(place.folder), shown(place.name), place) for place in below.places()]
    # Of ten thousand only those that are given are looked at more closely.
    chosen = first(sorted((one for one in found if contains in one[1]), key=_newest), _RUNS)
    count = len(chosen.rows) + chosen.left_out
    chosen.rows = [_listed(name, place) for _, name, place in chosen.rows]
    return Answer([f"{counted(count, 'run')}, the newest first"], {"runs": chosen})


def _newest(one: tuple[int, str, Place]) -> tuple[int, str]:
    created, name, _ = one
    return -created, name


def _listed(name: str, place: Place) -> dict[str, Any]:
    row = look_at(place.folder)
    return {
        "run": name,
        "kind": "recorded" if place.traces is None else "imported",
        "created": None if row.created_ns is None else _utc(row.created_ns),
        "lasted_s": row.lasted_s,
        "ranks": row.ranks,
        "steps": row.steps,
        "state": row.state,
    }


def verdict(run: Analyzer, rank: int | None = None) -> Answer:
    """Return what costs most or ended it: who, where, evidence, what to do, how sure."""
    found = run.findings(rank)
    says = [f"{n}. {_headline(one)}" for n, one in enumerate(found[:_FINDINGS], 1)]
    if not found:
        says = [_NOTHING if run.ledger().height else "Nothing was recorded that time is charged to"]
    problems = run.problems()
    data = {
        "run": run.run.name,
        "ranks": len(run.ranks),
        "findings": first([_short(one) for one in found], _FINDINGS),
        **({"problems": first(problems, _PROBLEMS)} if problems else {}),
    }
    return Answer(says, data)


def _headline(one: Finding) -> str:
    """Return a finding without any text of the job."""
    parts = [f"{one.kind}: {KINDS[one.kind].title}"]
    parts += [ranks_named(one.ranks)] if one.ranks else []
    if one.lost_ns is not None and one.share is not None:
        parts.append(f"{percent(one.share)} of the time, {milliseconds(one.lost_ns)}")
    parts += ["ended the job"] if one.ended else []
    return f"{', '.join(parts)}; confidence {percent(one.confidence)}"


def _short(one: Finding) -> dict[str, Any]:
    evidence = [each.sentence().splitlines()[0] for each in one.evidence[:_EVIDENCE]]
    return {
        "kind": one.kind,
        "problem": one.problem,
        "line": one.line,
        "phase": one.phase,
        "since_step": one.since,
        "evidence": evidence,
        "fix": one.advice,
    }


def finding(run: Analyzer, number: int, rank: int | None = None) -> Answer:
    """Return all that is known of one finding, numbered as the verdict has it.

    Raises:
        HaiprofError: there is no such number.
    """
    found = run.findings(rank)
    if not 1 <= number <= len(found):
        there = f"1 to {len(found)}" if found else "none: nothing was found"
        raise HaiprofError(f"number={number}: the findings of this run are {there}")
    one = found[number - 1]
    data = {
        **one.document(),
        "evidence": first(map(_evidence, one.evidence), _RANKS),
        "refuted_by": [{"what": what, "looked": looked} for what, looked in one.refuted_by],
    }
    return Answer([_headline(one)], data)


def _evidence(one: Evidence) -> dict[str, Any]:
    text = isinstance(one.value, str) and "\n" in one.value
    return {
        "source": one.source,
        "metric": one.metric,
        "value": lines(str(one.value)) if text else one.value,
        "unit": one.unit,
        "reference": one.reference,
        "window_ns": one.window,
    }


def ranks(run: Analyzer) -> Answer:
    """Return the ranks, those that are late first: state, steps, and what each is late in."""
    late = {row["rank"]: row for row in reversed(run.imbalance().to_dicts())}
    steps = {row["rank"]: row for row in _by_rank(run.steps()).to_dicts()}
    rows: list[dict[str, Any]] = []
    for process in run.run.processes:
        if process.role != ROLE_RANK:
            continue
        mine, behind = steps.get(process.rank), late.get(process.rank)
        row: dict[str, Any] = {
            "rank": process.rank,
            "node": process.node,
            "attempt": process.attempt,
            "state": process.state,
            "end": None if process.ending is None else process.ending.text,
            "steps": None if mine is None else mine["steps"],
            "median_ms": None if mine is None else mine["median"] / _NS_PER_MS,
        }
        if behind is not None:
            names = ("share", "since", "until", "part", "kind", "evidence")
            row["late_ms"] = behind["late"] / _NS_PER_MS
            row |= {f"late_{name}": behind[name] for name in names}
        rows.append(row)
    rows.sort(key=lambda row: (-row.get("late_ms", 0), -(row["median_ms"] or 0)))
    says = [f"{counted(len(rows), 'rank')}; late: {len(late) or 'none'}"]
    return Answer(says, {"ranks": first(rows, _RANKS)})


def _by_rank(steps: pl.DataFrame) -> pl.DataFrame:
    of = pl.len().alias("steps"), pl.col("duration").median().alias("median")
    return steps.filter(pl.col("duration").is_not_null()).group_by("rank").agg(*of)


def steps(run: Analyzer, rank: int | None = None, step: int | None = None) -> Answer:
    """Return how long steps take and what their time goes to; of one step, only the latter."""
    causes = _causes(run.ledger(rank, step))
    if step is not None:
        return Answer([f"What step {step} took its time for, the most first"], {"causes": causes})
    every = run.steps(rank).filter(pl.col("duration").is_not_null())
    if not every.height:
        return Answer(["No step was recorded"], {"causes": causes})
    took = every["duration"]
    slowest = every.top_k(_SLOWEST, by="duration").sort("duration", descending=True)
    data = {
        "steps": every["step"].n_unique(),
        "median_ms": _ms(took.median()),
        "p95_ms": _ms(took.quantile(0.95)),
        "max_ms": _ms(took.max()),
        "trend": _trend(every),
        "slowest": [
            {"rank": row["rank"], "step": row["step"], "ms": row["duration"] / _NS_PER_MS}
            for row in slowest.to_dicts()
        ],
        "causes": causes,
    }
    return Answer([f"Steps: median {data['median_ms']:.4g} ms, p95 {data['p95_ms']:.4g} ms"], data)


def _trend(every: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the median of each part of the run, by the numbers of the steps."""
    numbered = every.drop_nulls("step").with_columns(pl.col("step").cast(pl.Int64))
    if not numbered.height:
        return []
    low, high = numbered.select(pl.col("step").min(), pl.col("step").max().alias("high")).row(0)
    width = max(1, -(-(high - low + 1) // _PARTS))
    parts = numbered.group_by(((pl.col("step") - low) // width).alias("part")).agg(
        pl.col("step").min().alias("from"),
        pl.col("step").max().alias("to"),
        (pl.col("duration").median() / _NS_PER_MS).alias("median_ms"),
    )
    return parts.sort("part").drop("part").to_dicts()


def _causes(ledger: pl.DataFrame) -> Rows:
    """Return what the time of all ranks together went to."""
    whole = ledger["duration"].sum() or 1
    rows = (
        ledger.with_columns(pl.col("part").cast(pl.String))
        .group_by("cause", "culprit", "part")
        .agg(pl.col("duration").sum())
        .sort("duration", descending=True)
        .with_columns(
            (pl.col("duration") / _NS_PER_MS).alias("ms"),
            (pl.col("duration") / whole).alias("share"),
        )
        .drop("duration")
    )
    return first(rows.to_dicts(), _CAUSES)


def compare(before: Analyzer, after: Analyzer, rank: int | None = None) -> Answer:
    """Return what changed from one run to a later one by more than chance.

    Raises:
        HaiprofError: one is of traces and the other was recorded, or they cannot be compared.
    """
    if before.traced != after.traced:
        raise HaiprofError("compare takes two recorded runs or two of traces, not one of each")
    return (_of_traces if before.traced else _recorded)(before, after, rank)


def _recorded(before: Analyzer, after: Analyzer, rank: int | None) -> Answer:
    found = before.changes(after, rank)
    step = found.phases.filter(pl.col("name") == "step").to_dicts()
    new = found.findings.filter(pl.col("verdict") == "new").height
    says = [_of_step(step[0])] if step else []
    says.append(f"{counted(new, 'finding')} of the later run {'is' if new == 1 else 'are'} new")
    data = {
        "phases": _differing(found.phases),
        "findings": first(found.findings.to_dicts(), _CHANGES),
        "waits": first(found.waits.to_dicts(), _CHANGES),
        "metrics": _differing(found.series),
    }
    return Answer(says, data)


def _of_traces(before: Analyzer, after: Analyzer, rank: int | None) -> Answer:
    found = before.compare(after, rank)
    steps = {label: one.steps.row(0, named=True) for label, one in found.items()}
    order = sorted(steps, key=lambda label: _unlikeness(steps[label]))
    # A label may be the name of a file.
    says = [f"{n}. {_of_step(steps[label])}" for n, label in enumerate(order[:_COMPARED], 1)]
    rows = [_compared(label, found[label]) for label in order]
    return Answer(says, {"ranks": first(rows, _COMPARED)})


def _unlikeness(step: Mapping[str, Any]) -> tuple[bool, float]:
    return step["verdict"] in _SAME, -abs(step["difference"] or 0.0)


def _compared(label: str, one: Comparison) -> dict[str, Any]:
    tables = {"operators": one.operators, "launches": one.launches, "kernels": one.kernels}
    return {
        "of": label,
        "step": one.steps.to_dicts(),
        **{name: _differing(table) for name, table in tables.items()},
    }


def _differing(frame: pl.DataFrame) -> Rows:
    """Return the rows that differ by more than chance; durations as they stand there, in ns."""
    names = [name for name in ("name", "metric", "before", "after", "difference", "uncertainty",
                               "verdict") if name in frame.columns]  # fmt: skip
    changed = frame.filter(pl.col("verdict").is_in(_SAME).not_()).select(names)
    return first(changed.to_dicts(), _CHANGES)


def _of_step(row: Mapping[str, Any]) -> str:
    """Say how a step compares; the verdict is one of a few words of ours."""
    if row["before"] is None or row["after"] is None:
        return "one of the runs has no steps to compare"
    times = f"{milliseconds(row['before'])} before, {milliseconds(row['after'])} after"
    return f"a step took {times}: {row['verdict']}"


def hang(run: Analyzer) -> Answer:
    """Return the hangs that recorders saw while the job ran."""
    hangs, problems = read_hangs(run.run.folder)
    rows = [
        {
            "kind": one.kind,
            "problem": one.problem,
            "line": one.line,
            "ranks": one.ranks,
            "waiting": one.waiting,
            "lasted_s": one.lasts_s,
            "seen": _utc(one.seen_ns),
            "fix": one.advice,
        }
        for one in hangs
    ]
    says = [f"{counted(len(rows), 'hang')} recorded" if rows else "No recorder saw a hang"]
    data = {"hangs": first(rows, _CHANGES), "problems": first(problems, _PROBLEMS)}
    return Answer(says, data)


def _ms(ns: Any) -> float:
    return float(ns) / _NS_PER_MS


def _utc(ns: int) -> str | None:
    """Return a time, None if it is none: a document of a run may say anything."""
    return datetime.fromtimestamp(ns // 10**9, timezone.utc).isoformat() if ns < LATEST_NS else None


def counted(number: int, what: str) -> str:
    """Return a number with a word behind it, in the plural where that is right."""
    return f"{number} {what}{'' if number == 1 else 's'}"
