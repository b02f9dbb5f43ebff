"""Temporal breakdown: HTA's where it is right, the events' own numbers, and parts that sum up."""

from __future__ import annotations

import hta
import polars as pl
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.linking.linked import link
from haiprof.views.trace.temporal import temporal

#: Where HTA is wrong even on times rounded its way, and why.
WRONG = {
    "hta_cp_alexnet": "waits of the host (cuda_sync) count as work of the GPU",
    "hta_cp_event_sync": "waits of the host (cuda_sync) count as work of the GPU",
    "hta_cp_simple_add": "waits of the host (cuda_sync) count as work of the GPU",
    "hta_mtia_inference": "host calls that name a stream count as work of the device",
    "hta_triton": "an operator that names a stream counts as a kernel",
    "tl_b200_eager": "an operator that names a stream counts as a kernel, and the multimem "
    "all-reduce as computation",
    "tl_h100_Qwen_Qwen1_5_0_5B_Chat": "rounding makes kernels of negative length; HTA fails",
    "tl_h100_facebook_timesformer_base_finetuned_k400": "rounding makes kernels of negative length",
    "tl_mi300_resnet_act_checkpoint": "rounding makes kernels of negative length",
}
NONE = {
    "hta_cpu_only": "no device",
    "hta_cupti_counters": "no activity was recorded, only ranges of counters",
}


@pytest.mark.parametrize(("run", "last"), hta.cases("temporal_breakdown"))
def test_is_htas_on_what_hta_sees(run: str, last: bool) -> None:
    for worker in hta.workers(run):
        found = temporal(worker.seen(last)).rows(named=True)
        if run in NONE:
            assert not found
            assert not temporal(worker.whole).height
            continue
        hta_rows = hta.result(run, "temporal_breakdown", last)
        rows = [row for row in hta_rows or () if row["rank"] == worker.rank]
        equal = [
            hta.close(mine[name] / 1000, row[f"{theirs}_time(us)"])
            for mine, row in zip(found, rows, strict=False)
            for name, theirs in (
                ("idle", "idle"),
                ("compute", "compute"),
                ("non_compute", "non_compute"),
                ("span", "kernel"),
            )
        ]
        # An entry listed as wrong must be: a list that is never wrong would hide it.
        assert (bool(equal) and all(equal)) is (run not in WRONG)


@pytest.mark.parametrize("run", traces.runs())
def test_is_what_the_events_say(run: str) -> None:
    for worker in hta.workers(run):
        busy = hta.activities(worker, "kernel", "memcpy", "memset")
        found = temporal(worker.whole)
        if not busy:
            assert found.height == 0
            continue
        (row,) = found.rows(named=True)
        computing = [
            (start, end)
            for start, end, name in hta.activities(worker, "kernel")
            if not hta.communicates(name)
        ]
        span = max(end for _, end, _ in busy) - min(start for start, _, _ in busy)
        assert row["span"] == span
        assert row["idle"] == span - hta.union((start, end) for start, end, _ in busy)
        assert row["compute"] == hta.union(computing)
        assert row["non_compute"] == row["communication"] + row["memory"]
        assert row["compute"] + row["non_compute"] + row["idle"] == span
        assert row["idle_ratio"] == pytest.approx(row["idle"] / span)


KIND = {"gemm": "kernel", "ncclDevKernel": "kernel"}
pieces = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 12),
        st.sampled_from(["gemm", "memcpy", "memset", "sync", "ncclDevKernel"]),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=12,
)


@given(pieces)
def test_parts_of_each_device_sum_to_its_span(drawn: list[tuple[int, int, str, int]]) -> None:
    kernels = kernels_of(
        [
            {"start": s, "duration": d, "kind": KIND.get(k, k), "name": k, "device": device}
            for s, d, k, device in drawn
        ]
    )
    found = temporal(link(spans_of([]), kernels))
    for row in found.rows(named=True):
        mine = [
            (s, s + d, k) for s, d, k, device in drawn if device == row["device"] and k != "sync"
        ]

        def at(instant: int, *kinds: str, mine: list[tuple[int, int, str]] = mine) -> bool:
            return any(s <= instant < e and k in kinds for s, e, k in mine)

        low, high = min(s for s, _, _ in mine), max(e for _, e, _ in mine)
        compute = sum(at(t, "gemm") for t in range(low, high))
        communication = sum(at(t, "ncclDevKernel") and not at(t, "gemm") for t in range(low, high))
        memory = sum(
            at(t, "memcpy", "memset") and not at(t, "gemm", "ncclDevKernel")
            for t in range(low, high)
        )
        assert (row["compute"], row["communication"], row["memory"]) == (
            compute,
            communication,
            memory,
        )
        assert row["span"] == high - low == compute + row["non_compute"] + row["idle"]
    assert found["device"].to_list() == sorted({d for _, _, k, d in drawn if k != "sync"})


def test_a_trace_without_activities_has_no_rows() -> None:
    found = temporal(link(spans_of([]), kernels_of([])))
    assert found.height == 0
    assert found.schema["idle_ratio"] == pl.Float64
