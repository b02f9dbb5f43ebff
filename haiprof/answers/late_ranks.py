"""Which rank is late: combines the parts of all ranks' steps, and finds explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from haiprof.answers.rank_columns import WHO, session_of
from haiprof.runs import Process
from haiprof.views.intervals import Times
from haiprof.views.run import evidence, imbalance
from haiprof.views.run.rank_parts import RankParts
from haiprof.views.run.step_parts import BACKWARD, SYNC
from haiprof.views.trace.overview import OTHER
from haiprof.views.trace.overview import PARTS as TRACE_PARTS

#: At most this many late ranks, the worst, are explained.
_EXPLAINED = 16
#: … by how they differ from so many others: of so few the usual value is known.
_COMPARED = 128


class AllParts(NamedTuple):
    """The parts of the steps of all ranks, by label, on one clock.

    ``lasted`` has the steps of each rank, ascending, and how long each took (ns).
    """

    processes: dict[str, Process]
    parts: RankParts
    lasted: dict[str, tuple[Times, Times]]


def at_once(processes: Mapping[str, Process], steps: pl.DataFrame) -> list[dict[str, Process]]:
    """Return which processes of one session are to be compared with each other, by label.

    Ranks belong together. Files without a rank may be of anything: those that overlap in time
    belong together.

    Args:
        processes: the process of each label.
        steps: of all traces, see :func:`haiprof.views.trace.overview.overview`.
    """
    groups = [{label: each for label, each in processes.items() if each.rank is not None}]
    end = 0
    for label, begins, ends in _times(processes, steps):
        if begins >= end:
            groups.append({})
        groups[-1][label] = processes[label]
        end = max(end, ends)
    return [group for group in groups if len(group) > 1]


def _times(processes: Mapping[str, Process], steps: pl.DataFrame) -> list[tuple[str, int, int]]:
    """Return when the steps of each process without a rank began and ended, in order, ns."""
    if not steps.height or "step" not in steps.columns:
        return []
    ends = (pl.col("start") + pl.col("duration")).max().alias("end")
    lasted = steps.group_by("node", "rank", "pid", "session").agg(pl.col("start").min(), ends)
    times = {
        (node, pid, session): (start, end)
        for node, rank, pid, session, start, end in lasted.iter_rows()
        if rank is None
    }
    found = [
        (label, *times[place])
        for label, each in processes.items()
        if each.rank is None and (place := (each.node, each.pid, session_of(each))) in times
    ]
    return sorted(found, key=lambda one: one[1])


def traced_parts(
    processes: Mapping[str, Process], steps: pl.DataFrame, waits: pl.DataFrame
) -> RankParts:
    """Return the parts of the steps of traces of one session, without waiting, by label.

    Args:
        processes: the process of each label.
        steps: of all traces, see :func:`haiprof.views.trace.overview.overview`.
        waits: of all traces, see :func:`haiprof.views.trace.distributed.transfer`.
    """
    labels = pl.DataFrame(
        {
            "label": list(processes),
            "node": [p.node for p in processes.values()],
            "rank": [p.rank for p in processes.values()],
            "pid": [p.pid for p in processes.values()],
            "session": [session_of(p) for p in processes.values()],
        },
        {"label": pl.String, "node": pl.String, "rank": pl.Int64, "pid": pl.Int64,
         "session": pl.UInt32},
    )  # fmt: skip
    parts = RankParts()
    if not steps.height or "step" not in steps.columns:
        return parts
    node = pl.col("node").cast(pl.String)
    # In a trace of a pipeline alone, a step is mostly waiting, of unknown duration.
    known = pl.sum_horizontal(TRACE_PARTS).sum().over(list(WHO)) > 0
    mine = steps.drop("duration").filter(known).with_columns(node)
    mine = mine.join(labels, on=list(WHO), nulls_equal=True)
    moved = (pl.col("transfer") + pl.col("unmatched")).alias("moved")
    moving = waits.with_columns(node).select(*WHO, "step", moved).drop_nulls("step")
    mine = mine.join(moving, on=[*WHO, "step"], how="left", nulls_equal=True)
    # Waiting comes first in a collective, and may be hidden behind kernels.
    own = pl.min_horizontal("communication", pl.col("moved").fill_null(0))
    long = mine.with_columns(own.alias("communication")).unpivot(
        (*TRACE_PARTS, OTHER), index=["label", "step"], variable_name="part",
        value_name="duration",
    )  # fmt: skip
    none = pl.lit(None, pl.Int64())
    columns = long.select(
        "label", pl.col("step").cast(pl.Int64), "part", "duration",
        none.alias("start"), none.alias("end"),
    )  # fmt: skip
    for (label,), frame in columns.partition_by("label", as_dict=True).items():
        parts.add(str(label), frame)
    return parts


def leave_waiting_out(parts: RankParts) -> None:
    """Take from the parts of a recorded run what ranks waited for each other."""
    # Waiting that all ranks recorded is not their own work; if one lacks it, it is in backward.
    parts.fold(SYNC, BACKWARD)
    parts.leave_waiting_out()


def traced_at_once(
    processes: dict[str, Process], steps: pl.DataFrame, waits: pl.DataFrame
) -> AllParts:
    """Return the parts of the steps of traces of one session, and how long the steps lasted.

    Args:
        processes: the process of each label.
        steps: see :func:`traced_parts`.
        waits: likewise.
    """
    parts = traced_parts(processes, steps, waits)
    node = pl.col("node").cast(pl.String)
    lasted = {}
    for label, process in processes.items():
        who = (process.node, process.rank, process.pid, session_of(process))
        mine = pl.all_horizontal(
            (node if name == "node" else pl.col(name)).eq_missing(pl.lit(value))
            for name, value in zip(WHO, who, strict=True)
        )
        its = steps.filter(mine).select("step", "duration").drop_nulls().unique("step").sort("step")
        lasted[label] = its["step"].cast(pl.Int64).to_numpy(), its["duration"].to_numpy()
    return AllParts(processes, parts, lasted)


def of_run(
    processes: Mapping[str, Process],
    parts: RankParts,
    sampled: Callable[[Sequence[evidence.Window], Sequence[Process]], Sequence[evidence.Means]],
    gpus: Callable[[Process], Sequence[str]],
) -> pl.DataFrame:
    """Return which ranks of a recorded run are late, the worst of them with evidence.

    Args:
        processes: the process of each label.
        parts: those of each, on one clock.
        sampled: samples of some processes in windows of time; only called if a rank is late.
        gpus: the GPUs of a process as its node names them.
    """
    leave_waiting_out(parts)
    found = imbalance.imbalance(parts)
    rows = found.to_dicts()
    lasting = [parts.spanned(row["rank"], row["since"], row["until"]) for row in rows[:_EXPLAINED]]
    if any(steps for *_, steps in lasting):
        late = [row["rank"] for row in rows[:_EXPLAINED]]
        compared = {label: processes[label] for label in _compared(late, list(processes))}
        places = {
            label: evidence.Place(p.node, p.rank, p.pid, gpus(p)) for label, p in compared.items()
        }
        read = sampled([(low, high) for low, high, _ in lasting], list(compared.values()))
        for row, (low, high, steps), means in zip(rows, lasting, read, strict=False):
            if steps:
                _explain(row, means, places, high - low, int(row["late"]) * steps)
    lines = pl.Series("evidence", [row.get("evidence") for row in rows], pl.String())
    kinds = pl.Series("kind", [row["kind"] for row in rows], pl.String())
    return in_columns(found.with_columns(kinds, lines), processes)


def _compared(late: Sequence[str], labels: Sequence[str]) -> Sequence[str]:
    """Return the late ranks and those that they are compared with: all, or some evenly spread."""
    if len(labels) <= _COMPARED:
        return labels
    spread = np.linspace(0, len(labels) - 1, _COMPARED).round().astype(int)
    return [*dict.fromkeys([*late, *(labels[place] for place in spread.tolist())])]


def _explain(
    row: dict[str, Any],
    sampled: evidence.Means,
    places: Mapping[str, evidence.Place],
    lasted: int,
    late: int,
) -> None:
    """Add to a row what was sampled while the rank was late, and correct its kind by it."""
    others = [place for label, place in places.items() if label != row["rank"]]
    lines, contended = evidence.evidence(sampled, places[row["rank"]], others, lasted, late)
    row["evidence"] = "; ".join(lines) or None
    if contended and row["kind"] in ("compute", "host", "other"):
        row["kind"] = "contention"


def in_columns(found: pl.DataFrame, processes: Mapping[str, Process]) -> pl.DataFrame:
    """Put the columns of their processes in front of late ranks, and a sentence behind them."""
    labels = found["rank"].to_list()
    lines = [
        imbalance.words(row, label[0].upper() + label[1:])
        for row, label in zip(found.to_dicts(), labels, strict=True)
    ]
    rows = found.drop("rank").with_columns(pl.Series("words", lines, pl.String()))
    of_rows = [processes[label] for label in labels]
    who = [(p.node, p.rank, p.pid, session_of(p)) for p in of_rows]
    return pl.concat([pl.DataFrame(who, WHO, orient="row"), rows], how="horizontal")
