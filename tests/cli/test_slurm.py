"""Under a real SLURM of two nodes: ranks, attempts, one recorder a node, and attach without ssh."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import haiprof, the_run
from launched import TRAIN, free_port, nodes, ranks
from recording import wait_for, wait_recorded
from slurm import ask, slurm

pytestmark = pytest.mark.jobs

#: What a script of SLURM does before it meets the others.
PLACE = """
import os
os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"]}
"""
#: What needs no torch: it takes seconds to import.
COUNT = """
import os, time
import haiprof
haiprof.start()
for step in range(int(os.environ.get("STEPS", "30"))):
    haiprof.step()
    time.sleep(0.01)
"""


@pytest.fixture
def cluster(shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a job, train.py, beside a SLURM that runs."""
    (tmp_path / "train.py").write_text(PLACE + TRAIN)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    with slurm():
        yield tmp_path


def submit(script: str, *words: str) -> str:
    """Have the nodes run a script with a task on each; return the job's id."""
    Path("job.sh").write_text(f"#!/bin/sh\n{script}\n")
    return ask("sbatch", "--parsable", "-N2", "-n2", "--output=job.out", *words, "job.sh")


def test_srun_under_haiprof_run_has_all_ranks_in_one_run(cluster: Path) -> None:
    done = haiprof("run", "--log-dir", "logs", "srun", "-N2", "-n4", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n" * 4
    found = ranks(the_run(cluster / "logs"))
    assert [(p["rank"], p["world_size"], p["attempt"]) for p in found] == [
        (rank, 4, 0) for rank in range(4)
    ]
    assert {p["state"] for p in found} == {"closed"}
    # And one where only srun ran.
    assert nodes(the_run(cluster / "logs")) == sorted(["n1", "n2", os.uname().nodename])
    assert "30 steps on each of 4 ranks" in done.stderr


@pytest.mark.parametrize(
    "train",
    [
        "srun --kill-on-bad-exit haiprof run --log-dir logs python train.py",
        "haiprof run --log-dir logs srun --kill-on-bad-exit python train.py",
    ],
)
def test_a_job_that_slurm_starts_again_is_a_new_attempt_of_its_run(
    cluster: Path, shm: Path, train: str
) -> None:
    (cluster / "train.py").write_text(COUNT)
    begins = '[ "$SLURM_RESTART_COUNT" ] || export STEPS=100000'
    job = submit(f"{begins}\n{train}", "--requeue")
    wait_for(lambda: len(list(cluster.glob("logs/*/*#*/spans*"))) == 2, 60, "both ranks' spans")
    assert nodes(the_run(cluster / "logs")) == ["n1", "n2"]  # one writes on each
    ask("scontrol", "requeue", job)
    wait_for(lambda: not ask("squeue", "-h"), 90, "the job's end")
    wait_recorded(shm)
    run = the_run(cluster / "logs")
    assert [(p["rank"], p["attempt"], p["world_size"]) for p in ranks(run)] == [
        (0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2),
    ]  # fmt: skip
    assert nodes(run) == ["n1", "n2"]


def test_a_job_without_haiprof_is_attached_to_through_srun(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPS", "100000")
    (cluster / "train.py").write_text(
        PLACE
        + TRAIN.replace("for step", 'open(f"trains-{os.environ[\'RANK\']}", "w")\nfor step', 1)
    )
    job = submit("srun python train.py")
    wait_for(lambda: len(list(cluster.glob("trains-*"))) == 2, 60, "the training")
    way = f"srun --jobid={job} --overlap -N1 -n1 -w {{host}} sh -c"
    monkeypatch.setenv("HAIPROF_SSH_COMMAND", way)
    done = haiprof("train.py", "--time", "2", "--nodes", "n1,n2", "--log-dir", "logs")
    assert done.returncode == 0, done.stderr
    assert [p["rank"] for p in ranks(the_run(cluster / "logs"))] == [0, 1]
    assert nodes(the_run(cluster / "logs")) == ["n1", "n2"]
    assert "of 2 ranks" in done.stderr
    assert ask("squeue", "-h", "-j", job, "-o", "%t") == "R"
