"""What CUPTI does when it is given no buffer, or one whose records are thrown away.

Each in a process of its own, because a CUPTI before 12.9 is said to crash there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.part import Part, main, scratch

from gpu import cupti, jobs

LAUNCHES = 30_000
WAYS = {
    "none from the beginning": (cupti.NONE, cupti.NONE),
    "none from the middle on": (cupti.KEEP, cupti.NONE),
    "none, and buffers again later": (cupti.NONE, cupti.KEEP),
    "thrown away from the beginning": (cupti.DISCARD, cupti.DISCARD),
    "thrown away, and kept later": (cupti.DISCARD, cupti.KEEP),
    "kept": (cupti.KEEP, cupti.KEEP),
}


def measure(part: Part) -> None:
    part.needs_kernels()
    for way in WAYS:
        part.piece(way, one, part, way)


def one(part: Part, way: str) -> None:
    with scratch() as folder:
        begun = Path(folder, "begun")
        result = part.child("job", way, str(begun), seconds=25, code=None)
        if not begun.exists():
            raise RuntimeError(f"the job did not come to where CUPTI is used: {result['stderr']}")
    alive = result["returncode"] == 0
    note = f"ended with {result['returncode']}: {result['stderr']}"
    if alive:
        note = (f"{result['kernels']} of {2 * LAUNCHES} kernels kept, {result['dropped']} dropped; "
                f"{result['asked']} buffers asked for, {result['refused']} refused, "
                f"{result['discarded']} thrown away")  # fmt: skip
    part.check(f"{way}: the job lives", alive, note)
    if not alive:
        return
    if way == "kept":
        part.check("kept: every kernel is there", result["kernels"] == 2 * LAUNCHES)
    if WAYS[way][1] == cupti.KEEP:
        part.check(f"{way}: there are records from then on", result["kernels"] > 0)


def _job(device: str, words: Sequence[str]) -> dict[str, Any]:
    machine = jobs.Machine(device)
    launches = jobs.Launches(machine)
    machine.wait()
    library, probe = cupti.loaded(), cupti.Probe()
    way, begun = words
    first, then = WAYS[way]
    Path(begun).touch()
    probe.mode(first)
    cupti.begin_recording(library, probe, cupti.KERNEL)
    for mode in (first, then):
        probe.mode(mode)
        launches.eager(LAUNCHES)
        machine.wait()
        library.must("cuptiActivityFlushAll", 0)
    cupti.end_recording(library, probe, cupti.KERNEL)
    kernels, _, _ = cupti.read(library, probe.buffers())
    return {"kernels": len(kernels), "dropped": library.dropped(), **probe.counts()}


if __name__ == "__main__":
    main(measure, {"job": _job})
