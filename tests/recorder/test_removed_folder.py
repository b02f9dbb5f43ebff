"""Somebody removes the folder that is being recorded into."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from recording import python, read_table, the_recorder, wait_for, wait_recorded

JOB = """
    import haiprof, os, sys
    haiprof.start(sys.argv[1], run="run", hooks=False)
    with haiprof.range("before"):
        pass
    haiprof.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(1000):
        with haiprof.range("after"):
            pass
    haiprof.mark("a table that has no file yet", 1.0)
    print("recorded", flush=True)
    sys.stdin.readline()
    os._exit(0)
"""


def start(tmp_path: Path, rank: int) -> subprocess.Popen[str]:
    import os

    job = python(JOB, str(tmp_path), stdin=-1, env={**os.environ, "RANK": str(rank)})
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    return job


def go_on(job: subprocess.Popen[str]) -> None:
    assert job.stdin is not None
    job.stdin.write("\n")
    job.stdin.flush()


def test_the_recorder_leaves_with_the_job_and_nothing_stays_in_shared_memory(
    shm: Path, tmp_path: Path
) -> None:
    job = start(tmp_path, 0)
    recorder = the_recorder(shm)
    shutil.rmtree(tmp_path / "run")
    go_on(job)
    assert job.stdout is not None
    assert job.stdout.readline() == "recorded\n"
    assert the_recorder(shm) == recorder
    job.communicate("\n", timeout=60)
    wait_recorded(shm)
    assert not list(shm.glob("*/*/*.ring"))


def test_the_other_ranks_are_recorded_on(shm: Path, tmp_path: Path) -> None:
    jobs = [start(tmp_path, rank) for rank in range(2)]
    shutil.rmtree(next(tmp_path.glob("run/*#0")))
    for job in jobs:
        go_on(job)
        assert job.stdout is not None
        assert job.stdout.readline() == "recorded\n"
    (other,) = tmp_path.glob("run/*#1")
    wait_for(
        lambda: read_table(other, "spans")["name"].to_pylist().count("after") == 1000,
        what="the records of the other rank",
    )
    for job in jobs:
        job.communicate("\n", timeout=60)
    wait_recorded(shm)
    assert not list(shm.glob("*/*/*.ring"))
