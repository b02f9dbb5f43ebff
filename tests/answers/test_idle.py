"""The idle time of all ranks by cause, with what each waited for the others."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import traces

from haiprof.analyzer import Analyzer
from haiprof.common.numbers import percent
from haiprof.errors import HaiprofError
from haiprof.findings import trace_headline
from haiprof.views.trace.idle_causes.causes import CAUSES


@pytest.fixture
def run(tmp_path: Path) -> Analyzer:
    for rank in range(2):
        traces.write(tmp_path / "t" / f"rank{rank}.1000.pt.trace.json", traces.small(rank))
    return Analyzer(tmp_path / "t")


@pytest.mark.parametrize("by", ["category", "cause"])
def test_streams_are_idle_for_the_same_time_whatever_it_is_divided_by(
    run: Analyzer, by: str
) -> None:
    idle = run.idle(by=by)  # type: ignore[arg-type]
    sums = idle.group_by("rank", "stream", maintain_order=True).agg(pl.col("idle").sum())
    assert sums.rows() == [(0, 7, 70_000), (1, 7, 70_000)]
    assert idle[by].is_in(["host_wait", "kernel_wait", "other", *CAUSES]).all()


def test_devices_are_idle_for_as_long_as_temporal_says(run: Analyzer) -> None:
    idle = run.idle(by="device").group_by("rank", maintain_order=True).agg(pl.col("idle").sum())
    assert idle["idle"].to_list() == run.temporal()["idle"].to_list()


@pytest.mark.parametrize("run", traces.runs())
def test_causes_sum_up_to_the_idle_time_of_the_other_views(run: str) -> None:
    opened = Analyzer(traces.files(run)[0].parent)
    keys = ["rank", "session", "device", "stream"]
    if not opened.temporal().height:
        assert not opened.idle(by="cause").height
        assert not opened.idle(by="device").height
        return
    by_cause, by_category = (
        opened.idle(by="cause").group_by(keys).agg(pl.col("idle").sum()).sort(keys),
        opened.idle().group_by(keys).agg(pl.col("idle").sum()).sort(keys),
    )
    assert by_cause.rows() == by_category.filter(pl.col("idle") > 0).rows()
    devices = opened.idle(by="device")
    sums = devices.group_by("rank", "session", "device", maintain_order=True).agg(
        pl.col("idle").sum()
    )
    wanted = opened.temporal().select("rank", "session", "device", "idle")
    assert sums.filter(pl.col("idle") > 0).rows() == wanted.filter(pl.col("idle") > 0).rows()


def test_of_a_sampled_trace_the_host_is_not_blamed_while_work_was_queued() -> None:
    idle = Analyzer(traces.files("hta_sampled_2rank")[0].parent).idle(by="device")
    unknown = dict(idle.filter(cause="unknown").select("rank", "idle").rows())
    # So long, work that had been launched did not begin, for reasons that were not sampled.
    assert unknown == {0: pytest.approx(389e6, abs=1e6), 1: pytest.approx(327e6, abs=1e6)}


def test_what_it_may_be_divided_by(run: Analyzer) -> None:
    with pytest.raises(HaiprofError, match="device"):
        run.idle(by="kernel")  # type: ignore[arg-type]


def test_waiting_for_a_late_rank_is_a_cause_of_its_own() -> None:
    run = Analyzer(traces.files("dlrm_8rank")[0].parent)
    main = run.idle(by="cause").filter(pl.col("stream") == 7, pl.col("cause") == "rank")
    waited = dict(main.select("rank", "idle").rows())
    # Rank 7 comes last: it waits the least of all, and the others for it.
    assert max(waited, key=lambda rank: waited[rank]) == 1
    assert waited[1] > 7_000_000
    assert waited.get(7, 0) < min(waited[rank] for rank in range(7))
    # What one rank alone is asked for, it says with all of them.
    alone = run.idle(1, by="cause").filter(pl.col("stream") == 7, pl.col("cause") == "rank")
    assert alone["idle"].to_list() == [waited[1]]


@pytest.mark.parametrize(
    "run", ["dlrm_8rank", "hta_sampled_2rank", "hta_nccl_data", "tl_b200_eager", "handmade_modern"]
)
def test_recommendations_and_headline_say_what_idle_says(run: str) -> None:
    opened = Analyzer(traces.files(run)[0].parent)
    idle = opened.idle(by="device")
    whole = opened.steps()["duration"].sum()
    shares = {
        cause: lost / whole
        for cause, lost in idle.group_by("cause").agg(pl.col("in_steps").sum()).iter_rows()
    }
    line = opened.headline()[1]
    for cause, words in trace_headline._MEANWHILE.items():
        share = shares.get(cause, 0)
        assert (f"{percent(share)} idle {words}" in line) is (share >= 0.01), cause
    steps = opened.distributed().steps
    alone, waited = steps["communication"].sum(), steps["waiting"].sum()
    if steps["waiting"].null_count():
        assert f", {percent(alone / whole)} with communication alone" in line
    else:
        parts = ((alone - waited, "moving data between ranks alone"),
                 (waited, "waiting for other ranks"))  # fmt: skip
        for time, words in parts:
            said = f", {percent(time / whole)} {words}" in line
            assert said is (time >= 0.01 * whole), words
    by_rank = {(rank, cause): lost for rank, cause, lost in
               idle.select("rank", "cause", "in_steps").iter_rows()}  # fmt: skip
    found = opened.recommendations().filter(pl.col("kind").is_in(list(CAUSES)))
    assert found.height
    for row in found.iter_rows(named=True):
        assert row["saves_ns"] == by_rank[row["rank"], row["kind"]]


def test_the_first_finding_of_a_job_with_a_late_rank_is_that() -> None:
    run = Analyzer(traces.files("dlrm_8rank")[0].parent)
    found = run.recommendations()
    first = found.row(0, named=True)
    assert (first["kind"], first["rank"]) == ("straggler", 7)
    assert "operators on the host take" in first["evidence"]
    # What the others wait for it is said after it, and saved by it.
    waiting = found.filter(kind="waiting")
    assert sorted(waiting["rank"].to_list()) == list(range(7))
    assert waiting["saves_ns"].null_count() == waiting.height
    assert waiting["problem"].str.contains("mostly for rank 7").all()
    # Moving data takes 0.2 ms of 12 to 19: not worth a finding.
    assert "exposed_communication" not in found["kind"].to_list()
    steps = run.distributed().steps
    transfers = run.distributed().transfers.drop_nulls("step")
    assert (steps["waiting"] <= transfers["waiting"]).all()
    assert run.recommendations(1).filter(kind="waiting")["problem"].to_list() == [
        "58 % of the steps is waiting for other ranks in collectives, mostly for rank 7"
    ]


def test_what_recommendations_found_is_what_is_found_without_them() -> None:
    folder = traces.files("handmade_modern")[0].parent
    run = Analyzer(folder)
    alone = run.idle(by="device")
    assert run.recommendations().height
    assert run.idle(by="device").equals(alone)
    assert run.recommendations(1).height
    assert run.idle(1, by="device").equals(alone.filter(pl.col("rank") == 1))
