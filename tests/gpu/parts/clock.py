"""Which clock cuptiGetTimestamp and the records have around sessions of torch.profiler.

torch.profiler has CUPTI read the processor's counter and leaves it at that: afterwards no clock is
expected, only that the records are on one.
"""

from __future__ import annotations

import time
from typing import Any

from gpu.part import Part, main

from gpu import cupti, jobs

#: A clock that is this near to another one, ns, is the same.
NEAR = 10_000_000


def measure(part: Part) -> None:
    part.needs_kernels()
    machine = jobs.Machine(part.device)
    training = jobs.training("small", machine)
    training.steps(3)
    machine.wait()
    library = cupti.loaded()
    tell(part, "before", library)
    part.piece("records before", records, part, library, training, "before")
    for session in ("first", "second"):
        with jobs.torch_profiler(part.device):
            training.steps(3)
            machine.wait()
        part.piece(f"after the {session} session", tell, part, f"after the {session} session",
                   library)  # fmt: skip
    part.piece("records", records, part, library, training, "afterwards")


def tell(part: Part, when: str, library: cupti.Cupti) -> None:
    offset, rate, took = compared(library)
    part.fact(f"{when}: cuptiGetTimestamp", f"{domain(offset, rate)}; {rate:.6f} units per ns")
    first = when == "before"
    part.row(f"{when}: cuptiGetTimestamp minus CLOCK_REALTIME", offset, "ns",
             target=f"within {NEAR}" if first else "", met=abs(offset) <= NEAR if first else None,
             note=f"a call takes {took:.0f} ns")  # fmt: skip


def compared(library: Any) -> tuple[float, float, float]:
    """How far the clock is from CLOCK_REALTIME, its units per ns, and what a call takes, ns."""
    first = time.time_ns()
    ours = library.timestamp()
    time.sleep(0.3)
    last = time.time_ns()
    ours_last = library.timestamp()
    begin = time.perf_counter_ns()
    for _ in range(1000):
        library.timestamp()
    took = (time.perf_counter_ns() - begin) / 1000
    return float(ours - first), (ours_last - ours) / (last - first), took


def domain(offset: float, rate: float) -> str:
    """What the clock is, in words."""
    if abs(offset) <= NEAR:
        return "CLOCK_REALTIME in ns"
    return "another clock in ns" if abs(rate - 1) < 1e-3 else "ticks of a counter"


def records(part: Part, library: cupti.Cupti, training: jobs.Training, when: str) -> None:
    probe = cupti.Probe()
    old = len(probe.buffers())
    cupti.begin_recording(library, probe, cupti.KERNEL)
    training.steps(1)
    training.machine.wait()
    begin = clocks(library, probe)
    training.steps(10)
    training.machine.wait()
    end = clocks(library, probe)
    cupti.end_recording(library, probe, cupti.KERNEL)
    kernels, _, _ = cupti.read(library, probe.buffers()[old:])
    if not kernels:
        raise RuntimeError("CUPTI recorded no kernel")
    # One step of the eleven came before the interval.
    wanted = len(kernels) * 10 // 11
    inside = {clock: sum(begin[clock] <= kernel.start <= end[clock] for kernel in kernels)
              for clock in begin}  # fmt: skip
    fits = [clock for clock, count in inside.items() if count == wanted]
    part.row(f"{when}: clocks that the times of all kernels fit", len(fits), "clocks",
             target=">= 1", met=bool(fits),
             note=f"{', '.join(fits) or 'none'}; inside of {wanted}: {inside}")  # fmt: skip
    backwards = sum(kernel.end < kernel.start for kernel in kernels)
    zero = sum(kernel.start == 0 for kernel in kernels)
    part.row(f"{when}: kernels that end before they start or have no time", backwards + zero,
             "kernels", target="= 0", met=backwards + zero == 0)  # fmt: skip
    low = min(kernel.start for kernel in kernels)
    high = max(kernel.start for kernel in kernels)
    part.fact(f"{when}: kernels start from, to", [low, high])
    part.fact(f"{when}: clocks from, to", [begin, end])


def clocks(library: cupti.Cupti, probe: cupti.Probe) -> dict[str, int]:
    """Every clock that records may have, now."""
    return {"CLOCK_REALTIME": time.time_ns(), "cuptiGetTimestamp": library.timestamp(),
            "processor's counter": probe.ticks()}  # fmt: skip


if __name__ == "__main__":
    main(measure)
