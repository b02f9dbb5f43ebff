"""A job that runs is recorded for a while, whether it was prepared for it or not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest
from control_jobs import TRAINS, Job, job
from recording import recorders, wait_for

from haiprof import Analyzer
from haiprof.control.attach import Attached, Wanted, attach, way_to
from haiprof.control.client import ControlError
from haiprof.control.find import Found, find
from haiprof.launcher import placement
from haiprof.recorder.life import start_time_of


def found(pid: int) -> Found:
    return find(str(pid))[0]


def recorded(running: Job, wanted: Wanted, seconds: float = 1.0) -> Attached:
    attached = attach(found(running.pid), wanted)
    time.sleep(seconds)
    attached.end()
    return attached


def steps(run_dir: Path) -> int:
    return Analyzer(run_dir).steps().height


def test_a_job_that_never_heard_of_haiprof_is_recorded_and_left_as_it_was(
    shm: Path, tmp_path: Path
) -> None:
    with job(TRAINS, tmp_path) as running:
        before = running.figure("Threads")
        for number in range(4):
            wanted = Wanted(f"r{number}", tmp_path / "logs", 30)
            attached = recorded(running, wanted)
            assert attached.way == "injector"
            assert attached.run_dir == tmp_path / "logs" / f"r{number}"
            assert attached.frozen_ns > 0
            assert steps(attached.run_dir) > 20
            assert running.figure("Threads") == before
            with pytest.raises(ControlError, match="not loaded haiprof"):
                running.ask("status")
        wait_for(lambda: not recorders(shm))
    assert running.stderr == ""


def test_its_phases_are_those_of_a_job_that_was_prepared(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path) as running:
        attached = recorded(running, Wanted("r", tmp_path / "logs", 30))
    phases = Analyzer(attached.run_dir).phases()
    assert set(phases["name"].cast(str)) == {"forward", "backward", "optimizer", "other"}


def test_of_a_job_that_is_recorded_the_recording_goes_on(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, str(tmp_path / "logs")) as running:
        attached = recorded(running, Wanted("other", tmp_path / "logs", 0.5))
        assert (attached.way, attached.began) == ("socket", False)
        assert attached.run_dir == tmp_path / "logs" / "r"
        status = running.ask("status")
        assert (status["state"], status["ends_in"]) == ("recording", None)
    assert not (tmp_path / "logs" / "other").exists()


def test_an_idle_process_is_asked_through_its_socket(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, str(tmp_path / "logs")) as running:
        running.ask("stop")
        assert way_to(found(running.pid)) == ("socket", "")
        attached = recorded(running, Wanted("later", tmp_path / "logs", 30))
        assert (attached.way, attached.began) == ("socket", True)
        assert running.ask("status")["state"] == "idle"
    assert steps(tmp_path / "logs" / "later") > 20


def test_a_recording_that_nobody_ends_ends_by_itself(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haiprof.control.attach._SPARE_SECONDS", 0.5)
    with job(TRAINS, tmp_path) as running:
        attached = attach(found(running.pid), Wanted("r", tmp_path / "logs", 0.5))
        wait_for(lambda: running.ask("status")["state"] == "idle")
        wait_for(lambda: not recorders(shm))
        assert steps(attached.run_dir) > 20


def test_what_runs_no_python_is_looked_at_from_outside(shm: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        started = start_time_of(sleeper.pid)
        assert started is not None
        process = Found(sleeper.pid, started, os.getuid(), ("sleep", "60"), placement({}))
        try:
            assert way_to(process)[0] == "outside"
            attached = attach(process, Wanted("r", tmp_path / "logs", 30))
            assert attached.way == "outside"
            assert str(sleeper.pid) in attached.why
            wait_for(lambda: (attached.run_dir / "run.json").exists() and recorders(shm))
            time.sleep(2.5)
            attached.end()
            assert not recorders(shm)
        finally:
            sleeper.kill()
    samples = Analyzer(attached.run_dir).samples("proc.*")
    assert "command" in samples["instance"].cast(str).to_list()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
def test_another_users_job_is_refused_in_one_line(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path) as running:
        process = found(running.pid)
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                way, why = way_to(process)
                told = "is another user's: ask as that user, or as root"
                status = 0 if way == "outside" and told in why and "\n" not in why else 2
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert running.steps > 3
