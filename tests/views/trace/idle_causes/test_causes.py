"""Why devices and streams were idle: launched or not, and what was waited for."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.idle import idle as by_category
from haiprof.views.trace.idle_causes import host
from haiprof.views.trace.idle_causes.causes import CAUSES, Idle, in_steps, of_devices, of_streams
from haiprof.views.trace.linking.linked import Linked, link

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
Rows = list[dict[str, Any]]


def call(start: int, end: int, correlation: int = 0, **more: Any) -> dict[str, Any]:
    row = {"category": "runtime", "name": "cudaLaunchKernel", "correlation": correlation or None}
    return {**row, "start": start * US, "duration": (end - start) * US, **more}


def ran(start: int, end: int, correlation: int = 0, **more: Any) -> dict[str, Any]:
    row = {"start": start * US, "duration": (end - start) * US, "correlation": correlation or None}
    return {**row, **more}


def linked(spans: Rows, kernels: Rows) -> Linked:
    return link(spans_of(spans), kernels_of(kernels))


def causes(idle: Idle) -> dict[str, int]:
    return {cause: idle.total(cause) // US for cause in CAUSES if idle.total(cause)}


def waits(trace: Linked, idle: Idle) -> list[tuple[int, int, str, int]]:
    """Those of stream 7: start, end, cause and the begin of what was waited for (-1: nothing)."""
    begun = np.append(trace.activities["start"].to_numpy() // US, -1)
    stream = trace.activities["stream"].to_numpy()[idle.lanes][idle.lane]
    return [
        (start // US, end // US, CAUSES[cause], int(begun[row]))
        for start, end, cause, row, on in zip(
            idle.start.tolist(), idle.end.tolist(), idle.cause.tolist(), idle.awaited.tolist(),
            stream.tolist(), strict=True,
        )
        if on == 7
    ]  # fmt: skip


#: Stream 7 works until 10 µs, and what follows was launched by 12 µs but begins at 900.
SPANS = [call(0, 1, 1), call(10, 12, 2)]
KERNELS = [ran(2, 10, 1), ran(900, 950, 2)]
WAIT = call(8, 9, name="cudaStreamWaitEvent")


def other(start: int, end: int, **more: Any) -> dict[str, Any]:
    return ran(start, end, 3, **{"stream": 8, "name": "other", **more})


LAUNCH_OTHER = call(4, 5, 3)


@pytest.mark.parametrize(
    ("spans", "kernels", "expected"),
    [
        # Nothing in the trace says what it waited for, and the host is not blamed.
        ([], [], [(12, 900, "unknown", -1)]),
        ([WAIT], [], [(12, 900, "unknown", -1)]),
        (
            [LAUNCH_OTHER, WAIT],
            [other(20, 890)],
            [(12, 890, "event", 20), (890, 900, "latency", -1)],
        ),
        (
            [LAUNCH_OTHER, WAIT],
            [other(20, 890, kind="memcpy", name="Memcpy HtoD (Pinned -> Device)")],
            [(12, 890, "copy", 20), (890, 900, "latency", -1)],
        ),
        # Without an event: kernels of another stream occupied the device all the time, or did not.
        (
            [LAUNCH_OTHER],
            [other(9, 890)],
            [(12, 890, "busy", 9), (890, 900, "latency", -1)],
        ),
        ([LAUNCH_OTHER], [other(400, 890)], [(12, 900, "unknown", -1)]),
        # It ended long before, or goes on: it is not what was waited for.
        ([LAUNCH_OTHER, WAIT], [other(20, 600)], [(12, 900, "unknown", -1)]),
        ([LAUNCH_OTHER, WAIT], [other(20, 1000)], [(12, 900, "unknown", -1)]),
        # It was launched after what is to have waited for it.
        ([call(14, 15, 3), WAIT], [other(20, 890)], [(12, 900, "unknown", -1)]),
        # An event of a stream of another device.
        (
            [LAUNCH_OTHER, WAIT],
            [other(20, 890, device=1)],
            [(12, 890, "event", 20), (890, 900, "latency", -1)],
        ),
        ([LAUNCH_OTHER], [other(9, 890, device=1)], [(12, 900, "unknown", -1)]),
    ],
)
def test_a_kernel_launched_at_12_us_that_begins_at_900(
    spans: Rows, kernels: Rows, expected: list[tuple[int, int, str, int]]
) -> None:
    trace = linked([*SPANS, *spans], [*KERNELS, *kernels])
    assert waits(trace, of_streams(trace)) == [(10, 12, "launch", -1), *expected]


def test_the_device_of_that_kernel_is_not_idle_because_of_the_host() -> None:
    trace = linked(SPANS, KERNELS)
    assert causes(of_devices(trace)) == {"launch": 3, "latency": 1, "unknown": 888}
    short = linked(SPANS, [ran(2, 10, 1), ran(30, 50, 2)])
    assert causes(of_devices(short)) == {"launch": 3, "latency": 19}


def test_waiting_for_a_communication_is_waiting_for_another_rank_as_long_as_that_waits() -> None:
    trace = linked([*SPANS, LAUNCH_OTHER, WAIT], [*KERNELS, other(20, 890, name=NCCL)])
    late = (np.array([20 * US]), np.array([700 * US]))
    assert waits(trace, of_streams(trace, late)) == [
        (10, 12, "launch", -1),
        (12, 20, "event", 20),
        (20, 700, "rank", 20),
        (700, 890, "event", 20),
        (890, 900, "latency", -1),
    ]


def test_a_collective_of_the_host_waits_for_another_rank_too() -> None:
    gloo = call(20, 800, category="user", name="gloo:all_reduce")
    trace = linked([call(0, 1, 1), gloo, call(880, 890, 2)], KERNELS)
    late = (np.array([0]), np.array([500 * US]))
    assert causes(of_devices(trace, late)) == {
        "communication": 300,
        "launch": 11,
        "other": 90,
        "latency": 11,
        "rank": 480,
    }


def test_launches_of_graphs() -> None:
    graph = call(10, 60, 2, name="cudaGraphLaunch")
    nodes = [ran(100, 150, 2), ran(155, 160, 2), ran(230, 240, 2), ran(245, 250, 2, stream=8)]
    trace = linked([call(0, 1, 1), graph], [ran(2, 10, 1), *nodes])
    assert waits(trace, of_devices(trace)) == [
        (0, 1, "launch", -1),
        (1, 2, "latency", -1),
        (10, 100, "graph_launch", -1),
        (150, 155, "latency", -1),
        (160, 230, "graph_launch", -1),
        (240, 245, "latency", -1),
    ]
    # A node on another stream that a node waits for.
    nodes = [ran(100, 150, 2), ran(150, 220, 2, stream=8), ran(225, 240, 2)]
    trace = linked([call(0, 1, 1), graph], [ran(2, 10, 1), *nodes])
    assert waits(trace, of_streams(trace))[1:] == [
        (150, 220, "event", 150),
        (220, 225, "latency", -1),
    ]


def test_a_launch_that_is_not_in_the_trace_lies_between_those_of_its_neighbours() -> None:
    spans = [call(0, 1, 1), call(100, 110, 2), call(200, 210, 3)]
    kernels = [ran(2, 10, 1), ran(120, 130, 2), ran(300, 310), ran(310, 320, 3)]
    trace = linked(spans, kernels)
    assert waits(trace, of_devices(trace))[2:] == [
        (10, 100, "other", -1),
        (100, 110, "launch", -1),
        (110, 120, "latency", -1),
        # Not known until 210, when what follows it on its stream had been launched.
        (130, 210, "unknown", -1),
        (210, 300, "unknown", -1),
    ]


piece = st.tuples(st.integers(0, 60), st.integers(0, 9), st.integers(0, 1), st.integers(7, 8),
                  st.none() | st.integers(0, 60), st.integers(1, 9))  # fmt: skip
NAMES = ("aten::sort", "my range", "enumerate(DataLoader)#x.__next__", "cudaMalloc",
         "cudaStreamSynchronize", "gloo:all_reduce", "cudaStreamWaitEvent")  # fmt: skip
intervals = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)
spans_drawn = st.lists(
    st.tuples(intervals, st.sampled_from(("op", "user", "runtime", "python")),
              st.sampled_from(NAMES), st.integers(1, 3)),
    max_size=10,
)  # fmt: skip


@given(
    drawn=st.lists(piece, min_size=1, max_size=8),
    host_spans=spans_drawn,
    steps=st.lists(st.integers(0, 60), max_size=4, unique=True).map(sorted),
    late=st.lists(st.integers(0, 60), min_size=2, max_size=2, unique=True).map(sorted),
)
def test_causes_sum_up_to_the_idle_time_and_the_host_is_not_blamed_for_launched_work(
    drawn: list[tuple[int, int, int, int, int | None, int]],
    host_spans: list[tuple[list[int], str, str, int]],
    steps: list[int],
    late: list[int],
) -> None:
    spans = [
        {"category": "step", "name": f"ProfilerStep#{n}", "start": a * US, "step": n,
         "duration": (b - a) * US}
        for n, (a, b) in enumerate(itertools.pairwise(steps))
    ]  # fmt: skip
    spans += [
        {"category": kind, "name": name, "start": a * US, "duration": (b - a) * US, "thread": t}
        for (a, b), kind, name, t in host_spans
    ]
    kernels = []
    for number, (start, length, device, stream, launch, took) in enumerate(drawn, 1):
        kernels.append(ran(start, start + length, number, device=device, stream=stream))
        if launch is not None and launch <= start:
            spans.append(call(launch, launch + took, number))
    trace = linked(spans, kernels)
    waited = (np.array(late[:1]) * US, np.array(late[1:]) * US)
    begun = trace.activities["start"].to_numpy()
    launched_by = np.where(
        trace.runtime >= 0, np.minimum(trace.end[trace.runtime], begun), np.int64(2**62)
    ) if len(trace.start) else np.full(len(begun), np.int64(2**62))  # fmt: skip

    def check(idle: Idle, busy: dict[int, np.ndarray], area: dict[int, np.ndarray]) -> None:
        for lane in range(len(idle.lanes)):
            mine = idle.taken(np.flatnonzero(idle.lane == lane))
            assert not (mine.start % US).any()
            assert not (mine.end % US).any()
            covered = np.zeros(80, np.intp)
            for start, end in zip(mine.start // US, mine.end // US, strict=True):
                covered[start:end] += 1
            np.testing.assert_array_equal(covered, area[lane] & ~busy[lane])
        blamed = idle.of(*(cause for cause in host.CAUSES)) & (idle.following >= 0)
        assert (idle.end[blamed] <= launched_by[idle.following[blamed]]).all()
        some = idle.span >= 0
        assert (trace.start[idle.span[some]] <= idle.start[some]).all()

    def times(chosen: pl.Expr) -> tuple[np.ndarray, np.ndarray]:
        busy, area = np.zeros(80, np.bool_), np.zeros(80, np.bool_)
        rows = trace.activities.filter(chosen).select(pl.col("start", "end") // US).rows()
        for start, end in rows:
            busy[start:end] = True
        area[min(s for s, _ in rows) : max(e for _, e in rows)] = True
        return busy, area

    keys = trace.activities.select("device", "stream")
    of_stream = of_streams(trace, waited)
    both = [
        times((pl.col("device") == d) & (pl.col("stream") == s))
        for d, s in keys[of_stream.lanes].rows()
    ]
    check(of_stream, dict(enumerate(b for b, _ in both)), dict(enumerate(a for _, a in both)))
    of_device = of_devices(trace, waited)
    both = [times(pl.col("device") == d) for d, _ in keys[of_device.lanes].rows()]
    stepped = np.zeros(80, np.bool_)
    for start, end in trace.steps.select(pl.col("start", "end") // US).rows():
        stepped[start:end] = True
    check(
        of_device,
        dict(enumerate(b for b, _ in both)),
        dict(enumerate(a | stepped for _, a in both)),
    )
    within, of = in_steps(trace, of_device)
    low, high = (trace.steps[name].to_numpy()[of] for name in ("start", "end"))
    assert ((low <= within.start) & (within.end <= high)).all()
    assert within.length.sum() // US == sum((stepped & ~busy).sum() for busy, _ in both)
    assert of_stream.length.sum() == by_category(trace)["idle"].sum()
