"""Hangs that were seen become findings; the one that the job was ended in comes first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.common.hang_files import Hang
from haiprof.common.wait_graph import Stuck, Wait
from haiprof.findings.kinds import KINDS
from haiprof.findings.recorded import hang_rules

HANG = Hang("rank_never_arrived", "Rank 1 never came", "look", (1,), (0,), 60.0, "nap (t.py:9)", 5)


def test_each_kind_is_one_of_the_list() -> None:
    assert set(KINDS) >= hang_rules.KINDS


def test_the_last_hang_ended_the_job_and_lasted_as_long_as_it_stood() -> None:
    first, last = hang_rules.hangs_of([HANG, HANG], ended=True, waited_ns=90 * runs.SECOND)
    assert (first.ended, first.lost_ns) == (False, 60 * runs.SECOND)
    assert (last.ended, last.lost_ns) == (True, 90 * runs.SECOND)
    assert last.problem == "Ranks stood still. Rank 1 never came"
    assert (last.kind, last.ranks, last.line) == ("rank_never_arrived", (1,), "nap (t.py:9)")


def test_a_hang_that_a_time_out_ended_names_who_never_came() -> None:
    wait = Wait("0", 56, "all_reduce", age_s=10.0)
    found = Stuck("rank_never_arrived", (2,), (0, 1, 3), wait)
    finding = hang_rules.timed_out(found, "nap (t.py:9)")
    assert finding.problem == (
        "Rank 2 never came to all_reduce number 56 of group 0; ranks 0, 1, 3 waited for 10 s; "
        "rank 2 was at nap (t.py:9)"
    )
    assert (finding.kind, finding.ranks, finding.line) == (found.kind, (2,), "nap (t.py:9)")
    assert (finding.ended, finding.lost_ns) == (True, 10 * runs.SECOND)
    assert hang_rules.never_came(found, None).endswith("waited for 10 s")


def test_a_kind_of_a_newer_version_is_left_out() -> None:
    assert hang_rules.hangs_of([HANG._replace(kind="spell")], ended=True, waited_ns=0) == []


@pytest.mark.parametrize("later", [True, False])
def test_in_a_run_it_is_the_cause_of_its_end_unless_the_run_went_on(
    tmp_path: Path, later: bool
) -> None:
    run = runs.make_run(tmp_path / "r", steps=400, ranks=2)
    ending = {"kind": "failed", "exit_code": 1, "signal": "", "reason": "exception",
              "text": "RuntimeError: timed out", "time_ns": runs.T0 + 50 * runs.SECOND,
              "failed_ns": runs.T0 + 50 * runs.SECOND}  # fmt: skip
    for rank in range(2):
        runs.write_process(run, rank, world_size=2, state="died", ended=ending)
    seen = runs.T0 + (1 if later else 30) * runs.SECOND  # the steps end before the fifth second
    document = {**HANG._asdict(), "culprits": []}
    (run / "hang-1.json").write_text(json.dumps({"seen_ns": seen, "hang": document}))
    analyzer = Analyzer(run)
    kinds = [each.kind for each in analyzer.findings()]
    assert "rank_never_arrived" in kinds
    first, *_, remark = analyzer.headline()
    assert "failed first" in first
    assert remark.startswith("Ranks stood still. Rank 1 never came")
    if not later:
        assert kinds[:2] == ["rank_never_arrived", "exception"]
    assert (run / schema.RUN_FILE).exists()
