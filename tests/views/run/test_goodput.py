"""What a job's life was spent on: by hand, and as a property of any life."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import (
    MS,
    SECOND,
    T0,
    Row,
    event,
    make_run,
    sample,
    span,
    write_closed,
    write_process,
    write_run,
)

from haiprof import Analyzer, schema
from haiprof.sources.arrays import of_frame
from haiprof.views.run import goodput as views


def steps(first_ms: float, count: int, each_ms: float = 1000.0, first: int = 0) -> list[Row]:
    return [span(first_ms + i * each_ms, each_ms, "step", "step", first + i) for i in range(count)]


def saved(at_ms: float, took_ms: float) -> Row:
    return span(at_ms, took_ms, "checkpoint", "checkpoint.save")


def life(
    run: Path, rank: int, rows: Sequence[Row], seconds: tuple[float, float], **more: Any
) -> Path:
    """Write a process that lived from one second after T0 to another."""
    times = {
        "started_ns": T0 + round(seconds[0] * SECOND) + 5,
        "process_started_ns": T0 + round(seconds[0] * SECOND),
        "ended_ns": T0 + round(seconds[1] * SECOND),
    }
    folder = write_process(run, rank, **{**times, **more})
    write_closed(folder, schema.SPANS, rows)
    return folder


def again(
    run: Path, rank: int, pid: int, rows: Sequence[Row], seconds: tuple[float, float], **more: Any
) -> Path:
    """Write a later process of a rank, in the folder that its recorder gives it."""
    kept = run / f"n0#{rank}"
    aside = run.with_name("aside")
    kept.rename(aside)
    folder = life(run, rank, rows, seconds, pid=pid, **more)
    mine = folder.rename(run / f"n0#{rank}.{pid}")
    aside.rename(kept)
    return mine


def parts(run: Path) -> dict[str, float]:
    """Return the parts with any time, in s; the same when the processes were read before."""
    found = Analyzer(run).goodput()
    after = Analyzer(run)
    after.summaries()
    for one, other in zip(found, after.goodput(), strict=True):
        assert one.equals(other)
    assert found.parts["duration"].sum() == found.summary["wall_ns"].item()
    assert found.parts["duration"].sum() == found.timeline["duration"].sum()
    rows = found.parts.filter(pl.col("duration") != 0)
    return {part: ns / SECOND for part, ns in rows.select("part", "duration").iter_rows()}


def test_a_job_that_is_killed_and_restarted_loses_what_came_after_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run")
    # 2 s of starting up, 10 steps of 1 s with a save of 0.5 s in the fifth; killed 0.4 s into one.
    first = [*steps(2000, 10), saved(6500, 500)]
    life(run, 0, first, (0, 12.4), state="died")
    # 3 s later another one; it loads for 1 s, ends in order 0.25 s after its last step.
    second = [*steps(17400, 4), span(16000, 1000, "checkpoint", "checkpoint.load")]
    again(run, 0, 77, second, (15.4, 21.65))
    assert parts(run) == {
        "startup": pytest.approx(2 + 2 - 1),
        "productive": pytest.approx(4.5 + 4),
        "save": 0.5,
        "lost": pytest.approx(5.4),
        "down": 3.0,
        "load": 1.0,
        "shutdown": 0.25,
    }
    found = Analyzer(run).goodput()
    row = found.summary.row(0, named=True)
    assert row["ettr"] == pytest.approx(8.5 / 21.65)
    assert (row["ranks"], row["attempts"], row["died"], row["checkpoints"]) == (1, 2, 1, 1)
    assert found.attempts["kept"].to_list() == [T0 + 6500 * MS, None]
    assert found.attempts["lost_ns"].to_list() == [5400 * MS, 0]


def test_without_a_checkpoint_all_work_of_an_attempt_that_another_follows_is_lost(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run")
    life(run, 0, steps(1000, 3), (0, 4))  # it ended in order, and yet was started again
    again(run, 0, 77, steps(6000, 5), (5, 11))
    assert parts(run) == {"startup": 2.0, "lost": 3.0, "down": 1.0, "productive": 5.0}


def test_what_the_loop_waits_for_is_no_training(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rows = steps(1000, 6)
    rows += [span(1000 + 1000 * i, 200, "phase", "dataloader", i) for i in range(6)]
    rows += [span(1200 + 1000 * i, 300, "phase", "forward", i) for i in range(6)]
    rows += [span(6600, 100, "phase", "eval", 5), span(6700, 50, "phase", "eval_dataloader", 5)]
    # In a thread of its own nobody waits for a save; that of a batch's file is fetching.
    rows += [span(3300, 600, "checkpoint", "checkpoint.save", 2, thread=9)]
    rows += [span(4010, 100, "checkpoint", "checkpoint.load", 3)]
    rows += [span(5500, 100, "checkpoint", "checkpoint.async_save", 4)]
    life(run, 0, rows, (0, 7))
    assert parts(run) == pytest.approx(
        {"startup": 1.0, "data": 1.2, "evaluation": 0.15, "save": 0.1, "productive": 4.55}
    )


@pytest.mark.parametrize(
    ("longest", "where", "named"), [(60, 3, "hang"), (9, 3, "productive"), (60, 0, "startup")]
)
def test_a_step_far_beyond_the_others_hangs(
    tmp_path: Path, longest: int, where: int, named: str
) -> None:
    run = write_run(tmp_path / "run")
    rows, now = [], 0
    for number in range(9):
        length = 1000 * longest if number == where else 1000
        rows.append(span(now, length, "step", "step", number))
        now += length
    life(run, 0, rows, (0, now / 1000))
    assert parts(run) == (
        {"productive": 9.0, named: 59.0} if longest == 60 else {"productive": 17.0}
    )


def test_a_process_that_hangs_until_it_is_killed_does(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    life(run, 0, [*steps(0, 20), saved(19000, 1)], (0, 120), state="died")
    found = parts(run)
    assert found == pytest.approx({"productive": 19.0, "save": 0.001, "lost": 1.999, "hang": 99.0})


def test_a_hang_that_an_exception_ends_is_one_and_what_follows_is_lost(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rows = [*steps(0, 20), saved(19000, 1)]
    # It gives up at 60 s; the launcher needs 3 s to end the other one.
    life(run, 0, rows, (0, 61), ended=end("failed", 60, reason="exception"))
    life(run, 1, rows, (0, 63), ended=end("interrupted", 63, signal="SIGTERM"))
    found = parts(run)
    assert found == pytest.approx({"productive": 19.0, "save": 0.001, "lost": 4.999, "hang": 39.0})
    assert Analyzer(run).goodput().summary["died"].item() == 2
    # Of one that stands for minutes after another one has failed, nobody thinks: it only ends.
    apart = write_run(tmp_path / "apart")
    life(apart, 0, rows, (0, 20.5), ended=end("killed", 20.5, signal="SIGSEGV"))
    life(apart, 1, rows, (0, 320), ended=end("interrupted", 320, signal="SIGTERM"))
    assert parts(apart)["hang"] == pytest.approx(299.0)


def end(kind: str, at: float, **more: Any) -> dict[str, Any]:
    known = {"exit_code": None, "signal": None, "reason": None, "parent_pid": None, "text": kind}
    at_ns = T0 + round(at * SECOND)
    return {**known, "kind": kind, "time_ns": at_ns, "failed_ns": at_ns, **more}


def test_a_hang_is_one_while_it_lasts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    folder = life(run, 0, steps(0, 20), (0, 0), state="live", ended_ns=None)
    write_closed(folder, schema.SAMPLES, [sample(at, "proc.cpu.percent", 1.0) for at in (1, 90)])
    assert parts(run) == pytest.approx({"productive": 20.0, "other": 1.0, "hang": 69.0})


def test_a_restart_has_a_reason_and_a_price(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    failed = {**end("failed", 12.4, reason="exception"), "text": "ValueError: x (t.py:7)"}
    life(run, 0, [*steps(2000, 10), saved(6500, 500)], (0, 12.4), ended=failed)
    second = [*steps(17400, 4), span(16000, 1000, "checkpoint", "checkpoint.load")]
    again(run, 0, 77, second, (15.4, 21.65), attempt=1)
    found = Analyzer(run).goodput()
    (row,) = found.restarts.iter_rows(named=True)
    assert row == {
        "attempt": 1,
        "time": T0 + round(15.4 * SECOND) + 5,
        "rank": 0,
        "reason": "The job failed, at 22:13:32 UTC after 10 steps: ValueError: x (t.py:7)",
        "down_ns": 3 * SECOND,
        "lost_ns": 5400 * MS,
        "startup_ns": 2 * SECOND - 5,
    }
    assert found.attempts["how"].to_list() == ["ValueError: x (t.py:7)", None]


def test_a_run_is_productive_while_all_ranks_are(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    life(run, 0, [*steps(1000, 8), saved(4000, 500)], (0, 10))
    life(run, 1, [*steps(2000, 7), span(6000, 700, "phase", "dataloader", 4)], (0.5, 9.5))
    assert parts(run) == pytest.approx(
        {"startup": 2.0, "save": 0.5, "data": 0.7, "shutdown": 1.0, "productive": 5.8}
    )
    assert Analyzer(run).goodput().summary["ranks"].item() == 2


def test_a_recording_that_goes_on_in_the_same_process_is_no_other_attempt(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    life(run, 0, steps(1000, 2), (0, 3))
    same = {"process_started_ns": T0, "started_ns": T0 + 5 * SECOND}
    again(run, 0, 1000, steps(6000, 3), (0, 9), **same)
    assert parts(run) == {"startup": 1.0, "other": 3.0, "productive": 5.0}
    assert Analyzer(run).goodput().summary["attempts"].item() == 1


def test_of_an_older_recorder_a_life_begins_with_the_recording(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    life(run, 0, steps(1000, 2), (0, 3), process_started_ns=None, started_ns=T0 + 500 * MS)
    assert parts(run) == {"startup": 0.5, "productive": 2.0}


def test_a_job_that_still_runs_has_lost_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rows = [*steps(1000, 5), span(6000, 400, "phase", "forward", 5)]
    life(run, 0, rows, (0, 9), state="live", ended_ns=None)
    assert parts(run) == {"startup": 1.0, "productive": 5.0, "other": 0.4}


def test_of_a_job_that_was_attached_to_nothing_is_known_before(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    folder = life(run, 0, steps(51_000, 2), (0, 53), started_ns=T0 + 50 * SECOND)
    write_closed(folder, schema.EVENTS, [event(50, "attach", "recording began")])
    assert parts(run) == {"other": 1.0, "productive": 2.0}


def test_with_a_warmup_nothing_is_known_before(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", options={"warmup": 50})
    life(run, 0, steps(51_000, 2), (0, 53), started_ns=T0 + 50 * SECOND)
    assert parts(run) == {"other": 1.0, "productive": 2.0}


def test_a_run_without_steps_only_started(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    life(run, 0, [], (0, 3))
    assert parts(run) == {"startup": 3.0}


def test_an_ordinary_run_is_reported(tmp_path: Path) -> None:
    found = Analyzer(make_run(tmp_path / "run", ranks=3)).goodput()
    assert found.summary["ranks"].item() == 3
    assert 0 < found.summary["ettr"].item() < 1


_ANY_LIFE = st.tuples(
    st.integers(0, 50),  # begin
    st.integers(0, 200),  # length
    st.lists(
        st.tuples(
            st.sampled_from(["step", "dataloader", "eval", "checkpoint.save", "checkpoint.load"]),
            st.integers(-20, 260),
            st.integers(0, 90),
        ),
        max_size=12,
    ),
    st.tuples(st.booleans(), st.booleans()),
    st.one_of(st.none(), st.integers(-10, 260)),
)


def assert_same(one: views.Pieces, other: views.Pieces) -> None:
    assert one.end == other.end
    assert one.start.dtype == other.start.dtype
    assert np.array_equal(one.start, other.start)
    assert np.array_equal(one.code, other.code)


@pytest.mark.parametrize("gaps", [[], [1], [2**32 - 1, 7], [2**32, 7], [2**62, 1]])
def test_a_time_line_is_packed_to_the_nanosecond(gaps: list[int]) -> None:
    points = np.cumsum([T0, *gaps])
    code = np.arange(len(gaps), dtype=np.int8)
    line = views.Pieces(points[:-1], code, int(points[-1]))
    assert_same(line, views.unpacked(views.packed(line)))


@settings(max_examples=80)
@given(st.lists(st.lists(_ANY_LIFE, min_size=1, max_size=3), min_size=1, max_size=3))
def test_parts_always_sum_to_the_wall_clock_time(ranks: list[list[Any]]) -> None:
    category = {"step": "step", "dataloader": "phase", "eval": "phase"}
    by_rank = []
    for its in ranks:
        lives = []
        for begin, length, rows, (loses, died), kept in sorted(its, key=lambda one: one[0]):
            spans = pl.DataFrame(
                [(s, d, category.get(name, "checkpoint"), name, 1, None) for name, s, d in rows],
                schema=dict(
                    zip(
                        views.COLUMNS,
                        (pl.Int64, pl.Int64, pl.String, pl.String, pl.UInt32, pl.UInt32),
                        strict=True,
                    )
                ),
                orient="row",
            )
            one = views.Life(begin, begin + length, loses, kept, died=died)
            own = views.pieces(of_frame(spans), one)
            assert sum(views.totals(own).values()) == length
            assert_same(own, views.unpacked(views.packed(own)))
            for known in ({}, {"live": True, "died": False}, {"failed": begin + length // 2}):
                more = one._replace(**known)
                line = views.pieces(of_frame(spans), more)
                assert_same(line, views.pieces(of_frame(spans), views.decisive(more)))
            lives.append((one, own))
        by_rank.append(lives)
    begin = min(one.begin for its in by_rank for one, _ in its)
    end = max(one.end for its in by_rank for one, _ in its)
    lines = [views.attempts(its, begin, end) for its in by_rank]
    for line in lines:
        assert np.all(np.diff(line.start) > 0)
        assert sum(views.totals(line).values()) == end - begin
    whole = views.together(lines)
    assert whole is not None
    assert sum(views.totals(whole).values()) == end - begin
    for at in range(begin, end):  # of all ranks' parts, the first
        codes = [int(line.code[np.searchsorted(line.start, at, "right") - 1]) for line in lines]
        assert whole.code[np.searchsorted(whole.start, at, "right") - 1] == min(codes)
