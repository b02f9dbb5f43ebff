"""Which process failed first, and what the run says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.findings import endings
from haiprof.sources.own import open_run

#: 22:13:20 UTC is runs.T0.
SECOND = runs.SECOND


def ended(kind: str, after: float = 0.0, text: str = "", **more: object) -> dict[str, Any]:
    """Return what process.json has of an end, ``after`` seconds."""
    at = runs.T0 + int(after * SECOND)
    failure_of = {"exit_code": None, "signal": None, "reason": None, "parent_pid": None}
    return {**failure_of, "kind": kind, "text": text, "time_ns": at, "failed_ns": at, **more}


FINE = ended("finished", 60, "exit code 0", exit_code=0)
TERMINATED = ended("interrupted", 31, "ended by SIGTERM", signal="SIGTERM")
KILLED = ended("killed", 45, "killed by SIGKILL (…)", signal="SIGKILL")


def raised(after: float, text: str) -> dict[str, Any]:
    text = f"{text}, exit code 1"
    return ended("failed", after, text, exit_code=1, reason="exception")


def run_of(folder: Path, *endings: dict[str, Any] | None, **command: Any) -> Path:
    run = runs.write_run(folder)
    for rank, ending in enumerate(endings):
        state = "died" if ending is None or ending["signal"] else "closed"
        rank_folder = runs.write_process(run, rank, state=state, ended=ending)
        runs.write_closed(rank_folder, schema.SPANS, runs.loop(20))
    runs.write_node(run, **command)
    return run


def failure_of(run: Path) -> str | None:
    analyzer = Analyzer(run)
    lines = analyzer.headline()
    failure = analyzer.failure()
    assert len(lines) == (3 if failure is None else 4)
    assert failure in (None, lines[0])
    return failure


def test_a_run_in_order_says_nothing(tmp_path: Path) -> None:
    assert failure_of(run_of(tmp_path / "r", FINE, FINE, ended=FINE)) is None


def test_a_run_of_an_older_recorder_reads_as_before(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", None, None)
    assert failure_of(run) is None
    assert Analyzer(run).headline()[2].startswith("rank 0, rank 1 died without closing the profile")
    rows = Analyzer(run).processes()
    assert rows["how"].null_count() == rows.height


def test_the_rank_that_failed_first_is_named_with_what_became_of_the_others(
    tmp_path: Path,
) -> None:
    endings = [TERMINATED] * 8
    endings[3] = raised(30, "RuntimeError: CUDA out of memory (train.py:41)")
    assert failure_of(run_of(tmp_path / "r", *endings)) == (
        "Rank 3 on n0 failed first, at 22:13:50 UTC after 20 steps: RuntimeError: CUDA out of "
        "memory (train.py:41), exit code 1; 7 others were then terminated"
    )


def test_the_exception_counts_and_not_how_long_the_end_took(tmp_path: Path) -> None:
    slow = {**raised(30, "RuntimeError: first"), "time_ns": runs.T0 + 50 * SECOND}
    line = failure_of(run_of(tmp_path / "r", raised(40, "RuntimeError: second"), slow, KILLED))
    assert line is not None
    assert line.startswith("Rank 1 on n0 failed first, at 22:13:50 UTC")
    assert line.endswith("; 1 other failed after it and 1 other was then terminated")


def test_a_rank_that_misses_a_peer_did_not_fail_first(tmp_path: Path) -> None:
    peer = raised(29.9, "RuntimeError: [gloo] Connection closed by peer [::1]:7057")
    line = failure_of(
        run_of(tmp_path / "r", peer, ended("killed", 30, "killed by SIGSEGV", signal="SIGSEGV"))
    )
    assert line is not None
    assert line.startswith("Rank 1 on n0 failed first")
    assert line.endswith("killed by SIGSEGV; 1 other lost its connection")
    line = failure_of(run_of(tmp_path / "s", peer, peer))
    assert line is not None
    assert line.startswith("Rank 0 on n0 lost its connection first, at ")
    assert line.endswith("; 1 other failed after it")


@pytest.mark.parametrize(
    ("samples", "stayed"),
    [
        ([runs.stack(300, 1, samples=3), runs.stack(600, 1, samples=3)], True),
        ([runs.stack(300, 1, samples=3), runs.stack(600, 2, samples=3)], False),
        ([runs.stack(300, 1, samples=2)], False),
        # A loop comes to a line again and again.
        ([runs.stack(20 * n, 1) for n in range(10)], False),
        ([runs.stack(300, 1, samples=6, thread=7)], False),
    ],
)
def test_the_line_at_which_a_process_had_stayed_is_evidence_of_its_end(
    tmp_path: Path, samples: list[runs.Row], *, stayed: bool
) -> None:
    run = run_of(tmp_path / "r", ended("killed", 1, "killed by SIGSEGV", signal="SIGSEGV"))
    (folder,) = run.glob("*#0")
    main = [{**row, "thread": 1000 if row["thread"] == 1 else row["thread"]} for row in samples]
    runs.write_closed(folder, schema.STACKS, main)
    runs.write_closed(folder, schema.FRAMES, runs.FRAMES)
    evidence = [each.value for each in Analyzer(run).findings()[0].evidence]
    assert evidence[0] == "killed by SIGSEGV"
    assert evidence[1:] == (["it had been at load (/job/data.py:88) for 700 ms"] if stayed else [])


LOST = "RuntimeError: [gloo] Connection closed by peer [::1]:7057"
IN_VAIN = "RuntimeError: [gloo] Timed out waiting 10000ms for recv operation to complete"


def test_who_ends_in_order_before_the_others_are_done_is_why_these_fail(tmp_path: Path) -> None:
    early = ended("finished", 30.4, "exit code 0", exit_code=0)
    lost = raised(30, LOST)
    assert failure_of(run_of(tmp_path / "r", lost, lost, early)) == (
        "Rank 2 on n0 ended before the others, at 22:13:50 UTC after 20 steps: exit code 0; "
        "2 others lost their connections"
    )
    late = ended("finished", 33, "exit code 0", exit_code=0)
    line = failure_of(run_of(tmp_path / "s", lost, lost, late)) or ""
    assert line.startswith("Rank 0 on n0 lost its connection first")


def test_a_rank_that_waits_in_vain_is_not_to_blame_nor_was_the_job_interrupted(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path / "r", raised(30, IN_VAIN), raised(30.1, LOST), TERMINATED)
    assert failure_of(run) == (
        "Rank 0 on n0 gave up waiting for the others first, at 22:13:50 UTC after 20 steps: "
        f"{IN_VAIN}, exit code 1; 1 other failed after it and 1 other was then terminated"
    )
    line = failure_of(run_of(tmp_path / "s", raised(30, IN_VAIN), raised(25, "ValueError: x")))
    assert (line or "").endswith("ValueError: x, exit code 1; 1 other waited in vain")


def test_a_node_of_which_nothing_is_known_may_be_lost(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", raised(30, LOST))
    for rank in (2, 3):
        runs.write_process(run, rank, node="n1", state="live", ended=None, world_size=4)
    line = failure_of(run) or ""
    assert line.startswith("Rank 0 on n0 lost its connection, at ")
    assert line.endswith(
        "; nothing is known of the end of rank 2 on n1 and of 1 more: that node may be lost"
    )


def test_one_process_is_the_job(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", ended("failed", 5, "exit code 3", exit_code=3))
    assert failure_of(run) == "The job failed, at 22:13:25 UTC after 20 steps: exit code 3"


def test_an_interrupted_job_did_not_fail(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", TERMINATED, TERMINATED)
    assert failure_of(run) == (
        "The job was interrupted, at 22:13:51 UTC after 20 steps: ended by SIGTERM"
    )
    asked = ended("interrupted", 32, "exit code 1, after SIGTERM", exit_code=1)
    run = run_of(tmp_path / "s", TERMINATED, TERMINATED, ended=asked)
    assert (failure_of(run) or "").startswith("The job was interrupted")


def test_a_command_that_failed_where_no_rank_did_is_reported(tmp_path: Path) -> None:
    one = ended("failed", 33, "exit code 1", exit_code=1)
    assert failure_of(run_of(tmp_path / "r", FINE, ended=one)) == (
        "The command failed, at 22:13:53 UTC: exit code 1"
    )
    assert failure_of(run_of(tmp_path / "s", TERMINATED, TERMINATED, ended=one)) == (
        "The command failed, at 22:13:53 UTC: exit code 1; 2 ranks were terminated, and none "
        "failed before"
    )


def test_a_child_that_failed_just_before_its_rank_is_why(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", raised(31, "RuntimeError: worker exited (data.py:7)"))
    died = ended("killed", 30, "killed by the kernel: out of memory", signal="SIGKILL",
                 reason="out of memory", parent_pid=1000)  # fmt: skip
    runs.write_process(run, 0, role="process", pid=77, state="died", ended=died)
    assert failure_of(run) == (
        "A child of rank 0 on n0 (pid 77) failed first, at 22:13:50 UTC: killed by the kernel: "
        "out of memory; then rank 0 failed: RuntimeError: worker exited (data.py:7), exit code 1"
    )


def test_a_child_that_failed_is_no_failure_of_a_job_that_went_on(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", FINE)
    runs.write_process(run, 0, role="process", pid=77, ended=ended("failed", 3, "exit code 5"))
    assert failure_of(run) is None


def test_a_child_that_failed_the_command_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", FINE, ended=ended("failed", 33, "exit code 1", exit_code=1))
    runs.write_process(run, 0, role="process", pid=77, ended=raised(32, "ValueError: no (a.py:6)"))
    assert failure_of(run) == (
        "A child of rank 0 on n0 (pid 77) failed, at 22:13:52 UTC: ValueError: no (a.py:6), "
        "exit code 1"
    )


def test_a_rank_that_was_started_again_has_not_failed_the_job(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", ended("failed", 5, "exit code 3", exit_code=3))
    again = {"attempt": 1, "pid": 2000, "started_ns": runs.T0 + 10 * SECOND, "ended": FINE}
    elsewhere = runs.write_process(tmp_path / "s", 0, **again)
    elsewhere.rename(run / "n0#0.2000")
    assert failure_of(run) is None
    assert Analyzer(run).headline()[2] == (
        "The job was started again after this: The job failed, at 22:13:25 UTC after 20 steps: "
        "exit code 3"
    )


def test_of_an_attempt_nothing_of_the_one_before_counts(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", raised(5, "ValueError: x"), TERMINATED)
    # The other rank ended before it was recorded again.
    again = {"attempt": 1, "pid": 2000, "started_ns": runs.T0 + 40 * SECOND, "world_size": 2}
    elsewhere = runs.write_process(tmp_path / "s", 1, ended=raised(50, "OSError: y"), **again)
    elsewhere.rename(run / "n0#1.2000")
    line = failure_of(run) or ""
    assert line.endswith(" (attempt 1) failed, at 22:14:10 UTC: OSError: y, exit code 1")
    processes = open_run(run).processes
    (restart,) = endings.restarts(processes)
    assert (restart.begin_ns, restart.rank) == (runs.T0 + 40 * SECOND, 0)
    assert (restart.reason or "").startswith("Rank 0 on n0 failed first, at 22:13:25 UTC: Value")


def test_a_job_that_is_run_again_by_hand_is_another_attempt_and_a_pause_is_none(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path / "r", raised(5, "ValueError: x"))
    for number, after in ((1, 40), (2, 50)):
        own = {"pid": 2000, "started_ns": runs.T0 + after * SECOND, "process_started_ns": 7}
        elsewhere = runs.write_process(tmp_path / str(number), 0, ended=FINE, **own)
        elsewhere.rename(run / f"n0#0.2000.{number}")
    (restart,) = endings.restarts(open_run(run).processes)
    assert restart.begin_ns == runs.T0 + 40 * SECOND


def test_ends_of_two_nodes_are_compared_by_one_clock(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    for rank, node in enumerate(("a", "b")):
        ending = raised(30 - rank, f"RuntimeError: {node}")
        runs.write_closed(
            runs.write_process(run, rank, node=node, ended=ending), schema.SPANS, runs.loop(20)
        )
    processes = open_run(run).processes
    assert "Rank 1 on b failed first" in (endings.failure(processes) or "")
    ahead = {"a": 0, "b": 5 * SECOND}  # the clock of b is behind by so much
    line = endings.failure(processes, aligned=lambda node, at: at + ahead[node])
    assert "Rank 0 on a failed first" in (line or "")


def test_none_of_several_unknown_ends_is_blamed(tmp_path: Path) -> None:
    endings = [ended("unknown", 3.0 - rank, "exit code unknown") for rank in range(3)]
    run = runs.write_run(tmp_path / "run")
    for rank, ending in enumerate(endings):
        runs.write_process(run, rank, state="died", ended=ending)
    line = "3 ranks ended without a goodbye, and their exit codes are unknown"
    assert failure_of(run) == line


def test_unknown_ends_count_where_nothing_better_is_known(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    unknown = ended("unknown", 3, "exit code unknown")
    runs.write_process(run, 0, state="died", ended=unknown)
    assert failure_of(run) == "The job failed, at 22:13:23 UTC: exit code unknown"
    runs.write_process(run, 0, state="closed", ended=unknown)
    assert failure_of(run) is None


def test_processes_have_columns_of_their_ends(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", FINE, TERMINATED)
    row = Analyzer(run).processes().row(1, named=True)
    assert (row["end"], row["exit_code"], row["signal"], row["reason"], row["how"]) == (
        "interrupted", None, "SIGTERM", None, "ended by SIGTERM",
    )  # fmt: skip


@pytest.mark.parametrize("value", ["no", {"kind": "failed"}, {"time_ns": "x"}])
def test_an_end_that_makes_no_sense_is_a_problem_of_its_process(
    tmp_path: Path, value: object
) -> None:
    run = run_of(tmp_path / "r", FINE)
    runs.write_process(run, 1, ended=value)
    analyzer = Analyzer(run)
    assert analyzer.ranks == [0]
    assert "time_ns" in analyzer.problems()[0] or "ended" in analyzer.problems()[0]
