"""Recommendations from deep traces as findings, as those of recorded runs are."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from haiprof.findings.finding import Evidence, Finding, ordered

#: The kind of a finding for each rule of :mod:`haiprof.findings.deep.rules`.
KINDS: Final = {
    "data_loading": "slow_loader",
    "synchronisation": "host_sync",
    "exposed_communication": "exposed_communication",
    "copies": "copies",
    "slow_unit": "slow_unit",
    "startup": "slow_start",
    "python": "host_code",
    "launch": "launch_bound",
    "cpu_operator": "host_code",
    "allocator": "allocator",
    "graph_launch": "launch_bound",
    "other_device": "false_dependency",
    "latency": "false_dependency",
    "incomplete": "incomplete",
    "tensor_cores": "no_tensor_cores",
    "unexplained": "unexplained",
    "memory": "gpu_memory",
    "data_parallel": "data_parallel",
    "straggler": "straggler",
    "waiting": "waiting",
}
#: What a trace shows without doubt, and what it can only bound.
_CONFIDENCE: Final = {"straggler": 0.95, "waiting": 0.5, "unexplained": 0.3, "incomplete": 0.3}


def as_findings(recommendations: pl.DataFrame) -> list[Finding]:
    """Return one finding for each kind and place, over all ranks that have it.

    A rank that waits is not to blame: where a straggler is known, waiting for it is left out.

    Args:
        recommendations: of all ranks, see
            :meth:`haiprof.answers.deep.TraceAnswers.recommendations`.
    """
    rows = recommendations.to_dicts()
    late = any(row["kind"] == "straggler" for row in rows)
    together: dict[tuple[str, str | None, str | None], list[dict[str, Any]]] = {}
    for row in rows:
        if late and row["kind"] == "waiting":
            continue
        key = (row["kind"], row["operator"], row["stack"])
        if row["kind"] == "straggler":
            key = ("straggler", str(row["rank"]), None)
        together.setdefault(key, []).append(row)
    return ordered(_finding(several) for several in together.values())


def _finding(rows: list[dict[str, Any]]) -> Finding:
    worst = max(rows, key=lambda row: row["saves_ns"] or 0)
    kind = KINDS.get(worst["kind"], "unexplained")
    evidence = [Evidence("trace", "in words", worst["evidence"], "")]
    if worst["step_saves_ns"] is not None:
        evidence.append(
            Evidence("trace", "a step is shorter without it, by replay", worst["step_saves_ns"],
                     "ns")
        )  # fmt: skip
    return Finding(
        kind=kind,
        problem=str(worst["problem"])[:1].upper() + str(worst["problem"])[1:],
        advice=str(worst["advice"]),
        ranks=tuple(sorted({row["rank"] for row in rows if row["rank"] is not None})),
        lost_ns=worst["saves_ns"],
        high_ns=worst["saves_ns"],
        share=worst["share"],
        confidence=_CONFIDENCE.get(kind, 0.85),
        since=worst["step"],
        phase=worst["operator"],
        line=worst["stack"],
        evidence=tuple(evidence),
        command="haiprof report",
    )
