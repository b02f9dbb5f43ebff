"""``haiprof ps``, ``stop`` and ``flush`` with ``--nodes``: of a job that two emulated hosts run."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, only_line, start_haiprof
from control_jobs import STEPS
from emulated_hosts import Cluster, emulated
from recording import wait_for

pytestmark = pytest.mark.jobs

BOTH = ("--nodes", "n1,n2")


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A rank of the run ``r`` on each; with ``two runs`` the second is of a run ``s``."""
    program = textwrap.dedent(STEPS.format(before="", each=""))
    if getattr(request, "param", "") == "two runs":
        program = program.replace('run="r"', 'run="rs"[int(os.environ["RANK"])]')
    (tmp_path / "train.py").write_text(program)
    with emulated(tmp_path, "train.py", "logs") as cluster:
        yield cluster


def listed(*words: str) -> list[dict[str, Any]]:
    done = haiprof("ps", "--json", *(words or BOTH))
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def states() -> list[str]:
    return [process["state"] for process in listed()]


def test_ps_is_one_table_of_all_hosts(cluster: Cluster) -> None:
    found = listed("--nodes", "n2,n1,n2")
    assert [(p["host"], p["node"], p["rank"], p["run"]) for p in found] == [
        ("n2", "n2", 1, "r"),
        ("n1", "n1", 0, "r"),
    ]
    done = haiprof("ps", *BOTH)
    assert (done.returncode, done.stderr) == (0, "")
    heading, *lines = [line.split() for line in done.stdout.splitlines()]
    assert heading == ["HOST", "RUN", "RANK", "PID", "STATE", "SINCE", "RECORDER", "FOLDER"]
    pids = {process["host"]: str(process["pid"]) for process in found}
    assert [line[:5] for line in lines] == [
        ["n1", "r", "n1#0", pids["n1"], "recording"],
        ["n2", "r", "n2#1", pids["n2"], "recording"],
    ]
    (cluster.folder / "hosts").write_text("n2\nn1\n")
    of_file = haiprof("ps", "--nodes", "1", "--hostfile", "hosts")
    assert of_file.stdout == haiprof("ps", "--nodes", "n2").stdout


def test_flush_and_stop_reach_the_ranks_of_every_host(cluster: Cluster) -> None:
    run_dir = cluster.folder / "logs" / "r"
    done = haiprof("flush", "r", *BOTH)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith("n1: n1#0 (pid ")
    assert second.startswith("n2: n2#1 (pid ")
    assert first.endswith(f"): everything recorded so far is in {run_dir}")
    assert (cluster.folder / "disk-n2/r/n2#1/spans-0.arrows").exists()
    done = haiprof("stop", "train.py", *BOTH)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(f"): stopped; its files are in {run_dir}\n") == 2
    assert states() == ["idle", "idle"]
    done = haiprof("stop", "r", *BOTH)
    assert done.returncode == 1
    assert only_line(done).startswith("haiprof: n1, n2: r: no such run, process or script")
    assert done.stdout == ""


def test_hosts_without_the_job_and_hosts_that_are_away_are_named(cluster: Cluster) -> None:
    assert haiprof("stop", "r", "--nodes", "n1").returncode == 0
    done = haiprof("stop", "r", "--nodes", "n1,n2,away")
    assert done.returncode == 3
    away, given_up, without = done.stderr.splitlines()
    assert away == "away: ssh: no route to away"
    assert given_up == "haiprof: away: cannot be asked: see above"
    assert without.startswith("haiprof: n1: r: no such run")
    (line,) = done.stdout.splitlines()
    assert line.startswith("n2: n2#1 (pid ")
    assert states() == ["idle", "idle"]
    done = haiprof("ps", "--nodes", "away,n1")
    assert done.returncode == 3
    assert "haiprof: away: cannot be asked: see above" in done.stderr.splitlines()
    assert done.stdout.splitlines()[1].startswith("n1 ")
    assert haiprof("stop", "r", "--nodes", "away,n1").returncode == 3
    assert haiprof("ps", "--nodes", "away").stdout == ""


@pytest.mark.parametrize("cluster", ["two runs"], indirect=True)
def test_what_may_be_several_is_asked_on_no_host(cluster: Cluster) -> None:
    done = haiprof("stop", "train.py", *BOTH)
    assert done.returncode == 2
    assert "matches several runs: r, s" in only_line(done)
    assert states() == ["recording", "recording"]
    done = haiprof("stop", "s", *BOTH)
    assert done.returncode == 3
    assert only_line(done).startswith("haiprof: n1: s: no such run")
    assert states() == ["recording", "idle"]


def test_a_pid_is_of_one_host(cluster: Cluster) -> None:
    first, second = (process["pid"] for process in listed())
    assert first == second  # each host counts from 1
    done = haiprof("stop", str(first), *BOTH)
    assert done.returncode == 2
    assert f"{first} is a process on each of n1, n2" in only_line(done)
    assert states() == ["recording", "recording"]
    done = haiprof("stop", str(first), "--nodes", "n2")
    assert (done.returncode, done.stderr) == (0, "")
    assert states() == ["recording", "idle"]


@pytest.mark.parametrize("by", ["Ctrl-C", "a lost connection"])
def test_a_request_that_is_given_up_is_not_done_later(by: str, cluster: Cluster) -> None:
    """A stopped rank does not prevent an interrupt; the answers of the others are printed."""
    assert haiprof("flush", "r", *BOTH).returncode == 0
    first = listed()[0]["pid"]
    cluster.run_on("n1", f"kill -STOP {first}")
    process = start_haiprof("stop", "r", "--timeout", "60", *BOTH)
    wait_for(lambda: not list(cluster.folder.glob("disk-n2/r/*/*.arrows")), what="n2's end")
    passing_on = Path("/proc", (cluster.folder / "n2.out").read_text().strip())
    wait_for(lambda: not passing_on.exists(), what="n2's answer")
    time.sleep(1.0)  # it is heard a moment later
    if by == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    else:
        cluster.lose("n1")
    out, err = process.communicate(timeout=20)
    cluster.run_on("n1", f"kill -CONT {first}")
    (line,) = out.splitlines()
    assert line.startswith("n2: n2#1 (pid ")
    why, *interrupted = (line for line in err.splitlines() if line.startswith("haiprof: "))
    assert why == "haiprof: n1: did not report the outcome; it may have been done there"
    if by == "Ctrl-C":
        assert (process.returncode, interrupted) == (130, ["haiprof: interrupted"])
    else:
        assert (process.returncode, interrupted) == (3, [])
    assert states() == ["recording", "idle"]


def test_a_rank_that_is_busy_has_a_line_and_a_code_of_its_own(cluster: Cluster) -> None:
    first = listed()[0]["pid"]
    assert haiprof("flush", "r", *BOTH).returncode == 0
    cluster.run_on("n1", f"kill -STOP {first}")
    done = haiprof("flush", "r", "--timeout", "20", *BOTH)
    assert done.returncode == 3
    assert f"haiprof: n1: n1#0: process {first} does not answer" in only_line(done)
    assert done.stdout.startswith("n2: n2#1 (pid ")
    lines = haiprof("ps", *BOTH).stdout.splitlines()
    assert lines[-1].startswith(f"n1: process {first} does not answer")
    cluster.run_on("n1", f"kill -CONT {first}")


@pytest.mark.parametrize("words", [["ps"], ["stop", "r"], ["flush", "r"]])
def test_hosts_that_cannot_be_are_refused_in_one_line(words: list[str]) -> None:
    for hosts in (["--nodes", "a,-b"], ["--nodes", "3"], ["--hostfile", "nowhere"]):
        done = haiprof(*words, *hosts)
        assert done.returncode == 2
        only_line(done)
