"""Which processes a word on the command line means: of real processes, started in all the ways."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haiprof.control.find import find

Start = Callable[..., subprocess.Popen[str]]

#: Says that it is there, and stays until its input ends.
WAITS = "import os, sys; os.write(1, b'here\\n'); sys.stdin.read()"
FORKS = """
import os, sys
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
os.waitpid(child, 0)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program, and wait for its first line."""
    running: list[subprocess.Popen[str]] = []

    def begin(*words: object, lines: int = 1, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        running.append(process)
        assert process.stdout is not None
        process.printed = [process.stdout.readline().strip() for _ in range(lines)]  # type: ignore[attr-defined]
        assert all(process.printed), process.poll()  # type: ignore[attr-defined]
        return process

    yield begin
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
    for process in running:
        process.wait(20)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script with a name that no other process on this machine has."""
    file = tmp_path / f"train_{os.getpid()}_{time.monotonic_ns()}.py"
    file.write_text(WAITS)
    return file


def pids(what: object) -> list[int]:
    return [process.pid for process in find(str(what))]


def test_a_script_is_found_by_name_path_and_pid(start: Start, script: Path) -> None:
    job = start(sys.executable, "-u", "-W", "ignore", script, "--epochs", "3")
    for what in (script.name, script, job.pid):
        assert pids(what) == [job.pid]
    found = find(script.name)[0]
    assert found.uid == os.getuid()
    assert found.command[-3:] == (str(script), "--epochs", "3")
    assert found.label == f"pid {job.pid}"


def test_a_path_means_that_script_alone(start: Start, script: Path) -> None:
    job = start(sys.executable, script)
    assert pids(script.parent / "elsewhere" / script.name) == []
    assert pids(script.with_name(script.name[1:])) == []
    assert pids(job.pid) == [job.pid]


def test_a_module_is_found_by_its_name(start: Start, script: Path) -> None:
    job = start(sys.executable, "-m", script.stem, PYTHONPATH=str(script.parent))
    assert pids(script.stem) == [job.pid]


def test_a_script_that_is_only_an_argument_is_not_meant(start: Start, script: Path) -> None:
    start(sys.executable, "-c", WAITS, script)
    start("sh", "-c", "echo here; read line", script)
    assert pids(script.name) == []


def test_ranks_come_in_their_order(start: Start, script: Path) -> None:
    jobs = [start(sys.executable, script, RANK=str(rank), WORLD_SIZE="3") for rank in (2, 0, 1)]
    found = find(script.name)
    assert [process.place.rank for process in found] == [0, 1, 2]
    assert [process.pid for process in found] == [jobs[1].pid, jobs[2].pid, jobs[0].pid]
    assert found[0].label == f"rank 0, pid {jobs[1].pid}"


def test_what_a_rank_forked_is_left_out(start: Start, script: Path) -> None:
    script.write_text(FORKS)
    job = start(sys.executable, script)
    child = int(job.printed[0])  # type: ignore[attr-defined]
    assert pids(script.name) == [job.pid]
    assert pids(child) == [child]  # unless it is asked for


def test_a_launcher_stands_for_its_ranks(start: Start, script: Path, tmp_path: Path) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(
        "import os, subprocess, sys\n"
        "jobs = [subprocess.Popen([sys.executable, '-u', sys.argv[1]], stdin=sys.stdin,\n"
        "    env={**os.environ, 'RANK': str(rank), 'LOCAL_RANK': str(rank)}) for rank in (0, 1)]\n"
        "sys.exit(max(job.wait() for job in jobs))\n"
    )
    job = start(sys.executable, launcher, script, lines=2)
    found = find(script.name)
    assert [process.place.rank for process in found] == [0, 1]
    assert job.pid not in [process.pid for process in found]
    assert find(str(job.pid)) == found


@pytest.mark.parametrize("variable", ["HAIPROF_TASK_ID", "MARSV2_TASK_ID", "TORCHELASTIC_RUN_ID"])
def test_a_task_means_all_of_its_processes(start: Start, script: Path, variable: str) -> None:
    task = f"task-{time.monotonic_ns()}"
    jobs = [start(sys.executable, script, RANK=str(r), **{variable: task}) for r in (0, 1)]
    start(sys.executable, script, RANK="2", **{variable: f"{task}-other"})
    assert pids(task) == [job.pid for job in jobs]


def test_a_number_may_be_a_task(start: Start, script: Path) -> None:
    task = str(2**22 + time.monotonic_ns())  # more than any pid
    job = start(sys.executable, script, MARSV2_TASK_ID=task)
    assert pids(task) == [job.pid]


def test_nothing_is_found_where_there_is_nothing() -> None:
    for what in ("", "no_such_script.py", "4194305", "0", "../..", "\0"):
        assert find(what) == []


def test_the_asking_process_is_not_found() -> None:
    ours = Path(sys.argv[0]).name
    assert os.getpid() not in pids(ours)
