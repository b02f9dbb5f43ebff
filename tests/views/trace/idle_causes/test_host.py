"""What the host did while a device was idle: each cause on a trace with known numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trace_rows import kernel, span, table

from haiprof.views.trace.idle_causes.causes import CAUSES, Idle, in_steps, of_devices
from haiprof.views.trace.linking.linked import Linked, link

US = 1000
Rows = list[dict[str, Any]]
LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def linked(spans: Rows, kernels: Rows) -> Linked:
    return link(table("spans", spans), table("kernels", kernels))


def host(category: str, name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return span(category, name, start * US, end * US, **more)


def step(number: int, start: int, end: int) -> dict[str, Any]:
    return host("step", f"ProfilerStep#{number}", start, end, step=number)


def launch(start: int, end: int, correlation: int, **more: Any) -> dict[str, Any]:
    return host("runtime", "cudaLaunchKernel", start, end, correlation=correlation, **more)


def ran(start: int, end: int, correlation: int | None = None, **more: Any) -> dict[str, Any]:
    return kernel("gemm", start * US, end * US, correlation=correlation, stream=7, **more)


#: A device that is idle from 100 to 300 µs, and what it does then is launched from 290 on.
KERNELS = [ran(0, 100), ran(300, 400, 7)]
LAUNCH = launch(290, 300, 7)


def causes(idle: Idle) -> dict[str, int]:
    return {cause: idle.total(cause) // US for cause in CAUSES if idle.total(cause)}


def pieces(trace: Linked, idle: Idle) -> list[tuple[int, int, str, str | None]]:
    names = trace.ops["name"].cast(str).to_list()
    return [
        (start // US, end // US, CAUSES[cause], names[row] if row >= 0 else None)
        for start, end, cause, row in zip(
            idle.start.tolist(),
            idle.end.tolist(),
            idle.cause.tolist(),
            idle.span.tolist(),
            strict=True,
        )
    ]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([host("user", LOAD, 100, 180)], {"data_loading": 80, "launch": 10, "other": 110}),
        (
            [host("op", "aten::empty", 90, 200), host("runtime", "cudaMalloc", 120, 150)],
            {"allocator": 30, "launch": 80, "other": 90},
        ),
        (
            [host("runtime", "cudaStreamSynchronize", 50, 110), host("op", "aten::add", 150, 160)],
            {"synchronisation": 200},
        ),
        (
            [host("runtime", "cudaStreamSynchronize", 50, 110), host("op", "aten::sort", 150, 250)],
            {"synchronisation": 100, "cpu_operator": 100},
        ),
        (
            # The device had been idle for long when the wait began.
            [host("runtime", "cudaDeviceSynchronize", 200, 210)],
            {"synchronisation": 10, "launch": 10, "other": 180},
        ),
        (
            [host("user", "gloo:all_reduce", 120, 180)],
            {"communication": 60, "launch": 10, "other": 130},
        ),
        ([host("op", "aten::sort", 120, 180)], {"cpu_operator": 60, "launch": 10, "other": 130}),
        ([host("op", "aten::view", 120, 130)], {"launch": 20, "other": 180}),
        ([host("user", "my range", 100, 300)], {"launch": 200}),
        (
            [host("python", "train.py(1): load", 0, 280)],
            {"launch": 10, "python": 180, "other": 10},
        ),
        # A function within which work is launched only surrounds it.
        ([host("python", "train.py(1): main", 0, 400)], {"launch": 200}),
        ([], {"launch": 10, "other": 190}),
    ],
)
def test_each_cause_of_a_gap_of_200_us(spans: Rows, expected: dict[str, int]) -> None:
    assert causes(of_devices(linked([step(1, 0, 400), *spans, LAUNCH], KERNELS))) == expected


def test_an_operator_that_launches_is_preparing_the_next_kernel() -> None:
    spans = [step(1, 0, 400), host("op", "aten::mm", 110, 210), launch(190, 200, 7)]
    trace = linked(spans, [ran(0, 100), ran(205, 400, 7)])
    assert pieces(trace, of_devices(trace)) == [
        (100, 110, "other", None),
        (110, 190, "launch", "aten::mm"),
        (190, 200, "launch", "cudaLaunchKernel"),
        (200, 205, "latency", None),
    ]


def test_an_operator_whose_kernel_names_it_alone_launches() -> None:
    spans = [step(1, 0, 400), host("op", "aten::mm", 110, 280, external=5)]
    trace = linked(spans, [ran(0, 100), ran(300, 400, external=5)])
    assert causes(of_devices(trace)) == {"other": 10, "launch": 170, "latency": 20}


def test_the_thread_that_launches_explains_more_than_others() -> None:
    waiting = host("runtime", "cudaEventSynchronize", 110, 290, thread=2)
    spans = [step(1, 0, 400), host("op", "aten::mm", 105, 300), LAUNCH, waiting]
    trace = linked(spans, KERNELS)
    assert causes(of_devices(trace)) == {"launch": 195, "other": 5}
    elsewhere = linked([step(1, 0, 400), LAUNCH, waiting], KERNELS)
    assert causes(of_devices(elsewhere)) == {"synchronisation": 180, "launch": 10, "other": 10}


def test_of_two_threads_the_span_that_began_last_explains_a_gap() -> None:
    spans = [
        step(1, 0, 400),
        host("user", "waits for backward", 0, 400),
        host("op", "AddmmBackward0", 150, 165, thread=2),
    ]
    trace = linked([*spans, LAUNCH], KERNELS)
    assert pieces(trace, of_devices(trace)) == [
        (100, 150, "launch", "waits for backward"),
        (150, 165, "launch", "AddmmBackward0"),
        (165, 290, "launch", "waits for backward"),
        (290, 300, "launch", "cudaLaunchKernel"),
    ]


def test_a_gap_over_the_end_of_a_step_is_of_both() -> None:
    spans = [step(1, 0, 200), step(2, 200, 400), host("user", LOAD, 150, 250)]
    spans += [launch(20, 30, 1), launch(280, 290, 2)]
    trace = linked(spans, [ran(40, 100, 1), ran(300, 400, 2)])
    found, of = in_steps(trace, of_devices(trace))
    loads = found.of("data_loading")
    numbers = trace.steps["step"].to_numpy()[of[loads]]
    assert dict(zip(numbers.tolist(), (found.length[loads] // US).tolist(), strict=True)) == {
        1: 50,
        2: 50,
    }


def test_after_the_last_activity_of_a_step_nothing_is_launched() -> None:
    spans = [step(1, 0, 400), launch(0, 1, 1), host("op", "aten::sort", 150, 350)]
    trace = linked(spans, [ran(10, 100, 1)])
    assert pieces(trace, of_devices(trace)) == [
        (0, 1, "launch", "cudaLaunchKernel"),
        (1, 10, "latency", None),
        (100, 150, "other", None),
        (150, 350, "cpu_operator", "aten::sort"),
        (350, 400, "other", None),
    ]


def test_a_device_that_is_never_idle_has_no_gaps() -> None:
    spans = [step(1, 0, 400), host("runtime", "cudaStreamSynchronize", 50, 110)]
    found = of_devices(linked(spans, [ran(0, 400)]))
    assert (len(found.start), len(found.span), len(found.lanes)) == (0, 0, 1)


@pytest.mark.parametrize("spans", [[], [step(1, 0, 400), host("op", "aten::sort", 120, 180)]])
def test_without_a_device_nothing_is_idle(spans: Rows) -> None:
    assert causes(of_devices(linked(spans, []))) == {}


def test_what_a_job_does_once() -> None:
    ms = 1000
    spans = [
        # The context is created below the first allocation, by a call without a name for it.
        host("op", "aten::empty", 100, 30 * ms),
        host("runtime", "cudaGetDeviceCount", 200, 29 * ms),
        # The first kernel of a name takes long to launch, not the second.
        launch(30 * ms, 32 * ms, 1),
        launch(40 * ms, 42 * ms, 2),
    ]
    kernels = [ran(0, 100), ran(33 * ms, 34 * ms, 1), ran(43 * ms, 44 * ms, 2)]
    kernels[0]["name"] = "another"
    found = causes(of_devices(linked(spans, kernels)))
    assert found["startup"] == 30 * ms - 100 + 2 * ms
    assert found["launch"] == 2 * ms


def test_memory_that_is_returned_and_requested_again_is_not_done_once() -> None:
    ms = 1000
    spans = [
        host("op", "aten::empty", 100, 110),
        host("op", "aten::empty", 1 * ms, 31 * ms),
        *(host("runtime", "cudaFree", at * ms, at * ms + 900) for at in range(1, 31)),
        launch(40 * ms, 40 * ms + 10, 1),
    ]
    found = causes(of_devices(linked(spans, [ran(0, 100), ran(42 * ms, 43 * ms, 1)])))
    assert found["allocator"] == 30 * 900
    assert "startup" not in found


def test_a_launch_on_a_full_queue_is_not_the_hosts_time() -> None:
    # The queue of stream 7 is full; stream 8 gets its next work only once the host can go on.
    count = 1030
    spans = [launch(at, at + 1, at + 1) for at in range(count)]
    spans += [launch(count, count + 500, 5000), launch(count + 500, count + 501, 5001)]
    kernels = [ran(10, 20, 5002, device=1)]
    kernels += [ran(1500 + at, 1501 + at, at + 1) for at in range(1, count)]
    kernels += [ran(0, 1501, 1), ran(1500 + count, 1501 + count, 5000)]
    kernels += [{**ran(count + 510, count + 520, 5001, device=1)}]
    found = of_devices(linked(spans, kernels))
    idle = found.taken(np.flatnonzero(found.lane == 1))
    assert idle.total("full_queue") == 500 * US
