"""What looking at a job does to it, and what is said of one that is slow, and healthy.

    PYTHONPATH=tests python -m faults.unharmed --calls 1000
    PYTHONPATH=tests python -m faults.unharmed --phases 200

The first command asks why a job of two ranks hangs, again and again while it trains: its
parameters must be those of a job that nobody asks about. The second has jobs go through phases
that take longer than ``hang_after``: nothing may be said of them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import warm_programs
from launched import free_port, recorded
from recording import wait_for

from haiprof.control import hang
from haiprof.control.find import with_pids

#: Steps after which the parameters are compared.
EVERY = 100
#: What lasts less is no hang in the jobs that are slow, s; and how long their phases take.
HANG_AFTER = 2.0
PHASES_S = (4.0, 10.0)
#: Who is busy, or compiles, is late for so long, s; a phase that took longer is not counted.
LATE_S = 10 * HANG_AFTER

TRAINS = """
import hashlib, os, time
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(7)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
random = torch.Generator().manual_seed(dist.get_rank())
step, ends, before = 0, torch.zeros(1), time.perf_counter()
with open(f"steps-{dist.get_rank()}", "w", buffering=1) as file:
    while not ends:
        optimizer.zero_grad()
        model(torch.rand(16, 64, generator=random)).square().sum().backward()
        optimizer.step()
        step += 1
        now = time.perf_counter()
        whole = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        print(step, now - before, hashlib.sha256(whole).hexdigest(), file=file)
        before = now
        ends = torch.tensor([float(os.path.exists("END"))])
        dist.all_reduce(ends)
dist.destroy_process_group()
"""

#: What is slow, for {seconds}; a process of its own also starts slowly.
SLOW = {
    "evaluation": "until(lambda: torch.ones(100, 100) @ torch.ones(100, 100))",
    "first compile": "until(compiles)",
    "checkpoint": "torch.save(model.state_dict(), SlowFile())",
    "garbage": "until(lambda: gc.collect())",
    "another program": 'subprocess.run(["sleep", "{seconds}"])',
    "breakpoint": "breakpoints({seconds})",
    "debugger": 'open("TRACE", "w").close(); until(lambda: sum(range(1000)))',
}
PHASES = """
import gc, io, os, pdb, subprocess, sys, threading, time
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
RANK = {rank}
def until(work):
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        work()

def compiles():
    torch._dynamo.reset()
    torch.compile(nn.Linear(8, 8), backend="eager")(torch.ones(4, 8)).sum().backward()

class SlowFile(io.BytesIO):
    left = 10
    def write(self, what):
        if self.left:
            time.sleep({seconds} / 10)
            self.left -= 1
        return super().write(what)

def breakpoints(seconds):
    reads, writes = os.pipe()
    threading.Timer(seconds, os.write, (writes, b"continue\\n")).start()
    pdb.Pdb(stdin=open(reads), stdout=open(os.devnull, "w")).set_trace()
    return None

def slow():
    {slow}

def step():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.01)

model = nn.Linear(8, 8)
{start}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    step()
if RANK == 0:
    begun = time.monotonic()
    slow()
    open("took", "w").write(repr(time.monotonic() - begun))
for _ in range(20):
    step()
"""
JOINS = """
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
"""


@contextlib.contextmanager
def ranks(folder: Path, program: str, count: int) -> Iterator[list[warm_programs.Program]]:
    """Run a program as the ranks of a job; one rank is a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = recorded(folder / "logs", run="run", hang_after=HANG_AFTER)
    if count > 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environment |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    programs = []
    try:
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {}
            programs.append(warm_programs.start(program, env=environment | own, cwd=folder))
        yield programs
    finally:
        for each in programs:
            each.kill()
            each.wait()


def trained(folder: Path, calls: int, steps: int) -> tuple[list[str], list[float], list[int]]:
    """Train while somebody asks so often why it hangs, and at least for so many steps.

    Returns:
        The checksums of rank 0's parameters, how long its steps took, s, and exit codes.
    """
    file = folder / "steps-0"

    def lines() -> list[list[str]]:
        text = file.read_text() if file.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    with ranks(folder, TRAINS, 2) as programs:
        pids = [each.pid for each in programs]
        wait_for(lambda: len(lines()) > EVERY, 300, "the first steps")
        for number in range(calls):
            looked = hang.look_at_ranks(with_pids(pids), 1.0)
            assert len(looked) == 2
            seen = [hang.verdict(those).hang for those in hang.by_run(looked).values()]
            assert seen == [None], seen
            if number % 100 == 99:
                print(f"asked {number + 1} times, {len(lines())} steps", flush=True)
        wait_for(lambda: len(lines()) >= steps, 600, "the steps")
        (folder / "END").touch()
        codes = [each.wait(120) for each in programs]
    found = lines()
    return [line[2] for line in found], [float(line[1]) for line in found][1:], codes


def unharmed(keep: Path, calls: int) -> bool:
    """Compare a job that is asked about with one that is not, and print both."""
    hang._BETWEEN_S = 0.02  # type: ignore[misc]  # a second, for who wants to know
    asked = trained(keep / "asked", calls, 0)
    alone = trained(keep / "alone", 0, min(len(asked[0]), 3000))
    common = min(len(asked[0]), len(alone[0]))
    same = asked[0][:common] == alone[0][:common]
    for name, (sums, times, codes) in (("asked", asked), ("alone", alone)):
        print(
            f"{name}: {len(sums)} steps, median {1e3 * statistics.median(times):.1f} ms, slowest "
            f"{1e3 * max(times):.0f} ms, exit codes {codes}"
        )
    print(
        f"{calls} calls; parameters after each of {common} steps are {'' if same else 'not '}equal"
    )
    return same and asked[2] == alone[2] == [0, 0]


class Slow(NamedTuple):
    """A job that was slow: in what, of how many ranks, for how long, and what was said of it."""

    slow: str
    ranks: int
    took_s: float
    reports: int
    failed: bool


def slow(keep: Path, number: int) -> Slow:
    """Run a job that is slow once."""
    name = list(SLOW)[number % len(SLOW)]
    count = 1 + number // len(SLOW) % 2
    seconds = PHASES_S[number // (2 * len(SLOW)) % len(PHASES_S)]
    text = PHASES.replace("{slow}", SLOW[name]).replace("{seconds}", str(seconds))
    rank = "0" if count == 1 else "int(os.environ['RANK'])"
    text = text.replace("{rank}", rank)
    text = text.replace("{start}", JOINS if count > 1 else f"time.sleep({seconds})")
    folder = keep / f"slow-{number}"
    with ranks(folder, text, count) as programs:
        if name == "debugger":
            wait_for((folder / "TRACE").exists, 120, "the phase")
            _traces(programs[0].pid, seconds)
        said = [each.communicate(300) for each in programs]
        codes = [each.poll() for each in programs]
    reports = list((folder / "logs" / "run").glob("hang-*.json"))
    for report in reports:
        print(f"{folder.name}, {name}, {count} ranks, {seconds:g} s: {report.read_text()[:600]}")
    if any(codes):
        print(f"{folder.name}, {name}: {codes} {said}")
    took_s = float((folder / "took").read_text()) if (folder / "took").exists() else 0.0
    return Slow(name, count, took_s, len(reports), any(codes))


def _traces(pid: int, seconds: float) -> None:
    """Stop a process as a debugger does, and let it go on."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(16, pid, 0, 0) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(pid, 0x40000000)
    time.sleep(seconds)
    assert libc.ptrace(17, pid, 0, 0) == 0


def main(words: Sequence[str] | None = None) -> int:
    """Do what is asked for, and print what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=0, help="how often to ask about a job")
    parser.add_argument("--phases", type=int, default=0, help="how many slow phases to go through")
    parser.add_argument("--at-once", type=int, default=4, help="jobs that run at a time")
    parser.add_argument("--keep", type=Path, default=Path("build/unharmed"), help="where runs are")
    given = parser.parse_args(words)
    keep = given.keep.resolve()
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(parents=True)
    os.environ["HAIPROF_SHM_DIR"] = tempfile.mkdtemp(prefix="haiprof-test-", dir="/dev/shm")
    try:
        good = not given.calls or unharmed(keep, given.calls)
        with ThreadPoolExecutor(given.at_once) as pool:
            rows = list(pool.map(lambda number: slow(keep, number), range(given.phases)))
    finally:
        shutil.rmtree(os.environ["HAIPROF_SHM_DIR"], ignore_errors=True)
    for name in SLOW if rows else ():
        mine = [row for row in rows if row.slow == name]
        counted = [row for row in mine if row.took_s < LATE_S]
        reports = sum(row.reports for row in counted)
        took = ", ".join(f"{row.took_s:.0f}" for row in mine)
        print(f"{name}: {len(counted)} phases, {reports} reports; they took {took} s")
    counted = [row for row in rows if row.took_s < LATE_S]
    failed, reports = sum(row.failed for row in rows), sum(row.reports for row in counted)
    starts = sum(row.ranks == 1 for row in counted)
    print(
        f"{len(counted)} phases and {starts} slow starts: {reports} reports, {failed} jobs failed"
    )
    return 0 if good and not failed and not reports else 1


if __name__ == "__main__":
    sys.exit(main())
