"""Waiting for another rank on the critical path, by hand and in a real job."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import traces
from trace_frames import collectives_of, kernels_of, spans_of

from haiprof.analyzer import Analyzer
from haiprof.views.trace.communication import communications
from haiprof.views.trace.critical_path import ranks
from haiprof.views.trace.critical_path.path import CriticalPath, of_step, window_of_step
from haiprof.views.trace.critical_path.what_if import Replay, Work, of_kernel, of_kind
from haiprof.views.trace.distributed import match
from haiprof.views.trace.linking.linked import Linked, link


def of_rank(begun: int) -> Linked:
    """A rank that begins an all-reduce after ``begun`` ns of computing; all leave it at 100 µs."""
    spans: list[dict[str, Any]] = [
        {"name": "ProfilerStep#1", "category": "step", "step": 1, "start": 0, "duration": 90_000},
        *({"name": "cudaLaunchKernel", "category": "runtime", "start": 2_000 + 4_000 * number,
           "duration": 3_000, "correlation": 1 + number} for number in range(2)),
    ]  # fmt: skip
    all_reduce = {"name": "ncclDevKernel_AllReduce", "start": begun, "duration": 100_000 - begun,
                  "correlation": 2}  # fmt: skip
    kernels = [
        {"start": 6_000, "duration": begun - 7_000, "correlation": 1},
        all_reduce,
    ]
    collectives = [{**all_reduce, "side": "device", "op": "all_reduce", "group": "0",
                    "group_size": 3, "elements_in": 4, "bytes": 16}]  # fmt: skip
    return link(spans_of(spans), kernels_of(kernels), collectives_of(collectives))


def test_a_rank_waits_for_the_last_one_to_come() -> None:
    by_label = {"rank 0": of_rank(30_000), "rank 1": of_rank(80_000), "rank 2": of_rank(50_000)}
    matched = match({label: communications(linked) for label, linked in by_label.items()})
    last = ranks.lasts(matched)
    assert last["waits_for"].to_list() == ["rank 1"]
    waits = ranks.waits(matched, last)

    def path(label: str) -> CriticalPath:
        mine = waits.filter(pl.col("rank") == label).drop("rank")
        return ranks.waiting(of_step(by_label[label], 1), mine)

    found = path("rank 0")
    columns = pl.col("kind", "name").cast(pl.String), "start", "duration", "waits_for"
    assert found.path.select(*columns).rows()[-3:] == [
        ("stream", "ncclDevKernel_AllReduce", 29_000, 1_000, None),
        ("rank", "rank 1", 30_000, 50_000, "rank 1"),
        ("communication", "ncclDevKernel_AllReduce", 80_000, 20_000, None),
    ]
    assert found.summary.rows()[0] == ("rank", 1, 50_000, 0.5)
    assert found.path["duration"].sum() == found.length == 100_000
    assert "rank" not in path("rank 1").summary["kind"]

    # Had the others come sooner, or moved the data in no time; both are of the same kernel.
    first = by_label["rank 0"]
    mine = waits.filter(pl.col("rank") == "rank 0").drop("rank")
    replay = Replay(first, window_of_step(first, 1), mine)
    assert replay.after(Work()) == replay.before == 100_000
    assert replay.after(of_kind(first, "waiting")) == 90_000  # so long is the host's step
    assert replay.after(of_kind(first, "waiting"), 0.9) == 95_000
    assert replay.after(of_kind(first, "communication"), 0.9) == 98_000
    assert replay.after(of_kernel(first, "nccl"), 0.9) == 98_000
    alone = Replay(first, window_of_step(first, 1))
    assert alone.after(of_kind(first, "waiting")) == 100_000
    assert alone.after(of_kind(first, "communication"), 0.9) == 93_000


@pytest.mark.skipif(not traces.index(), reason="without the traces of others")
def test_all_ranks_of_a_job_wait_for_the_slow_one() -> None:
    run = Analyzer(traces.files("dlrm_8rank")[0].parent)
    slow = run.stragglers()["rank"][0]
    for label, path in run.critical_path().items():
        waited = path.path.filter(pl.col("kind").cast(pl.String) == "rank")
        assert set(waited["waits_for"]) == ({f"rank {slow}"} if label != f"rank {slow}" else set())
        assert path.path["duration"].sum() == path.end - path.start
