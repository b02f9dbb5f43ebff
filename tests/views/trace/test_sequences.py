"""Sequences of device work, against walking through the launches of each call."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import pytest
from trace_frames import kernels_of, spans_of
from traces import Trace, files, load, runs

from haiprof.views.trace.linking.linked import link
from haiprof.views.trace.sequences import sequences


def walked(trace: Trace, operator: str, shortest: int) -> Counter[tuple[str, ...]]:
    """How often each sequence follows from an outermost call of ``operator``."""
    plain = [pl.col("name", "category").cast(pl.String)]
    spans = trace.spans.with_columns(*plain).with_columns(
        (pl.col("start") + pl.col("duration")).alias("end")
    )
    calls = spans.filter(
        pl.col("category").is_in(["op", "user"]),
        pl.col("name").str.contains(operator, literal=True),
    ).sort("thread", "start", "end", descending=[False, False, True], maintain_order=True)
    outermost: list[dict[str, Any]] = []
    for call in calls.iter_rows(named=True):
        last = outermost[-1] if outermost else None
        if last is None or last["thread"] != call["thread"] or call["start"] >= last["end"]:
            outermost.append(call)
    launches = spans.filter(pl.col("category") == "runtime", pl.col("correlation") > 0)
    busy = (
        trace.kernels.filter(pl.col("kind").cast(pl.String) != "sync")
        .with_columns(pl.col("name").cast(pl.String))
        .join(
            launches.select(
                "correlation", "thread", pl.col("start").alias("at"), pl.col("end").alias("until")
            ).unique("correlation", keep="last"),
            on="correlation",
        )
    )
    found: Counter[tuple[str, ...]] = Counter()
    for call in outermost:
        inside = busy.filter(
            pl.col("thread") == call["thread"],
            pl.col("at") >= call["start"],
            pl.col("until") <= call["end"],
        )
        names = inside.sort("start", maintain_order=True)["name"].to_list()
        if len(names) >= shortest:
            found[(call["name"], *names)] += 1
    return found


#: An operator that launches much; in the other runs whatever is outermost.
OPERATORS = {
    "dlrm_8rank": "addmm", "hta_amd_mi250": "aten::", "hta_cp_alexnet": "aten::conv2d",
    "hta_df_index_resolver": "CompiledFunction", "hta_ns_resolution": "Optimizer.step",
    "hta_nccl_data": "aten::_foreach", "hta_trace_diff_control": "aten::to",
    "hta_trace_diff_test": "Optimizer.step", "param_resnet": "aten::conv2d",
    "tb_resnet50_num_workers_0": "aten::conv2d", "tl_b200_eager": "aten::linear",
    "tl_h100_Qwen_Qwen1_5_0_5B_Chat": "scaled_dot_product",
    "tl_mi300_resnet_act_checkpoint": "aten::batch_norm",
}  # fmt: skip


@pytest.mark.parametrize("run", runs())
def test_sequences_are_those_of_a_walk_through_the_calls(run: str) -> None:
    file = files(run)[0]
    trace = load(file)
    operator = OPERATORS.get(run, "")
    frame = sequences(link(trace.spans, trace.kernels), operator, 1)
    walk = walked(trace, operator, 1)
    found = {
        (row["operator"], *row["sequence"]): row["count"] for row in frame.iter_rows(named=True)
    }
    assert found == dict(walk)
    # Not applicable where no call of an operator launches anything that the trace has.
    assert bool(found) == (run not in NOTHING_LAUNCHED)


#: Where no operator or range launches anything, and why.
NOTHING_LAUNCHED = {
    "hta_cpu_only": "no device",
    "hta_cupti_counters": "no activities, counters only",
    "tl_mi210_gpu_only": "no operators",
}


def launching(start: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {"name": "cudaLaunchKernel", "category": "runtime", "start": start, "duration": 2,
            "correlation": correlation, **more}  # fmt: skip


def test_calls_within_a_matching_call_are_part_of_it() -> None:
    spans = [
        {"name": "attention", "start": 0, "duration": 100},
        {"name": "attention_inner", "start": 10, "duration": 50},
        launching(20, 1),
        launching(70, 2),
        {"name": "attention", "start": 200, "duration": 100},
        launching(220, 3),
        launching(240, 4),
        {"name": "attention", "start": 400, "duration": 100},
        launching(440, 5),
    ]
    kernels = [
        {"name": "a", "start": 30, "duration": 5, "correlation": 1},
        {"name": "b", "start": 80, "duration": 5, "correlation": 2},
        {"name": "b", "start": 260, "duration": 7, "correlation": 3},
        {"name": "a", "start": 250, "duration": 7, "correlation": 4},
        {"name": "a", "start": 450, "duration": 9, "correlation": 5},
    ]
    trace = link(spans_of(spans), kernels_of(kernels))
    frame = sequences(trace, "attention", 1)
    assert frame.rows() == [
        ("attention", ["a", "b"], 2, 24, 200),
        ("attention", ["a"], 1, 9, 100),
    ]
    assert sequences(trace, "attention", 2).height == 1
    assert sequences(trace, "attention").height == 0
    assert sequences(trace, "no such operator", 1).height == 0


def test_an_empty_trace_has_no_sequences() -> None:
    assert sequences(link(spans_of([]), kernels_of([])), "aten", 1).height == 0
