"""Real launchers: the run has the right ranks and attempts, in one folder, with one recorder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import haiprof, the_run
from launched import nodes, ranks, recorded, torchrun, write_script
from recording import read_table, recorders, wait_recorded

from haiprof.common.places import LOCK_NAME
from haiprof.recorder.election import recorder_pid

pytestmark = pytest.mark.jobs


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write_script(tmp_path)


def steps(run: Path) -> list[int]:
    """How many steps each process of a rank recorded."""
    tables = [read_table(folder, "spans").to_pylist() for folder in sorted(run.glob("*#*"))]
    return [sum(row["category"] == "step" for row in rows) for rows in tables]


@pytest.mark.parametrize("n", [2, 4])
def test_torchrun_under_haiprof_run(shm: Path, script: Path, n: int) -> None:
    words = torchrun("--standalone", "--nproc-per-node", str(n), "train.py", "--lr", "1")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = haiprof("run", "--log-dir", "logs", *words, cwd=script.parent, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained --lr 1\n" * n
    run = the_run(script.parent / "logs")
    found = ranks(run)
    assert [(p["rank"], p["local_rank"], p["world_size"], p["attempt"]) for p in found] == [
        (i, i, n, 0) for i in range(n)
    ]
    assert {p["state"] for p in found} == {"closed"}
    assert steps(run) == [30] * n
    assert nodes(run) == [os.uname().nodename]
    assert f"30 steps on each of {n} ranks" in done.stderr


def test_ranks_that_torchrun_starts_again_are_new_attempts_of_the_same_run(
    shm: Path, script: Path
) -> None:
    words = torchrun("--standalone", "--nproc-per-node=2", "--max-restarts=1", script)
    environment = recorded(script.parent / "logs") | {"FAIL_ONCE": "1", "STEPS": "800"}
    job = subprocess.Popen(
        words, cwd=script.parent, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    seen: list[set[int]] = []
    elected: list[int] = []
    while job.poll() is None:
        seen.append(set(recorders(shm)))
        for lock in shm.glob(f"*/*/{LOCK_NAME}"):
            pid = recorder_pid(lock.parent)
            if pid is not None and pid not in elected[-1:]:
                elected.append(pid)
        time.sleep(0.5)
    _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    # Between the attempts nobody needs one.
    assert 1 <= len(elected) <= 2
    # Who comes second looks for a moment whether it is needed, and leaves.
    assert {elected[-1]} in seen
    wait_recorded(shm)
    run = the_run(script.parent / "logs")
    found = ranks(run)
    assert [(p["rank"], p["attempt"]) for p in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {p["role"] for p in found} == {"rank"}
    assert nodes(run) == [os.uname().nodename]


def test_accelerate(shm: Path, script: Path) -> None:
    launch = "accelerate.commands.launch"
    words = [sys.executable, "-m", launch, "--multi_gpu", "--num_processes=2", "--num_machines=1"]
    words += ["--mixed_precision=no", "--dynamo_backend=no"]
    words += ["--main_process_port=0", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = haiprof("run", "--log-dir", "logs", *words, cwd=script.parent, env=environment)
    assert done.returncode == 0, done.stderr
    found = ranks(the_run(script.parent / "logs"))
    assert [(p["rank"], p["world_size"]) for p in found] == [(0, 2), (1, 2)]


def test_mpirun_hands_the_environment_down(shm: Path, script: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    for command in (["run", "--log-dir", "logs", *mpirun], None):
        logs = script.parent / ("logs" if command else "alone")
        if command is not None:
            done = haiprof(*command, sys.executable, "train.py", cwd=script.parent)
        else:  # the ranks are on their own, and find each other's run by mpirun's job
            done = subprocess.run(
                [*mpirun, sys.executable, "train.py"], cwd=script.parent, env=recorded(logs),
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            wait_recorded(shm)
        assert done.returncode == 0, done.stderr
        found = ranks(the_run(logs))
        assert [(p["rank"], p["local_rank"], p["world_size"]) for p in found] == [
            (0, 0, 2),
            (1, 1, 2),
        ]


def test_srun_hands_the_environment_down(shm: Path, script: Path) -> None:
    """Where there is no SLURM for test_slurm.py: its variables as its documentation has them."""
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    tasks = [
        subprocess.Popen(
            [sys.executable, "train.py"], cwd=script.parent, stdout=subprocess.DEVNULL,
            env=recorded(script.parent / "logs") | step
            | {"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n)},
        )
        for n in range(2)
    ]  # fmt: skip
    assert [task.wait(timeout=120) for task in tasks] == [0, 0]
    wait_recorded(shm)
    run = the_run(script.parent / "logs")
    assert run.name == "train-77"
    assert [p["rank"] for p in ranks(run)] == [0, 1]


def test_a_shell_script_that_trains(shm: Path, script: Path) -> None:
    (script.parent / "go.sh").write_text(f'cd "$(dirname "$0")"; {sys.executable} train.py "$@"\n')
    done = haiprof("run", "--log-dir", "logs", "bash", "go.sh", "a b", cwd=script.parent)
    assert (done.returncode, done.stdout) == (0, "trained a b\n"), done.stderr
    run = the_run(script.parent / "logs")
    assert run.name.startswith("go-")
    assert steps(run) == [30]


def test_deepspeed(shm: Path, script: Path) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    words = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus=2", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = haiprof("run", "--log-dir", "logs", *words, cwd=script.parent, env=environment)
    assert done.returncode == 0, done.stderr
    found = ranks(the_run(script.parent / "logs"))
    assert [(p["rank"], p["local_rank"], p["world_size"]) for p in found] == [
        (0, 0, 2),
        (1, 1, 2),
    ]
