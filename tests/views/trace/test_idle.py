"""Idle time of streams: HTA's, the events' own, and against brute force."""

from __future__ import annotations

import hta
import polars as pl
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.idle import CATEGORIES, gaps, idle
from haiprof.views.trace.linking.linked import link

#: Where HTA is wrong even on times rounded its way, and why.
WRONG = {
    ("dlrm_8rank", 1): "what has no launch counts as launched by the first row of the file",
    ("dlrm_8rank", 3): "what has no launch counts as launched by the first row of the file",
    ("hta_mtia_inference", 0): "host calls that name a stream count as work of the device",
    ("hta_trace_diff_test", 1): "a gap begins when the activity ends that began last, though "
    "others of the stream still run",
    ("tl_b200_eager", 0): "as in hta_trace_diff_test",
    ("tl_h100_Qwen_Qwen1_5_0_5B_Chat", 0): "rounding makes kernels of negative length",
    ("tl_h100_facebook_timesformer_base_finetuned_k400", 0): "the same",
    ("tl_mi300_resnet_act_checkpoint", 0): "the same",
}

#: Traces without streams, and why.
NOTHING = {
    "hta_cpu_only": "no device",
    "hta_cupti_counters": "no activity was recorded, only ranges of counters",
}


@pytest.mark.parametrize(("run", "last"), hta.cases("idle_time_breakdown"))
def test_is_htas_on_what_hta_sees(run: str, last: bool) -> None:
    theirs = hta.result(run, "idle_time_breakdown", last)
    for worker in hta.workers(run):
        found = {
            (row["stream"], row["category"]): row
            for row in idle(worker.seen(last)).rows(named=True)
        }
        rows = [
            row for row in (theirs or {"breakdown": ()})["breakdown"] if row["rank"] == worker.rank
        ]
        if run in NOTHING:
            assert not rows
            assert not found
            continue
        assert rows
        equal = [
            hta.close(found[row["stream"], row["idle_category"]]["idle"] / 1000, row["idle_time"])
            for row in rows
        ]
        assert all(equal) is ((run, worker.rank) not in WRONG)
        if all(equal):
            told_idle = sum(row["idle_time"] for row in rows)
            assert sum(row["idle"] for row in found.values()) / 1000 == pytest.approx(told_idle)


@pytest.mark.parametrize("run", traces.runs())
def test_is_what_the_events_say(run: str) -> None:
    for worker in hta.workers(run):
        rows = worker.trace.kernels.filter(pl.col("kind").is_in(["kernel", "memcpy", "memset"]))
        launches = {
            correlation: start
            for correlation, start, category in worker.trace.spans.select(
                "correlation", "start", "category"
            ).iter_rows()
            if category == "runtime" and correlation
        }
        wanted: dict[tuple[int, str], int] = {}
        reached: dict[int, int] = {}
        activities = (
            rows.select("stream", "start", "duration", "correlation").sort("start").iter_rows()
        )
        for stream, start, duration, correlation in activities:
            before = reached.get(stream)
            if before is not None and start > before:
                launch = launches.get(correlation)
                if launch is not None and launch > before:
                    category = "host_wait"
                else:
                    category = "kernel_wait" if start - before < 30_000 else "other"
                wanted[stream, category] = wanted.get((stream, category), 0) + start - before
            reached[stream] = max(reached.get(stream, 0), start + max(duration, 0))
        found = idle(worker.whole)
        assert found.height == len(CATEGORIES) * len(reached)
        durations = {
            (row["stream"], row["category"]): row["idle"] for row in found.rows(named=True)
        }
        assert {key: time for key, time in durations.items() if time} == wanted


piece = st.tuples(st.integers(0, 60), st.integers(0, 8), st.integers(0, 1), st.integers(0, 70))


@given(st.lists(piece, max_size=12))
def test_gaps_and_work_of_a_stream_sum_to_its_span(drawn: list[tuple[int, int, int, int]]) -> None:
    kernels = kernels_of(
        [
            {"start": s, "duration": d, "stream": stream, "correlation": i + 1}
            for i, (s, d, stream, _) in enumerate(drawn)
        ]
    )
    calls = spans_of(
        [
            {"start": at, "duration": 1, "category": "runtime", "name": "cudaLaunchKernel",
             "correlation": i + 1}
            for i, (_, _, _, at) in enumerate(drawn)
        ]
    )  # fmt: skip
    linked = link(calls, kernels)
    found = gaps(linked, kernel_delay=5)
    for stream in {stream for _, _, stream, _ in drawn}:
        mine = [(s, s + d) for s, d, which, _ in drawn if which == stream]
        span = max(e for _, e in mine) - min(s for s, _ in mine)
        idle_time = found.filter(pl.col("stream") == stream)["gap"].sum()
        assert idle_time == span - hta.union(mine)
    for row in found.rows(named=True):
        late = drawn[row["row"]][3] > row["start"]
        expected = "host_wait" if late else "kernel_wait" if row["gap"] < 5 else "other"
        assert row["category"] == expected
    summed = idle(linked, kernel_delay=5)
    assert summed["idle"].sum() == found["gap"].sum()
    assert summed["count"].sum() == found.height
