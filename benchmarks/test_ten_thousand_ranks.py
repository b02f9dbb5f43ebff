"""A run of ten thousand ranks of 1 000 steps each: how long its overview takes, and its memory.

The ranks are those of a real job of two, again and again under other numbers and on nodes of eight,
by hard links. Two processes read them, then two workers of Dask, which have to say the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from commands import HAIPROF
from figures import Figure, Measured, Reference, Unit, at_most
from launched import torchrun
from peers import DRIVERS
from reporting import Report

RANKS, RANKS_OF_NODE, STEPS = 10_000, 8, 1_000
#: Two processes of one number would be one that went on.
FIRST_PID = 10_000
#: Of the headline and the overview, with late ranks and goodput: s, and bytes of all processes.
LONGEST, MOST_BYTES = 60.0, 1 << 30
JOB: Final = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = torch.utils.data.DataLoader(torch.randn(8 * int(sys.argv[1]), 64), batch_size=8)
for batch in data:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def recorded(folder: Path) -> Path:
    """Record a job of two ranks; return its run."""
    (folder / "train.py").write_text(JOB)
    words = ["run", "--log-dir", folder / "logs", "--run", "two", "--"]
    job = [*torchrun("--standalone", "--nproc-per-node=2"), folder / "train.py", str(STEPS)]
    done = subprocess.run([*HAIPROF, *words, *job], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "logs/two"


def multiplied(run: Path, ranks: int, folder: Path) -> Path:
    """Make a run of many ranks of one of two, by hard links; return its folder."""
    folder.mkdir()
    os.link(run / "run.json", folder / "run.json")
    (node,) = (path.parent for path in run.glob("*/process.json") if "#" not in path.parent.name)
    two = [node.with_name(f"{node.name}#{rank}") for rank in range(2)]
    documents = {path: json.loads((path / "process.json").read_text()) for path in (node, *two)}

    def place(process: Path, name: str, **changed: Any) -> None:
        own = folder / name
        own.mkdir()
        (own / "process.json").write_text(json.dumps({**documents[process], **changed}))
        for file in process.glob("*.arrow"):
            os.link(file, own / file.name)

    for rank in range(ranks):
        number, local = divmod(rank, RANKS_OF_NODE)
        if local == 0:
            place(node, f"n{number}", node=f"n{number}")
        place(
            two[rank % 2], f"n{number}#{rank}", node=f"n{number}", rank=rank, local_rank=local,
            world_size=ranks, pid=FIRST_PID + rank,
        )  # fmt: skip
    return folder


def asked(run: Path, executor: str, answer: Path) -> tuple[dict[str, Any], str]:
    """Ask for headline and overview; return what that took, and what the answer says."""
    command = [sys.executable, DRIVERS / "drive_ranks.py", answer, run]
    command += ["headline_and_overview", executor]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(answer.read_text())
    assert found["problems"] == []
    return found, answer.with_name(f"{answer.name}.txt").read_text()


@pytest.mark.large
def test_the_overview_of_ten_thousand_ranks(report: Report, tmp_path: Path) -> None:
    run = recorded(tmp_path)
    figures = []
    for ranks in (RANKS // 10, RANKS):
        folder = multiplied(run, ranks, tmp_path / str(ranks))
        found, text = asked(folder, "processes", tmp_path / f"{ranks}.json")
        assert f"{ranks:,}" in text
        used = found["peak_bytes"] + sum(found["worker_bytes"]) - found["shared_bytes"]
        took, every = found["ask_s"], Measured(used + found["shared_bytes"])
        what = f"headline and overview of {ranks:,} ranks of {STEPS:,} steps, two processes"
        last = ranks == RANKS
        figures += [
            Figure(what, Unit.SECONDS, Measured(took),
                   target=at_most(LONGEST) if last else None),
            Figure(f"{what}: memory of all three", Unit.BYTES, Measured(used),
                   Reference("with what they share in each", every),
                   at_most(MOST_BYTES) if last else None),
        ]  # fmt: skip
    found, by_dask = asked(folder, "dask", tmp_path / "dask.json")
    assert by_dask == text
    what = f"headline and overview of {RANKS:,} ranks of {STEPS:,} steps, two workers of Dask"
    report(*figures, Figure(what, Unit.SECONDS, Measured(found["ask_s"])))
