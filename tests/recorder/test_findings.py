"""A job that becomes slow says why by itself, and shows it meanwhile."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, start_haiprof
from launched import torchrun
from recording import read_table, recorders, wait_for

pytestmark = pytest.mark.jobs

#: Trains until the file END is there. Once SLOW is, it loads slowly, or rank 1 does other things.
JOB = """
import os, time
import torch
from torch import nn

torch.set_num_threads(1)
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
if WORLD > 1:
    torch.distributed.init_process_group("gloo")

def loads(seconds):
    time.sleep(seconds)

class Data(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            if WORLD == 1 and os.path.exists("SLOW"):
                loads(0.02)
            yield torch.ones(64)

model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
if WORLD > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for batch in torch.utils.data.DataLoader(Data(), batch_size=8):
    optimizer.zero_grad()
    time.sleep(0.1)  # on a busy machine, too, steps are alike
    loss = model(batch).square().mean()
    if WORLD > 1 and os.environ["RANK"] == "1" and os.path.exists("SLOW"):
        time.sleep(0.2)
    loss.backward()
    optimizer.step()
    end = torch.tensor(float(os.path.exists("END")))
    if WORLD > 1:
        torch.distributed.all_reduce(end)
    if end:
        break
"""


@contextmanager
def training(folder: Path, *launcher: str) -> Iterator[subprocess.Popen[str]]:
    """Have the job train for longer than it takes to know how long its steps take."""
    (folder / "train.py").write_text(JOB)
    words = ("run", "--log-dir", "logs", "--run", "r", "--", *launcher, "train.py")
    job = start_haiprof(*words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        wait_for(lambda: steps(folder) > 45, seconds=300, what="45 s of training")
        yield job
    finally:
        (folder / "END").touch()
        _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err


def steps(folder: Path) -> float:
    """Return for how long rank 0 has trained, s."""
    ranks = list((folder / "logs/r").glob("*#0"))
    spans = [row for rank in ranks for row in read_table(rank, "spans").to_pylist()]
    ends = [row["start"] for row in spans if row["category"] == "step"]
    return (max(ends) - min(ends)) / 1e9 if ends else 0.0


def usual_step(folder: Path, begin: float, end: float) -> float:
    """Return the median of the steps of rank 0 that began in some time, ns."""
    ranks = list((folder / "logs/r").glob("*#0"))
    spans = [row for rank in ranks for row in read_table(rank, "spans").to_pylist()]
    own = [row for row in spans if row["category"] == "step" and begin <= row["start"] < end]
    return statistics.median(row["duration"] for row in own)


def of_node(folder: Path, table: str) -> list[dict[str, Any]]:
    nodes = [path.parent for path in (folder / "logs/r").glob("*/process.json")]
    (node,) = (each for each in nodes if "#" not in each.name)
    return read_table(node, table).to_pylist()


def paces(folder: Path) -> list[int]:
    """Return when the sources of the node began to be read at another pace."""
    rows = of_node(folder, "events")
    return [row["time"] for row in rows if "another pace" in row["text"]]


def rate(folder: Path, begin: int, end: int) -> float:
    """Return how often the node was sampled between two times, Hz."""
    rows = of_node(folder, "samples")
    times = [row["time"] for row in rows if row["metric"] == "cpu.util.percent"]
    several = len({time for time in times if begin <= time < end})
    return several / (end - begin) * 1e9


def said(folder: Path) -> list[dict[str, Any]]:
    """Return what is said of the job, without the other programs of a machine that is busy."""
    events = of_node(folder, "events")
    rows = [{**row, **json.loads(row["attributes"])} for row in events if row["kind"] == "finding"]
    return [row for row in rows if row["kind"] not in ("cpu_neighbour", "too_many_threads")]


def test_a_loader_that_becomes_slow(shm: Path, tmp_path: Path) -> None:
    with training(tmp_path):
        assert said(tmp_path) == []
        slow_since = time.time_ns()
        (tmp_path / "SLOW").touch()
        wait_for(lambda: paces(tmp_path), seconds=120, what="the closer look")
        # Whoever asks it to end now asks it to stay until its job has ended.
        (recorder,) = recorders(shm)
        os.kill(recorder, signal.SIGTERM)
        (found,) = wait_for(lambda: said(tmp_path), seconds=300, what="the finding")
        closer, usual = wait_for(lambda: len(both := paces(tmp_path)) == 2 and both, what="its end")
        assert 15e9 < usual - closer < 60e9
        assert rate(tmp_path, closer - 10 * 10**9, closer) < 2
        assert rate(tmp_path, closer, usual) > 3
        assert (found["kind"], found["ranks"], found["over"]) == ("slow_loader", [0], False)
        assert found["line"].startswith("loads (")
        assert found["text"].startswith("A step takes ")
        shown = haiprof("ps").stdout
        assert "r loses time since " in shown
        assert found["text"] in shown
        first = haiprof("top", tmp_path / "logs/r", "--once").stdout.splitlines()[0]
        assert "the DataLoader is too slow" in first
        (tmp_path / "SLOW").unlink()
        again = usual + 10 * 10**9
        wait_for(lambda: of_node(tmp_path, "samples")[-1]["time"] > again, what="more samples")
        assert rate(tmp_path, usual, again) < 2
        try:
            _, over = wait_for(lambda: len(rows := said(tmp_path)) > 1 and rows, 180, "its end")
        except AssertionError:
            # Unless the machine itself has become slower meanwhile.
            assert usual_step(tmp_path, again, math.inf) > 1.05 * usual_step(
                tmp_path, 0, slow_since
            )
        else:
            assert over["over"]
            assert "as before" in over["text"]


def test_a_rank_that_becomes_late(shm: Path, tmp_path: Path) -> None:
    with training(tmp_path, *torchrun("--standalone", "--nproc-per-node=2")):
        (tmp_path / "SLOW").touch()
        found = wait_for(lambda: said(tmp_path), seconds=300, what="the finding")[0]
        assert found["ranks"] == [1]
