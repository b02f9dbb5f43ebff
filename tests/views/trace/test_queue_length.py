"""Queue lengths: HTA's as far as its sort decides, and against counting at every instant."""

from __future__ import annotations

import dataclasses

import hta
import polars as pl
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.linking.linked import Linked, link
from haiprof.views.trace.queue_length import full_queue, queue_length, summary

#: Calls that HTA knows to launch something.
KNOWN = [
    *("cudaMemsetAsync", "cudaMemcpyAsync", "cudaLaunchKernel", "cudaLaunchKernelExC"),
    *("cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel", "hipExtModuleLaunchKernel"),
    *("hipMemsetAsync", "hipMemcpyAsync", "hipMemcpyWithStream"),
    "runFunction - job_prep_and_submit_for_execution",
]


def known(linked: Linked) -> Linked:
    """The trace without what calls launched that HTA does not know."""
    names = linked.ops["name"].cast(pl.String)
    rows = linked.ops.with_row_index("row").filter(names.is_in(KNOWN))["row"]
    return dataclasses.replace(
        linked, activities=linked.activities.with_columns(
            pl.when(pl.col("runtime").is_in(rows.implode())).then(pl.col("runtime"))
        )
    )  # fmt: skip


def ends_first(series: pl.DataFrame) -> float:
    """The mean length if, at one instant, all that begins left the queue before launches join."""
    change = (pl.col("length") - pl.col("length").shift(1, fill_value=0)).over("stream")
    again = series.with_columns(change.alias("change")).sort("stream", "time", "change")
    return float(again.select(pl.col("change").cum_sum().over("stream").mean()).item())


@pytest.mark.parametrize(("run", "last"), hta.cases("queue_length_summary"))
def test_is_htas_but_for_what_happens_at_one_instant(run: str, last: bool) -> None:
    summaries = hta.result(run, "queue_length_summary", last) or ()
    # Without a device, and with only ranges of counters, there is no queue.
    assert (not summaries) is (run in {"hta_cpu_only", "hta_cupti_counters"})
    for worker in hta.workers(run):
        series = queue_length(known(worker.seen(last)))
        found = {row["stream"]: row for row in summary(series).rows(named=True)}
        for theirs in (row for row in summaries if row["rank"] == worker.rank):
            mine = found[theirs["stream"]]
            assert mine["count"] == theirs["queue_length.count"]
            # HTA's sort leaves to chance which of a launch and a begin at one instant is first.
            low = ends_first(series.filter(pl.col("stream") == theirs["stream"]))
            assert low - 1e-9 <= theirs["queue_length.mean"] <= mine["mean"] + 1e-9
            if low == mine["mean"]:
                for name, its in (("std", "std"), ("min", "min"), ("p25", "25%"), ("p50", "50%"),
                                  ("p75", "75%"), ("max", "max")):  # fmt: skip
                    assert hta.close(mine[name], theirs[f"queue_length.{its}"])


@pytest.mark.parametrize("run", traces.runs())
def test_every_launch_joins_and_leaves(run: str) -> None:
    for worker in hta.workers(run):
        series = queue_length(worker.whole)
        calls = worker.whole.activities.filter(
            pl.col("runtime").is_not_null(), pl.col("role").cast(pl.String) != "sync"
        )
        launches = calls.select("runtime", "stream", "device").unique().height
        assert series.height == 2 * launches
        assert (series["length"] >= 0).all()
        last = series.group_by("stream").agg(pl.col("length").last())
        assert (last["length"] == 0).all()
        full = hta.result(run, "blocked_on_full_queue", last=True)
        if full == []:
            assert full_queue(known(worker.with_last)).height == 0


piece = st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 1))


@given(st.lists(piece, max_size=10), st.integers(1, 3))
def test_length_is_what_was_launched_and_has_not_begun(
    drawn: list[tuple[int, int, int]], full: int
) -> None:
    calls = spans_of(
        [
            {"start": at, "duration": 1, "category": "runtime", "name": "cudaLaunchKernel",
             "correlation": i + 1}
            for i, (at, _, _) in enumerate(drawn)
        ]
    )  # fmt: skip
    kernels = kernels_of(
        [
            {"start": at + wait, "duration": 1, "stream": stream, "correlation": i + 1}
            for i, (at, wait, stream) in enumerate(drawn)
        ]
    )
    linked = link(calls, kernels)
    series = queue_length(linked)
    waited = {}
    for stream in {stream for _, _, stream in drawn}:
        mine = [(at, at + wait) for at, wait, which in drawn if which == stream]
        of_stream = series.filter(pl.col("stream") == stream)
        by_time = dict(zip(of_stream["time"].to_list(), of_stream["length"].to_list(), strict=True))
        lengths = {t: sum(a <= t < b for a, b in mine) for t in range(50)}
        assert all(lengths[t] == length for t, length in by_time.items())
        waited[stream] = sum(length >= full for length in lengths.values())
    found = full_queue(linked, full=full)
    times = dict(found.select("stream", "full").rows())
    assert {s: t for s, t in times.items() if t} == {s: t for s, t in waited.items() if t}


def test_a_graph_is_one_launch_that_waits_for_its_first_kernel() -> None:
    calls = spans_of(
        [{"start": 0, "duration": 1, "category": "runtime", "name": "cudaGraphLaunch",
          "correlation": 1}]
    )  # fmt: skip
    kernels = kernels_of([{"start": 5 + i, "duration": 1, "correlation": 1} for i in range(3)])
    series = queue_length(link(calls, kernels))
    assert series.select("time", "length").rows() == [(0, 1), (5, 0)]
    assert summary(series)["time_mean"].to_list() == [1.0]


def test_an_activity_that_begins_before_its_launch_has_not_waited() -> None:
    call = {"category": "runtime", "name": "launch", "start": 100, "duration": 5, "correlation": 1}
    ran = {"name": "k", "start": 93, "duration": 20, "correlation": 1, "stream": 7}
    series = queue_length(link(spans_of([call]), kernels_of([ran])))
    assert series.select("time", "length").rows() == [(100, 1), (100, 0)]


def test_only_who_launches_onto_a_full_queue_is_blocked() -> None:
    spans = [
        {"start": start, "duration": duration, "category": "runtime", "name": "l",
         "correlation": number}
        for number, (start, duration) in enumerate(((0, 1), (2, 1), (10, 30), (60, 2)), 1)
    ]  # fmt: skip
    ran = [
        {"name": "k", "start": start, "duration": 1, "correlation": number, "stream": stream}
        for number, (start, stream) in enumerate(((20, 7), (30, 7), (45, 7), (70, 8)), 1)
    ]
    (row,) = full_queue(link(spans_of(spans), kernels_of(ran)), full=2).to_dicts()
    # Two wait from 2 on and three from 10 on; from 30 on one. The third call runs from 10 to 40.
    assert (row["stream"], row["full"], row["calls"], row["blocked"]) == (7, 28, 2, 1 + 20)
    assert row["ratio"] == 28 / 70
