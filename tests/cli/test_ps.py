"""haiprof ps, stop and flush: which jobs there are, and requests to each of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, only_line
from control_jobs import STEPS, job
from recording import process_file, recorders, the_recorder, wait_for, wait_recorded

from haiprof.capture.socket import server
from haiprof.cli.asking import ask_job
from haiprof.common.places import FINDINGS_NAME, HANG_NAME, control_socket
from haiprof.control.attach import RecordingPlan, attach
from haiprof.control.client import ControlError
from haiprof.control.find import find
from haiprof.control.jobs import Process


@contextlib.contextmanager
def ranks(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run so many ranks of one run."""
    with contextlib.ExitStack() as stack:
        running = []
        for rank in range(count):
            monkeypatch.setenv("RANK", str(rank))
            (folder / str(rank)).mkdir()
            running.append(
                stack.enter_context(job(STEPS, folder / str(rank), str(folder / "logs")))
            )
        monkeypatch.delenv("RANK")
        yield running


def listed() -> list[dict[str, Any]]:
    done = haiprof("ps", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_without_jobs_it_says_how_to_have_one(shm: Path) -> None:
    done = haiprof("ps")
    assert (done.returncode, done.stderr) == (0, "")
    assert "haiprof run" in done.stdout
    assert listed() == []


def test_it_lists_each_rank_with_its_run_and_recorder(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ranks(tmp_path, 2, monkeypatch) as running:
        found = wait_for(lambda: all(p["recorder"] for p in listed()) and listed())
        assert [(p["rank"], p["pid"]) for p in found] == [(n, r.pid) for n, r in enumerate(running)]
        for row in found:
            assert row["state"] == "recording"
            assert row["run"] == "r"
            assert row["run_dir"] == str(tmp_path / "logs" / "r")
            # Of two that began at once, one is about to leave.
            wait_for(lambda row=row: recorders(shm) == [row["recorder"]])
            assert abs(row["since_ns"] - time.time_ns()) < 120e9
        heading, *lines = haiprof("ps").stdout.splitlines()
        assert heading.split() == ["RUN", "RANK", "PID", "STATE", "SINCE", "RECORDER", "FOLDER"]
        assert len(lines) == 2
        assert lines[1].startswith("r  ")
        assert f"#1  {running[1].pid}" in lines[1]

        running[0].ask("stop")
        states = {p["pid"]: p["state"] for p in listed()}
        assert states == {running[0].pid: "idle", running[1].pid: "recording"}


def test_one_that_is_stopped_or_has_ended_is_listed_as_that(shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, str(tmp_path / "logs")) as running:
        running.ask("flush")
        recorder = the_recorder(shm)
        os.kill(running.pid, signal.SIGSTOP)
        (row,) = listed()
        assert (row["state"], row["run"], row["pid"]) == ("not answering", "r", running.pid)
        assert f"kill -CONT {running.pid}" in row["why"]
        assert f"kill -CONT {running.pid}" in haiprof("ps").stdout
        os.kill(running.pid, signal.SIGCONT)
        os.kill(recorder, signal.SIGKILL)
        running.process.kill()
        running.process.wait()
        (row,) = listed()
        assert (row["state"], row["run"], row["rank"]) == ("ended, not closed", "r", 0)
        assert "haiprof recover" in row["why"]
        assert haiprof("recover").returncode == 0
        assert listed() == []


def test_a_hang_is_shown_as_its_recorder_sees_it(shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, str(tmp_path / "logs")) as running:
        running.ask("flush")
        (lock,) = shm.glob("*/*/recorder.lock")
        state = lock.with_name(HANG_NAME)
        state.write_text(json.dumps({"problem": "Rank 1 never came\n", "since_ns": 10**18}))
        (row,) = listed()
        assert (row["state"], row["hang"], row["hang_since_ns"]) == (
            *("recording", "Rank 1 never came\n", 10**18),
        )  # fmt: skip
        _, line, why = haiprof("ps").stdout.splitlines()
        assert line.split()[3] == "hangs"
        assert why.startswith("r hangs since 2001-09-09 ")
        assert why.endswith("Rank 1 never came\N{REPLACEMENT CHARACTER}")
        for odd in ("", "[]", "5", '{"problem": 5, "since_ns": 5}', "[" * 100_000):
            state.write_text(odd)
            (row,) = listed()
            assert (row["hang"], row["hang_since_ns"]) == ("", None)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_text(json.dumps({"problem": "secret", "since_ns": 5}))
        state.unlink()
        state.symlink_to(elsewhere)
        assert listed()[0]["hang"] == ""


def test_one_that_is_watched_from_outside_is_listed_and_says_who_ends_it(
    shm: Path, tmp_path: Path
) -> None:
    with subprocess.Popen(["sleep", "100"]) as sleeper:
        try:
            # Its command line is empty for a moment after exec.
            (found,) = wait_for(lambda: find(str(sleeper.pid)))
            attached = attach(found, RecordingPlan("r", tmp_path / "logs", 60))
            (row,) = listed()
            assert (row["state"], row["run"], row["rank"]) == ("watched from outside", "r", 0)
            assert (row["pid"], row["why"]) == (sleeper.pid, attached.why)
            assert row["run_dir"] == str(attached.run_dir)
            done = haiprof("stop", "r")
            assert done.returncode == 4
            assert "only observed from outside; the command that does so ends it" in done.stderr
            attached.end()
            assert listed() == []
        finally:
            sleeper.kill()


@pytest.mark.parametrize("meant", ["run", "folder", "pid"])
def test_stop_ends_the_recording_of_every_rank_and_no_job(
    meant: str, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ranks(tmp_path, 2, monkeypatch) as running:
        target = {"run": "r", "folder": str(tmp_path / "logs" / "r"), "pid": str(running[1].pid)}
        done = haiprof("stop", target[meant])
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        stopped = running[1:] if meant == "pid" else running
        assert len(lines) == len(stopped)
        for line, one in zip(lines, stopped, strict=True):
            assert f"pid {one.pid}" in line
            assert str(tmp_path / "logs" / "r") in line
            assert one.ask("status")["state"] == "idle"
        if meant == "pid":
            assert running[0].ask("status")["state"] == "recording"
        else:
            wait_recorded(shm)
            states = [process_file(f)["state"] for f in (tmp_path / "logs" / "r").glob("*#*")]
            assert states == ["closed", "closed"]
            again = haiprof("stop", "r")
            assert again.returncode == 1
            assert "haiprof ps" in only_line(again)
    assert all(one.stderr == "" for one in running)


def test_flush_of_a_rank_that_is_busy_has_a_line_and_a_code_of_its_own(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ranks(tmp_path, 2, monkeypatch) as running:
        done = haiprof("flush", "r")
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 2

        os.kill(running[0].pid, signal.SIGSTOP)
        done = haiprof("flush", "r", "--timeout", "20")
        os.kill(running[0].pid, signal.SIGCONT)
        assert done.returncode == 3
        assert f"process {running[0].pid} does not answer" in only_line(done)
        (line,) = done.stdout.splitlines()
        assert f"pid {running[1].pid}" in line

        running[1].ask("stop")
        done = haiprof("flush", str(running[1].pid))
        assert done.returncode == 4
        assert "nothing to flush" in only_line(done)


def test_a_script_may_stand_for_its_run_if_it_is_one(shm: Path, tmp_path: Path) -> None:
    script = "import sys; sys.argv[0] = 'my/train.py'"
    program = STEPS.replace("import haiprof\n", f"{script}\n    import haiprof\n")
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    with job(program, first, str(tmp_path / "logs")) as one:
        for name in ("train.py", "train", "my/train.py"):
            assert f"pid {one.pid}" in haiprof("flush", name).stdout
        other = program.replace('run="r"', 'run="s"')
        with job(other, second, str(tmp_path / "logs")) as two:
            done = haiprof("stop", "train.py")
            assert done.returncode == 2
            assert "r, s" in only_line(done)
            for running in (one, two):
                assert running.ask("status")["state"] == "recording"


def test_what_is_nobody_is_one_line(shm: Path) -> None:
    for target, said in (("nobody", "haiprof ps"), (str(2**22 + 1), "no process")):
        done = haiprof("stop", target)
        assert done.returncode == 1
        assert said in only_line(done)
    done = haiprof("flush", str(os.getpid()))
    assert done.returncode == 1
    assert "has not loaded haiprof" in only_line(done)
    assert haiprof("stop").returncode == 2


def test_a_process_that_lives_and_is_deaf_is_not_said_to_be_gone(shm: Path) -> None:
    path = control_socket()
    path.parent.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
    done = haiprof("stop", str(os.getpid()))
    assert done.returncode == 1
    assert "does not answer at its socket" in only_line(done)


def _says(**other: Any) -> dict[str, Any]:
    return {"pid": 1, "state": "recording", "run": "r", "rank": 0} | other


@pytest.mark.parametrize(
    "said",
    [{}, _says(state=None), _says(run=["r"]), _says(rank="0"), _says(since_ns=1 << 90)],
)
def test_a_process_that_answers_anything_harms_nobody(said: dict[str, Any], shm: Path) -> None:
    server.open_socket(lambda request, arguments: said)
    try:
        (row,) = listed()
        assert (row["state"], row["pid"]) == ("not answering", os.getpid())
        assert "invalid answer" in row["why"]
        assert "invalid answer" in haiprof("ps").stdout
        done = haiprof("stop", str(os.getpid()))
        assert done.returncode == 4
        assert "invalid answer" in only_line(done)
    finally:
        server.close_socket()


def test_many_ranks_are_summed_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = [
        Process(n, "recording", "me", "r", "/r", "node", n, socket=Path("/s")) for n in range(64)
    ]

    def asked(rank: Process, request: str, timeout: float, arguments: object) -> object:
        if rank.rank in (7, 9):
            return ControlError(
                "busy" if rank.rank == 7 else "refused", f"rank {rank.rank} says no"
            )
        return {}

    monkeypatch.setattr("haiprof.cli.asking.matching", lambda target: known)
    monkeypatch.setattr("haiprof.cli.asking._asked", asked)
    assert ask_job("r", "flush", 1.0, lambda result: "all is well") == 4
    out, err = capsys.readouterr()
    assert out == "62 ranks: all is well\n"
    assert [line.partition(": ")[2] for line in err.splitlines()] == [
        "node#7: rank 7 says no",
        "node#9: rank 9 says no",
    ]


def test_what_costs_a_job_time_is_shown(shm: Path, tmp_path: Path) -> None:
    with job(STEPS, tmp_path, str(tmp_path / "logs")) as running:
        running.ask("flush")
        (lock,) = shm.glob("*/*/recorder.lock")
        state = lock.with_name(FINDINGS_NAME)
        costs = {"problem": "The loop waits\n", "since_ns": 10**18}
        state.write_text(json.dumps({"findings": [costs] * 9}))
        (row,) = listed()
        assert row["findings"] == [costs] * 8
        _, _, why = haiprof("ps").stdout.splitlines()
        assert why.startswith("r loses time since 2001-09-09 ")
        assert why.endswith("The loop waits\N{REPLACEMENT CHARACTER}")
        for odd in ("", "[]", '{"findings": 5}', '{"findings": [5]}', '{"findings": [{}]}'):
            state.write_text(odd)
            (row,) = listed()
            assert row["findings"] == []
