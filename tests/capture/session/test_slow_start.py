"""A job that does not train for a while after it imported torch is recorded before its first step.

What starts others, or is no job, gets no ring by that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recording import read_table, wait_recorded

#: The time that a start may take is cut short before torch is imported.
PREAMBLE = """
import os, subprocess, sys, time
from haiprof.capture.session import active, recording
recording._EARLY_SECONDS = 0.2
import torch

def recorded(seconds):
    until = time.monotonic() + seconds
    while not active().recording and time.monotonic() < until:
        time.sleep(0.01)
    return active().recording
"""
TRAINS = """
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def run(shm: Path, tmp_path: Path) -> Callable[..., list[Path]]:
    """Run a program with haiprof in its environment; return the folders of the processes."""

    def run(words: list[str], program: str, **environment: str) -> list[Path]:
        (tmp_path / "train.py").write_text(PREAMBLE + program)
        variables = {"HAIPROF_ENABLED": "1", "HAIPROF_LOG_DIR": str(tmp_path), "HAIPROF_RUN": "r"}
        subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env={**os.environ, **variables, **environment},
            check=True, timeout=120,
        )  # fmt: skip
        wait_recorded(shm)
        return sorted(tmp_path.glob("r/*#*"))

    return run


def events(folder: Path, kind: str) -> list[Any]:
    rows: list[Any] = read_table(folder, "events").to_pylist()
    return [row for row in rows if row["kind"] == kind]


def test_a_start_that_takes_long_is_recorded_before_the_first_step(
    run: Callable[..., list[Path]],
) -> None:
    (folder,) = run(["train.py"], "assert recorded(60)\ntime.sleep(1)" + TRAINS)
    (start,) = events(folder, "start")
    steps = [row for row in read_table(folder, "spans").to_pylist() if row["category"] == "step"]
    assert len(steps) == 3
    assert start["time"] < min(row["start"] for row in steps)
    assert '"torch_imported_s": 0.2' in start["attributes"]


def test_its_time_passes_from_the_first_step(run: Callable[..., list[Path]]) -> None:
    program = "assert recorded(60)\nassert active().ends_in is None" + TRAINS
    (folder,) = run(["train.py"], program + "assert active().ends_in", HAIPROF_TIME="100")
    assert events(folder, "start")


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["train.py"], "p = subprocess.Popen(['sleep', '9'])\nassert not recorded(1)\np.kill()"),
        (["-c", "exec(open('train.py').read())"], "assert not recorded(1)"),
    ],
    ids=["a launcher", "no script"],
)
def test_what_is_no_job_of_its_own_gets_no_ring(
    run: Callable[..., list[Path]], words: list[str], program: str
) -> None:
    assert run(words, program) == []


def test_a_worker_of_multiprocessing_gets_no_ring(run: Callable[..., list[Path]]) -> None:
    program = """
import multiprocessing
def work():
    assert not recorded(1)
if __name__ == "__main__":
    assert recorded(60)
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0
"""
    assert len(run(["train.py"], program)) == 1
