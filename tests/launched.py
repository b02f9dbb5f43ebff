"""A small training job for launchers: each rank of it trains, and meets the others in gloo."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from recording import process_file

#: Armed as by haiprof.pth. STEPS, of 10 ms each; rank 1 fails once in the middle if FAIL_ONCE.
TRAIN = """
import _haiprof_boot
_haiprof_boot.arm()
import os, sys, time
import torch
import torch.distributed as dist

torch.set_num_threads(1)
# After a restart gloo now and then takes a rank's old address from the store.
if "MASTER_ADDR" in os.environ and "FAIL_ONCE" not in os.environ:
    dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(os.environ.get("STEPS", "30"))):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if step == 10 and first and os.environ.get("FAIL_ONCE") and os.environ["RANK"] == "1":
        sys.exit(3)
os.write(1, (" ".join(["trained", *sys.argv[1:]]) + "\\n").encode())  # in one piece
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
"""


def write_script(folder: Path) -> Path:
    """Write the job as train.py into a folder."""
    script = folder / "train.py"
    script.write_text(TRAIN)
    return script


def torchrun(*words: str | Path) -> list[str]:
    """Return the words that start torchrun of this Python."""
    return [sys.executable, "-m", "torch.distributed.run", *map(str, words)]


def recorded(log_dir: Path, **options: object) -> dict[str, str]:
    """Return the environment in which processes record themselves with no `haiprof run` above."""
    given = {"enabled": 1, "log_dir": log_dir, **options}
    ours = {f"HAIPROF_{name.upper()}": str(value) for name, value in given.items()}
    return {**os.environ, "OMP_NUM_THREADS": "1", **ours}


def ranks(run: Path) -> list[dict[str, Any]]:
    """Return what each process of a rank says of itself, by rank and attempt."""
    found = [process_file(p) for p in run.glob("*#*")]
    return sorted(found, key=lambda one: (one["rank"], one["attempt"]))


def nodes(run: Path) -> list[str]:
    """Return the names of the nodes whose recorders wrote something of the node."""
    return sorted(p.parent.name for p in run.glob("*/process.json") if "#" not in p.parent.name)


def free_port() -> int:
    """Return a port that nobody has, nor gets of the kernel by asking for any."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


def run_ranks(count: int, script: Path, *words: object, **environment: str) -> Path:
    """Run a script as the ranks of one job to its end; return its run folder, beside the script."""
    common = recorded(script.parent / "logs", run="run", kernels="off") | environment
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    jobs = []
    for rank in range(count):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        jobs.append(
            subprocess.Popen(
                [sys.executable, script, *map(str, words)],
                env=common | {name: str(value) for name, value in place.items()},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [job.communicate(timeout=240)[1] for job in jobs]
        # Of all: the first one's error may follow from another's.
        assert [job.returncode for job in jobs] == [0] * count, "\n".join(said)
    finally:
        for job in jobs:
            job.kill()
    return script.parent / "logs" / "run"
