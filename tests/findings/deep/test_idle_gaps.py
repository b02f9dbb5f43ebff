"""Why a device was idle: each cause on a trace with known numbers, all of them against a count."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_rows import kernel, span, table

from haiprof.findings.deep import idle_gaps
from haiprof.views.trace.linking.linked import Linked, link

US = 1000
Rows = list[dict[str, Any]]


def linked(spans: Rows, kernels: Rows) -> Linked:
    return link(table("spans", spans), table("kernels", kernels))


def step(number: int, start: int, end: int) -> dict[str, Any]:
    return span("step", f"ProfilerStep#{number}", start * US, end * US, step=number)


def host(category: str, name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return span(category, name, start * US, end * US, **more)


def ran(start: int, end: int, **more: Any) -> dict[str, Any]:
    return kernel("gemm", start * US, end * US, **more)


def causes(found: idle_gaps.Gaps) -> dict[str, int]:
    totals = {cause: found.total(cause) // US for cause in idle_gaps.CAUSES}
    return {cause: total for cause, total in totals.items() if total}


def pieces(trace: Linked, found: idle_gaps.Gaps) -> list[tuple[int, int, str, str | None]]:
    names = trace.ops["name"].cast(str).to_list()
    return [
        (start // US, end // US, idle_gaps.CAUSES[cause], names[row] if row >= 0 else None)
        for start, end, cause, row in zip(
            found.start.tolist(),
            found.end.tolist(),
            found.cause.tolist(),
            found.row.tolist(),
            strict=True,
        )
    ]


LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize(
    ("spans", "told"),
    [
        ([host("user", LOAD, 100, 180)], {"data_loading": 80, "other": 120}),
        (
            [host("op", "aten::empty", 90, 200), host("runtime", "cudaMalloc", 120, 150)],
            {"allocator": 30, "cpu_operator": 70, "other": 100},
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
            # The device had been dry for long when the wait began.
            [host("runtime", "cudaDeviceSynchronize", 200, 210)],
            {"synchronisation": 10, "other": 190},
        ),
        ([host("user", "gloo:all_reduce", 120, 180)], {"communication": 60, "other": 140}),
        ([host("op", "aten::sort", 120, 180)], {"cpu_operator": 60, "other": 140}),
        ([host("op", "aten::view", 120, 130)], {"launch": 10, "other": 190}),
        ([host("user", "my range", 100, 300)], {"launch": 200}),
        ([host("python", "train.py(1): main", 0, 400)], {"other": 200}),
        ([], {"other": 200}),
    ],
)
def test_each_cause_of_a_gap_of_200_us(spans: Rows, told: dict[str, int]) -> None:
    trace = linked([step(1, 0, 400), *spans], [ran(0, 100), ran(300, 400)])
    assert causes(idle_gaps.find(trace)) == told


def test_an_operator_that_launches_is_preparing_the_next_kernel() -> None:
    spans = [
        step(1, 0, 400),
        host("op", "aten::mm", 110, 210),
        host("runtime", "cudaLaunchKernel", 190, 200, correlation=7),
    ]
    trace = linked(spans, [ran(0, 100), ran(300, 400, correlation=7)])
    found = idle_gaps.find(trace)
    assert causes(found) == {"launch": 100, "other": 100}
    assert pieces(trace, found)[1:4] == [
        (110, 190, "launch", "aten::mm"),
        (190, 200, "launch", "cudaLaunchKernel"),
        (200, 210, "launch", "aten::mm"),
    ]


def test_an_operator_whose_kernel_names_it_alone_launches() -> None:
    spans = [step(1, 0, 400), host("op", "aten::mm", 110, 210, external=5)]
    found = idle_gaps.find(linked(spans, [ran(0, 100), ran(300, 400, external=5)]))
    assert causes(found) == {"launch": 100, "other": 100}


def test_a_gap_after_the_inner_call_ended_is_of_the_outer_one() -> None:
    spans = [
        step(1, 0, 400),
        host("user", "outer", 0, 400),
        host("user", "inner", 50, 90),
    ]
    trace = linked(spans, [ran(0, 100), ran(300, 400)])
    assert pieces(trace, idle_gaps.find(trace)) == [(100, 300, "launch", "outer")]


def test_of_two_threads_the_span_that_began_last_explains_a_gap() -> None:
    spans = [
        step(1, 0, 400),
        host("user", "waits for backward", 0, 400),
        host("user", "AddmmBackward0", 150, 250, thread=2),
    ]
    trace = linked(spans, [ran(0, 100), ran(300, 400)])
    assert pieces(trace, idle_gaps.find(trace)) == [
        (100, 150, "launch", "waits for backward"),
        (150, 250, "launch", "AddmmBackward0"),
        (250, 300, "launch", "waits for backward"),
    ]


def test_a_gap_over_the_end_of_a_step_is_of_both() -> None:
    spans = [step(1, 0, 200), step(2, 200, 400), host("user", LOAD, 150, 250)]
    spans.append(host("runtime", "cudaLaunchKernel", 20, 30, correlation=1))
    spans.append(host("runtime", "cudaLaunchKernel", 280, 290, correlation=2))
    kernels = [ran(40, 100, correlation=1), ran(300, 400, correlation=2)]
    trace = linked(spans, kernels)
    found = idle_gaps.find(trace)
    loads = found.cause == idle_gaps.CAUSES.index("data_loading")
    numbers = trace.steps["step"].to_numpy()[found.step[loads]]
    assert dict(zip(numbers.tolist(), (found.length[loads] // US).tolist(), strict=True)) == {
        1: 50,
        2: 50,
    }


def test_a_device_that_is_never_idle_has_no_gaps() -> None:
    spans = [step(1, 0, 400), host("runtime", "cudaStreamSynchronize", 50, 110)]
    found = idle_gaps.find(linked(spans, [ran(0, 400)]))
    assert (len(found.start), len(found.row), len(found.step)) == (0, 0, 0)


@pytest.mark.parametrize("spans", [[], [step(1, 0, 400), host("op", "aten::sort", 120, 180)]])
def test_without_a_device_nothing_is_idle(spans: Rows) -> None:
    assert causes(idle_gaps.find(linked(spans, []))) == {}


def test_without_spans_only_the_gaps_are_known() -> None:
    assert causes(idle_gaps.find(linked([], [ran(0, 100), ran(300, 400)]))) == {"other": 200}


NAMES = ("aten::sort", "my range", LOAD, "cudaMalloc", "cudaStreamSynchronize", "gloo:all_reduce")
intervals = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)


@given(
    host_spans=st.lists(
        st.tuples(
            intervals,
            st.sampled_from(("op", "user", "runtime")),
            st.sampled_from(NAMES),
            st.integers(1, 3),
        ),
        max_size=12,
    ),
    kernels=st.lists(st.tuples(intervals, st.integers(0, 1)), min_size=1, max_size=6),
    steps=st.lists(st.integers(1, 59), max_size=3, unique=True),
)
def test_causes_sum_up_to_the_idle_time_of_the_steps(
    host_spans: list[tuple[list[int], str, str, int]],
    kernels: list[tuple[list[int], int]],
    steps: list[int],
) -> None:
    # Spans of a thread that cross each other count, too.
    edges = [0, *sorted(steps), 60]
    spans = [step(n, a, b) for n, (a, b) in enumerate(itertools.pairwise(edges))]
    spans += [host(kind, name, a, b, thread=t) for (a, b), kind, name, t in host_spans]
    trace = linked(spans, [ran(a, b, device=device) for (a, b), device in kernels])
    found = idle_gaps.find(trace)
    in_step, busy = np.zeros(61 * US, np.bool_), np.zeros(61 * US, np.bool_)
    for start, end in trace.steps.select("start", "end").iter_rows():
        in_step[start:end] = True
    for (start, end), _ in kernels:
        busy[start * US : end * US] = True
    covered = np.zeros(61 * US, np.intp)
    for start, end in zip(found.start, found.end, strict=True):
        covered[start:end] += 1
    np.testing.assert_array_equal(covered, in_step & ~busy)
    assert sum(found.total(cause) for cause in idle_gaps.CAUSES) == (in_step & ~busy).sum()
    # Whatever explains a gap has begun by then, and each lies within one step.
    some = found.row >= 0
    assert (trace.start[found.row[some]] <= found.start[some]).all()
    low, high = (trace.steps[name].to_numpy()[found.step] for name in ("start", "end"))
    assert ((low <= found.start) & (found.end <= high)).all()
