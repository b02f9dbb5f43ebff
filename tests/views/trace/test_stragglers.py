"""Stragglers: HTA's where it works, and who the others waited for."""

from __future__ import annotations

import hta
import polars as pl
import pytest
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.communication import communications
from haiprof.views.trace.distributed import match
from haiprof.views.trace.linking.linked import Linked, link
from haiprof.views.trace.stragglers import late_starts, stragglers

#: The runs of several ranks with names of kernels that HTA knows.
WORKS = {"dlrm_8rank", "handmade_old", "hta_sampled_2rank"}


@pytest.mark.parametrize(("run", "last"), hta.cases("stragglers"))
def test_late_starts_are_htas(run: str, last: bool) -> None:
    theirs = hta.result(run, "stragglers", last)
    if run not in WORKS:
        # One rank, or, in the handmade runs, names of NCCL since 2.19: HTA fails.
        assert theirs is None
        return
    ranks = {worker.rank: worker.seen(last) for worker in hta.workers(run)}
    found = late_starts(ranks, drop_last_step=not last)
    assert set(found["rank"].head(2).to_list()) == set(theirs)


def test_the_rank_that_spent_the_least_in_a_collective_came_last() -> None:
    ranks = {worker.rank: communications(worker.whole) for worker in hta.workers("dlrm_8rank")}
    found = stragglers(match(ranks))
    lengths = {rank: (f["end"] - f["start"]).to_list() for rank, f in ranks.items()}
    # All ranks of this job run the same eight collectives in the same order.
    assert len({tuple(f["op"].to_list()) for f in ranks.values()}) == 1
    caused = dict.fromkeys(lengths, 0)
    for each in zip(*lengths.values(), strict=True):
        caused[list(lengths)[each.index(min(each))]] += max(each) - min(each)
    worst = max(caused, key=lambda rank: caused[rank])
    assert found["rank"][0] == worst
    assert {r: c for r, c in found.select("rank", "caused").rows()} == caused
    assert found["ratio"].sum() == pytest.approx(1)


def job(begins: list[int], name: str) -> dict[int, Linked]:
    """Ranks whose collective ends at 1000, in one step."""
    step = {"start": 0, "duration": 1000, "category": "step", "name": "ProfilerStep#3", "step": 3}
    call = {"duration": 1, "category": "runtime", "name": "cudaLaunchKernel", "correlation": 1}
    return {
        rank: link(
            spans_of([step, {**call, "start": begin - 2}]),
            kernels_of(
                [{"start": begin, "duration": 1000 - begin, "name": name, "correlation": 1}]
            ),
        )
        for rank, begin in enumerate(begins)
    }


@pytest.mark.parametrize(
    "name", ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "multimem_all_reduce_kernel"]
)
def test_names_of_any_library_do(name: str) -> None:
    ranks = job([100, 400, 130], name)
    found = stragglers(match({rank: communications(one) for rank, one in ranks.items()}))
    assert found.select("rank", "last", "caused", "waited").rows() == [
        (1, 1, 300.0, 0),
        (0, 0, 0.0, 300),
        (2, 0, 0.0, 270),
    ]
    assert late_starts(ranks, candidates=1).rows()[0] == (1, 1)


def test_ranks_that_come_last_together_share_it() -> None:
    ranks = job([100, 400, 400], "ncclAllReduce")
    found = stragglers(match({rank: communications(one) for rank, one in ranks.items()}))
    assert found.filter(pl.col("last") == 1)["caused"].to_list() == [150.0, 150.0]


def test_one_rank_alone_has_no_stragglers() -> None:
    ranks = job([100], "ncclAllReduce")
    assert stragglers(match({0: communications(ranks[0])})).height == 0
    assert late_starts(ranks).height == 0
    assert late_starts({}).height == 0
