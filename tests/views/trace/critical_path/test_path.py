"""The critical path: invariants of any, small ones known by hand, and HTA where it agrees."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of
from traces import expected, files, load, runs

from haiprof import _core
from haiprof.views.trace.critical_path.graph import graph
from haiprof.views.trace.critical_path.path import (
    CriticalPath,
    critical_path,
    of_range,
    of_step,
    walked,
    window,
    window_of_step,
)
from haiprof.views.trace.critical_path.what_if import KINDS_OF_WORK, Replay, Work, of_kind
from haiprof.views.trace.critical_path.window import Window, threads
from haiprof.views.trace.linking.linked import Linked, link

#: Traces of which HTA's window is the whole trace, so that its length is comparable with ours.
WHOLE = {
    "hta_cp_alexnet", "hta_cp_simple_add", "param_resnet", "tl_b200_eager", "tl_mi210_gpu_only",
    "tl_vllm_prefilldecode",
}  # fmt: skip


def linked(run: str, nth: int = 0) -> Linked:
    trace = load(files(run)[nth])
    return link(trace.spans, trace.kernels, trace.collectives, trace.flows)


def check(trace: Linked, result: CriticalPath) -> None:
    """Invariants of every critical path."""
    path = result.path
    start, duration = path["start"].to_numpy(), path["duration"].to_numpy()
    assert (duration > 0).all()
    if result.start == result.end:
        assert not path.height
        return
    # Connected, ordered, and from end to end of the window: nothing overlaps, nothing is left out.
    assert start[0] == result.start
    assert (start[1:] == start[:-1] + duration[:-1]).all()
    assert start[-1] + duration[-1] == result.end
    kinds = path["kind"].cast(pl.String)
    unexplained = int(duration[(kinds == "unexplained").to_numpy()].sum())
    assert result.length == result.end - result.start - unexplained
    assert result.summary["duration"].sum() == result.names["duration"].sum() == duration.sum()
    assert result.summary["share"].sum() == pytest.approx(1)
    # An element lies within what it is about.
    on_host = kinds == "host"
    calls = path.filter(on_host)
    begun = trace.ops["start"].gather(calls["op"]).to_numpy()
    ended = trace.ops["end"].gather(calls["op"]).to_numpy()
    assert (begun <= calls["start"].to_numpy()).all()
    assert (calls["start"].to_numpy() + calls["duration"].to_numpy() <= ended).all()
    runs_ = path.filter(kinds.is_in(["kernel", "communication", "memcpy", "memset"]))
    begun = trace.activities["start"].gather(runs_["activity"]).to_numpy()
    ended = trace.activities["end"].gather(runs_["activity"]).to_numpy()
    assert (begun <= runs_["start"].to_numpy()).all()
    assert (runs_["start"].to_numpy() + runs_["duration"].to_numpy() <= ended).all()


def unchanged(trace: Linked, each: Window) -> None:
    """A replay in which nothing changes gives what was measured, and less work never more."""
    replay = Replay(trace, each)
    assert replay.after(Work()) == replay.before == each.end - each.start
    for kind in KINDS_OF_WORK:
        assert replay.after(of_kind(trace, kind), 1.0) == replay.before
        assert 0 <= replay.after(of_kind(trace, kind)) <= replay.before


@pytest.mark.parametrize("run", runs())
def test_the_path_of_a_trace_and_of_a_step_is_whole(run: str) -> None:
    trace = linked(run)
    whole = critical_path(trace)
    check(trace, whole)
    unchanged(trace, window(trace))
    for step in trace.steps["step"].to_list() if trace.stepped else ():
        result = of_step(trace, step)
        assert (result.start, result.end) == trace.steps.filter(pl.col("step") == step).row(0)[1:]
        check(trace, result)
        unchanged(trace, window_of_step(trace, step))
    theirs = expected(run, "hta_061").get("critical_path")
    if run in WHOLE:
        # Whatever HTA explains we explain, too; it gives no weight to the time between operators.
        assert theirs is not None
        assert theirs["total"] * 1000 <= whole.length
    elif theirs is None:
        assert run in {"hta_cpu_only", "hta_cupti_counters", "hta_mtia_inference",
                       "tb_resnet50_num_workers_0", "handmade_old"}  # fmt: skip


def test_htas_delays_are_ours_where_both_see_the_same_path() -> None:
    theirs = expected("hta_cp_alexnet", "hta_061")["critical_path"]["by_type"]
    path = critical_path(linked("hta_cp_alexnet"))
    ours = dict(path.summary.select("kind", "duration").rows())
    assert ours["launch"] == theirs["critical_path_kernel_launch_delay"] * 1000
    assert ours["stream"] == theirs["critical_path_kernel_kernel_delay"] * 1000


@pytest.mark.parametrize(("run", "bound"), [
    ("hta_cp_alexnet", "cpu_bound"), ("hta_cp_simple_add", "cpu_bound"),
    ("hta_cp_event_sync", "cpu_bound"), ("tl_h100_Qwen_Qwen1_5_0_5B_Chat", "gpu_compute_bound"),
    ("tl_mi300_resnet_act_checkpoint", "gpu_communication_bound"), ("tl_b200_eager", "cpu_bound"),
])  # fmt: skip
def test_the_bound_is_htas(run: str, bound: str) -> None:
    theirs = expected(run, "hta_061")["critical_path"]["summary"]
    assert max(theirs, key=lambda kind: theirs[kind]) == bound
    names = {"host": "cpu_bound", "kernel": "gpu_compute_bound",
             "communication": "gpu_communication_bound"}  # fmt: skip
    most = critical_path(linked(run)).summary.filter(pl.col("kind").is_in(list(names)))
    assert names[most["kind"][0]] == bound


STEP = {"name": "ProfilerStep#1", "category": "step", "step": 1, "start": 0}


def runtime(name: str, start: int, duration: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "category": "runtime", "start": start, "duration": duration,
            "correlation": correlation, **more}  # fmt: skip


def launch(start: int, correlation: int, **more: Any) -> dict[str, Any]:
    return runtime("cudaLaunchKernel", start, 10_000, correlation, **more)


def kernel(start: int, end: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {"start": start, "duration": end - start, "correlation": correlation, **more}


def path_of(spans: list[dict[str, Any]], kernels: list[dict[str, Any]]) -> list[tuple[str, int]]:
    trace = link(spans_of(spans), kernels_of(kernels))
    path = critical_path(trace)
    check(trace, path)
    return path.path.select(pl.col("kind").cast(pl.String), "duration").rows()


def test_an_empty_trace_has_an_empty_path() -> None:
    path = critical_path(link(spans_of([]), kernels_of([])))
    assert (path.length, path.path.height, path.summary.height) == (0, 0, 0)


def test_a_host_that_never_waits_is_the_path() -> None:
    spans = [{**STEP, "duration": 200_000}, launch(20_000, 1)]
    assert path_of(spans, [kernel(35_000, 90_000, 1)]) == [
        ("host", 20_000), ("host", 10_000), ("host", 170_000)
    ]  # fmt: skip


def test_a_step_is_no_item_of_its_own_path() -> None:
    spans = [
        {"name": "ProfilerStep#3", "start": 0, "duration": 100, "category": "step"},
        {"name": "aten::mm", "start": 10, "duration": 50},
    ]
    path = critical_path(link(spans_of(spans), kernels_of([]))).path
    assert path.select("kind", "name", "duration").rows() == [
        ("host", None, 10),
        ("host", "aten::mm", 50),
        ("host", None, 40),
    ]


def test_a_host_that_waits_for_the_device_hands_the_path_over() -> None:
    spans = [
        {**STEP, "duration": 400_000},
        launch(20_000, 1),
        launch(40_000, 2),
        runtime("cudaDeviceSynchronize", 60_000, 250_000, 3),
    ]
    kernels = [kernel(35_000, 100_000, 1), kernel(102_000, 300_000, 2)]
    assert path_of(spans, kernels) == [
        ("host", 20_000), ("launch", 15_000), ("kernel", 65_000), ("stream", 2_000),
        ("kernel", 198_000), ("sync", 10_000), ("host", 90_000),
    ]  # fmt: skip


def test_a_synchronization_with_nothing_to_wait_for_is_work_of_the_host() -> None:
    spans = [
        {**STEP, "duration": 400_000},
        launch(20_000, 1),
        runtime("cudaStreamSynchronize", 200_000, 100_000, 3),
    ]
    assert {kind for kind, _ in path_of(spans, [kernel(35_000, 90_000, 1)])} == {"host"}


def test_a_synchronization_does_not_wait_for_what_was_launched_later() -> None:
    spans = [
        {**STEP, "duration": 400_000},
        launch(20_000, 1),
        runtime("cudaDeviceSynchronize", 60_000, 150_000, 2),
        launch(70_000, 3, thread=9),
    ]
    kernels = [kernel(35_000, 150_000, 1), kernel(151_000, 205_000, 3, stream=9)]
    assert path_of(spans, kernels) == [
        ("host", 20_000), ("launch", 15_000), ("kernel", 115_000), ("sync", 60_000),
        ("host", 190_000),
    ]  # fmt: skip


def test_a_copy_that_returns_after_its_activity_was_waited_for() -> None:
    spans = [
        {**STEP, "duration": 300_000},
        launch(10_000, 1),
        runtime("cudaMemcpyAsync", 30_000, 200_000, 2),
    ]
    kernels = [kernel(25_000, 150_000, 1), kernel(152_000, 222_000, 2, kind="memcpy")]
    assert path_of(spans, kernels) == [
        ("host", 10_000), ("launch", 15_000), ("kernel", 125_000), ("stream", 2_000),
        ("memcpy", 70_000), ("sync", 8_000), ("host", 70_000),
    ]  # fmt: skip


def test_a_stream_that_waits_for_an_event_waits_for_the_other_stream() -> None:
    spans = [
        {**STEP, "duration": 100_000},
        launch(10_000, 1),
        runtime("cudaStreamWaitEvent", 30_000, 5_000, 2),
        launch(40_000, 3),
    ]
    kernels = [
        kernel(25_000, 200_000, 1, name="ncclDevKernel_AllReduce", stream=20),
        kernel(203_000, 250_000, 3),
    ]
    spans[0]["duration"] = 90_000
    trace = link(spans_of(spans), kernels_of(kernels))
    path = critical_path(trace, 0, 250_000)
    check(trace, path)
    assert path.path.select(pl.col("kind").cast(pl.String), "duration").rows() == [
        ("host", 10_000), ("launch", 15_000), ("communication", 175_000), ("event", 3_000),
        ("kernel", 47_000),
    ]  # fmt: skip
    spans.pop(2)
    without = critical_path(link(spans_of(spans), kernels_of(kernels)), 0, 250_000)
    assert "event" not in set(without.summary["kind"])


def test_a_backward_thread_has_the_path_while_the_main_thread_waits_for_it() -> None:
    spans = [
        {**STEP, "duration": 500_000},
        {"name": "aten::mm", "start": 10_000, "duration": 50_000},
        {"name": "MmBackward", "start": 100_000, "duration": 200_000, "thread": 2,
         "forward_thread": 1},
        {"name": "AddBackward", "start": 310_000, "duration": 90_000, "thread": 2,
         "forward_thread": 1},
        {"name": "aten::add_", "start": 420_000, "duration": 50_000},
    ]  # fmt: skip
    trace = link(spans_of(spans), kernels_of([]))
    path = critical_path(trace)
    check(trace, path)
    assert path.path.select("name", "duration").rows() == [
        (None, 10_000), ("aten::mm", 50_000), (None, 40_000),
        ("MmBackward", 200_000), (None, 10_000), ("AddBackward", 90_000),
        (None, 20_000), ("aten::add_", 50_000), (None, 30_000),
    ]  # fmt: skip
    # Waiting for another thread is not work: were that thread faster, so would be the step.
    time, edges, _ = graph(trace, Window(path.start, path.end))
    waiting = (time[edges.source] == 60_000) & (time[edges.target] == 420_000)
    assert edges.least[waiting].tolist() == [0]


def test_kernels_of_a_graph_follow_each_other_not_the_launch() -> None:
    spans = [
        {**STEP, "duration": 300_000},
        runtime("cudaGraphLaunch", 10_000, 90_000, 7),
        runtime("cudaDeviceSynchronize", 110_000, 100_000, 8),
    ]
    kernels = [
        kernel(30_000, 60_000, 7, graph_node=1),
        kernel(61_000, 90_000, 7, graph_node=2, stream=9),
        kernel(92_000, 200_000, 7, graph_node=3),
    ]
    assert path_of(spans, kernels) == [
        ("host", 10_000), ("launch", 20_000), ("kernel", 30_000), ("stream", 1_000),
        ("kernel", 29_000), ("stream", 2_000), ("kernel", 108_000), ("sync", 10_000),
        ("host", 90_000),
    ]  # fmt: skip


def test_clocks_that_disagree_are_reported_and_the_path_stays_in_order() -> None:
    spans = [
        {**STEP, "duration": 300_000},
        launch(20_000, 1),
        runtime("cudaDeviceSynchronize", 60_000, 140_000, 2),
    ]
    trace = link(spans_of(spans), kernels_of([kernel(18_000, 203_000, 1)]))
    path = critical_path(trace)
    check(trace, path)
    assert path.skewed == 1
    assert path.path["kind"].cast(pl.String).to_list() == ["launch", "kernel", "host"]


def test_without_launches_gaps_between_kernels_are_unexplained() -> None:
    trace = link(spans_of([]), kernels_of([kernel(0, 10, 0), kernel(50, 70, 0)]))
    path = critical_path(trace)
    check(trace, path)
    assert path.length == 30
    assert path.path["kind"].cast(pl.String).to_list() == ["kernel", "unexplained", "kernel"]


def test_a_range_lasts_until_what_it_launched_has_ended() -> None:
    spans = [
        {"name": "forward", "category": "user", "start": 100_000, "duration": 50_000},
        launch(110_000, 1),
        {"name": "forward", "category": "user", "start": 300_000, "duration": 50_000},
    ]
    trace = link(spans_of(spans), kernels_of([kernel(125_000, 200_000, 1)]))
    result = of_range(trace, "forward")
    check(trace, result)
    assert (result.start, result.end) == (100_000, 200_000)
    assert of_range(trace, "forward", 1).end == 350_000
    with pytest.raises(ValueError, match="2 ranges 'forward': none has number 2"):
        of_range(trace, "forward", 2)
    with pytest.raises(ValueError, match="there is no step 7"):
        of_step(trace, 7)


def test_a_host_that_runs_ahead_leaves_the_step_to_the_device() -> None:
    spans = []
    kernels = []
    for step in range(3):
        begun = step * 30_000
        spans.append({**STEP, "name": f"ProfilerStep#{step}", "step": step, "start": begun,
                      "duration": 30_000})  # fmt: skip
        spans.append(launch(begun + 5_000, step + 1))
        kernels.append(kernel(20_000 + step * 200_000, 219_000 + step * 200_000, step + 1))
    trace = link(spans_of(spans), kernels_of(kernels))
    for step in (1, 2):
        path = of_step(trace, step)
        check(trace, path)
        # The host's calls of later steps, in the same time, are not the step's.
        assert path.path.select(pl.col("kind").cast(pl.String), "duration").rows() == [
            ("stream", 1_000), ("kernel", 199_000)
        ]  # fmt: skip


def test_a_call_that_a_full_queue_blocks_waits_for_the_device() -> None:
    count, lasts = 700, 1_000_000
    spans: list[dict[str, Any]] = []
    kernels = []
    now = 0
    for number in range(count):
        begun = 20_000 + number * lasts
        # From the 600th on, a launch returns when an earlier kernel has ended.
        blocked = number >= 600
        until = 20_000 + (number - 590) * lasts + 1_000 if blocked else now + 2_000
        spans.append(runtime("cudaLaunchKernel", now, max(until - now, 2_000), number + 1))
        now = max(until, now + 2_000)
        kernels.append(kernel(begun, begun + lasts, number + 1))
    spans.append({"name": "aten::last", "start": now, "duration": 1_000_000_000})
    trace = link(spans_of(spans), kernels_of(kernels))
    path = critical_path(trace)
    check(trace, path)
    shares = dict(path.summary.select("kind", "duration").rows())
    # Had the launches counted as the host's, it would be on the path until the last one returned.
    assert shares["kernel"] == pytest.approx(now - 20_000, abs=2 * lasts)
    assert shares["queue"] == 1_000


def test_a_kernel_that_begins_late_for_no_known_reason_is_unexplained() -> None:
    spans = [launch(2_000, 1), runtime("cudaDeviceSynchronize", 20_000, 990_000, 2)]
    found = path_of(spans, [kernel(900_000, 1_000_000, 1)])
    assert found == [
        ("unexplained", 898_000), ("kernel", 100_000), ("sync", 10_000)
    ]  # fmt: skip


def test_a_kernel_launched_to_a_busy_device_waits_for_what_runs_there() -> None:
    spans = [
        launch(0, 1), launch(12_000, 2), runtime("cudaDeviceSynchronize", 30_000, 990_000, 3)
    ]  # fmt: skip
    kernels = [
        kernel(14_000, 890_000, 1, name="fills the device"),
        kernel(889_000, 1_000_000, 2, stream=9),
    ]
    assert _named(spans, kernels) == [
        ("launch", "fills the device", 14_000), ("kernel", "fills the device", 875_000),
        ("kernel", "gemm", 111_000), ("sync", "cudaDeviceSynchronize", 20_000),
    ]  # fmt: skip


def test_a_kernel_that_gets_no_room_after_another_one_goes_on_with_that() -> None:
    spans = [
        launch(0, 1), launch(12_000, 2), launch(80_000, 3),
        runtime("cudaDeviceSynchronize", 95_000, 925_000, 4),
    ]  # fmt: skip
    kernels = [
        kernel(14_000, 99_000, 1),
        kernel(889_000, 1_000_000, 2),
        kernel(100_000, 890_000, 3, stream=9, name="fills the device"),
    ]
    assert _named(spans, kernels) == [
        ("launch", "gemm", 14_000), ("kernel", "gemm", 85_000),
        ("occupied", "fills the device", 790_000), ("kernel", "gemm", 111_000),
        ("sync", "cudaDeviceSynchronize", 20_000),
    ]  # fmt: skip


def _named(
    spans: list[dict[str, Any]], kernels: list[dict[str, Any]]
) -> list[tuple[str, str | None, int]]:
    trace = link(spans_of(spans), kernels_of(kernels))
    path = critical_path(trace)
    check(trace, path)
    return path.path.select(pl.col("kind", "name").cast(pl.String), "duration").rows()


def test_an_event_stands_for_what_was_launched_before_it() -> None:
    spans = [
        launch(0, 1),
        runtime("cudaStreamWaitEvent", 20_000, 2_000, 2),
        launch(30_000, 3),
        launch(50_000, 4),
        runtime("cudaDeviceSynchronize", 70_000, 240_000, 5),
    ]
    kernels = [
        kernel(12_000, 100_000, 1, stream=20, name="awaited"),
        kernel(150_000, 300_000, 3),
        kernel(101_000, 149_000, 4, stream=20, name="launched later"),
    ]
    names = [name for _, name, _ in _named(spans, kernels)]
    assert "awaited" in names
    assert "launched later" not in names


def test_without_steps_the_thread_that_drives_the_other_is_the_main_one() -> None:
    backward = {"category": "op", "thread": 2, "forward_thread": 1}
    spans = [
        {"name": "train", "category": "user", "start": 0, "duration": 900_000},
        {"name": "aten::mm", "start": 10_000, "duration": 50_000},
        {"name": "MmBackward0", "start": 100_000, "duration": 700_000, **backward},
        *(launch(110_000 + 20_000 * number, number + 1, thread=2) for number in range(20)),
    ]
    kernels = [
        kernel(125_000 + 20_000 * number, 130_000 + 20_000 * number, number + 1)
        for number in range(20)
    ]
    trace = link(spans_of(spans), kernels_of(kernels))
    main, workers = threads(trace)
    assert (main.tolist(), workers.tolist()) == ([1], [2])
    path = critical_path(trace)
    check(trace, path)
    # From the main thread to the worker and back.
    assert path.path["thread"].unique(maintain_order=True).to_list() == [1, 2]
    assert path.path["thread"].to_list()[0] == path.path["thread"].to_list()[-1] == 1


def test_no_thread_of_a_server_drives_the_others() -> None:
    spans = [
        {"name": f"request {thread}", "start": 1_000_000 * thread, "duration": 500_000,
         "thread": thread}
        for thread in range(1, 5)
    ]  # fmt: skip
    trace = link(spans_of(spans), kernels_of([]))
    assert threads(trace)[0].tolist() == []
    # Nothing says what the last thread waited for before.
    assert [kind for kind, _ in path_of(spans, [])] == ["unexplained", "host"]


EDGES = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14), st.integers(0, 9)), max_size=60)


@given(EDGES)
def test_the_longest_path_is_that_of_trying_all(edges: list[tuple[int, int, int]]) -> None:
    forward = sorted({(b, a, w) for a, b, w in edges if a < b})
    target, source, weight = (np.array([edge[k] for edge in forward]) for k in range(3))
    distance, path = _core.longest_path(
        source.astype(np.int32), target.astype(np.int32), weight.astype(np.int64), 15
    )

    def best(node: int) -> int:
        return max((best(a) + w for b, a, w in forward if b == node), default=0)

    assert distance.tolist() == [best(node) for node in range(15)]
    taken = [forward[edge] for edge in path]
    assert sum(w for _, _, w in taken) == distance[14]
    assert all(one[0] == two[1] for one, two in itertools.pairwise(taken))
    assert not taken or taken[-1][0] == 14


TIMES = st.integers(0, 40)
CALLS = st.lists(
    st.tuples(
        TIMES,
        st.integers(0, 20),
        st.integers(1, 3),
        st.sampled_from(
            ["op", "user", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize",
             "cudaStreamWaitEvent", "backward"]
        ),
        st.integers(0, 6),
    ),
    max_size=20,
)  # fmt: skip
ACTIVITIES = st.lists(
    st.tuples(TIMES, st.integers(0, 20), st.integers(1, 3), st.integers(0, 6)), max_size=15
)


@given(CALLS, ACTIVITIES, st.none() | st.tuples(TIMES, st.integers(1, 60)), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_path_of_any_trace_is_whole(
    calls: list[tuple[int, int, int, str, int]],
    activities: list[tuple[int, int, int, int]],
    cut: tuple[int, int] | None,
    stepped: bool,
) -> None:
    spans: list[dict[str, Any]] = [{**STEP, "duration": 50}] if stepped else []
    for start, duration, thread, name, correlation in calls:
        category = name if name in ("op", "user") else "runtime"
        spans.append(
            {
                "name": name, "start": start, "duration": duration, "thread": thread,
                "category": "op" if name == "backward" else category,
                "correlation": correlation if category == "runtime" else None,
                "forward_thread": 1 if name == "backward" else None,
            }
        )  # fmt: skip
    kernels = [
        kernel(start, start + duration, correlation, stream=stream)
        for start, duration, stream, correlation in activities
    ]
    trace = link(spans_of(spans), kernels_of(kernels))
    each = window(trace, *((cut[0], sum(cut)) if cut else (None, None)))
    path = walked(trace, each)
    if path.end > path.start:
        check(trace, path)
    else:
        assert not path.path.height
    unchanged(trace, each)
    for step in trace.steps["step"].to_list() if trace.stepped else ():
        check(trace, of_step(trace, step))
        unchanged(trace, window_of_step(trace, step))


def test_edges_that_lead_backwards_are_refused() -> None:
    def of(source: list[int], target: list[int]) -> None:
        _core.longest_path(
            np.array(source, np.int32), np.array(target, np.int32),
            np.ones(len(source), np.int64), 3,
        )  # fmt: skip

    of([0, 1], [1, 2])
    for source, target in (([1], [0]), ([1], [1]), ([0, 0], [2, 1]), ([0], [3]), ([-1], [1])):
        with pytest.raises(ValueError, match="target"):
            of(source, target)


def test_without_the_launching_call_an_activity_is_its_operators() -> None:
    spans = [
        {"name": "aten::mm", "start": 0, "duration": 20_000, "external": 5},
        runtime("cudaDeviceSynchronize", 30_000, 80_000, 9),
    ]
    assert path_of(spans, [kernel(15_000, 100_000, 0, external=5)]) == [
        ("launch", 15_000), ("kernel", 85_000), ("sync", 10_000)
    ]  # fmt: skip


def test_a_trace_that_ends_in_python_ends_outside_of_calls() -> None:
    spans = [
        {"name": "train.py(1): main", "category": "python", "start": 0, "duration": 100_000},
        {"name": "aten::mm", "start": 10_000, "duration": 20_000},
    ]
    assert path_of(spans, []) == [("outside", 10_000), ("host", 20_000), ("outside", 70_000)]


@pytest.mark.parametrize("name", ["Stream Wait Event", "EVENT_WAIT"])
def test_a_wait_that_the_device_recorded_is_of_its_stream(name: str) -> None:
    spans = [
        launch(0, 1),
        runtime("waitEvent", 20_000, 2_000, 2),
        launch(30_000, 3, thread=2),
        launch(30_000, 4),
        runtime("cudaDeviceSynchronize", 50_000, 260_000, 5),
    ]
    kernels = [
        kernel(12_000, 100_000, 1, stream=20, name="awaited"),
        kernel(22_000, 102_000, 2, kind="sync", name=name),
        kernel(45_000, 50_000, 3, stream=9, name="of another thread and stream"),
        kernel(150_000, 300_000, 4),
    ]
    assert _named(spans, kernels)[1:4] == [
        ("kernel", "awaited", 88_000), ("event", "gemm", 50_000), ("kernel", "gemm", 150_000)
    ]  # fmt: skip
