"""Stacks in a process's folder: whole, and whole again after a recorder was killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof
from recording import process_file, python, read_table, the_recorder, wait_for, wait_recorded

from haiprof._core import StackSampler, python_layout
from haiprof.capture.socket.requests import answer
from haiprof.common.owned_files import Folder
from haiprof.common.process_life import start_time_of
from haiprof.common.protocol import Refused
from haiprof.recorder.stacks import ProcessStacks

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 15), reason="the layout of this Python is not known"
)

JOB = """
    import os, sys, time
    import haiprof
    haiprof.start(sys.argv[1], run="r", stack_hz=float(sys.argv[2]))
    def early(n):
        while not os.path.exists("LATE"):
            time.sleep(0.01)
    def late():
        while not os.path.exists("END"):
            time.sleep(0.01)
            haiprof.flush() if os.path.exists("FLUSH") and os.remove("FLUSH") is None else None
    early(1)
    late()
"""


def stacks_in(folder: Path) -> list[tuple[list[str], dict[str, Any]]]:
    """Return functions and row of each stack of the main thread, as far as it is on disk."""
    rows = read_table(folder, "stacks").to_pylist()  # first: what it names is there by then
    frames = {row["id"]: row for row in read_table(folder, "frames").to_pylist()}
    found = []
    for row in rows:
        if row["thread"] != row["process"]:
            continue
        names, number = [], row["stack"]
        while number is not None:
            names.append(frames[number]["function"])
            number = frames[number]["parent"]
        found.append((names, row))
    return found


def test_stacks_are_written_while_the_job_runs_and_by_the_next_recorder(
    shm: Path, tmp_path: Path
) -> None:
    job = python(JOB, "logs", "50", cwd=tmp_path)
    run = tmp_path / "logs" / "r"

    def functions() -> set[str]:
        folders = list(run.glob("*#*"))
        return {name for names, _ in stacks_in(folders[0]) for name in names} if folders else set()

    wait_for(lambda: "early" in functions())
    os.kill(the_recorder(shm), signal.SIGKILL)
    (tmp_path / "LATE").touch()
    (tmp_path / "FLUSH").touch()  # starts a new one
    wait_for(lambda: "late" in functions())
    (tmp_path / "END").touch()
    assert job.wait(60) == 0
    wait_recorded(shm)
    (folder,) = run.glob("*#*")
    frames = read_table(folder, "frames")
    ids = frames["id"].to_pylist()
    assert len(ids) == len(set(ids))
    assert all(p is None or p < i for i, p in zip(ids, frames["parent"].to_pylist(), strict=True))
    stacks = stacks_in(folder)
    assert {"early", "late", "<module>"} <= {name for names, _ in stacks for name in names}
    known = process_file(folder)["stacks"]
    assert known["hz"] == 50
    assert known["problem"] is None
    times = [row["start"] for _, row in stacks]
    assert process_file(folder)["started_ns"] - 2e9 < min(times)
    assert max(times) < process_file(folder)["ended_ns"] + 2e9
    assert 7 in {f["line"] for f in frames.to_pylist() if f["function"] == "early"}


def test_what_an_earlier_recorder_counted_stays(tmp_path: Path) -> None:
    (tmp_path / "ring").touch()
    header = {"pid": 1, "start_time": 0, "python": None}
    folder = Folder.at(tmp_path)
    before = {"hz": 10.0, "torn": 3, "dropped": 0, "cut": 1, "problem": None}
    taken_over = ProcessStacks(None, tmp_path / "ring", header, folder, before)
    assert taken_over.described() == before
    damaged = ProcessStacks(None, tmp_path / "ring", header, folder, {"hz": "x", "torn": None})
    assert damaged.described() == {
        "hz": 0.0, "torn": 0, "dropped": 0, "cut": 0, "problem": None,
    }  # fmt: skip


def test_why_there_are_none_is_kept(tmp_path: Path) -> None:
    (tmp_path / "ring").touch()
    folder, sampler = Folder.at(tmp_path), StackSampler(10.0)
    started = {"pid": os.getpid(), "start_time": start_time_of(os.getpid())}
    layout = python_layout()
    for header, why in (
        ({**started, "python": None}, "another Python"),
        ({**started, "python": layout, "start_time": 1}, "its process had ended"),
        ({**started, "python": layout[:100].ljust(len(layout), b"\xff")}, "describes no Python"),
        ({**started, "python": layout[:-1]}, "describes no Python"),
    ):
        stacks = ProcessStacks(sampler, tmp_path / "ring", header, folder)
        assert why in stacks.described()["problem"]
        stacks.collect(0, last=True)
        assert stacks.rows == 0


class RefusedAtTheEnd:
    """Samples until the process lets nobody read it any more."""

    hz = 10.0

    def __init__(self, problems: list[str], samples: list[int]) -> None:
        self.problems, self.samples = problems, samples

    def watch(self, *about: Any) -> bool:
        return True

    def counts(self, pid: int) -> dict[str, Any]:
        return {"torn": 0, "dropped": 0, "cut": 0, "problem": self.problems.pop(0)}

    def take(self, pid: int) -> tuple[list[Any], list[Any]]:
        sample = (1, 1, 1, pid, pid, 0, "running", None, 0)
        return [sample] * self.samples.pop(0), [(0, None, "f", "f.py", 1, 1)]

    unwatch = take


REFUSED = "the memory of the process may not be read"


@pytest.mark.parametrize(
    ("problems", "samples", "problem"),
    [
        (["", REFUSED], [3, 1], None),
        ([REFUSED], [3], None),
        ([REFUSED], [0], REFUSED),
        (["", REFUSED, REFUSED], [3, 0, 0], REFUSED),
    ],
)
def test_one_that_lets_nobody_read_it_at_its_end_has_no_problem(
    tmp_path: Path, problems: list[str], samples: list[int], problem: str | None
) -> None:
    (tmp_path / "ring").touch()
    header = {"pid": 1, "start_time": 1, "python": b""}
    sampler: Any = RefusedAtTheEnd(problems, samples)
    stacks = ProcessStacks(sampler, tmp_path / "ring", header, Folder.at(tmp_path))
    while problems:
        stacks.collect(0, last=len(problems) == 1)
    assert stacks.described()["problem"] == problem


def test_a_burst_ends_by_itself(shm: Path, tmp_path: Path) -> None:
    job = python(JOB, "logs", "1", cwd=tmp_path)
    run = tmp_path / "logs" / "r"
    wait_for(lambda: any(stacks_in(folder) for folder in run.glob("*#*")))
    asked = time.time_ns()
    done = haiprof("flush", "r", "--stacks", "100", "--time", "6")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.endswith("stacks of r at 100 Hz for 6 s")
    assert second.endswith(f"is in {run}")
    over = time.time_ns()
    (folder,) = run.glob("*#*")
    wait_for(lambda: stacks_in(folder)[-1][1]["start"] > over + 2e9)
    (tmp_path / "LATE").touch()
    (tmp_path / "END").touch()
    assert job.wait(60) == 0
    wait_recorded(shm)
    rows = [row for _, row in stacks_in(folder)]
    # On a busy machine looks take long, and come less often than they were asked for.
    burst = [row for row in rows if row["duration"] // row["samples"] < 400_000_000]
    usual = [row for row in rows if row["duration"] // row["samples"] >= 800_000_000]
    # A few are of a period in which the rate changed.
    assert len(burst) + len(usual) > 0.8 * len(rows)
    assert sum(row["samples"] for row in burst) > 12  # in 6 s; of the usual ones there are 6
    assert min(row["start"] for row in burst) > asked
    assert any(row["start"] > max(row["start"] for row in burst) for row in usual)


def test_a_burst_is_checked(shm: Path, tmp_path: Path) -> None:
    assert haiprof("flush", "r", "--stacks", "1000").returncode == 2
    assert haiprof("flush", "no such", "--stacks", "100").returncode == 1


def test_without_a_rate_there_are_none(shm: Path, tmp_path: Path) -> None:
    job = python(JOB, "logs", "0", cwd=tmp_path)
    (tmp_path / "LATE").touch()
    (tmp_path / "END").touch()
    assert job.wait(60) == 0
    wait_recorded(shm)
    (folder,) = (tmp_path / "logs" / "r").glob("*#*")
    assert not list(folder.glob("stacks-*"))
    assert process_file(folder)["stacks"]["hz"] == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"hz": 0, "seconds": 1}, "hz=0 must be above 0"),
        ({"hz": 1e6, "seconds": 1}, "hz=1000000.0 "),
        ({"hz": "9", "seconds": 1}, "hz='9' "),
        ({"hz": 10, "seconds": 601}, "seconds must be a number"),
        ({"hz": 10, "seconds": True}, "seconds must be a number"),
        ({"hz": 10, "second": 1}, "there is no argument second"),
        ({"hz": 10, "seconds": 1}, "nothing is recorded here"),
    ],
)
def test_what_a_burst_cannot_be_is_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        answer("stacks", arguments)
