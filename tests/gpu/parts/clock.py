"""Which clock cuptiGetTimestamp and the records have around sessions of torch.profiler."""

from __future__ import annotations

import time
from typing import Any

from gpu.part import Part, main

from gpu import cupti, jobs, modes

#: A clock that is this near to another one, ns, is the same.
NEAR = 10_000_000


def measure(part: Part) -> None:
    machine = jobs.Machine(part.device)
    training = jobs.training("small", machine)
    training.steps(3)
    machine.wait()
    library = cupti.loaded()
    tell(part, "before", library)
    for session in ("first", "second"):
        with modes.torch_profiler(part.device):
            training.steps(3)
            machine.wait()
        part.piece(f"after the {session} session", tell, part, f"after the {session} session",
                   library)  # fmt: skip
    part.piece("records", records, part, library, training)


def tell(part: Part, when: str, library: cupti.Cupti) -> None:
    offset, rate, took = compared(library)
    part.fact(f"{when}: cuptiGetTimestamp", f"{domain(offset, rate)}; {rate:.6f} units per ns")
    part.row(f"{when}: cuptiGetTimestamp minus CLOCK_REALTIME", offset, "ns",
             target=f"within {NEAR}", met=abs(offset) <= NEAR,
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


def records(part: Part, library: cupti.Cupti, training: jobs.Training) -> None:
    probe = cupti.Probe()
    cupti.begin_recording(library, probe, cupti.KERNEL)
    training.steps(1)
    training.machine.wait()
    begin, stamp = time.time_ns(), library.timestamp()
    training.steps(10)
    training.machine.wait()
    end, stamp_end = time.time_ns(), library.timestamp()
    cupti.end_recording(library, cupti.KERNEL)
    kernels, _, _ = cupti.read(library, probe.buffers())
    if not kernels:
        raise RuntimeError("CUPTI recorded no kernel after the sessions")
    # One step of the eleven came before the interval.
    wanted = len(kernels) * 10 // 11
    for clock, low, high in (
        ("CLOCK_REALTIME", begin, end), ("cuptiGetTimestamp", stamp, stamp_end),
    ):  # fmt: skip
        inside = sum(low <= kernel.start <= high for kernel in kernels)
        part.row(f"afterwards: kernels whose times fit {clock}", inside, "kernels",
                 target=f"= {wanted}" if clock == "CLOCK_REALTIME" else "",
                 met=inside == wanted, note=f"{len(kernels)} recorded")  # fmt: skip
    backwards = sum(kernel.end < kernel.start for kernel in kernels)
    zero = sum(kernel.start == 0 for kernel in kernels)
    part.row("afterwards: kernels that end before they start or have no time", backwards + zero,
             "kernels", target="= 0", met=backwards + zero == 0)  # fmt: skip
    low = min(kernel.start for kernel in kernels)
    high = max(kernel.start for kernel in kernels)
    part.fact("afterwards: kernels start from, to", [low, high])
    part.fact("afterwards: CLOCK_REALTIME from, to", [begin, end])


if __name__ == "__main__":
    main(measure)
