"""Idle time summed up by cause: against the intervals, with what explains most of it."""

from __future__ import annotations

from trace_frames import kernels_of, spans_of

from haiprof.views.trace.idle_causes.frames import DEVICES, STREAMS, by_device, by_stream
from haiprof.views.trace.linking.linked import Linked, link

US = 1000


def trace() -> Linked:
    """A step of 100 µs, and a second one that the trace has only a part of."""
    spans = [
        {"category": "step", "name": "ProfilerStep#1", "start": 0, "duration": 100 * US, "step": 1},
        {"category": "step", "name": "ProfilerStep#2", "start": 100 * US, "duration": 100 * US,
         "step": 2},
        *(
            {"category": "runtime", "name": "cudaLaunchKernel", "start": start * US,
             "duration": 2 * US, "correlation": number}
            for number, start in enumerate((6, 50, 75, 120), 1)
        ),
        {"category": "op", "name": "aten::sort", "start": 20 * US, "duration": 28 * US},
    ]  # fmt: skip
    kernels = [
        {"start": start * US, "duration": 10 * US, "correlation": number, "stream": stream}
        for number, (start, stream) in enumerate(((10, 7), (60, 7), (80, 8), (130, 7)), 1)
    ]
    return link(spans_of(spans), kernels_of(kernels))


def test_devices_by_cause() -> None:
    found = by_device(trace())
    assert found.schema == DEVICES
    rows = found.select("cause", "idle", "count", "max", "mostly", "in_steps").rows()
    assert rows == [
        ("other", 37000, 4, 30000, None, 23000),
        ("cpu_operator", 28000, 1, 28000, "aten::sort", 28000),
        ("latency", 19000, 4, 8000, None, 13000),
        ("launch", 6000, 4, 2000, "cudaLaunchKernel", 6000),
    ]
    assert found["ratio"].sum() == 1


def test_streams_by_cause() -> None:
    found = by_stream(trace())
    assert found.schema == STREAMS
    assert found.select("stream", "cause", "idle").rows() == [
        (7, "other", 50000),
        (7, "cpu_operator", 28000),
        (7, "latency", 16000),
        (7, "launch", 6000),
    ]
    last = by_stream(trace(), drop_last_step=True)
    assert last.filter(cause="other").select("stream", "idle").rows() == [(7, 2000)]


def test_without_the_last_step() -> None:
    found = by_device(trace(), drop_last_step=True)
    assert found.filter(cause="other").select("idle", "in_steps").rows() == [(7000, 23000)]


def test_nothing_is_idle_without_a_device() -> None:
    nothing = link(spans_of([]), kernels_of([]))
    assert by_device(nothing).schema == DEVICES
    assert by_device(nothing).height == by_stream(nothing).height == 0
