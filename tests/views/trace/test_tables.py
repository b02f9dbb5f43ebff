"""Operators, kernels and op statistics of a trace made by hand, by what distinguishes them."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_rows import kernel, span, table

from haiprof.views.trace.as_other_tools.msprof_op_statistics import op_statistics
from haiprof.views.trace.as_other_tools.msprof_step_trace import step_trace
from haiprof.views.trace.kernels import kernels
from haiprof.views.trace.linking.linked import Linked, link
from haiprof.views.trace.operators import operators


@pytest.fixture
def trace() -> Linked:
    """A step: linear (forward), its backward with a collective, an optimizer."""
    shapes = {"shapes": "[[2, 2]]", "stack": "train.py(3): main"}
    spans = [
        span("step", "ProfilerStep#1", 0, 1000, step=1),
        span("op", "aten::linear", 0, 100, **shapes),
        span("op", "aten::mm", 10, 90, **shapes),
        span("runtime", "cudaLaunchKernel", 20, 30, correlation=1),
        span("op", "aten::mm", 100, 150, shapes="[[4, 4]]"),
        span("runtime", "cuLaunchKernel", 110, 120, correlation=2),
        span("op", "autograd::engine::evaluate_function: MmBackward0", 200, 300, thread=2),
        span("op", "aten::mm", 210, 290, thread=2),
        span("op", "aten::mm", 220, 280, thread=2),
        span("runtime", "cudaLaunchKernel", 230, 240, thread=2, correlation=3),
        span("user", "nccl:all_reduce", 295, 299, thread=2),
        span("runtime", "cudaLaunchKernelExC", 296, 298, thread=2, correlation=4),
        span("user", "Optimizer.step#SGD.step", 400, 500),
        span("op", "aten::add_", 410, 490),
        span("runtime", "cudaLaunchKernel", 420, 430, correlation=5),
        span("runtime", "cudaMemcpyAsync", 440, 450, correlation=6),
    ]
    launch = {"grid_x": 8, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
    ran: list[dict[str, Any]] = [
        kernel("nvjet_tst", 50, 150, correlation=1, blocks_per_sm=1.0, **launch),
        kernel("nvjet_tst", 150, 200, correlation=2, blocks_per_sm=4.0, **launch),
        kernel("volta_sgemm", 300, 400, correlation=3),
        kernel("ncclDevKernel_AllReduce", 350, 450, correlation=4),
        kernel("add", 450, 500, correlation=5, occupancy=80.0),
        kernel("Memcpy DtoD", 500, 520, correlation=6, kind="memcpy"),
    ]
    return link(table("spans", spans), table("kernels", ran))


def rows(frame: pl.DataFrame, key: str, *columns: str) -> dict[Any, tuple[Any, ...]]:
    assert frame[key].is_unique().all()
    return {row[key]: tuple(row[c] for c in columns) for row in frame.iter_rows(named=True)}


def test_operators_by_name(trace: Linked) -> None:
    frame = operators(trace)
    columns = ("calls", "host_self", "host_total", "device_self", "device_total")
    assert rows(frame, "name", *columns) == {
        "aten::linear": (1, 20, 100, 0, 100),
        # The one that only calls itself is one call; calls of the runtime are not its own time.
        "aten::mm": (3, 70 + 40 + 70, 80 + 50 + 80, 250, 250),
        "autograd::engine::evaluate_function: MmBackward0": (1, 16, 100, 0, 200),
        "aten::add_": (1, 60, 80, 70, 70),
    }
    columns = ("tensor_core_eligible", "tensor_core_self", "tensor_core_total_share")
    assert rows(frame, "name", *columns) == {
        "aten::linear": (True, 0, 1.0),
        "aten::mm": (True, 150, 0.6),
        "autograd::engine::evaluate_function: MmBackward0": (True, 0, 0.0),
        "aten::add_": (False, 0, 0.0),
    }
    assert frame["device_self"].is_sorted(descending=True)


def test_operators_by_shapes_and_by_stack(trace: Linked) -> None:
    shaped = operators(trace, "shapes").filter(pl.col("name") == "aten::mm")
    assert rows(shaped, "shapes", "calls") == {"[[2, 2]]": (1,), "[[4, 4]]": (1,), None: (1,)}
    stacked = operators(trace, "stack").filter(pl.col("name") == "aten::mm")
    assert rows(stacked, "stack", "calls") == {"train.py(3): main": (1,), None: (2,)}
    with pytest.raises(ValueError, match="operators by 'colour'"):
        operators(trace, "colour")  # type: ignore[arg-type]


def test_kernels_by_name(trace: Linked) -> None:
    frame = kernels(trace)
    columns = ("calls", "total", "mean", "min", "max", "tensor_core", "communication")
    assert rows(frame, "name", *columns) == {
        "nvjet_tst": (2, 150, 75.0, 50, 100, True, False),
        "volta_sgemm": (1, 100, 100.0, 100, 100, False, False),
        "ncclDevKernel_AllReduce": (1, 100, 100.0, 100, 100, False, True),
        "add": (1, 50, 50.0, 50, 50, False, False),
    }
    by_name = rows(frame, "name", "blocks_per_sm", "occupancy", "share")
    assert by_name["nvjet_tst"] == ((100 * 1.0 + 50 * 4.0) / 150, None, 0.375)
    assert by_name["add"] == (None, 0.8, 0.125)


def test_kernels_by_launch(trace: Linked) -> None:
    frame = kernels(trace, "launch")
    columns = ("op", "grid_x", "block_x", "tensor_core_eligible")
    assert rows(frame, "name", *columns) == {
        "nvjet_tst": ("aten::mm", 8, 128, True),
        "volta_sgemm": ("aten::mm", None, None, True),
        "ncclDevKernel_AllReduce": ("nccl:all_reduce", None, None, False),
        "add": ("aten::add_", None, None, False),
    }
    with pytest.raises(ValueError, match="kernels by 'grid'"):
        kernels(trace, "grid")  # type: ignore[arg-type]


def test_op_statistics(trace: Linked) -> None:
    frame = op_statistics(trace)
    found = {(row["op"], row["unit"]): row["total"] for row in frame.iter_rows(named=True)}
    assert found == {
        ("aten::mm", "tensor_core"): 150,
        ("aten::mm", None): 100,
        ("nccl:all_reduce", "communication"): 100,
        ("aten::add_", None): 50,
        ("aten::add_", "memcpy"): 20,
    }
    assert frame["share"].sum() == pytest.approx(1)


def test_step_trace(trace: Linked) -> None:
    (row,) = step_trace(trace).to_dicts()
    assert row == {
        "step": 1, "start": 0, "duration": 1000, "computing": 300, "communication": 100,
        "overlapped": 50, "exposed": 50, "copying": 20, "free": 630, "preparing": 50,
        "forward_start": 50, "backward_end": 450, "device_end": 520, "forward_backward": 400,
        "refresh": 70, "interval": None, "stage": 450, "bubble": 0,
    }  # fmt: skip


#: An activity: its step, when it begins in it, its length, whether it receives or backward runs it.
ACTIVITIES = st.tuples(
    st.integers(0, 2), st.integers(0, 30), st.integers(0, 200), st.booleans(), st.booleans()
)


@given(st.lists(ACTIVITIES, max_size=8))
def test_no_part_of_a_step_is_negative_though_steps_overlap_on_the_device(
    activities: list[tuple[int, int, int, bool, bool]],
) -> None:
    spans, ran = [], []
    for step in range(3):
        start = 100 * step
        spans.append(span("step", f"ProfilerStep#{step}", start, start + 90, step=step))
    for number, (step, at, length, receives, back) in enumerate(activities):
        start, thread = 100 * step + at, 10 + number
        if back:
            spans.append(span("op", "MmBackward0", start, start + 9, thread=thread))
        spans.append(
            span("runtime", "l", start + 1, start + 2, thread=thread, correlation=number + 1)
        )
        name = "ncclDevKernel_Recv" if receives else "k"
        kind = "memcpy" if back and number % 2 else "kernel"
        ran.append(kernel(name, start + 3, start + 3 + length, correlation=number + 1, kind=kind))
    frame = step_trace(link(table("spans", spans), table("kernels", ran)))
    times = ("step", "start", "forward_start", "backward_end", "device_end")
    for name in set(frame.columns) - set(times):
        assert (frame[name].drop_nulls() >= 0).all(), name


def test_the_interval_is_from_the_end_of_all_earlier_steps() -> None:
    spans, ran = [], []
    # The first step's copy still runs in the third step.
    for step, (start, end) in enumerate([(5, 260), (110, 150), (205, 290), (320, 330)]):
        spans += [
            span("step", f"ProfilerStep#{step}", 100 * step, 100 * step + 90, step=step),
            span("runtime", "l", 100 * step + 1, 100 * step + 2, correlation=step + 1),
        ]
        ran.append(kernel("k", start, end, correlation=step + 1))
    frame = step_trace(link(table("spans", spans), table("kernels", ran)))
    assert frame["interval"].to_list() == [None, 0, 0, 30]
