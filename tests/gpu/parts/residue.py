"""What recording leaves behind when it has ended, and what is lost as it stops.

Torch, ctypes and the probe; haiprof only where a row says so. Every measurement is a fork of this
process, and those that recorded are compared with those that never used CUPTI. Forks of each kind
take turns, since processes differ by more than blocks of one process do.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu.estimates import estimate
from gpu.part import Part, main, scratch
from gpu.recorded import RUN

from gpu import cupti, jobs, modes

#: Seconds for one fork.
FORK = 20.0
#: Launches in a block; blocks and replays in a process.
LAUNCHES, BLOCKS, REPLAYS = 5_000, 8, 20
#: Kernels behind one that runs while they are launched, so that the GPU need not wait for any.
BEHIND = 500
#: Steps in a block, and blocks, of each model.
STEPS = 6
#: How long that one runs, in cycles of the GPU.
CYCLES = 20_000_000
#: Seconds from which on haiprof has ended recording because of a graph.
ENDED = 1.0
#: Kernels of about half a millisecond each that are queued when recording stops.
QUEUED = 400
FLOATS = {"cuda": 1 << 28, "cpu": 64}
#: How recording stops in the middle of them.
STOPS = ("disabled", "disabled and flushed with force", "disabled, and another clock is set",
         "disabled, and the same clock is set again")  # fmt: skip
KERNELS = (cupti.KERNEL,)


class Kind(NamedTuple):
    """What a process does before it is measured."""

    name: str
    #: Of activity that is recorded; none: only callbacks are registered; None: CUPTI is not used.
    recorded: Sequence[int] | None = None
    #: From before the first context on; with haiprof, from before the graph is captured.
    early: bool = True
    #: The mode of haiprof that records.
    haiprof: str = ""


NEVER = Kind("CUPTI never used")
KINDS = (
    NEVER,
    Kind("callbacks registered, nothing recorded", (), early=False),
    Kind("kernels recorded", KERNELS, early=False),
    Kind("kernels recorded, from before the first context on", KERNELS),
    Kind("haiprof recorded all, stopped", haiprof="all"),
    Kind("haiprof recorded until a graph was replayed", haiprof="windows"),
    Kind("haiprof saw a graph before it recorded", haiprof="windows", early=False),
)


def measure(part: Part) -> None:
    import torch  # noqa: F401  (seconds, and once for all forks)

    part.needs_kernels()
    probe = cupti.Probe()  # compiled once
    for how in STOPS:
        part.apart({how: functools.partial(stopped, part, probe, how)}, FORK)
    found: dict[str, list[dict[str, float]]] = {}
    longest = 0.0
    going = part.rounds(part.left())
    with scratch() as folder:
        while not found or (going() and part.left() > longest):
            began = time.monotonic()
            for kind in KINDS:
                out = Path(folder, "found")
                out.unlink(missing_ok=True)
                part.apart({kind.name: functools.partial(left, part, probe, kind, out)}, FORK)
                if out.exists():
                    found.setdefault(kind.name, []).append(json.loads(out.read_text()))
            longest = max(longest, time.monotonic() - began)
            tell(part, found)


# -- what is left --------------------------------------------------------------------------------


def tell(part: Part, found: dict[str, list[dict[str, float]]]) -> None:
    for name, processes in found.items():
        for what in processes[0]:
            values = [process[what] for process in processes]
            unit = "kernels" if what.endswith("recorded") else "ns"
            part.row(f"{name}: {what}", estimate(values), unit,
                     note=", ".join(f"{value:.0f}" for value in values))  # fmt: skip


def left(part: Part, probe: cupti.Probe, kind: Kind, out: Path) -> None:
    with scratch() as folder:
        work, also, count = recorded(part, probe, kind, Path(folder))
        out.write_text(json.dumps(costs(work, also, count)))


def recorded(
    part: Part, probe: cupti.Probe, kind: Kind, folder: Path
) -> tuple[jobs.Launches, jobs.Launches, Callable[[], int]]:
    """Record and end; work captured meanwhile, work captured since, how many kernels there are."""
    if kind.haiprof:
        return _by_haiprof(part, kind, folder)
    library = cupti.loaded()
    used = kind.recorded is not None

    def begin() -> None:
        if kind.recorded:
            cupti.begin_recording(library, probe, *kind.recorded)
        elif used:
            probe.register(library, 1 << 20)

    if not kind.early:
        jobs.Machine(part.device)
    begin()
    work = _worked(part)

    if kind.recorded:
        cupti.end_recording(library, probe, *kind.recorded)

    def count() -> int:
        if used:  # to ask CUPTI to flush is to use it
            library.call("cuptiActivityFlushAll", 0)
            time.sleep(0.05)
        return probe.scan(library)[0]

    return work, jobs.Launches(work.machine), count


def _by_haiprof(
    part: Part, kind: Kind, folder: Path
) -> tuple[jobs.Launches, jobs.Launches, Callable[[], int]]:
    import haiprof
    from haiprof import _core

    haiprof.start(folder, run=RUN, hooks=False, kernels=kind.haiprof, budget=0.0, recorders="io",
                  io_interval=3600.0)  # fmt: skip
    if kind.haiprof == "windows" and kind.early:
        modes.open_first_window(jobs.Machine(part.device))
    work = _worked(part)
    if kind.haiprof == "all":
        _core.gpu_stop(5.0)
    else:
        time.sleep(ENDED)

    def count() -> int:
        return modes.counts()["kernels"]

    return work, jobs.Launches(work.machine), count


def _worked(part: Part) -> jobs.Launches:
    work = jobs.Launches(jobs.Machine(part.device))
    work.eager(100)
    work.replay()
    work.machine.wait()
    return work


def costs(work: jobs.Launches, also: jobs.Launches, count: Callable[[], int]) -> dict[str, float]:
    """Nanoseconds that kernels and steps take; how many kernels of a graph are recorded."""
    machine = work.machine
    found: dict[str, float] = {}
    for what, graph in (("captured meanwhile", work), ("captured since", also)):
        graph.replay()
        machine.wait()
        before = count()
        times = [machine.timed_on_device(graph.replay) for _ in range(REPLAYS)]
        found[f"a kernel of a graph {what}"] = _ns(times, jobs.Launches.NODES)
        found[f"kernels of a graph {what} that are recorded"] = (count() - before) / REPLAYS
    times = [machine.timed(lambda: work.eager(LAUNCHES)) for _ in range(BLOCKS)]
    found["a launch"] = _ns(times, LAUNCHES)

    def behind() -> float:
        import torch

        if machine.cuda:
            torch.cuda._sleep(CYCLES)
        return machine.timed_on_device(lambda: work.eager(BEHIND))

    found["a kernel in a queue"] = _ns([behind() for _ in range(BLOCKS)], BEHIND)
    for model in ("transformer", "small"):
        training = jobs.training(model, machine)
        training.steps(STEPS)
        machine.wait()
        times = [machine.timed(lambda: training.steps(STEPS)) for _ in range(STEPS)]  # noqa: B023
        found[f"a step, {model}"] = _ns(times, STEPS)
    return found


def _ns(times: list[float], kernels: int) -> float:
    """The median, of one kernel."""
    return 1e9 * sorted(times)[len(times) // 2] / kernels


# -- kernels that are queued when recording stops ------------------------------------------------


def stopped(part: Part, probe: cupti.Probe, how: str) -> None:
    """How many kernels that were launched while recording have no time, or no record."""
    import torch

    library = cupti.loaded()
    if how == STOPS[3]:
        library.must("cuptiActivityRegisterTimestampCallback", probe.clock())
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
        if how in STOPS[2:]:
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
