"""What is left of the cost after recording has ended, against processes that never recorded.

Four processes take turns, a block each: one that records and ends before each of its blocks, one
that did so once and then ended CUPTI, and two that never do. What the two differ by is what
processes differ by.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.estimates import added, estimate
from gpu.part import Part, main, scratch

from gpu import cupti, jobs

LAUNCHES = 20_000
#: Steps with kernels recorded before each block of the process that records.
STEPS = 10
WORKERS = {"recorded before": "toggle", "CUPTI ended": "finalize", "never": "never",
           "never, another one": "never"}  # fmt: skip


class Worker:
    """A process that does one block when it is told to."""

    def __init__(self, part: Part, how: str, folder: Path) -> None:
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", part.module, "--device", part.device, "--child", "worker", how,
             str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip

    def ask(self, what: str) -> list[float]:
        """Send one word, return the numbers of the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline().split()
        except BrokenPipeError:
            answer = []
        if not answer:
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()[-1:]
            raise RuntimeError(f"a process ended: {said}")
        return [float(number) for number in answer]

    def end(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure(part: Part) -> None:
    part.needs_kernels()
    with scratch() as folder:
        workers = {}
        for name, how in WORKERS.items():
            own = Path(folder, name.replace(" ", "-"))
            own.mkdir()
            workers[name] = Worker(part, how, own)
        try:
            rounds(part, workers)
        finally:
            for worker in workers.values():
                worker.end()


def rounds(part: Part, workers: dict[str, Worker]) -> None:
    for worker in workers.values():
        worker.ask("block")
    launches: dict[str, list[float]] = {name: [] for name in workers}
    steps: dict[str, list[float]] = {name: [] for name in workers}
    toggles: list[list[float]] = []
    names = list(workers)
    going = part.rounds(part.left() - 8)
    while going() or len(toggles) < 2:
        toggles.append(workers["recorded before"].ask("toggle"))
        for name in names:
            launch, step = workers[name].ask("block")
            launches[name].append(launch)
            steps[name].append(step)
        names.append(names.pop(0))
    part.row("a launch in a process that never recorded",
             estimate(launches["never"]).scaled(1e9 / LAUNCHES), "ns")  # fmt: skip
    for what, times in (("launch-bound", launches), ("small transformer", steps)):
        part.limited(f"{what}: after recording has ended",
                     added(times["recorded before"], times["never"]), "% longer", 0.5)  # fmt: skip
        part.row(f"{what}: after recording and CUPTI have ended",
                 added(times["CUPTI ended"], times["never"]), "% longer")  # fmt: skip
        part.row(f"{what}: another process that never recorded",
                 added(times["never, another one"], times["never"]), "% longer")  # fmt: skip
    part.row("beginning to record takes", estimate([t[0] for t in toggles]).scaled(1e3), "ms")
    part.row("ending takes", estimate([t[1] for t in toggles]).scaled(1e3), "ms")
    recorded = toggles[-1][2]
    part.check("kernels were recorded before each block", recorded > 0, f"{recorded:.0f} in all")


def _worker(device: str, words: Sequence[str]) -> dict[str, Any]:
    how, folder = words
    if how != "never":
        # As in any job: CUPTI is there before the first CUDA context.
        _begin(folder)
    machine = jobs.Machine(device)
    training = jobs.training("small", machine)
    launches = jobs.Launches(machine)
    training.steps(10)
    launches.eager(1000)
    machine.wait()
    if how != "never":
        _end()
    if how == "finalize":
        cupti.loaded().must("cuptiFinalize")
    for line in sys.stdin:
        if line.strip() == "block":
            training.steps(2)
            launches.eager(200)
            machine.wait()
            launch = machine.timed(lambda: launches.eager(LAUNCHES))
            step = machine.timed(lambda: training.steps(STEPS)) / STEPS
            print(launch, step, flush=True)
        elif how == "toggle":
            print(*_toggle(training, folder), flush=True)
    return {}


def _begin(folder: str) -> None:
    import haiprof
    from haiprof import _core
    from haiprof.capture.hooks.cuda import libcupti_folders

    if not _core.ring_open():
        haiprof.start(folder, run="run", hooks=False, kernels="off", recorders="io",
                      io_interval=3600.0)  # fmt: skip
    refused = _core.gpu_start(":".join(libcupti_folders()), kernels="all")
    if refused is not None:
        raise RuntimeError(f"kernels cannot be recorded: {refused[0]}")


def _end() -> None:
    from haiprof import _core

    _core.gpu_stop(2.0)


def _toggle(training: jobs.Training, folder: str) -> tuple[float, float, int]:
    """Record some steps; seconds of beginning and of ending, and kernels recorded so far."""
    from haiprof import _core

    begin = time.perf_counter()
    _begin(folder)
    begun = time.perf_counter()
    training.steps(STEPS)
    training.machine.wait()
    ending = time.perf_counter()
    _end()
    return begun - begin, time.perf_counter() - ending, _core.gpu_counts()["kernels"]


if __name__ == "__main__":
    main(measure, {"worker": _worker})
