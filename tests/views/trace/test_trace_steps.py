"""From when to when a step of a trace lasts."""

from __future__ import annotations

from typing import Any

from trace_rows import kernel, span, table

from haiprof.views.trace.linking.linked import link


def steps(spans: list[dict[str, Any]], kernels: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    trace = link(table("spans", spans), table("kernels", kernels)).steps
    return list(trace.select("step", "start", "end").iter_rows())


def step(number: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    return span("step", f"ProfilerStep#{number}", start, end, step=number, **more)


def launch(correlation: int, start: int, end: int) -> dict[str, Any]:
    return span("runtime", "cudaLaunchKernel", start, end, correlation=correlation)


def test_a_step_lasts_until_its_last_activity_and_the_next_begins_then() -> None:
    found = steps(
        [step(1, 0, 100), launch(1, 90, 95), step(2, 100, 200), launch(2, 110, 120)],
        [kernel("a", 95, 150, correlation=1), kernel("b", 150, 180, correlation=2)],
    )
    assert found == [(1, 0, 150), (2, 150, 200)]


def test_the_first_step_begins_after_work_that_was_launched_before_it() -> None:
    found = steps(
        [launch(1, 0, 5), step(1, 10, 100), launch(2, 20, 25)],
        [kernel("before", 8, 30, correlation=1), kernel("mine", 40, 90, correlation=2)],
    )
    assert found == [(1, 30, 100)]


def test_a_launch_that_outlasts_the_step_is_none_of_its() -> None:
    found = steps([step(1, 0, 100), launch(1, 95, 105)], [kernel("a", 110, 200, correlation=1)])
    assert found == [(1, 0, 100)]


def test_last_steps_without_their_device_work_are_left_out() -> None:
    spans = [step(number, 100 * number, 100 * number + 100) for number in range(4)]
    launches = [launch(10 * n + i, 100 * n + i, 100 * n + i) for n in range(3) for i in range(5)]
    ran = [
        kernel("k", 100 * n + 20 + i, 100 * n + 21 + i, correlation=10 * n + i)
        for n in range(3)
        for i in range(5)
        # Of the third step two of five are missing.
        if not (n == 2 and i > 2)
    ]
    assert [number for number, _, _ in steps(spans + launches, ran)] == [0, 1]


def test_a_step_recorded_twice_is_one() -> None:
    assert steps([step(5, 0, 90), step(5, 1, 80, thread=2), step(6, 90, 200)], []) == [
        (5, 0, 90),
        (6, 90, 200),
    ]


def test_a_number_that_comes_again_later_is_another_step() -> None:
    assert steps([step(1, 0, 50), step(1, 60, 100)], []) == [(1, 0, 50), (1, 60, 100)]


def test_without_steps_there_is_one_of_all_that_the_trace_has() -> None:
    found = steps([span("op", "a", 20, 30)], [kernel("k", 5, 15), kernel("k", 25, 60)])
    assert found == [(0, 5, 60)]
