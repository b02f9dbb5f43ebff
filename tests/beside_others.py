"""Jobs beside another tool or in an unusual place, and what docs/recording.md says of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import HAIPROF, start_haiprof
from recording import process_file, read_table, wait_for

#: The table: beside what, whether the job is unharmed, what is recorded. Each test of this folder
#: names its row, and test_table.py compares all rows with the docs.
ROWS = {
    "py-spy": ("yes", "steps, ranges, samples"),
    "gdb": ("yes", "steps, ranges, samples"),
    "coverage": ("yes", "steps, ranges, samples"),
    "cProfile": ("yes", "steps, phases, samples"),
    "`sys.settrace`": ("yes", "steps, phases, samples"),
    "torch.profiler": ("yes", "steps, phases, samples"),
    "gevent": ("yes", "steps, ranges, samples"),
    "uvloop": ("yes", "steps, ranges, samples"),
    "a zipapp": ("yes", "steps, ranges, samples"),
    "Docker's seccomp profile": ("yes", "steps, ranges, samples"),
    "a user namespace": ("yes", "steps, ranges, samples"),
    "the OOM killer of a control group": ("yes", "steps, ranges, samples"),
    "a wall clock that is set": ("yes", "steps, ranges, samples"),
    "a time namespace": ("yes", "steps, ranges, samples"),
    "a job that is suspended": ("yes", "steps, ranges, samples"),
    "free-threaded Python": ("yes", "steps, ranges, samples"),
}

#: What a job imports: haiprof's where it runs under haiprof, nothing of ours where it does not.
MAYBE = """
import contextlib, os
if os.environ.get("HAIPROF_ENABLED"):
    from haiprof import range as interval, step
else:
    def interval(name):
        return contextlib.nullcontext()
    def step():
        pass
def finish(turns):
    with open("TURNS", "w") as file:
        file.write(str(turns))
with open("PID", "w") as file:
    file.write(str(os.getpid()))
"""
#: Prints what its first turns came to, and goes on until the file END is there.
LOOP = """
import os, time
from maybe import finish, interval, step
def work(turn):
    with interval("work"):
        time.sleep(0.001)
        return sum(range(turn))
def main():
    total = turn = 0
    while turn < 50 or not os.path.exists("END"):
        came = work(turn)
        step()
        total += came if turn < 50 else 0
        turn += 1
    finish(turn)
    print(total)
main()
"""
LOOP_PRINTS = f"{sum(sum(range(turn)) for turn in range(50))}\n"


@dataclass(frozen=True)
class Done:
    """A job that has ended."""

    code: int
    stdout: str
    stderr: str


def write_job(folder: Path, program: str = LOOP) -> Path:
    """Write a job as job.py, with what it imports, into a folder; return its path."""
    (folder / "maybe.py").write_text(MAYBE)
    job = folder / "job.py"
    job.write_text(program)
    return job


def alone(folder: Path, *command: str | Path, **keywords: Any) -> Done:
    """Run a job without haiprof."""
    (folder / "END").touch()
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=300, **keywords
    )
    (folder / "END").unlink()
    return Done(done.returncode, done.stdout, done.stderr)


#: Those of the test that runs.
begun: list[Recorded] = []


class Recorded:
    """A job under `haiprof run`, in the folder where it is."""

    def __init__(self, folder: Path, *command: str | Path, before: tuple[str, ...] = ()) -> None:
        """Start it; ``before`` comes before haiprof's own command."""
        self.folder = folder
        self.run = folder / "logs" / "r"
        begun.append(self)
        words = ("run", "--log-dir", "logs", "--run", "r", "--sample-hz", "20", *command)
        if before:
            self.process = subprocess.Popen(
                [*before, *HAIPROF, *map(str, words)], cwd=folder, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        else:
            self.process = start_haiprof(*words, cwd=folder)

    @property
    def rank(self) -> Path:
        """The rank's folder."""
        (found,) = self.run.glob("*#0")
        return found

    @property
    def pid(self) -> int:
        """The job's process."""
        wait_for(lambda: (self.folder / "PID").exists() and (self.folder / "PID").read_text(), 60)
        return int((self.folder / "PID").read_text())

    def wait_sampled(self, after: int = 0) -> None:
        """Wait until it lies on disk what the job uses of a core, at a time after ``after``."""

        def sampled() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(self.process.communicate())
            return bool([each for each in self.samples() if each["time"] > after])

        wait_for(sampled, 60, "a sample of the job")

    def samples(self) -> list[dict[str, Any]]:
        """Return what was sampled of a core's use."""
        rows = [row for f in self.run.glob("*#0") for row in read_table(f, "samples").to_pylist()]
        return [row for row in rows if row["metric"] == "proc.cpu.percent"]

    def spans(self) -> list[dict[str, Any]]:
        """Return all spans of the job."""
        found: list[dict[str, Any]] = read_table(self.rank, "spans").to_pylist()
        return found

    def finish(self) -> Done:
        """Let the job end once it was sampled; return how it ended."""
        try:
            self.wait_sampled()
            (self.folder / "END").touch()
            out, err = self.process.communicate(timeout=120)
        finally:
            self.kill()
        return Done(self.process.returncode, out, err)

    def kill(self) -> None:
        """End haiprof and the job, whatever they are at."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def turns(self) -> int:
        """Return how many turns the job says it made."""
        return int((self.folder / "TURNS").read_text())


def in_this_python(job: str | Path) -> tuple[str, str]:
    """Return the words that run a job."""
    return sys.executable, str(job)


def hold(row: str, job: Recorded, **ranges: int) -> None:
    """Compare what was recorded with the table.

    Args:
        row: of the table.
        job: it has ended as it does without haiprof, which the caller has seen to.
        ranges: how many intervals there are of each name, all of them.
    """
    assert process_file(job.rank)["lost"]["records"] == 0
    spans = job.spans()
    names = {"step": "steps", "phase": "phases", "user": "ranges"}
    found = {names[span["category"]] for span in spans if span["category"] in names}
    if job.samples():
        found.add("samples")
    assert ROWS[row] == ("yes", ", ".join(n for n in (*names.values(), "samples") if n in found))
    counted = Counter(span["name"] for span in spans if span["category"] == "user")
    assert counted == ranges
    assert all(0 <= span["duration"] < 60e9 for span in spans)
