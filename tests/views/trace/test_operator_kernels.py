"""The kernels of operators: by their own thread, whatever other threads do meanwhile."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import hta
import numpy as np
import polars as pl
from trace_rows import kernel, span, table

from haiprof.views.trace.linking.linked import link
from haiprof.views.trace.operator_kernels import ARROW, operator_kernels


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return frame.with_columns(pl.col("operator").cast(pl.String)).select(columns).rows()


def test_sequences_and_their_delays() -> None:
    spans = [
        span("op", "aten::linear", 0, 100),
        span("op", "aten::addmm", 10, 90),
        span("runtime", "cudaLaunchKernel", 20, 25, correlation=1),
        span("runtime", "cuLaunchKernelEx", 30, 35, correlation=2),
        # A later operator of another thread is around no call of this one.
        span("op", "aten::copy_", 15, 95, thread=2),
        span("op", "aten::addmm", 200, 300),
        span("runtime", "cudaLaunchKernel", 240, 245, correlation=3),
        span("runtime", "cudaLaunchKernel", 250, 255, correlation=4),
        span("op", "custom::graph", 400, 500),
        # One call launches two kernels.
        span("runtime", "cudaGraphLaunch", 410, 415, correlation=5),
        span("runtime", "cudaLaunchKernel", 600, 605, correlation=6),
    ]
    ran = [
        kernel("fill", 50, 60, correlation=1),
        kernel("gemm", 60, 90, correlation=2),
        kernel("fill", 340, 350, correlation=3),
        kernel("gemm", 350, 390, correlation=4),
        kernel("second", 460, 470, correlation=5),
        # As far as two clocks are apart, it began before its launch.
        kernel("first", 405, 420, correlation=5),
        kernel("outside", 700, 710, correlation=6),
        kernel("unknown", 800, 810),
    ]
    found = operator_kernels(link(table("spans", spans), table("kernels", ran)))
    columns = ("operator", "kernels", "launches", "count", "call_delay", "launch_delay", "device")
    assert rows(found, *columns) == [
        ("aten::addmm", "fill -> gemm", 2, 2, (10 + 40) / 2, (30 + 100) / 2, 90),
        ("custom::graph", "first -> second", 2, 1, 10.0, 0.0, 25),
    ]
    assert rows(found, "call_delay_max", "launch_delay_max") == [(40, 100), (10, 0)]


def test_counts_and_delays_of_a_real_trace_are_those_of_its_events() -> None:
    (worker,) = hta.workers("hta_nccl_data")
    linked = worker.whole
    calls: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    is_op = linked.of("op")
    names = linked.activities["name"].cast(pl.String).to_list()
    begun = linked.activities["start"].to_list()
    for activity in np.flatnonzero(linked.busy & (linked.runtime >= 0)).tolist():
        at = call = int(linked.runtime[activity])
        while at >= 0 and not is_op[at]:
            at = int(linked.parent[at])
        if at >= 0:
            calls[at].append((int(linked.start[call]), begun[activity], names[activity]))
    wanted: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    ops = linked.ops["name"].cast(pl.String).to_list()
    for at, launched in calls.items():
        (first, ran, _), *_ = launched = sorted(launched)
        sequence = ARROW.join(name for _, _, name in launched)
        wanted[ops[at], sequence].append((first - int(linked.start[at]), max(ran - first, 0)))
    found = operator_kernels(linked)
    assert found.height == len(wanted) > 10
    for row in found.iter_rows(named=True):
        delays = wanted[row["operator"], row["kernels"]]
        assert row["count"] == len(delays)
        for column, each in zip(("call_delay", "launch_delay"), zip(*delays, strict=True),
                                strict=True):  # fmt: skip
            assert np.isclose(row[column], np.mean(each))
            assert row[f"{column}_max"] == max(each)


def test_without_operators_there_is_nothing() -> None:
    empty = operator_kernels(link(table("spans", []), table("kernels", [kernel("k", 0, 1)])))
    assert empty.height == 0
