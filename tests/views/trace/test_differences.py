"""The difference between two traces, against counting their events."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from trace_frames import kernels_of, spans_of
from traces import Trace, files, load, runs

from haiprof.views.trace.differences import Of, differences
from haiprof.views.trace.linking.linked import link


def counted(trace: Trace, of: Of) -> tuple[Counter[str], Counter[str]]:
    """Count and total duration by name."""
    table, column, kinds = (
        (trace.spans, "category", ["op"])
        if of == "operators"
        else (trace.kernels, "kind", ["kernel", "memcpy", "memset"])
    )
    count: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for name, duration in (
        table.filter(pl.col(column).cast(pl.String).is_in(kinds))
        .select(pl.col("name").cast(pl.String), "duration")
        .rows()
    ):
        count[name] += 1
        total[name] += duration
    return count, total


@pytest.mark.parametrize("of", ["operators", "kernels"])
@pytest.mark.parametrize("run", runs())
def test_every_run_differs_from_another_as_its_events_say(run: str, of: Of) -> None:
    other = "hta_trace_diff_test" if run == "hta_trace_diff_control" else "hta_cp_alexnet"
    before, after = load(files(run)[0]), load(files(other)[0])
    frame = differences(link(before.spans, before.kernels), link(after.spans, after.kernels), of)
    (counts, totals), (counts_after, totals_after) = counted(before, of), counted(after, of)
    assert set(frame["name"]) == set(counts) | set(counts_after)
    for row in frame.iter_rows(named=True):
        name = row["name"]
        assert (row["control_count"], row["test_count"]) == (counts[name], counts_after[name])
        assert (row["control_total"], row["test_total"]) == (totals[name], totals_after[name])
        assert row["count_difference"] == counts_after[name] - counts[name]
        assert row["total_difference"] == totals_after[name] - totals[name]


def test_a_change_is_called_by_its_name() -> None:
    def trace(*names: str) -> pl.DataFrame:
        return spans_of(
            [{"name": name, "start": n * 10, "duration": 5} for n, name in enumerate(names)]
        )

    before = link(trace("gone", "more", "fewer", "fewer", "same"), kernels_of([]))
    after = link(trace("more", "more", "fewer", "same", "new"), kernels_of([]))
    frame = differences(before, after)
    assert all(name == change for name, change in frame.select("name", "change").rows())
    assert differences(before, after, "kernels").height == 0


def test_steps_can_be_chosen() -> None:
    spans = [
        {"name": f"ProfilerStep#{step}", "category": "step", "step": step, "start": step * 100,
         "duration": 100}
        for step in (1, 2)
    ]  # fmt: skip
    spans += [{"name": "op", "start": at, "duration": 10} for at in (110, 210, 250, 310)]
    trace = link(spans_of(spans), kernels_of([]))
    frame = differences(trace, trace, control_steps=[1], test_steps=[2])
    assert frame.select("control_count", "test_count").rows() == [(1, 2)]
    assert differences(trace, trace)["control_count"].to_list() == [4]
