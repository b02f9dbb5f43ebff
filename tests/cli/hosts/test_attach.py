"""``haiprof attach --nodes``: a job that runs on two emulated hosts is recorded on both at once."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import haiprof, haiprof_on_terminal, only_line, start_haiprof
from control_jobs import TRAINS
from emulated_hosts import Cluster, emulated
from recording import wait_for

from haiprof import Analyzer

pytestmark = pytest.mark.jobs


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A job on the hosts ``n1`` and ``n2``; each has its disk, unless ``shared`` is asked for."""
    script = tmp_path / f"train_{time.monotonic_ns()}.py"
    script.write_text(textwrap.dedent(TRAINS.format(before="", each="")))
    own_disks = getattr(request, "param", "") != "shared"
    with emulated(tmp_path, script.name, own_disks=own_disks) as cluster:
        yield cluster


def test_hosts_with_disks_of_their_own_say_how_the_run_is_brought_together(
    cluster: Cluster,
) -> None:
    words = ("--time", "10", "--log-dir", "logs", "--name", "v2", "--nodes", "n1,n2")
    done = haiprof(cluster.script, *words)
    assert done.returncode == 0, done.stderr
    hint = "haiprof: n1, n2: the run is there; collect it with: haiprof "
    began, over, line = done.stderr.splitlines()
    assert began == "haiprof: recording 2 processes on 2 hosts for 10 s"
    assert over.startswith("haiprof: recording 2 processes on 2 hosts: over after 10 of 10 s")
    assert line.startswith(hint)
    assert not list(Path("logs").iterdir())
    assert haiprof(*line.removeprefix(hint).split()).returncode == 0
    run = Analyzer("logs/v2")
    assert set(run.ranks) == {0, 1}
    assert {process.node for process in run.run.processes} == {"n1", "n2"}
    assert {process.state for process in run.run.processes} == {"closed"}
    # The same ten seconds: not one after the other.
    first, second = (p for p in run.run.processes if p.rank is not None)
    assert first.started_ns < second.ended_ns
    assert second.started_ns < first.ended_ns
    assert run.steps().group_by("rank").len()["len"].min() > 5  # of 10 ms each, if it is quiet


@pytest.mark.parametrize("cluster", ["shared"], indirect=True)
def test_a_log_folder_that_all_see_is_one_run(cluster: Cluster) -> None:
    done = haiprof(cluster.script, "--time", "1", "--log-dir", "logs", "--nodes", "n1,n2")
    assert done.returncode == 0, done.stderr
    (run,) = Path("logs").iterdir()
    lines = done.stderr.splitlines()
    assert lines[0] == "haiprof: recording 2 processes on 2 hosts for 1 s"
    assert lines[2] == f"haiprof: run {run.absolute()}"
    assert "2 ranks" in lines[3]
    assert lines[-1] == f"haiprof: view it with: haiprof report {run.absolute()}"
    assert all(line.startswith("haiprof: ") for line in lines)
    assert set(Analyzer(run).ranks) == {0, 1}


def test_a_terminal_shows_one_bar(cluster: Cluster) -> None:
    code, _, seen = haiprof_on_terminal(
        cluster.script, "--time", "1", "--log-dir", "logs", "--nodes", "n1,n2"
    )
    assert code == 0
    assert "recording 2 processes on 2 hosts" in seen


def test_hosts_without_the_job_and_hosts_that_are_away_are_named(cluster: Cluster) -> None:
    words = ("--time", "1", "--log-dir", "logs", "--name", "v2", "--nodes", "n1,n2,away")
    done = haiprof(cluster.script, *words)
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    assert "away: ssh: no route to away" in lines
    assert "haiprof: away: cannot be attached to: see above" in lines
    assert (cluster.folder / "disk-n1/v2/n1#0/process.json").exists()
    done = haiprof("other.py", *words)
    assert done.returncode == 3
    assert "haiprof: n1, n2: no Python process there runs other.py" in done.stderr
    done = haiprof("other.py", *words[:-1], "n1,n2")
    assert done.returncode == 2
    assert only_line(done) == "haiprof: n1, n2: no Python process there runs other.py"
    assert not list(Path("logs").iterdir())


def test_each_host_says_how_its_processes_would_be_reached(cluster: Cluster) -> None:
    done = haiprof(cluster.script, "--dry-run", "--nodes", "n2,n1,n2")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith("n2: rank 1, pid ")
    assert second.startswith("n1: rank 0, pid ")
    assert first.endswith("haiprof would be loaded into it")


def started(cluster: Cluster) -> subprocess.Popen[str]:
    """Begin to record for a minute; return when records have come on both hosts."""
    words = (cluster.script, "--time", "60", "--log-dir", "logs", "--name", "v2")
    process = start_haiprof(*words, "--nodes", "n1,n2")
    for rank, host in enumerate(("n1", "n2")):
        folder = cluster.folder / f"disk-{host}/v2/{host}#{rank}"
        wait_for(lambda folder=folder: (folder / "spans-0.arrows").exists())
    return process


def closed(cluster: Cluster) -> bool:
    """Say whether both hosts have ended their recordings."""
    live = [*cluster.folder.glob("disk-*/v2/*/*.arrows")]
    return not live and len(list(cluster.folder.glob("disk-*/v2/*/spans-0.arrow"))) == 2


def test_ctrl_c_ends_the_recording_on_every_host_and_no_job(cluster: Cluster) -> None:
    process = started(cluster)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    wait_for(lambda: closed(cluster), 10, "closed files")
    began, over, interrupted, hint = err.splitlines()
    assert began == "haiprof: recording 2 processes on 2 hosts for 60 s"
    assert over.startswith("haiprof: recording 2 processes on 2 hosts: over after ")
    assert interrupted == "haiprof: interrupted: the recording ends here, the job goes on"
    assert hint.startswith("haiprof: n1, n2: the run is there; collect it with: ")


def test_when_haiprof_is_killed_the_recordings_end(cluster: Cluster) -> None:
    process = started(cluster)
    process.kill()
    process.communicate()
    wait_for(lambda: closed(cluster))
    for rank, host in enumerate(("n1", "n2")):
        run = Analyzer(cluster.folder / f"disk-{host}/v2").run
        assert [p.state for p in run.processes if p.rank == rank] == ["closed"]


def test_a_connection_that_is_lost_costs_the_other_hosts_nothing(cluster: Cluster) -> None:
    process = started(cluster)
    cluster.lose("n2")
    wait_for(lambda: not list(cluster.folder.glob("disk-n2/v2/*/*.arrows")), what="its end")
    assert list(cluster.folder.glob("disk-n1/v2/*/*.arrows"))
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "haiprof: n2: was lost: the recording there ends automatically" in err
    wait_for(lambda: closed(cluster), 10, "closed files")


def test_hosts_that_cannot_be_are_refused_in_one_line() -> None:
    for words in (["--nodes", "a,-b"], ["--nodes", "3"], ["--hostfile", "nowhere"]):
        done = haiprof("train.py", *words)
        assert done.returncode == 2
        only_line(done)
