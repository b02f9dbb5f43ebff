"""Trees of calls of two traces, aligned path by path."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.call_differences import BETWEEN, SCHEMA, call_differences
from haiprof.views.trace.differences import differences
from haiprof.views.trace.linking.linked import Linked, link

Rows = list[dict[str, Any]]


def step_of(library: str, kernel: str, gemm: int, steps: int = 1, extra: bool = False) -> Linked:
    """Steps of a module that convolves and multiplies, on a device of one maker."""
    spans: Rows = []
    kernels: Rows = []
    for step in range(steps):
        begin = 1000 * step
        spans += [
            {"start": begin, "duration": 900, "name": f"ProfilerStep#{step}", "category": "step",
             "step": step},
            {"start": begin + 10, "duration": 500, "name": "nn.Module: Net_0",
             "category": "python", "module": 0, "python_id": 2 * step + 1},
            {"start": begin + 20, "duration": 200, "name": "aten::conv2d"},
            {"start": begin + 30, "duration": 150, "name": f"aten::{library}_convolution"},
            {"start": begin + 40, "duration": 5, "name": f"{kernel}Launch", "category": "runtime",
             "correlation": 10 * step + 1},
            {"start": begin + 300, "duration": 100, "name": "aten::mm"},
            {"start": begin + 310, "duration": 5, "name": f"{kernel}Launch", "category": "runtime",
             "correlation": 10 * step + 2},
        ]  # fmt: skip
        kernels += [
            {"start": begin + 200, "duration": 40, "name": f"{kernel}_conv",
             "correlation": 10 * step + 1},
            {"start": begin + 400, "duration": gemm, "name": f"{kernel}_gemm",
             "correlation": 10 * step + 2},
        ]  # fmt: skip
        if extra:
            spans.append({"start": begin + 600, "duration": 50, "name": "aten::relu"})
    return link(spans_of(spans), kernels_of(kernels))


def test_paths_of_different_devices_are_aligned() -> None:
    control, test = step_of("cudnn", "cuda", 100), step_of("miopen", "hip", 250, 3, extra=True)
    found = differences(control, test, "calls")
    rows = {row["calls"]: row for row in found.iter_rows(named=True)}
    assert list(rows) == [
        "Net_0 > aten::mm",
        "Net_0 > aten::conv2d > aten::convolution",
        "aten::relu",
        "Net_0",
        "Net_0 > aten::conv2d",
    ]
    multiplied = rows["Net_0 > aten::mm"]
    assert multiplied["difference"] == 150
    assert (multiplied["control_self_device"], multiplied["test_self_device"]) == (100, 250)
    assert multiplied["change"] == "same"
    assert multiplied["control_kernels"] == ["cuda_gemm"]
    assert multiplied["test_kernels"] == ["hip_gemm"]
    convolved = rows["Net_0 > aten::conv2d > aten::convolution"]
    assert (convolved["difference"], convolved["control_kernels"]) == (0, ["cuda_conv"])
    # A module has what was launched in it; of a step, since the traces have one and three.
    net = rows["Net_0"]
    assert (net["control_device"], net["test_device"]) == (140, 290)
    assert (net["control_host"], net["test_host"], net["control_count"]) == (500, 500, 1)
    assert (net["test_count"], net["control_self_device"]) == (1, 0)
    assert net["parent"] is None
    assert multiplied["parent"] == net["path"]
    assert multiplied["depth"] == 1
    # What launches nothing differs by the host's time.
    assert (rows["aten::relu"]["change"], rows["aten::relu"]["difference"]) == ("new", 50)
    assert rows["aten::relu"]["test_kernels"] == []


def test_only_the_steps_that_are_asked_for_count() -> None:
    control, test = step_of("cudnn", "cuda", 100, 3), step_of("cudnn", "cuda", 100, 3)
    found = call_differences(control, test, control_steps=[0, 2], test_steps=[1])
    assert set(found["change"]) == {"same"}
    assert set(found["difference"]) == {0}
    nothing = call_differences(control, test, control_steps=[7], test_steps=[1])
    assert set(nothing["change"]) == {"new"}


def test_what_differs_from_run_to_run_is_no_difference() -> None:
    def one(name: str) -> Linked:
        return link(spans_of([{"start": 0, "duration": 5, "name": name}]), kernels_of([]))

    (row,) = call_differences(
        one("<built-in method mm of type object at 0x7f881971fac0>"),
        one("<built-in method mm of type object at 0x7f0000000000>"),
    ).iter_rows(named=True)
    assert row["change"] == "same"


def test_nothing_was_called() -> None:
    empty = link(spans_of([]), kernels_of([]))
    assert call_differences(empty, empty).schema == pl.Schema(SCHEMA)


#: Nested calls: a name and what it calls.
TREES = st.recursive(
    st.tuples(st.sampled_from("abc"), st.just([])),
    lambda inner: st.tuples(st.sampled_from("abc"), st.lists(inner, max_size=3)),
    max_leaves=8,
)


def laid_out(trees: list[Any]) -> tuple[Linked, dict[str, list[int]]]:
    """The trace of such calls, each with a kernel, and count and times by path, counted plainly."""
    spans: Rows = []
    kernels: Rows = []
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def call(tree: Any, begin: int, above: str) -> tuple[int, int]:
        name, inner = tree
        path = f"{above}{BETWEEN}{name}" if above else name
        number = len(kernels) + 1
        own = 3 * number
        spans.append(
            {"start": begin + 1, "duration": 1, "category": "runtime", "name": "launch",
             "correlation": number}
        )  # fmt: skip
        kernels.append({"start": begin, "duration": own, "name": name, "correlation": number})
        end, device = begin + 3, own
        for each in inner:
            end, below = call(each, end, path)
            device += below
        end += 1
        spans.append({"start": begin, "duration": end - begin, "name": name})
        sums = expected[path]
        sums[0] += 1
        sums[1] += end - begin
        sums[2] += device
        return end + 1, device

    at = 0
    for tree in trees:
        at, _ = call(tree, at, "")
    return link(spans_of(spans), kernels_of(kernels)), expected


@given(st.lists(TREES, max_size=4), st.lists(TREES, max_size=4))
def test_every_path_has_the_sums_of_its_calls(control: list[Any], test: list[Any]) -> None:
    (before, counts), (after, counts_after) = laid_out(control), laid_out(test)
    found = call_differences(before, after)
    assert set(found["calls"]) == set(counts) | set(counts_after)
    for row in found.iter_rows(named=True):
        for which, expected in (("control", counts), ("test", counts_after)):
            sums = [row[f"{which}_{name}"] for name in ("count", "host", "device")]
            assert sums == pytest.approx(expected[row["calls"]])
    back = call_differences(after, before)
    swapped = dict(back.select("calls", "difference").rows())
    assert {calls: -difference for calls, difference in swapped.items()} == dict(
        found.select("calls", "difference").rows()
    )
