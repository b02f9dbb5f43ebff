"""What sampling the stacks of a training process costs: CPU time of the sampler, of one core, and
what it adds to a step; py-spy, which stops the process for each sample, is measured beside it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from commands import HAIPROF
from figures import Figure, Measured, Reference, Unit, added_at_most, at_most
from processes import own_mib
from recording import read_table
from reporting import Report
from test_step import summary

from haiprof import _core
from haiprof.analyzer import Analyzer
from haiprof.common.owned_files import Folder
from haiprof.common.process_life import start_time_of
from haiprof.recorder.stacks import ProcessStacks

#: At 10 Hz it may take 0.1 % of a core for each rank, at 100 Hz 1 %.
BUDGETS: Final = {10: 0.001, 100: 0.01}
SECONDS: Final = 20.0
PY_SPY: Final = Path(sys.executable).parent / "py-spy"
#: Rounds of three blocks: off, on, off; and how long a block is, s.
ROUNDS: Final = 40
BLOCK: Final = 0.5
#: A sample may take so much of the disk, bytes; measured over so long, s.
BYTES: Final = 16.0

#: Trains, and counts its steps where we see them.
JOB = """
import ctypes, mmap, sys
from haiprof import _core
from trainer import Training
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 8)
count = ctypes.c_uint64.from_buffer(shared)
training = Training()
training.steps(20)
print(_core.python_layout().hex(), flush=True)
while True:
    training.steps(1)
    count.value += 1
"""


#: Makes functions all the time, and drops them: their code objects lie where others lay.
MAKES = """
import time
from haiprof import _core
print(_core.python_layout().hex(), flush=True)
number = 0
while True:
    number += 1
    names = {}
    exec(f"def made_{number}(now, end):\\n    while now() < end: pass", names)
    names[f"made_{number}"](time.perf_counter, time.perf_counter() + 0.0002)
"""
#: Stacks to read of it, and when memory is looked at first.
MANY: Final = 1_000_000
FIRST: Final = 100_000
#: Trains, and times its own functions.
TIMED: Final = """
import json, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = torch.utils.data.DataLoader(torch.randn(1 << 16, 512), batch_size=64, shuffle=True)
took = dict.fromkeys(("fetch", "forward", "backward", "update"), 0.0)
def fetch(batches):
    return next(batches, None)
def forward(batch):
    return model(batch).square().mean()
def backward(loss):
    loss.backward()
def update(_):
    optimizer.step()
    optimizer.zero_grad()
def timed(function, argument):
    begin = time.perf_counter()
    result = function(argument)
    took[function.__name__] += time.perf_counter() - begin
    return result
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    batches = iter(data)
    while (batch := timed(fetch, batches)) is not None and time.monotonic() < until:
        loss = timed(forward, batch)
        timed(backward, loss)
        timed(update, None)
print(json.dumps(took))
"""
TIMED_SECONDS: Final = 60
#: A share of that time may be off by so much.
POINTS: Final = 0.02


class Job:
    """A training process whose steps can be counted from outside."""

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "steps"
        self._counter.write_bytes(bytes(8))
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB, str(self._counter)], stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.layout = bytes.fromhex(self.process.stdout.readline())
        self.pid = self.process.pid

    def steps(self) -> int:
        """How many steps it has made."""
        return int.from_bytes(self._counter.read_bytes(), sys.byteorder)

    def step_seconds(self, seconds: float) -> float:
        """Watch it for so long; return the mean time of a step."""
        begin, before = time.perf_counter(), self.steps()
        time.sleep(seconds)
        return (time.perf_counter() - begin) / max(self.steps() - before, 1)

    def watch(self, hz: float) -> _core.StackSampler:
        """Begin to sample it."""
        sampler = _core.StackSampler(hz)
        assert sampler.watch(self.pid, start_time_of(self.pid), os.getuid(), self.layout)
        return sampler


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path)
    yield started
    started.process.kill()
    started.process.communicate()


def share_of_py_spy(pid: int, hz: int, folder: Path) -> float:
    """Let py-spy record for a while; return the CPU time that it took, of a core."""
    before = os.times()
    subprocess.run(
        [PY_SPY, "record", "--pid", str(pid), "--rate", str(hz), "--format", "raw",
         "--duration", str(round(SECONDS)), "--output", folder / "py-spy"],
        check=True, capture_output=True,
    )  # fmt: skip
    after = os.times()
    used = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    return used / SECONDS


@pytest.mark.parametrize("hz", [10, 100])
def test_cost_of_a_core(benchmark: Any, report: Report, job: Job, tmp_path: Path, hz: int) -> None:
    sampler = job.watch(hz)
    time.sleep(2)  # learns the job's functions

    def run() -> float:
        before = sampler.cost_ns
        time.sleep(SECONDS)
        return (sampler.cost_ns - before) * 1e-9 / SECONDS

    share = benchmark.pedantic(run, rounds=1, iterations=1)
    taken = sum(sample[2] for sample in sampler.unwatch(job.pid)[0] if sample[4] == job.pid)
    assert taken > 0.8 * hz * SECONDS
    sampler.hz = 0.0
    peer = Reference("py-spy record", Measured(share_of_py_spy(job.pid, hz, tmp_path)))
    what = f"stacks of a training process at {hz} Hz, of a core"
    report(Figure(what, Unit.SHARE, Measured(share), peer, at_most(BUDGETS[hz])))


def test_what_is_added_to_a_step(benchmark: Any, report: Report, job: Job) -> None:
    sampler = job.watch(0.0)

    def run() -> list[tuple[float, float, float]]:
        rounds = []
        for _ in range(ROUNDS):
            before = job.step_seconds(BLOCK)
            sampler.hz = 100.0
            during = job.step_seconds(BLOCK)
            sampler.hz = 0.0
            rounds.append((before, during, job.step_seconds(BLOCK)))
        return rounds

    rounds = benchmark.pedantic(run, rounds=1, iterations=1)
    step = statistics.median(before for before, _, _ in rounds)
    ours = summary([2 * during / (before + after) for before, during, after in rounds])
    nothing = Reference("nothing at all", summary([after / before for before, _, after in rounds]))
    what = f"added to a step of {step * 1e3:.1f} ms by stacks at 100 Hz"
    report(Figure(what, Unit.SHARE, ours, nothing))


def test_shares_against_the_jobs_own_timers(benchmark: Any, report: Report, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TIMED)
    words = [*HAIPROF, "run", "--log-dir", tmp_path / "logs", "--run", "one", "--"]
    words += [sys.executable, tmp_path / "train.py", str(TIMED_SECONDS)]

    def run() -> dict[str, float]:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        took: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return took

    took = benchmark.pedantic(run, rounds=1, iterations=1)
    analyzer = Analyzer(tmp_path / "logs/one")
    flame = analyzer.flame(threads="training", by="function")
    own = flame.filter(pl.col("file").str.ends_with("train.py"))
    samples = analyzer.stacks(threads="training")
    by_phases, alone = {}, {}
    for name in took:
        by_phases[name] = own.filter(pl.col("function") == name)["total"].sum()
        inside = pl.col("stack").str.contains(f"(^|;){name} \\([^;]*train.py:")
        alone[name] = samples.filter(inside)["duration"].sum()
    peer = Reference("by samples alone", Measured(furthest(alone, took)))
    what = f"shares of functions over {TIMED_SECONDS} s at 10 Hz, off their own timers by at most"
    off = Measured(furthest(by_phases, took))
    report(Figure(what, Unit.SHARE, off, peer, at_most(POINTS)))


def furthest(seen: dict[str, float], took: dict[str, float]) -> float:
    """Return how far a share of some functions is off what it should be, at most."""
    assert min(seen.values()) > 0
    shares = ((seen[n] / sum(seen.values()), took[n] / sum(took.values())) for n in took)
    return max(abs(one - other) for one, other in shares)


def test_bytes_of_a_sample_on_disk(
    benchmark: Any, report: Report, job: Job, tmp_path: Path
) -> None:
    sampler = _core.StackSampler(100.0)
    ring = tmp_path / "ring"
    ring.touch()
    header = {"pid": job.pid, "start_time": start_time_of(job.pid), "python": job.layout}
    folder = tmp_path / "rank"
    folder.mkdir(mode=0o700)
    written = ProcessStacks(sampler, ring, header, Folder.at(folder))

    def run() -> None:
        until = time.monotonic() + 2 * SECONDS
        while time.monotonic() < until:
            time.sleep(1.0)
            written.collect(0)
            written.prepare()
            written.write()
            written.push()
        written.close()

    benchmark.pedantic(run, rounds=1, iterations=1)
    samples = sum(read_table(folder, "stacks")["samples"].to_pylist())
    assert samples > SECONDS * 100  # half of what the rate gives in that time
    size = Measured(sum(file.stat().st_size for file in folder.iterdir()) / samples)
    report(Figure("a sampled stack on disk", Unit.BYTES, size, target=at_most(BYTES)))


@pytest.mark.soak
def test_a_million_stacks_of_a_job_that_makes_functions(benchmark: Any, report: Report) -> None:
    process = subprocess.Popen([sys.executable, "-c", MAKES], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reader = _core.PythonStacks(process.pid, bytes.fromhex(process.stdout.readline()))

    def run() -> list[float]:
        memory = []
        for number in range(MANY):
            reader.take()
            if number + 1 in (FIRST, MANY):
                memory.append(own_mib(os.getpid()) * 2**20)
        return memory

    try:
        first, last = benchmark.pedantic(run, rounds=1, iterations=1)
    finally:
        process.kill()
        process.communicate()
    benchmark.extra_info.update(torn=reader.torn)
    after = Reference(f"after {FIRST:,}", Measured(first))
    what = f"memory after {MANY:,} stacks of a job that makes functions, {reader.torn:,} torn"
    report(Figure(what, Unit.BYTES, Measured(last), after, added_at_most(8 * 2**20)))
