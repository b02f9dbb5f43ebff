"""Device time by kind, by kernel and by range of the user: HTA's, and against brute force."""

from __future__ import annotations

import hta
import polars as pl
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.kernel_breakdown import by_kind, by_name, user_ranges
from haiprof.views.trace.linking.linked import link

#: Where HTA is wrong even on times rounded its way, and why.
WRONG = {
    "hta_mtia_inference": "host calls that name a stream count as work of the device",
    "hta_triton": "an operator that names a stream counts as a kernel",
    "tl_b200_eager": "the same, and the multimem all-reduce counts as computation",
}
#: Where only the kinds are wrong: rounding makes kernels of negative length.
KINDS_WRONG = {*WRONG, "tl_mi300_resnet_act_checkpoint"}

#: Old files: their steps are operators to HTA.
OLD = {"handmade_old", "tb_resnet50_num_workers_0"}


@pytest.mark.parametrize(("run", "last"), hta.cases("gpu_kernel_breakdown_full"))
def test_is_htas_on_what_hta_sees(run: str, last: bool) -> None:
    hta_result = hta.result(run, "gpu_kernel_breakdown_full", last)
    if not hta_result:
        assert not any(worker.with_last.activities.height for worker in hta.workers(run))
        return
    kinds: dict[str, int] = {}
    for worker in hta.workers(run):
        for kind, time in by_kind(worker.seen(last)).select("kind", "time").iter_rows():
            kinds[kind] = kinds.get(kind, 0) + time
    theirs = {
        row["kernel_type"].lower(): row["sum"] * 1000 for row in hta_result["by_type"] if row["sum"]
    }
    assert (kinds == theirs) is (run not in KINDS_WRONG)
    for worker in hta.workers(run):
        names = by_name(worker.seen(last)).with_columns(pl.col("name").cast(pl.String))
        found = {(row["kind"], row["name"]): row for row in names.rows(named=True)}
        rows = [row for row in hta_result["kernels"] if row["rank"] == worker.rank]
        equal = len(rows) == len(found) and all(
            (mine := found.get((row["kernel_type"].lower(), row["name"]))) is not None
            and all(
                hta.close(mine[name] / 1000, row[its])
                for name, its in (("sum", "sum (us)"), ("mean", "mean (us)"), ("std", "stddev"),
                                  ("min", "min (us)"), ("max", "max (us)"))
            )
            for row in rows
        )  # fmt: skip
        assert equal is (run not in WRONG)


@pytest.mark.parametrize("run", traces.runs())
def test_kernels_and_kinds_are_what_the_events_say(run: str) -> None:
    for worker in hta.workers(run):
        busy = hta.activities(worker, "kernel", "memcpy", "memset")
        assert by_name(worker.whole)["sum"].sum() == sum(end - start for start, end, _ in busy)
        found = by_kind(worker.whole)
        assert found["time"].sum() == hta.union((start, end) for start, end, _ in busy)
        computing = hta.union((s, e) for s, e, n in hta.activities(worker, "kernel")
                              if not hta.communicates(n))  # fmt: skip
        mine = found.filter(pl.col("kind").str.contains("computation"))
        assert mine["time"].sum() == computing


@pytest.mark.parametrize("side", ["cpu", "gpu"])
@pytest.mark.parametrize(("run", "last"), hta.cases("user_annotation_breakdown"))
def test_ranges_of_the_user_are_htas(run: str, last: bool, side: str) -> None:
    theirs = hta.result(run, f"{side}_user_annotation_breakdown", last)
    for worker in hta.workers(run):
        ranges = hta.rounded(worker.trace.device_spans, worker.trace)
        calls = hta.rounded(worker.trace.spans, worker.trace)
        spans = calls if side == "cpu" else ranges
        until = None if last else hta.last_step(calls, ranges)[0]
        found = {str(row["name"]): row for row in user_ranges(spans, before=until).rows(named=True)}
        rows = [row for row in theirs or () if row["rank"] == worker.rank]
        # Ranges that HTA does not report are of old files, whose ranges are operators.
        assert len(rows) == len(found) or (not rows and run in OLD)
        for row in rows:
            mine = found[row["name"]]
            for name, its in (("sum", "sum (us)"), ("mean", "mean (us)"), ("std", "stddev"),
                              ("min", "min (us)"), ("max", "max (us)")):  # fmt: skip
                assert hta.close(mine[name] / 1000, row[its]), (row, mine)


piece = st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 2))


@given(st.lists(piece, max_size=12))
def test_every_busy_instant_belongs_to_the_kinds_that_ran(
    drawn: list[tuple[int, int, int]],
) -> None:
    kinds = ("computation", "communication", "memory")
    kernels = kernels_of(
        [
            {"start": s, "duration": d, "kind": ("kernel", "kernel", "memset")[k],
             "name": ("gemm", "ncclDevKernel_AllReduce", "Memset")[k]}
            for s, d, k in drawn
        ]
    )  # fmt: skip
    wanted: dict[str, int] = {}
    for t in range(45):
        ran = [kind for i, kind in enumerate(kinds) if any(
            s <= t < s + d and k == i for s, d, k in drawn)]  # fmt: skip
        if ran:
            name = " overlapping ".join(ran)
            wanted[name] = wanted.get(name, 0) + 1
    found = by_kind(link(spans_of([]), kernels))
    assert dict(found.select("kind", "time").rows()) == wanted


def test_a_kernel_that_ran_once_has_no_spread() -> None:
    (row,) = by_name(link(spans_of([]), kernels_of([{"start": 3, "duration": 4}]))).rows(named=True)
    assert (row["sum"], row["mean"], row["std"], row["min"], row["max"]) == (4, 4.0, 0.0, 4, 4)
