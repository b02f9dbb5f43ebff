"""What CUPTI leaves behind when it records nothing any more, and what it loses as it stops.

Without haiprof: torch, ctypes and the probe. Every measurement is a fork of this process, compared
with itself: before CUPTI was used, after it recorded, and after ``cuptiFinalize``. Several forks of
each kind take turns, since processes differ by more than blocks of one process do.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu.estimates import estimate
from gpu.part import Part, main, scratch

from gpu import cupti, jobs

#: Launches in a block, blocks in each state, processes of each kind.
LAUNCHES, BLOCKS, PROCESSES = 10_000, 8, 4
#: What a process does to CUPTI between its first blocks and the next.
NOTHING, CALLBACKS, LATE, EARLY = "nothing", "callbacks", "late", "early"
KINDS = {
    NOTHING: "CUPTI never used",
    CALLBACKS: "callbacks registered, no kind ever enabled",
    LATE: "kernels recorded, from after the first context on",
    EARLY: "kernels recorded, from before the first context on",
}
#: Seconds for one fork.
FORK = 15.0
REPLAYS = 20
#: Kernels of about half a millisecond each that are queued when recording stops.
QUEUED = 400
FLOATS = {"cuda": 1 << 28, "cpu": 64}
#: How recording stops in the middle of them.
STOPS = ("disabled", "disabled and flushed with force", "disabled, and another clock is set")


def measure(part: Part) -> None:
    import torch  # noqa: F401  (seconds, and once for all forks)

    part.needs_kernels()
    probe = cupti.Probe()  # compiled once
    for how in STOPS:
        part.apart({how: functools.partial(stopped, part, probe, how)}, FORK)
    if part.device == "cuda":
        part.apart({"graphs": lambda: graphs(part, probe)}, FORK)
    with scratch() as folder:
        launches(part, probe, Path(folder))


# -- launches ------------------------------------------------------------------------------------


def launches(part: Part, probe: cupti.Probe, folder: Path) -> None:
    """What a launch takes after CUPTI has recorded, and after its end, against before."""
    found: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in KINDS}
    for number in range(PROCESSES if part.device == "cuda" else 1):
        for kind in KINDS:
            out = folder / f"{kind}-{number}"
            part.apart({KINDS[kind]: lambda out=out, kind=kind: out.write_text(
                json.dumps(launching(part, probe, kind)))}, FORK)  # fmt: skip
            if out.exists():
                found[kind].append(json.loads(out.read_text()))
    base = [_mean(one["before"]) for one in found[NOTHING]]
    if base:
        part.row("a launch where CUPTI was never used", estimate(base).scaled(1e9), "ns")
    for kind, several in found.items():
        for state in ("after", "finalized"):
            # Early ones have no time before.
            to = "before" if kind != EARLY else "finalized"
            if not several or state == to:
                continue
            longer = [100 * (_mean(one[state]) / _mean(one[to]) - 1) for one in several]
            then = "" if state == "after" else ", CUPTI ended"
            against = "" if to == "before" else ", against CUPTI ended"
            part.row(f"launches: {KINDS[kind]}{then}{against}", estimate(longer), "% longer")


def launching(part: Part, probe: cupti.Probe, kind: str) -> dict[str, list[float]]:
    """Seconds that a launch takes, block by block, in each state."""
    library = cupti.loaded()
    if kind == EARLY:
        cupti.begin_recording(library, probe, cupti.KERNEL)
    work = jobs.Launches(jobs.Machine(part.device))
    machine = work.machine
    work.eager(LAUNCHES // 10)
    machine.wait()

    def blocks() -> list[float]:
        return [machine.timed(lambda: work.eager(LAUNCHES)) / LAUNCHES for _ in range(BLOCKS)]

    found = {"before": [] if kind == EARLY else blocks()}
    if kind == CALLBACKS:
        probe.register(library, 1 << 20)
    if kind == LATE:
        cupti.begin_recording(library, probe, cupti.KERNEL)
        work.eager(LAUNCHES // 10)
        machine.wait()
    if kind in (LATE, EARLY):
        cupti.end_recording(library, probe, cupti.KERNEL)
    found["after"] = blocks()
    if kind != NOTHING:
        library.must("cuptiFinalize")
    found["finalized"] = blocks()
    return found


def _mean(values: list[float]) -> float:
    return estimate(values).value


# -- graphs --------------------------------------------------------------------------------------


def graphs(part: Part, probe: cupti.Probe) -> None:
    """What is left of recording in a graph that was captured before it, and in one meanwhile."""
    library = cupti.loaded()
    machine = jobs.Machine(part.device)
    before = jobs.Launches(machine)
    works = {"captured before recording": before}

    def kernels() -> int:
        if used:  # to ask it to flush is to use it
            library.call("cuptiActivityFlushAll", 0)
            time.sleep(0.05)
        return probe.scan(library)[0]

    def look(when: str) -> None:
        for name, work in works.items():
            work.replay()
            machine.wait()
            known = kernels()
            times = [machine.timed_on_device(work.replay) for _ in range(REPLAYS)]
            recorded = (kernels() - known) / REPLAYS
            part.row(f"graph {name}: a kernel {when}",
                     estimate(times).scaled(1e9 / jobs.Launches.NODES), "ns",
                     note=f"{recorded:g} kernels of a replay are recorded")  # fmt: skip

    used = False
    look("before CUPTI is used")
    used = True
    cupti.begin_recording(library, probe, cupti.KERNEL)
    works["captured while recording"] = jobs.Launches(machine)
    look("while recording")
    library.must("cuptiActivityDisable", cupti.KERNEL)
    look("after recording")
    works["captured after recording"] = jobs.Launches(machine)
    look("after recording, once more")
    used = False
    library.must("cuptiFinalize")
    look("after the end of CUPTI")


# -- kernels that are queued when recording stops ------------------------------------------------


def stopped(part: Part, probe: cupti.Probe, how: str) -> None:
    """How many kernels that were launched while recording have no time, or no record."""
    import torch

    library = cupti.loaded()
    cupti.begin_recording(library, probe, cupti.KERNEL)
    machine = jobs.Machine(part.device)
    x = torch.zeros(FLOATS[part.device], device=part.device)
    x.neg_()
    machine.wait()
    launch: Callable[[], Any] = x.neg_ if machine.cuda else lambda: machine.pretend(1)
    seen = []
    for _ in range(4):
        library.call("cuptiActivityFlushAll", 0)
        known, timeless, _ = probe.scan(library)
        for _ in range(QUEUED):
            launch()
        time.sleep(0.05)
        library.must("cuptiActivityDisable", cupti.KERNEL)
        if how == STOPS[1]:
            library.must("cuptiActivityFlushAll", cupti.FORCED)
        if how == STOPS[2]:
            library.must("cuptiActivityRegisterTimestampCallback", probe.clock())
        machine.wait()
        library.must("cuptiActivityFlushAll", 0)
        time.sleep(0.05)
        library.must("cuptiActivityFlushAll", cupti.FORCED)
        then, without, _ = probe.scan(library)
        seen.append([then - known, without - timeless])
        library.must("cuptiActivityEnable", cupti.KERNEL)
    part.row(f"kernels queued when kernels are {how}: without a time",
             sum(without for _, without in seen), "kernels",
             note=f"[recorded, without a time] of {QUEUED}, four times: {seen}")  # fmt: skip


if __name__ == "__main__":
    main(measure)
