"""Has jobs become slow while they run, and scores what the recorder says of it by itself, and when.

    PYTHONPATH=tests python -m faults.slow_downs --seeds 0,1 --keep FOLDER
    PYTHONPATH=tests python -m faults.slow_downs --healthy 30 --keep FOLDER

The first command begins a fault after a job has trained for a minute. A slow-down is found where
its kind is named, first, and in time. Whatever is said before is a false alarm; so is what is said
of the jobs of the second command, which train for so many minutes with nothing wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faults.cases import Case
from faults.drawn import HOST, MLP, TRANSFORMER, job, task
from faults.record import command, hear_interrupts, settings_of
from faults.score import wilson
from faults.truth import read_notes, whole
from recording import read_table, wait_for

#: For how long a job trains before it becomes slow, s, and how soon that should be said.
BEFORE_S, IN_TIME_S = 60.0, 60.0
#: … and how long is waited for it.
PATIENCE_S = 150.0
#: A slow-down of less is none, as a share of a step.
LEAST = 0.10
#: What is true of a machine on which several jobs share the cores.
EXCUSED = ("cpu_neighbour", "too_many_threads", "starved_communication")
#: A step takes 45 ms on a core of its own.
LONG: dict[str, Any] = {**MLP, "steps": 1_000_000}

Finding = dict[str, Any]


class Dice(random.Random):
    """Draws faults: how long they take lies between two shares of a step."""

    def __init__(self, seed: str, low: float, high: float) -> None:
        """Begin with a seed, and the shares."""
        super().__init__(seed)
        self._shares = math.log(low), math.log(high)

    def ms(self) -> float:
        """Return how long a fault takes, ms, evenly on a logarithmic scale."""
        return 45 * math.exp(self.uniform(*self._shares))


Draw = Callable[[Dice], tuple[dict[str, Any], int]]


#: By the kind that must be named: what begins, and how many ranks the job has.
KINDS: dict[str, Draw] = {
    "slow_loader": lambda draw: (task("item", draw.choice(["pause", *HOST]), draw.ms()), 1),
    "slow_storage": lambda draw: (task("item", "read", draw.ms(), kib=16, file="data"), 1),
    "host_code": lambda draw: (
        task(draw.choice(["between", "forward"]), draw.choice(HOST), draw.ms()), 1,
    ),
    "tensor_work": lambda draw: (task("between", draw.choice(["mirror", "blend"]), draw.ms()), 1),
    "logging": lambda draw: (task("between", draw.choice(["say", "write"]), draw.ms()), 1),
    "blocking_checkpoint": lambda draw: (task("between", "save", mb=draw.ms() / 2), 1),
    "garbage_collection": lambda draw: (
        task("between", "collect", objects=round(draw.ms() * 2_000)), 1,
    ),
    "straggler": lambda draw: (
        task("forward", draw.choice(["tensors", "blend"]), draw.ms(), ranks=[draw.randrange(2)]), 2,
    ),
    "cpu_neighbour": lambda _: ({}, 1),
}  # fmt: skip
#: Healthy jobs: the style, how many ranks, and the settings.
HEALTHY = (
    ("train", 1, LONG),
    ("train", 1, {**TRANSFORMER, "steps": 1_000_000}),
    ("accelerated", 1, {**LONG, "extras": {"evaluate": {"every": 200, "batches": 10}}}),
    ("parallel", 2, {**TRANSFORMER, "steps": 1_000_000, "batch": 16}),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """What was said of a job.

    Attributes:
        name: the kind that must be named, or "healthy".
        slower: by which share of a step it became slow.
        said: what was said of the slow-down first; None: nothing.
        late_s: how long after it had begun, s.
        alarms: what was said before it began.
    """

    name: str
    seed: int
    slower: float
    said: Finding | None
    late_s: float | None
    alarms: tuple[Finding, ...]

    @property
    def right(self) -> bool:
        """Whether the right kind was named in time."""
        return self.said is not None and self.said["kind"] == self.name and self.in_time

    @property
    def in_time(self) -> bool:
        """Whether it was said in time."""
        return self.late_s is not None and self.late_s <= IN_TIME_S


class Cores:
    """Has jobs wait until there are cores for all of their ranks, and for what is beside them."""

    def __init__(self, count: int) -> None:
        """Begin with all of them free."""
        self._free = self._count = count
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Take some for a while; all, if there are not as many."""
        count = min(count, self._count)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= count)
            self._free -= count
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


@contextlib.contextmanager
def training(case: Case, keep: Path) -> Iterator[Path]:
    """Run a job until the block ends; gives its folder."""
    folder = keep / case.name
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    given = json.dumps(settings_of(case, keep, work))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "JOB": given}
    words = [sys.executable, "-m", "haiprof.cli.main", "run", "--run", "run"]
    words += ["--log-dir", str(folder / "logs"), "--", *command(case)]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            words, env=environment, stdout=output, stderr=output, cwd=work,
            stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=hear_interrupts,
        )  # fmt: skip
    try:
        yield folder
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def said(folder: Path) -> list[Finding]:
    """Return the findings of a run that were said while it ran, in their order."""
    found = []
    for process in (folder / "logs/run").glob("*/process.json"):
        if "#" not in process.parent.name:
            for row in read_table(process.parent, "events").to_pylist():
                if row["kind"] == "finding":
                    found.append({**row, **json.loads(row["attributes"])})
    return [one for one in sorted(found, key=lambda one: one["time"]) if not one["over"]]


def times(folder: Path, world: int) -> list[tuple[int, int]]:
    """Return when each step of the slowest rank ended, ns UTC, and how long it took, ns."""
    ranks = read_notes(folder / "work", world)
    steps = [[line for line in lines if line.get("step", -1) >= 0] for lines in ranks]
    return [
        (int(max(line["at"] for line in each)), max(map(whole, each)))
        for each in zip(*steps, strict=False)
    ]


def slow_down(name: str, dice: Dice, seed: int, keep: Path, cores: Cores) -> Row:
    """Run a job that becomes slow, and wait for what is said of it."""
    begins, world = KINDS[name](dice)
    switch = keep / f"switch-{name}-{seed}"
    switch.unlink(missing_ok=True)
    tasks = [{**begins, "more": {**begins["more"], "after": str(switch)}}] if begins else []
    case = Case(f"{name} begins", None, seed, "parallel" if world > 1 else "train",
                job({**LONG, "seed": seed}, *tasks), world)  # fmt: skip
    with cores.taken(world + 1), training(case, keep) as folder:
        wait_for(lambda: len(times(folder, world)) > 60, 200, f"training of {case.label}")
        time.sleep(BEFORE_S)
        alarms = said(folder)
        onset = time.time_ns()
        switch.touch()
        hogs = [] if begins else [_hog() for _ in range(4)]

        def named() -> Finding | None:
            later = (one for one in said(folder) if one["time"] > onset)
            return next((one for one in later if not begins or one["kind"] not in EXCUSED), None)

        try:
            found = wait_for(named, PATIENCE_S, "a word")
        except AssertionError:
            found = None
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
    took = times(folder, world)
    before, after = (
        statistics.median([ns for at, ns in took[10:] if (at - ns > onset) == later])
        for later in (False, True)
    )
    late = None if found is None else (found["time"] - onset) / 1e9
    true_alarms = tuple(one for one in alarms if one["kind"] not in EXCUSED)
    return Row(name, seed, after / before - 1, found, late, true_alarms)


def _hog() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def healthy(number: int, minutes: float, keep: Path) -> Row:
    """Run a job in which nothing is wrong for some minutes."""
    style, world, settings = HEALTHY[number % len(HEALTHY)]
    case = Case("healthy for long", None, number, style, job({**settings, "seed": number}), world)
    with training(case, keep) as folder:
        wait_for(lambda: times(folder, world), 200, f"training of {case.label}")
        time.sleep(60 * minutes)
    alarms = tuple(one for one in said(folder) if one["kind"] not in EXCUSED)
    return Row("healthy", number, 0.0, None, None, alarms)


def table(rows: Sequence[Row]) -> str:
    """Return the score as a table of Markdown."""
    text = "| begins | runs | named in time | slower by | said after | said instead |\n"
    text += "|---|---|---|---|---|---|\n"
    planted = [row for row in rows if row.name != "healthy" and row.slower >= LEAST]
    for name in KINDS:
        if mine := [row for row in planted if row.name == name]:
            first = ("nothing" if row.said is None else row.said["kind"] for row in mine)
            wrong = " ".join(sorted({kind for kind in first if kind != name}))
            slower = ", ".join(f"{row.slower:.0%}" for row in mine)
            late = ", ".join("-" if r.late_s is None else f"{r.late_s:.0f} s" for r in mine)
            right = sum(row.right for row in mine)
            text += f"| `{name}` | {len(mine)} | {right} | {slower} | {late} | {wrong} |\n"
    right = sum(row.right for row in planted)
    if planted:
        low, high = wilson(right, len(planted))
        text += f"| **all** | {len(planted)} | {right} | | {low:.0%} to {high:.0%} (95 %) | |\n"
    alarms = [(row, one) for row in rows for one in row.alarms]
    text += f"\nFalse alarms in {len(rows)} jobs: {len(alarms)}.\n"
    for row, one in alarms:
        text += f"- {row.name}, seed {row.seed}: {one['kind']}: {one['text']}\n"
    return text


def main(words: Sequence[str] | None = None) -> int:
    """Run, score and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", help="kinds, with commas between (default: all)")
    parser.add_argument("--seeds", default="0", help="seeds, with commas between")
    parser.add_argument(
        "--slower", default="0.125,2", help="the least and the most that a fault takes, in steps"
    )
    parser.add_argument("--healthy", type=float, help="minutes that healthy jobs train for")
    parser.add_argument("--jobs", type=int, default=4, help="healthy jobs, all at once")
    parser.add_argument(
        "--cores", type=int, default=os.cpu_count(), help="cores that jobs take at a time"
    )
    parser.add_argument(
        "--keep", type=Path, default=Path("build/slow-downs"), help="where runs are"
    )
    given = parser.parse_args(words)
    keep = given.keep.resolve()
    keep.mkdir(parents=True, exist_ok=True)
    kinds = given.kinds.split(",") if given.kinds else list(KINDS)
    low, high = map(float, given.slower.split(","))
    rings = tempfile.mkdtemp(prefix="haiprof-test-", dir="/dev/shm")
    os.environ["HAIPROF_SHM_DIR"] = rings
    cores = Cores(given.cores)

    def one(case: tuple[str, int]) -> Row:
        name, seed = case
        row = slow_down(name, Dice(f"{name} {seed}", low, high), seed, keep, cores)
        named = "nothing" if row.said is None else f"{row.said['kind']}: {row.said['text']}"
        late = "" if row.late_s is None else f" after {row.late_s:.0f} s"
        print(f"{row.name}, seed {row.seed}, slower by {row.slower:.0%}: {named}{late}", flush=True)
        return row

    try:
        if given.healthy:
            with ThreadPoolExecutor(given.jobs) as pool:
                rows = list(pool.map(lambda n: healthy(n, given.healthy, keep), range(given.jobs)))
        else:
            cases = [(kind, int(seed)) for seed in given.seeds.split(",") for kind in kinds]
            with ThreadPoolExecutor(given.cores) as pool:
                rows = list(pool.map(one, cases))
    finally:
        shutil.rmtree(rings, ignore_errors=True)
    print(table(rows))
    (keep / "score.md").write_text(table(rows), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
