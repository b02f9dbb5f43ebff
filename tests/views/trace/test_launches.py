"""Launches: HTA's for the calls that HTA knows, and every other call that launched something."""

from __future__ import annotations

import hta
import polars as pl
import pytest
import traces
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.launches import launches, summary
from haiprof.views.trace.linking.linked import link

#: The calls whose launches HTA counts.
KNOWN = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
]


@pytest.mark.parametrize(("run", "last"), hta.cases("cuda_kernel_launch_stats"))
def test_is_htas_for_the_calls_that_hta_knows(run: str, last: bool) -> None:
    hta_result = hta.result(run, "cuda_kernel_launch_stats", last) or {}
    for worker in hta.workers(run):
        row = hta_result.get(str(worker.rank))
        found = launches(worker.seen(last)).filter(pl.col("call").cast(pl.String).is_in(KNOWN))
        if row is None:
            assert run in {"hta_cpu_only"}  # HTA has no column of streams there
            continue
        assert found.height == row["n"]
        if not found.height:
            continue
        for name, theirs in (
            ("cpu_duration", "cpu_duration"),
            ("gpu_duration", "gpu_duration"),
            ("delay", "launch_delay"),
        ):
            assert found[name].sum() / 1000 == pytest.approx(row["sums"][theirs])
        summed = summary(found)
        assert summed["short"].sum() == row["short_gpu_kernels"]
        assert summed["slow_calls"].sum() == row["runtime_over_50us"]
        assert summed["long_delays"].sum() == row["launch_delay_over_100us"]


@pytest.mark.parametrize("run", traces.runs())
def test_is_what_the_events_say(run: str) -> None:
    for worker in hta.workers(run):
        calls = {
            correlation: (start, start + duration)
            for correlation, start, duration, category in worker.trace.spans.select(
                "correlation", "start", "duration", "category"
            ).iter_rows()
            if category == "runtime" and correlation
        }
        wanted = sorted(
            (max(start - calls[correlation][1], 0), duration)
            for correlation, start, duration, kind in worker.trace.kernels.select(
                "correlation", "start", "duration", "kind"
            ).iter_rows()
            if kind != "sync" and correlation in calls
        )
        found = launches(worker.whole)
        assert sorted(found.select("delay", "gpu_duration").rows()) == wanted


def test_a_graph_is_distinguished_and_is_one_call() -> None:
    calls = spans_of(
        [
            {"start": 0, "duration": 4, "category": "runtime", "name": name, "correlation": number}
            for number, name in enumerate(
                ["cuLaunchKernelEx", "cudaGraphLaunch", "hipMemcpyAsync"], 1
            )
        ]
    )
    kernels = kernels_of(
        [
            {"start": 10, "duration": 2, "correlation": 1},
            {"start": 13, "duration": 1, "correlation": 2},
            {"start": 15, "duration": 1, "correlation": 2},
            {"start": 2, "duration": 9, "correlation": 3, "kind": "memcpy"},
            {"start": 40, "duration": 9, "correlation": 99},
        ]
    )
    linked = link(calls, kernels)
    found = launches(linked)
    assert found["kind"].to_list() == ["kernel", "graph", "graph", "memory"]
    assert found["delay"].to_list() == [6, 9, 11, 0]
    assert launches(linked, memory=False)["kind"].to_list() == ["kernel", "graph", "graph"]
    summed = {row["kind"]: row for row in summary(found, long_delay=8).rows(named=True)}
    assert (summed["graph"]["count"], summed["graph"]["calls"]) == (2, 1)
    assert (summed["graph"]["long_delays"], summed["kernel"]["long_delays"]) == (2, 0)
    assert (summed["kernel"]["short"], summed["memory"]["short"]) == (1, 0)


def test_the_last_step_can_be_left_out() -> None:
    steps = [
        {"start": at, "duration": 10, "category": "step", "name": f"ProfilerStep#{at}", "step": at}
        for at in (0, 10)
    ]
    calls = [
        {"start": at, "duration": 1, "category": "runtime", "name": "cudaLaunchKernel",
         "correlation": at}
        for at in (5, 15)
    ]  # fmt: skip
    kernels = kernels_of([{"start": 16, "duration": 1, "correlation": at} for at in (5, 15)])
    linked = link(spans_of(steps + calls), kernels)
    assert launches(linked)["correlation"].to_list() == [5, 15]
    assert launches(linked, drop_last_step=True)["correlation"].to_list() == [5]
