"""``haiprof run`` says by itself that its job hangs, once, and nothing of what is only late."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, start_haiprof
from launched import free_port
from recording import wait_for

pytestmark = pytest.mark.jobs

JOB = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def naps():
    while not os.path.exists("END"):
        time.sleep(0.1)
def evaluates():
    until = time.monotonic() + 8
    while time.monotonic() < until:
        torch.ones(100, 100) @ torch.ones(100, 100)
        sum(range(1000))
before = []
def is_late_again():
    time.sleep(10) if before else evaluates()
    before.append("late")
for _ in range(3):
    dist.all_reduce(torch.ones(4))
for _ in range(2):
    if dist.get_rank() == 1:
        LATE()
    dist.all_reduce(torch.ones(4))
dist.barrier()
"""


def started(
    folder: Path, late: str, *options: str, torchrun: Sequence[str] = (), **keywords: Any
) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(JOB.replace("LATE", late))
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *torchrun]
    words += [f"--master-port={free_port()}", "train.py"]
    options = ("--log-dir", "logs", "--run", "r", *options)
    return start_haiprof("run", *options, "--", *words, cwd=folder, **keywords)


def reports(folder: Path) -> list[Path]:
    return list((folder / "logs/r").glob("hang-*.json"))


def test_a_rank_that_does_nothing_is_reported_once(shm: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = f"sh -c 'cat > {told}.part && mv {told}.part {told}'"
    job = started(tmp_path, "naps", "--hang-after", "2", "--on-finding", command)
    try:
        (file,) = wait_for(lambda: reports(tmp_path), seconds=120, what="the report of the hang")
        wait_for(told.exists, what="the command")
        said = json.loads(told.read_text())
    finally:
        (tmp_path / "END").touch()
        _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    hang = json.loads(file.read_text())["hang"]
    assert (hang["kind"], hang["ranks"], hang["waiting"]) == ("rank_never_arrived", [1], [0])
    event = said["events"][0]
    assert (said["run"], event["event"], event["kind"]) == ("r", "hang", "rank_never_arrived")
    assert event["ranks"] == [1]
    (line,) = [line for line in err.splitlines() if "hangs" in line]
    assert line.startswith("haiprof: the job hangs. Rank 1 never came to all_reduce number 4")
    assert "naps (" in line


ALONE = """
import os, time
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def naps():
    while not os.path.exists("END"):
        time.sleep(0.1)
for step in range(20):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if step == 10:
        naps()
"""


def test_a_job_of_one_process_is_reported_and_the_command_says_the_same(
    shm: Path, tmp_path: Path
) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    options = ("--log-dir", "logs", "--run", "r", "--hang-after", "2")
    job = start_haiprof("run", *options, "--", sys.executable, "alone.py", cwd=tmp_path)
    try:
        (file,) = wait_for(lambda: reports(tmp_path), seconds=120, what="the report of the hang")
        asked = haiprof("hang", "alone.py", "--seconds", "1")
    finally:
        (tmp_path / "END").touch()
        _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    hang = json.loads(file.read_text())["hang"]
    assert (hang["kind"], hang["ranks"], hang["waiting"]) == ("stands_still", [0], [])
    (line,) = [line for line in err.splitlines() if "hangs" in line]
    assert line.startswith("haiprof: the job hangs. The job has got no further for ")
    assert "naps (" in line
    assert asked.returncode == 4
    assert asked.stdout.startswith("The job has got no further for ")


def test_it_is_said_where_haiprof_run_speaks_wherever_its_ranks_do(
    shm: Path, tmp_path: Path
) -> None:
    """A file to which nobody appends could not be written to by others."""
    torchrun = ("--redirects=3", "--log-dir=ranks")
    with (tmp_path / "err").open("wb") as err:
        job = started(tmp_path, "naps", "--hang-after", "2", torchrun=torchrun, stderr=err)
        try:
            wait_for(lambda: "hangs" in (tmp_path / "err").read_text(), what="the line")
        finally:
            (tmp_path / "END").touch()
            job.communicate(timeout=120)
    said = (tmp_path / "err").read_text()
    assert job.returncode == 0, said
    assert said.count("haiprof: the job hangs. Rank 1 never came to all_reduce number 4") == 1
    of_ranks = [path.read_text() for path in (tmp_path / "ranks").rglob("std*.log")]
    assert len(of_ranks) == 4
    assert not any("hangs" in text for text in of_ranks)


@pytest.mark.parametrize(
    ("late", "after"), [("evaluates", "2"), ("is_late_again", "2"), ("naps", "0")]
)
def test_what_works_or_was_as_late_before_or_is_not_watched_is_not_reported(
    shm: Path, tmp_path: Path, late: str, after: str
) -> None:
    if late == "naps":
        (tmp_path / "END").touch()
    job = started(tmp_path, late, "--hang-after", after)
    _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    assert "hangs" not in err
    assert not reports(tmp_path)


def test_an_interrupted_hang_ends_as_it_should(shm: Path, tmp_path: Path) -> None:
    job = started(tmp_path, "naps", "--hang-after", "2")
    wait_for(lambda: reports(tmp_path), seconds=120, what="the report of the hang")
    os.kill(job.pid, signal.SIGINT)
    _, err = job.communicate(timeout=120)
    assert err.count("the job hangs") == 1
    assert "Ranks stood still. Rank 1 never came to all_reduce number 4" in err, "the summary"
    assert job.returncode != 0
    done = haiprof("diagnose", "logs", "--json", cwd=tmp_path)
    first = json.loads(done.stdout)["findings"][0]
    assert (first["kind"], first["ranks"]) == ("rank_never_arrived", [1])
    assert "naps (" in first["line"]
