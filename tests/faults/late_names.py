"""Whether ranks of healthy jobs are called late that were not: the share of runs with a false name.

    PYTHONPATH=tests python -m faults.late_names --runs 100 --seconds 20

Each job has two to four ranks of gloo that all do the same; some run beside busy neighbours. Every
rank notes its clock just before it asks for a collective. A rank that had to wait for a core is
late, and may be named. False is what these notes contradict: who came last to an operation, as
``Analyzer.collectives()`` has it; for how much of their time the others wait for a rank, as
``haiprof top`` says; a finding that calls a rank late which was not, or not half as much.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import warm_programs
from launched import free_port, recorded
from recording import wait_recorded

from haiprof.analyzer import Analyzer
from haiprof.show.live.job import Job

#: Who comes so much later than the one before it is named, ns.
LATE_NS: Final = 5_000_000
#: A rank that asked so much later than it noted had lost its core in between, ns: nobody knows.
BETWEEN_NS: Final = 1_000_000
#: Clocks are read one after the other, ns.
CLOCKS_NS: Final = 100_000
#: What is said of a rank must be true to this share.
HALF: Final = 0.5
#: ``haiprof top`` looks back so far, ns.
TOP_NS: Final = 20_000_000_000
#: Runs with a false name, at most.
TARGET: Final = 0.01

HEALTHY = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn

seconds, width, buckets = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(7)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(buckets)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
came, ends = [], torch.zeros(1)

def meet(tensor):
    came.append(time.time_ns())
    dist.all_reduce(tensor)

meet(torch.ones(1))
until = time.monotonic() + seconds
while not ends:
    optimizer.zero_grad()
    model(torch.ones(32, width)).square().mean().backward()
    for layer in model:
        meet(layer.weight.grad)
    optimizer.step()
    ends = torch.tensor([float(rank == 0 and time.monotonic() > until)])
    meet(ends)
with open(f"came-{rank}.json", "w") as file:
    json.dump(came, file)
dist.destroy_process_group()
"""
BUSY = "while True: pass"


class Seen(NamedTuple):
    """One run: how many ranks, whether beside neighbours, and what was said of it.

    Attributes:
        ranks: how many.
        busy: beside neighbours.
        operations: that were matched.
        late: of these, the ones with a late rank.
        unclear: of the late ones, those of which nobody can say who came last.
        named: ranks that a finding or ``haiprof top`` named.
        false: a line for each false name.
    """

    ranks: int
    busy: bool
    operations: int
    late: int
    unclear: int
    named: int
    false: list[str]


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Have so many busy programs beside the job."""
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for each in programs:
            each.kill()
            each.wait()


def train(
    folder: Path, program: str, words: Sequence[str], count: int, busy: bool, patience: float
) -> npt.NDArray[np.int64]:
    """Run a job of so many ranks to its end; return when each came to each operation, as it notes.

    The run is ``logs/run`` of the folder. A rank is a row, an operation a column.
    """
    folder.mkdir(parents=True)
    environment = recorded(folder / "logs", run="run", kernels="off")
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    programs = []
    with neighbours(len(os.sched_getaffinity(0)) if busy else 0):
        try:
            for rank in range(count):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                started = warm_programs.start(program, *words, env=environment | own, cwd=folder)
                programs.append(started)
            said = [each.communicate(patience) for each in programs]
        finally:
            for each in programs:
                each.kill()
                each.wait()
    assert not any(each.returncode for each in programs), said
    wait_recorded(Path(os.environ["HAIPROF_SHM_DIR"]))
    return np.array([json.loads((folder / f"came-{n}.json").read_text()) for n in range(count)])


def run_one(folder: Path, number: int, seconds: float, busy: bool) -> Seen:
    """Run a healthy job, and compare what is said of it with what it noted itself."""
    count = 2 + number % 3
    words = [str(seconds), str((64, 256, 512)[number // 3 % 3]), str(2 + number % 4)]
    came = train(folder, HEALTHY, words, count, busy, 60 + 20 * seconds)
    return judge(folder / "logs" / "run", came, busy)


def judge(run: Path, came: npt.NDArray[np.int64], busy: bool) -> Seen:
    """Compare what is said of a run with when each rank (rows) came to each operation (columns)."""
    analyzer = Analyzer(run)
    operations = analyzer.collectives()
    started = np.array(
        [
            analyzer.collectives(rank=rank).sort("sequence")["start"].to_numpy()
            for rank in range(len(came))
        ]
    )
    false, unclear = [], 0
    if started.shape != came.shape:
        return Seen(len(came), busy, 0, 0, 0, 0, [f"{started.shape} operations, not {came.shape}"])
    late = operations.filter(pl.col("late") >= LATE_NS)
    for sequence, named in late.select("sequence", "late_rank").iter_rows():
        noted, asked = came[:, sequence - 1], started[:, sequence - 1]
        if (asked < noted - CLOCKS_NS).any():
            false.append(f"operation {sequence} was asked for before it was")
        elif (asked > noted + BETWEEN_NS).any():
            unclear += 1
        elif named != noted.argmax():
            false.append(f"operation {sequence}: rank {named}, not {noted.argmax()}")
    if unclear > HALF * late.height:
        false.append(f"{unclear} of {late.height} late ranks cannot be confirmed")
    # How long the others waited for each rank, on average, by its notes or by its calls: of what a
    # rank lost between them, either is true.
    waited = np.maximum(by_rank(came), by_rank(started))
    named = 0
    whole = waited.sum(1)
    for finding in analyzer.findings():
        if finding.kind not in ("straggler", "pipeline_stage"):
            continue
        named += 1
        if max(whole[list(finding.ranks)]) < HALF * (finding.low_ns or 0):
            false.append(f"{finding.problem}; it was for {whole} ns")
    watched = Job(run, lambda: None)
    watched.look(float("inf"))
    recent = came.max(0) > came.max() - TOP_NS
    shares = waited[:, recent].sum(1) / np.ptp(came[:, recent])
    for each in watched.late():
        if each.share is not None and each.share >= 0.02:
            named += 1
            if shares[each.rank] < HALF * each.share:
                false.append(f"top: {each}; it was {shares}")
    return Seen(len(came), busy, operations.height, late.height, unclear, named, false)


def by_rank(times: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return how long the others waited, on average, for a rank (row) in an operation (column)."""
    last = times.max(0)
    waits = (last - times).sum(0) / (len(times) - 1)
    found: npt.NDArray[np.float64] = np.where(times == last, waits, 0.0)
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the jobs, and print what was said of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="how many jobs")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each of them trains")
    parser.add_argument("--busy-every", type=int, default=4, help="one in so many has neighbours")
    parser.add_argument(
        "--keep", type=Path, default=Path("build/late_names"), help="where runs are"
    )
    given = parser.parse_args(words)
    keep = given.keep.resolve()
    shutil.rmtree(keep, ignore_errors=True)
    os.environ["HAIPROF_SHM_DIR"] = tempfile.mkdtemp(prefix="haiprof-test-", dir="/dev/shm")
    seen = []
    try:
        for number in range(given.runs):
            busy = number % given.busy_every == given.busy_every - 1
            one = run_one(keep / str(number), number, given.seconds, busy)
            seen.append(one)
            print(
                f"{number}: {one.ranks} ranks{', busy' if busy else ''}: {one.operations} "
                f"operations, {one.late} with a late rank, {one.unclear} of these unclear, "
                f"{one.named} names; {len(one.false)} false",
                *one.false[:5],
                sep="\n  ",
                flush=True,
            )
    finally:
        shutil.rmtree(os.environ["HAIPROF_SHM_DIR"], ignore_errors=True)
    false = sum(bool(each.false) for each in seen)
    names = sum(each.late - each.unclear + each.named for each in seen)
    wrong = sum(len(each.false) for each in seen)
    print(f"{len(seen)} runs: {false} with a false name; {wrong} of {names} names are false")
    return 0 if false <= TARGET * len(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
