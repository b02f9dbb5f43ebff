"""What ``cuptiActivityFlushAll(0)`` takes, and what it does to a thread that launches.

It is called beside haiprof's own calls (every 100 ms), on a thread without the GIL.
"""

from __future__ import annotations

from pathlib import Path

from gpu.estimates import added, quantile
from gpu.part import Part, main, scratch

from gpu import cupti, jobs, modes

#: Seconds between two calls, and the share of the time that it is looked at.
PERIODS = {0.1: 0.18, 0.01: 0.18, 0.05: 0.18, 1.0: 0.46}
LAUNCHES = 20_000
#: The shortest block, s; without a GPU one in which some calls are made.
BLOCK = {"cuda": 0.5, "cpu": 0.25}


def measure(part: Part) -> None:
    part.needs_kernels()
    with scratch() as folder, modes.Haiprof(Path(folder), part.device) as haiprof:
        machine = haiprof.machine
        launches = jobs.Launches(machine)
        machine.wait()
        library, probe = cupti.loaded(), cupti.Probe()
        haiprof.on("all", hooks=False)
        left = part.left()
        for period, share in PERIODS.items():
            what = f"every {period * 1e3:g} ms"
            part.piece(what, one, part, what, period, share * left, launches, library, probe)


def one(
    part: Part, what: str, period: float, seconds: float, launches: jobs.Launches,
    library: cupti.Cupti, probe: cupti.Probe,
) -> None:  # fmt: skip
    block = max(BLOCK[part.device], 1.2 * period)
    going = part.rounds(seconds - 2 * block)
    during: list[float] = []
    without: list[float] = []
    took: list[float] = []
    before = modes.counts()["kernels"]
    while going() or len(during) < 2:
        for flushing in (True, False) if len(during) % 2 else (False, True):
            if not flushing:
                without.append(launched_for(part, launches, block))
                continue
            probe.pace(library.address("cuptiActivityFlushAll"), 0, period)
            during.append(launched_for(part, launches, block))
            took += probe.stop_pace()
    part.row(f"{what}: launch-bound", added(during, without), "% longer",
             note=f"{modes.counts()['kernels'] - before} kernels were recorded")  # fmt: skip
    if not took:
        raise RuntimeError("no call was made")
    part.row(f"{what}: one call, median", 1e6 * quantile(took, 0.5), "us",
             note=f"95 %: {1e6 * quantile(took, 0.95):.1f} us, longest: "
                  f"{1e6 * max(took):.1f} us, {len(took)} calls")  # fmt: skip


def launched_for(part: Part, launches: jobs.Launches, seconds: float) -> float:
    """Seconds that a launch takes, over so many seconds."""
    going = part.spend(seconds)
    taken = 0.0
    blocks = 0
    while going() or not blocks:
        taken += launches.machine.timed(lambda: launches.eager(LAUNCHES))
        blocks += 1
    return taken / (blocks * LAUNCHES)


if __name__ == "__main__":
    main(measure)
