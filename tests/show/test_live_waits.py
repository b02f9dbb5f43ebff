"""For whom the ranks of a running job wait, as ``haiprof top`` shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import MS, T0, Row, collective, loop, write_live, write_process, write_run

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.show.live import frame, waits
from haiprof.show.live.job import Job

RANKS = 3
STEP_MS = 20.0


def steps(rank: int, late: dict[int, float], count: int = 200, **changes: object) -> list[Row]:
    """Make an all-reduce in each step, which is done 1 ms after the last rank has asked."""
    last = max(late.values(), default=0)
    asked, took = late.get(rank, 0.0), last + 1 - late.get(rank, 0.0)
    rows = []
    for n in range(count):
        at = n * STEP_MS + asked
        rows.append(collective(at, took, n + 1, group_size=RANKS, **changes))
        rows.append(collective(at, took, n + 1, group_size=RANKS, side="wait"))
    return rows


def watched(folder: Path, ranks: list[list[Row]], nodes: int = 1, **changes: object) -> Job:
    run = write_run(folder, created_ns=T0)
    for rank, rows in enumerate(ranks):
        node = f"n{rank % nodes}"
        process = write_process(run, rank, node, state="live", ended_ns=None, **changes)
        write_live(process, schema.COLLECTIVES, [rows[n : n + 50] for n in range(0, len(rows), 50)])
        write_live(process, schema.SPANS, [loop(10)])
    job = Job(run, lambda: None)
    job.look(float("inf"))
    return job


def shown(job: Job) -> str | None:
    lines = [line.plain for line in frame.lines(job, 100, 24)]
    found = [line for line in lines if line.startswith("waits")]
    return found[0].split(maxsplit=1)[1].rstrip() if found else None


def test_who_is_late_and_how_long_the_others_are_blocked_for_it(tmp_path: Path) -> None:
    job = watched(tmp_path / "run", [steps(rank, {1: 5.0}) for rank in range(RANKS)])
    (late,) = job.late()
    assert (late.rank, late.late / MS, late.op, late.group) == (1, 5, "all_reduce", "0")
    # 5 of 20 ms.
    assert late.share == pytest.approx(0.25)
    assert shown(job) == "for rank 1 25 % of the time, 5 ms late in all_reduce of group 0"


def test_of_what_is_hidden_behind_work_only_the_rest_is_waiting(tmp_path: Path) -> None:
    ranks = [steps(rank, {1: 5.0}) for rank in range(RANKS)]
    for row in (row for rows in ranks for row in rows if row["side"] == "wait"):
        end = row["start"] + row["duration"]  # type: ignore[operator]
        row["start"] = end - min(row["duration"], 3 * MS)  # type: ignore[type-var, operator]
        row["duration"] = end - row["start"]
    (late,) = watched(tmp_path / "run", ranks).late()
    assert late.share == pytest.approx(2 / 20)


def test_clocks_of_nodes_that_differ_name_nobody_else(tmp_path: Path) -> None:
    ranks = [steps(rank, {1: 5.0}) for rank in range(RANKS)]
    for row in ranks[2]:
        row["start"] += 700 * MS  # type: ignore[operator]
    (late,) = watched(tmp_path / "run", ranks, nodes=RANKS).late()
    assert (late.rank, late.late / MS) == (1, 5)
    assert late.share == pytest.approx(0.25)


def test_of_calls_alone_nobody_knows_who_waits(tmp_path: Path) -> None:
    ranks = [steps(rank, {2: 4.0}, side="host") for rank in range(RANKS)]
    ranks = [[row for row in rows if row["side"] == "host"] for rows in ranks]
    job = watched(tmp_path / "run", ranks)
    (late,) = job.late()
    assert (late.rank, late.share, late.late / MS) == (2, None, 4)
    assert shown(job) == "for rank 2, 4 ms late in all_reduce of group 0"


def test_a_job_in_step_has_no_line(tmp_path: Path) -> None:
    assert (
        shown(watched(tmp_path / "run", [steps(rank, {1: 0.1}) for rank in range(RANKS)])) is None
    )
    assert shown(watched(tmp_path / "none", [[], [], []])) is None


def test_what_was_long_ago_counts_no_longer(tmp_path: Path) -> None:
    ranks = [steps(rank, {1: 5.0}, 50) for rank in range(RANKS)]
    for rank, rows in enumerate(ranks):
        later = steps(rank, {2: 5.0}, 50)
        for row in later:
            row["start"] += 60_000 * MS  # type: ignore[operator]
            row["sequence"] += 50  # type: ignore[operator]
        rows += later
    assert [late.rank for late in watched(tmp_path / "run", ranks).late()] == [2]


def test_what_a_group_did_once_it_does_not_do_all_the_time(tmp_path: Path) -> None:
    ranks = [steps(rank, {}) for rank in range(RANKS)]
    for rank, rows in enumerate(ranks):
        rows += [{**row, "group": "1"} for row in steps(rank, {1: 15.0}, 2)]
    (late,) = watched(tmp_path / "run", ranks).late()
    # Two of 15 ms in 4 s.
    assert late.rank == 1
    assert 0.0035 < (late.share or 0) < 0.008
    assert shown(watched(tmp_path / "again", ranks)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"start": (1 << 63) - 1}, {"start": -(1 << 63)}, {"start": None}, {"duration": 1 << 62},
        {"duration": -(1 << 62)}, {"sequence": (1 << 64) - 1}, {"sequence": (1 << 63) - 1},
        {"group_size": (1 << 32) - 1}, {"group_size": None}, {"group": None}, {"op": None},
        {"side": None}, {"side": "neither"},
    ],
    ids=str,
)  # fmt: skip
def test_rows_of_a_damaged_file_do_no_harm(tmp_path: Path, change: dict[str, object]) -> None:
    ranks = [steps(rank, {1: 5.0}, 4) for rank in range(RANKS)]
    job = watched(tmp_path / "run", [[{**row, **change} for row in rows] for rows in ranks])
    assert len(job.late()) <= RANKS
    shown(job)


def test_a_rank_of_a_damaged_file_does_no_harm(tmp_path: Path) -> None:
    job = watched(tmp_path / "run", [steps(rank, {1: 5.0}, 4) for rank in range(RANKS)])
    process = write_process(job.folder, 1 << 40, state="live", ended_ns=None)
    write_live(process, schema.COLLECTIVES, [steps(1, {1: 5.0}, 4)])
    job.look(float("inf"))
    assert [late.rank for late in job.late()] == [1]


def test_an_earlier_attempt_is_not_matched_with_a_later_one(tmp_path: Path) -> None:
    job = watched(tmp_path / "run", [steps(rank, {1: 5.0}) for rank in range(RANKS)])
    again = write_process(
        job.folder, 0, state="live", ended_ns=None, pid=77, attempt=1, started_ns=T0 + 1
    )
    again = again.rename(again.with_name("n0#0.1"))
    write_live(again, schema.COLLECTIVES, [steps(0, {1: 5.0})])
    job.look(float("inf"))
    assert job.late() == []


def test_of_very_many_a_part_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_MOST_ROWS", 120)
    job = watched(tmp_path / "run", [steps(rank, {1: 5.0}) for rank in range(RANKS)])
    assert max(each.collectives.rows.height for each in job.ranks) <= 40
    (late,) = job.late()
    assert late.rank == 1
    assert late.share == pytest.approx(0.25)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=2, max_size=8))
def test_who_is_late_is_whom_the_whole_run_names(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[list[int]]
) -> None:
    ranks: list[list[Row]] = [[], [], []]
    for n, at in enumerate(arrivals):
        for rank, rows in enumerate(ranks):
            took = max(at) + 1 - at[rank]
            rows.append(collective(30 * n + at[rank], took, n + 1, group_size=RANKS))
            rows.append(collective(30 * n + at[rank], took, n + 1, group_size=RANKS, side="wait"))
    job = watched(tmp_path_factory.mktemp("runs") / "run", ranks)
    seen = Analyzer(job.folder).waits()
    assert {late.rank for late in job.late()} == set(seen["late_rank"].to_list())
    span = Analyzer(job.folder).collectives()["start"]
    whole = int(span.max()) - int(span.min())  # type: ignore[arg-type]
    waited = dict(seen.select("late_rank", "waited").rows())
    for late in job.late():
        share = waited[late.rank] / (RANKS - 1) / len(arrivals) * (len(arrivals) - 1) / whole
        assert late.share == pytest.approx(share)
