"""Jobs of several ranks of gloo that hang, each in its own way."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from launched import free_port, recorded
from recording import wait_for

#: Every rank trains a little, and writes a file when it is about to hang.
PREAMBLE = """
import _haiprof_boot
_haiprof_boot.arm()
import os, sys, threading, time
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def joined():
    dist.init_process_group("gloo")

def trained(steps=3):
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

def hangs():
    open(f"hangs-{RANK}", "w").close()

def sum_up(group=None, size=4, dtype=torch.float32):
    dist.all_reduce(torch.ones(size, dtype=dtype), group=group)
"""


class Job:
    """The ranks of a job."""

    def __init__(self, folder: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
        """Keep them."""
        self.folder, self.ranks = folder, ranks

    @property
    def script(self) -> str:
        """What names the job to commands."""
        return str(self.folder / "hang.py")


@contextlib.contextmanager
def hanging(
    folder: Path, program: str, ranks: int, started: int | None = None, **options: object
) -> Iterator[Job]:
    """Start a job, and wait until each of its ranks is about to hang.

    Args:
        folder: of the script, and of what the job leaves.
        program: what follows the preamble.
        ranks: how many the job is to have.
        started: how many of them there are; None: all.
        options: of the recording.
    """
    (folder / "hang.py").write_text(PREAMBLE + program)
    environment = {
        **recorded(folder / "logs", **{"run": folder.name, **options}),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
    }
    running = []
    try:
        for rank in range(ranks if started is None else started):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            # Appended to, as a scheduler's log: only so others may write there, too.
            with (folder / f"{rank}.txt").open("ab") as out:
                running.append(
                    subprocess.Popen(
                        [sys.executable, folder / "hang.py"],
                        cwd=folder, env={**environment, **own}, stdout=out, stderr=out,
                        start_new_session=True,
                    )
                )  # fmt: skip
        wait_for(
            lambda: (
                len(list(folder.glob("hangs-*"))) == len(running)
                or any(each.poll() for each in running)
            ),
            seconds=120,
            what="all ranks",
        )
        failed = [each for each in running if each.poll()]
        assert not failed, "".join(path.read_text() for path in folder.glob("*.txt"))
        yield Job(folder, running)
    finally:
        for each in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, 9)
            each.wait()
