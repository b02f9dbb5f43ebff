"""Kernels of CUDA graphs and the launches that put them in."""

from __future__ import annotations

from typing import Any

import polars as pl
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.linking.captured import captured
from haiprof.views.trace.linking.linked import Linked, link
from haiprof.views.trace.roofline.operators import operators

Rows = list[dict[str, Any]]
#: What a capture may contain: the operator and how it launches.
GEMM = ("aten::mm", "cudaLaunchKernel", "kernel")
NORM = ("aten::native_layer_norm", "cuLaunchKernelEx", "kernel")
SET = ("aten::zero_", "cudaMemsetAsync", "memset")


class Trace:
    """Captures, and replays of graphs, one after the other."""

    def __init__(self) -> None:
        self.spans: Rows = []
        self.kernels: Rows = []
        self.now = 0

    def call(self, name: str, **more: Any) -> None:
        self.spans.append(
            {"start": self.now, "duration": 2, "category": "runtime", "name": name, **more}
        )
        self.now += 10

    def capture(self, *contents: tuple[str, str, str], ends: bool = True) -> None:
        self.call("cudaStreamBeginCapture_v10000")
        for op, launch, _ in contents:
            self.spans.append(
                {"start": self.now - 1, "duration": 8, "name": op, "shapes": "[[8,8],[8,8]]"}
            )
            # Another call of the runtime adds nothing.
            self.call("cudaStreamIsCapturing")
            self.spans[-1]["duration"] = 1
            self.now -= 6
            self.call(launch, correlation=1000 + self.now)
        if ends:
            self.call("cudaStreamEndCapture_v10000")

    def replay(self, graph: int, *contents: tuple[str, str, str], node: int = 1) -> None:
        self.call("cudaGraphLaunch_v10000", correlation=self.now + 1)
        for number, (_, _, kind) in enumerate(contents):
            self.kernels.append(
                {"start": self.now, "duration": 5, "kind": kind, "name": f"{graph}.{number}",
                 "correlation": self.now, "graph": graph,
                 "graph_node": graph << 32 | (node + 2 * number)}
            )  # fmt: skip
            self.now += 6

    def linked(self) -> Linked:
        return link(spans_of(self.spans), kernels_of(self.kernels))

    def ops(self) -> dict[str, set[str | None]]:
        """For each kernel by name the operators that put it in."""
        linked = self.linked()
        around = linked.parent[captured(linked)]
        names = linked.ops["name"].cast(pl.String)
        found: dict[str, set[str | None]] = {}
        for kernel, call, op in zip(
            linked.activities["name"], captured(linked).tolist(), around.tolist(), strict=True
        ):
            found.setdefault(kernel, set()).add(None if call < 0 else names[op])
        return found


def test_kernels_belong_to_the_operators_of_their_graphs_capture() -> None:
    trace = Trace()
    trace.capture(GEMM, SET, NORM)
    trace.capture(NORM, GEMM)
    for _ in range(3):
        trace.replay(4, GEMM, SET, NORM)
        trace.replay(9, NORM, GEMM)
    # Lengths differ from that of the second only in kind.
    assert trace.ops() == {
        "4.0": {"aten::mm"}, "4.1": {"aten::zero_"}, "4.2": {"aten::native_layer_norm"},
        "9.0": {"aten::native_layer_norm"}, "9.1": {"aten::mm"},
    }  # fmt: skip
    found = operators(trace.linked())
    multiplied = found.filter(pl.col("operator") == "aten::mm").row(0, named=True)
    # Two operators with the same inputs, each of them in three replays.
    assert (multiplied["calls"], multiplied["kernels"], multiplied["graph"]) == (6, 6, True)
    assert multiplied["flops"] == 2 * 8**3


def test_graphs_that_are_alike_are_in_the_order_of_their_captures() -> None:
    trace = Trace()
    trace.capture(GEMM, NORM)
    trace.capture(NORM, GEMM)
    trace.replay(7, GEMM, NORM)
    trace.replay(5, GEMM, NORM)
    assert trace.ops()["5.0"] == {"aten::mm"}
    assert trace.ops()["7.0"] == {"aten::native_layer_norm"}


def test_what_the_trace_does_not_confirm_is_not_known() -> None:
    unknown = {None}
    # No capture; one that is not in the trace to its end; one of other kinds; one too few.
    for capture in ([], [(GEMM, NORM)], [(GEMM, SET)], [(GEMM, NORM), (GEMM, NORM)]):
        trace = Trace()
        for number, contents in enumerate(capture):
            trace.capture(*contents, ends=len(capture) > 1 or number > 0 or SET in contents)
        trace.replay(3, GEMM, NORM)
        assert set(map(frozenset, trace.ops().values())) == {frozenset(unknown)}, capture
        (row,) = operators(trace.linked()).iter_rows(named=True)
        assert (row["operator"], row["flops"], row["graph"]) == (None, None, True)


def test_a_replay_before_the_capture_is_of_another_graph() -> None:
    trace = Trace()
    trace.replay(3, GEMM, NORM)
    trace.capture(GEMM, NORM)
    trace.replay(3, GEMM, NORM)
    assert trace.ops()["3.0"] == {None}


def test_what_ran_at_once_during_a_capture_is_in_no_graph() -> None:
    trace = Trace()
    trace.call("cudaStreamBeginCapture_v10000")
    trace.call("cudaLaunchKernel", correlation=77)
    trace.spans.append({"start": trace.now - 1, "duration": 6, "name": "aten::mm"})
    trace.call("cudaLaunchKernel", correlation=78)
    trace.call("cudaStreamEndCapture_v10000")
    trace.kernels.append({"start": 5, "duration": 3, "name": "eager", "correlation": 77})
    trace.replay(3, GEMM)
    assert trace.ops() == {"eager": {None}, "3.0": {"aten::mm"}}
