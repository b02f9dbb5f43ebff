"""Whether correlation ids grow in the order of launches.

If so, one that is taken at the boundary of two phases tells the kernels of both apart. Looked at
with kernels alone recorded, and with the calls of the runtime. And whether kernels of graphs have
the id of their launch, which CUPTI before 13.1 has wrong from the second recording on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gpu.cupti import Call, Kernel
from gpu.part import Part, main

from gpu import cupti, jobs

STEPS = 20
#: What each boundary launches, and nothing else of the job.
MARKER = "bitwise_not"


def measure(part: Part) -> None:
    part.needs_gpu()
    part.piece("kernels alone", one, part, "alone")
    part.piece("kernels and cudaEventRecord", one, part, "calls")
    part.piece("graphs", graphs, part)


def one(part: Part, how: str) -> None:
    result = part.child(how, seconds=30)
    note = f"{result['kernels']} kernels, {result['markers']} boundaries"
    what = "kernels alone" if how == "alone" else "with calls of cudaEventRecord"
    part.row(f"{what}: kernels whose id is not greater than of the one launched before",
             result["inversions"], "kernels", target="= 0",
             met=result["inversions"] == 0, note=note)  # fmt: skip
    part.row(f"{what}: kernels without an id", result["without"], "kernels", target="= 0",
             met=result["without"] == 0)  # fmt: skip
    part.row(f"{what}: kernels on the wrong side of a marker kernel's id", result["astray"],
             "kernels", target="= 0", met=result["astray"] == 0, note=note)  # fmt: skip
    if how == "calls":
        part.row(f"{what}: kernels on the wrong side of a call's id", result["astray_of_calls"],
                 "kernels", target="= 0", met=result["astray_of_calls"] == 0,
                 note=f"{result['calls']} calls at {result['markers']} boundaries")  # fmt: skip
    part.fact(f"{what}: streams", result["streams"])


def graphs(part: Part) -> None:
    found = part.child("graphs", seconds=30)
    for recording, (kernels, launched) in enumerate(found["recordings"], 1):
        first = recording == 1
        part.row(f"graphs, recording {recording}: kernels with the id of a launch of their graph",
                 launched, "kernels", target=f"= {kernels}" if first else "",
                 met=launched == kernels > 0 if first else None,
                 note=f"of {kernels}; CUPTI {found['cupti']}")  # fmt: skip


def inversions(kernels: Sequence[Kernel]) -> int:
    """Of kernels in the order in which they ran on one stream, those whose id does not grow."""
    return sum(b.correlation <= a.correlation for a, b in itertools.pairwise(kernels))


def astray(kernels: Sequence[Kernel], marks: Sequence[int], ids: Sequence[int]) -> int:
    """Kernels that ids put between other boundaries than time does.

    Args:
        kernels: in the order in which they ran.
        marks: where in it the marker kernels are.
        ids: the id of each boundary, in order.
    """
    wrong = 0
    boundary = 0
    places = set(marks)
    for at, kernel in enumerate(kernels):
        if at in places:
            boundary += 1
        elif boundary != sum(kernel.correlation > watermark for watermark in ids):
            wrong += 1
    return wrong


def _run(device: str, calls: bool) -> dict[str, Any]:
    import torch

    machine = jobs.Machine(device)
    training = jobs.training("small", machine)
    training.steps(5)
    flag = torch.zeros(32, dtype=torch.int8, device=device)
    machine.wait()
    library, probe = cupti.loaded(), cupti.Probe()
    kinds = (cupti.KERNEL, cupti.RUNTIME) if calls else (cupti.KERNEL,)
    cupti.begin_recording(library, probe, *kinds)

    def boundary() -> None:
        flag.bitwise_not_()
        machine.marker()

    for _ in range(STEPS):
        boundary()
        loss = training.forward()
        boundary()
        loss.backward()
        boundary()
        training.optimizer.step()
        boundary()
        training.optimizer.zero_grad()
    machine.wait()
    cupti.end_recording(library, probe, *kinds)
    kernels, api, _ = cupti.read(library, probe.buffers())
    if not kernels:
        raise RuntimeError("CUPTI recorded no kernel")
    return _told(library, kernels, [call for call in api if call.cbid in cupti.EVENT_RECORD])


def _told(library: cupti.Cupti, kernels: list[Kernel], calls: list[Call]) -> dict[str, Any]:
    names = library.names_of(kernels)
    streams: dict[int, int] = {}
    for kernel in kernels:
        streams[kernel.stream] = streams.get(kernel.stream, 0) + 1
    busiest = max(streams, key=lambda stream: streams[stream])
    ordered = sorted((k for k in kernels if k.stream == busiest), key=lambda k: k.start)
    marks = [at for at, k in enumerate(ordered) if MARKER in names.get(k.name, "")]
    calls = sorted(calls, key=lambda call: call.start)
    return {
        "kernels": len(kernels),
        "markers": len(marks),
        "calls": len(calls),
        "streams": streams,
        "without": sum(kernel.correlation == 0 for kernel in kernels),
        "inversions": inversions(ordered),
        "astray": astray(ordered, marks, [ordered[at].correlation for at in marks])
        if marks else len(ordered),
        "astray_of_calls": astray(ordered, marks, [call.correlation for call in calls])
        if calls else len(ordered),
    }  # fmt: skip


def _alone(device: str, words: Sequence[str]) -> dict[str, Any]:
    return _run(device, calls=False)


def _calls(device: str, words: Sequence[str]) -> dict[str, Any]:
    return _run(device, calls=True)


def _graphs(device: str, words: Sequence[str]) -> dict[str, Any]:
    launches = jobs.Launches(jobs.Machine(device))
    library, probe = cupti.loaded(), cupti.Probe()
    recordings = []
    for _ in range(3):
        before = len(probe.buffers())
        cupti.begin_recording(library, probe, cupti.KERNEL, cupti.RUNTIME)
        launches.replays(3)
        launches.machine.wait()
        cupti.end_recording(library, probe, cupti.KERNEL, cupti.RUNTIME)
        kernels, calls, _ = cupti.read(library, probe.buffers()[before:])
        ids = {call.correlation for call in calls if call.cbid in cupti.GRAPH_LAUNCH}
        recordings.append([len(kernels), sum(kernel.correlation in ids for kernel in kernels)])
    return {"recordings": recordings, "cupti": library.version()}


if __name__ == "__main__":
    main(measure, {"alone": _alone, "calls": _calls, "graphs": _graphs})
