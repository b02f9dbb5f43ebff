"""Of very many ranks some are looked at in detail: those that matter, and some of the others."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import runs

from haiprof import Analyzer, schema
from haiprof.answers import chosen_ranks, findings, host_clocks
from haiprof.answers.ranks import Ranks
from haiprof.answers.recorded import RecordedAnswers
from haiprof.runs import ROLE_NODE
from haiprof.sources.own import open_run

MANY = 300
SLOW, LATE, FAILED = 7, 201, 99


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run of many ranks on some nodes: one is slow, and one failed first."""
    folder = runs.write_run(tmp_path_factory.mktemp("many") / "run")
    for rank in range(MANY):
        ended = {
            "kind": "failed",
            "exit_code": 3,
            "text": "exit code 3",
            "signal": None,
            "reason": None,
            "time_ns": runs.T0,
            "failed_ns": runs.T0,
            "parent_pid": None,
        }
        process = runs.write_process(
            folder, rank, f"n{rank // 100}", world_size=MANY,
            **({"ended": ended} if rank == FAILED else {}),
        )  # fmt: skip
        phases = [("forward", 400.0 if rank == SLOW else 4.0)]
        runs.write_closed(process, schema.SPANS, runs.loop(4, phases))
    for node in range(3):
        runs.write_node(folder, f"n{node}")
    return folder


def never() -> Any:
    raise AssertionError("asked for nothing")


def test_few_ranks_are_all_looked_at(run: Path) -> None:
    whole = open_run(run)
    few = dataclasses.replace(whole, processes=whole.processes[: chosen_ranks.MOST])
    ranks = Ranks(few, None)
    assert chosen_ranks.in_detail(ranks, never, never) is ranks
    assert chosen_ranks.one_of_each_node(ranks) is ranks


def test_of_many_those_that_matter_are_looked_at_and_some_of_the_others(run: Path) -> None:
    ranks = Ranks(open_run(run), None)
    summaries = Analyzer(run).summaries
    late = pl.DataFrame({"rank": [LATE, None]})
    some = chosen_ranks.in_detail(ranks, summaries, lambda: late)
    assert len(some.numbers) == chosen_ranks.MOST
    assert {SLOW, LATE, FAILED} <= set(some.numbers)
    assert {n // 50 for n in some.numbers} == {n // 50 for n in range(MANY)}
    assert sum(p.role == ROLE_NODE for p in some.run.processes) == 3
    assert chosen_ranks.in_detail(ranks, never, never) is some
    some.note(["a problem"])
    assert "a problem" in ranks.problems


def test_clocks_are_compared_by_one_rank_of_each_node(run: Path) -> None:
    ranks = Ranks(open_run(run), None)
    assert chosen_ranks.one_of_each_node(ranks).numbers == [0, 100, 200]
    corrected = host_clocks.by_node(ranks)
    assert set(corrected) == {"n0", "n1", "n2"}
    # Those that are looked at in detail are on that clock, too: none is compared again.
    records = RecordedAnswers(ranks)
    some = chosen_ranks.in_detail(ranks, records.summaries, records.imbalance)
    assert host_clocks.clock(some) is host_clocks.clock(ranks)


def test_findings_rest_on_these_ranks(run: Path) -> None:
    ranks = Ranks(open_run(run), None)
    records = RecordedAnswers(ranks)
    assert records.imbalance()["rank"][0] == SLOW
    looked_at = [rank.process.rank for rank in findings.case(ranks, records).ranks]
    assert len(looked_at) == chosen_ranks.MOST
    assert {SLOW, FAILED} <= set(looked_at)
    (failed,) = findings.recorded(ranks, records)
    assert failed.ranks == (FAILED,)


def test_the_overview_says_which_ranks_were_looked_at(run: Path) -> None:
    analyzer = Analyzer(run)
    some = analyzer.in_detail()
    assert some is analyzer.in_detail()
    assert len(some.ranks) == chosen_ranks.MOST
    assert some.in_detail() is some
    assert f"are of {chosen_ranks.MOST} of the {MANY} ranks" in str(analyzer.show_overview())


def test_what_was_read_of_all_ranks_is_not_read_again_of_some(run: Path) -> None:
    analyzer = Analyzer(run)
    ranks, nodes = analyzer.summaries()
    some = analyzer.in_detail()
    of_ranks, of_nodes = some.summaries()
    assert [summary.process.rank for summary in of_ranks] == some.ranks
    assert all(any(summary is each for each in ranks) for summary in of_ranks)
    assert of_nodes is nodes
    assert len(nodes) == 3
