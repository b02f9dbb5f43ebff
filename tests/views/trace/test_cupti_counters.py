"""Counters of kernels joined with operators: HTA's join, and files in which it is impossible."""

from __future__ import annotations

import hta
import pytest
import traces
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.cupti_counters import cupti_counters
from haiprof.views.trace.linking.linked import link


@pytest.mark.parametrize("run", traces.runs())
def test_are_htas(run: str) -> None:
    theirs_rows = [
        row for rows in hta.result(run, "cupti_counters", last=False) or () for row in rows
    ]
    for worker in hta.workers(run):
        found = cupti_counters(worker.whole, worker.trace.spans)
        # HTA's result was kept up to the fiftieth kernel.
        assert min(found.height, 50) == len(theirs_rows)
        for mine, theirs in zip(found.head(50).rows(named=True), theirs_rows, strict=True):
            assert str(mine["name"]) == theirs["name"]
            assert mine["op_stack"] == theirs["op_stack"]
            assert (mine["outer_op"], mine["op"]) == (
                theirs["top_level_op"],
                theirs["bottom_level_op"],
            )
            counters = [name for name in found.columns if "__" in name]
            assert counters
            for name in counters:
                assert mine[name] == theirs[name]


def test_are_left_without_operators_where_launches_cannot_be_distinguished() -> None:
    texts = ['{"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 4}', "[1]"]
    counted = {"duration": 1, "name": "gemm", "category": "counters"}
    spans = spans_of(
        [
            {"start": 0, "duration": 9, "name": "aten::mm"},
            {"start": 1, "duration": 1, "name": "cudaLaunchKernel", "category": "runtime"},
            *({**counted, "start": 20 + i, "attributes": text} for i, text in enumerate(texts)),
        ]
    )
    found = cupti_counters(link(spans, kernels_of([])), spans)
    assert found["op"].to_list() == [None, None]
    assert found["flops"].to_list() == [8.0, None]
