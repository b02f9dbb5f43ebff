"""Who called whom, and who launched what, in traces made by hand."""

from __future__ import annotations

import polars as pl
from trace_rows import kernel, span, table

from haiprof.views.trace.as_other_tools.msprof_op_statistics import op_statistics
from haiprof.views.trace.as_other_tools.msprof_step_trace import step_trace
from haiprof.views.trace.kernels import kernels
from haiprof.views.trace.linking.linked import Linked, Rules, link
from haiprof.views.trace.operators import operators
from haiprof.views.trace.overview import overview


def linked(spans: list[dict], kernels: list[dict], rules: Rules | None = None) -> Linked:  # type: ignore[type-arg]
    return link(table("spans", spans), table("kernels", kernels), rules=rules)


def parents_of(trace: Linked) -> list[int | None]:
    return [None if row < 0 else row for row in trace.parent.tolist()]


def named(trace: Linked, column: str) -> list[str | None]:
    """The names of the ops that a column of activities points to."""
    return trace.ops["name"].cast(pl.String).gather(trace.activities[column]).to_list()


def test_a_kernel_belongs_to_the_innermost_op_around_its_launch() -> None:
    trace = linked(
        [
            span("step", "ProfilerStep#3", 0, 100, step=3),
            span("op", "outer", 10, 50),
            span("op", "inner", 20, 40),
            span("runtime", "cudaLaunchKernel", 25, 30, correlation=7),
            span("op", "other", 20, 40, thread=2),
        ],
        [kernel("gemm", 60, 70, correlation=7)],
    )
    assert named(trace, "op") == ["inner"]
    assert named(trace, "runtime") == ["cudaLaunchKernel"]
    assert trace.activities["step"].to_list() == [3]
    parents = dict(zip(trace.ops["name"], parents_of(trace), strict=True))
    rows = {name: row for row, name in enumerate(trace.ops["name"])}
    assert parents["inner"] == rows["outer"]
    assert parents["outer"] == rows["ProfilerStep#3"]
    assert parents["other"] is None
    own = dict(zip(trace.ops["name"], trace.ops["self"].to_list(), strict=True))
    assert own == {
        "ProfilerStep#3": 60, "outer": 20, "inner": 15, "cudaLaunchKernel": 5, "other": 20,
    }  # fmt: skip


def test_without_the_launch_the_external_id_tells_the_op() -> None:
    trace = linked(
        [span("op", "graph", 0, 10, external=5), span("op", "add", 20, 30, external=6)],
        [
            kernel("a", 40, 50, correlation=1, external=6),
            kernel("b", 50, 60, correlation=2, external=99),
            kernel("c", 60, 70, correlation=0),
        ],
    )
    assert named(trace, "op") == ["add", None, None]
    assert trace.activities["runtime"].to_list() == [None, None, None]


def test_without_correlations_the_external_id_tells_the_call() -> None:
    trace = linked(
        [
            span("op", "conv", 0, 30),
            span("runtime", "cudaLaunchKernel", 10, 15, external=100),
            span("op", "mul", 40, 90),
            span("runtime", "cudaLaunchKernel", 50, 55, external=101),
            span("runtime", "cudaLaunchKernel", 60, 65, external=101),
            span("runtime", "cudaLaunchKernel", 70, 75, external=102, correlation=1),
        ],
        [
            kernel("a", 40, 50, external=100),
            # Two calls have its id, or one that has a correlation: which launched it is not known.
            kernel("b", 60, 70, external=101),
            kernel("c", 80, 90, external=102),
            kernel("d", 90, 95, external=103),
            # What has a correlation goes by that alone.
            kernel("e", 95, 99, external=100, correlation=7),
        ],
    )
    assert named(trace, "runtime") == ["cudaLaunchKernel", None, None, None, None]
    assert named(trace, "op") == ["conv", None, None, None, None]


def test_a_launch_in_a_range_belongs_to_the_op_that_its_id_names() -> None:
    trace = linked(
        [
            span("op", "record_param_comms", 0, 50, external=1),
            span("user", "nccl:all_reduce", 5, 45, external=2),
            span("runtime", "cudaLaunchKernelExC", 10, 20, correlation=7, external=1),
            span("runtime", "cudaLaunchKernelExC", 30, 40, correlation=8, external=8),
        ],
        [kernel("ncclDevKernel_AllReduce", 60, 70, correlation=c) for c in (7, 8)],
    )
    assert named(trace, "op") == ["record_param_comms", "nccl:all_reduce"]


def test_python_functions_have_a_tree_of_their_own() -> None:
    trace = linked(
        [
            span("python", "train", 0, 100, python_id=1),
            span("op", "aten::mm", 10, 30),
            span("python", "forward", 5, 60, python_id=2, python_parent=1),
            # The file knows better than the clock.
            span("python", "helper", 6, 50, python_id=3, python_parent=1),
        ],
        [],
    )
    names = trace.ops["name"].cast(pl.String).to_list()
    parents = [None if p is None else names[p] for p in parents_of(trace)]
    found = dict(zip(names, parents, strict=True))
    assert found == {"train": None, "aten::mm": None, "forward": "train", "helper": "train"}


def test_python_functions_that_call_each_other_in_a_circle_do_not() -> None:
    trace = linked(
        [
            span("python", "a", 0, 100, python_id=1, python_parent=2),
            span("python", "b", 10, 90, python_id=2, python_parent=1),
            span("python", "c", 20, 80, python_id=3, python_parent=3),
        ],
        [],
    )
    assert parents_of(trace) == [None, 0, 1]


def test_a_span_that_outlasts_its_caller_is_counted_and_kept() -> None:
    trace = linked(
        [
            span("op", "a", 0, 20),
            span("op", "b", 10, 30),
            span("runtime", "hipLaunchKernel", 25, 26, correlation=1),
        ],
        [kernel("k", 40, 50, correlation=1)],
    )
    assert trace.crossing == 1
    assert trace.ops["self"].to_list() == [10, 19, 1]
    assert named(trace, "op") == ["b"]


def test_correlations_far_apart_join_as_well() -> None:
    far = 2**63
    trace = linked(
        [
            span("runtime", "near", 0, 1, correlation=1),
            span("runtime", "far", 2, 3, correlation=far),
        ],
        [kernel("k", 5, 6, correlation=c) for c in (far, 1, 2, None)],
    )
    assert named(trace, "runtime") == ["far", "near", None, None]


def test_rules_of_the_user_come_into_their_own() -> None:
    rules = Rules(kernels=[("my_reduce", "all_reduce")], eligible=frozenset({"my::mm"}))
    trace = linked(
        [
            span("op", "my::mm", 0, 10),
            span("runtime", "cudaLaunchKernel", 1, 2, correlation=1),
        ],
        [kernel("my_reduce_v2", 20, 30, correlation=1), kernel("ncclDevKernel_X", 30, 40)],
        rules,
    )
    assert trace.activities["role"].to_list() == ["communication", "kernel"]
    assert operators(trace)["tensor_core_eligible"].to_list() == [True]


def test_an_empty_trace_has_no_numbers_and_no_errors() -> None:
    trace = linked([], [])
    sums = overview(trace)
    assert (sums.devices.height, sums.steps.height, sums.timeline.height) == (0, 0, 0)
    assert (sums.mean, sums.tensor_core, sums.tensor_core_eligible) == ({}, None, None)
    assert overview(trace, compat=True).mean == {}
    for frame in (operators(trace), operators(trace, "shapes+stack"), kernels(trace),
                  kernels(trace, "launch"), step_trace(trace), op_statistics(trace)):  # fmt: skip
        assert frame.height == 0
        assert frame.width > 5


def test_kernels_that_haiprof_recorded_itself_need_no_ops() -> None:
    trace = linked(
        [span("step", "step", 0, 100, step=1), span("dataloader", "next", 0, 30),
         span("phase", "forward", 30, 100)],
        [kernel("ncclDevKernel_AllGather", 40, 60), kernel("gemm", 50, 90)],
    )  # fmt: skip
    sums = overview(trace)
    parts = sums.steps.select("kernel", "communication", "dataloader", "cpu", "other").to_dicts()
    assert parts == [{"kernel": 40, "communication": 10, "dataloader": 30, "cpu": 20, "other": 0}]
    assert sums.devices["tensor_core"].to_list() == [None]
    assert sums.devices["sm_efficiency"].to_list() == [None]
    assert kernels(trace, "launch")["op"].to_list() == [None, None]


def test_threads_of_equal_calls_are_distinguished() -> None:
    rows = [span("op", "a", 0, 10, thread=t) for t in (9, 4, 7)]
    trace = linked(rows, [])
    assert trace.ops["thread"].to_list() == [4, 7, 9]
    assert parents_of(trace) == [None, None, None]


def test_odd_values_are_no_measurements() -> None:
    odd = [float("nan"), float("inf"), -1.0, None]
    trace = linked(
        [span("step", "step", 0, 100), span("op", "a", 0, 2**62)],
        [
            kernel("k", 0, 10, blocks_per_sm=value, occupancy=value, external=1, device=0)
            for value in odd
        ]
        + [kernel("back", 20, 10), kernel("long", 0, 2**62)],
    )
    sums = overview(trace)
    assert sums.steps["step"].to_list() == [None]
    assert sums.devices.select("sm_efficiency", "occupancy").row(0) == (None, None)
    rows = {row["name"]: row for row in kernels(trace).iter_rows(named=True)}
    assert (rows["k"]["blocks_per_sm"], rows["k"]["occupancy"]) == (None, None)
    assert rows["back"]["total"] == 0
    assert operators(trace)["host_total"].to_list() == [2**62]
