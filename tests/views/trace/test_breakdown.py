"""How a step is spent: of all that happens at an instant the first counts, and parts add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from trace_rows import kernel, span, table

from haiprof.views.trace.as_other_tools.msprof_step_trace import step_trace
from haiprof.views.trace.distributed import breakdown
from haiprof.views.trace.linking.linked import link
from haiprof.views.trace.overview import OTHER, PARTS, overview

SPANS = {
    "communication": ("user", "gloo:all_reduce"),
    "runtime": ("runtime", "cudaLaunchKernel"),
    "dataloader": ("user", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    "cpu": ("op", "aten::mm"),
}
happening = st.tuples(
    st.sampled_from([*PARTS, "nccl kernel"]), st.integers(0, 40), st.integers(0, 20)
)


@given(st.lists(happening, max_size=12), st.lists(st.integers(1, 20), min_size=1, max_size=3))
def test_parts_are_what_painting_every_instant_gives(
    rows: list[tuple[str, int, int]], lengths: list[int]
) -> None:
    spans, kernels, painted = [], [], [set() for _ in range(64)]  # type: ignore[var-annotated]
    at = 0
    for number, length in enumerate(lengths):
        spans.append(span("step", f"ProfilerStep#{number}", at, at + length, step=number))
        at += length
    for number, (part, start, length) in enumerate(rows):
        if part in SPANS:
            # Each on its own thread: what crosses belongs together all the same.
            spans.append(span(*SPANS[part], start, start + length, thread=number + 2))
        elif part == "nccl kernel":
            kernels.append(kernel("ncclDevKernel_AllReduce", start, start + length))
        else:
            kernels.append(kernel("k", start, start + length, kind=part))
        role = "communication" if part == "nccl kernel" else part
        for instant in range(start, start + length):
            painted[instant].add(role)
    linked = link(table("spans", spans), table("kernels", kernels))
    steps = overview(linked).steps
    at = 0
    for row, length in zip(steps.iter_rows(named=True), lengths, strict=True):
        wanted = dict.fromkeys((*PARTS, OTHER), 0)
        for instant in range(at, at + length):
            wanted[next((part for part in PARTS if part in painted[instant]), OTHER)] += 1
        assert {part: row[part] for part in wanted} == wanted
        assert sum(wanted.values()) == row["duration"] == length
        at += length
    trace = step_trace(linked)
    split = trace.select("computing", "exposed", "copying", "free").sum_horizontal()
    assert split.to_list() == trace["duration"].to_list()


def test_a_role_that_fills_the_step_leaves_nothing_to_the_others() -> None:
    spans = [
        span("step", "ProfilerStep#1", 0, 100, step=1),
        span("op", "aten::mm", 0, 100),
        span("runtime", "cudaDeviceSynchronize", 10, 90),
    ]
    steps = overview(link(table("spans", spans), table("kernels", [kernel("k", 0, 100)]))).steps
    assert steps.select(*PARTS, OTHER).row(0) == (100, 0, 0, 0, 0, 0, 0, 0)


def test_a_timeline_has_bins_of_a_power_of_ten() -> None:
    us = 1000
    kernels = [kernel("k", 0, 150 * us), kernel("k", 2_000 * us, 2_345 * us)]
    result = overview(link(table("spans", []), table("kernels", kernels)))
    starts = result.timeline["start"].to_list()
    assert starts == [100 * us * i for i in range(23)]
    # The last one takes what is left.
    assert result.timeline["end"].to_list()[-1] == 2_345 * us
    assert result.timeline["utilization"].to_list() == [1.0, 0.5, *[0.0] * 18, 1.0, 1.0, 1.0]
    assert result.devices["utilization"].to_list() == [(150 + 345) / 2345]


def test_multiprocessors_are_full_at_most() -> None:
    kernels = [
        kernel("a", 0, 10, blocks_per_sm=0.25, occupancy=50.0),
        kernel("b", 5, 10, blocks_per_sm=3.0, occupancy=0.0),
        kernel("c", 10, 20),
        kernel("d", 20, 40, blocks_per_sm=-1.0, occupancy=-1.0),
    ]
    (device,) = overview(link(table("spans", []), table("kernels", kernels))).devices.to_dicts()
    assert device["sm_efficiency"] == (5 * 0.25 + 5 * 1.0) / 40
    assert device["occupancy"] == (0.5 * 10 + 0.0 * 5) / 15


def test_communication_is_that_of_distributed() -> None:
    nccl = span("user", "nccl:all_reduce", 10, 30), kernel("ncclDevKernel_AllReduce", 20, 50)
    for calls, kernels, communication, cpu in (
        # The call only launches the kernel.
        ([nccl[0]], [nccl[1]], 30, 10),
        # NCCL runs as a kernel of its name, or not at all.
        ([nccl[0]], [kernel("k", 20, 50)], 0, 10),
        ([nccl[0]], [], 20, 0),
        ([span("user", "gloo:all_reduce", 10, 30)], [nccl[1]], 40, 0),
        ([span("user", "hccl:all_reduce", 10, 30)], [kernel("remote", 60, 80)], 20, 0),
        ([span("user", "hccl:all_reduce", 10, 30)], [kernel("hcom_allReduce_1", 60, 80)], 20, 20),
    ):
        spans = [span("step", "ProfilerStep#1", 0, 100, step=1), *calls]
        linked = link(table("spans", spans), table("kernels", kernels))
        (step,) = overview(linked).steps.to_dicts()
        (split,) = breakdown(linked).to_dicts()
        assert (step["communication"], step["cpu"]) == (communication, cpu), calls
        assert split["communication"] + split["overlap"] == communication
