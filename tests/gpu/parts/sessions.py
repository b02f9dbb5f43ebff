"""Sessions of torch.profiler that begin while kernels are queued: who records which?

Before and in a session kernels of different names are launched, and nobody waits for the GPU in
between; so are they after it, once haiprof records again, and before the next. So each kernel's
name says when it was launched, whatever the clocks say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu.part import Part, main, scratch

from gpu import jobs, modes, recorded

SESSIONS = 3
#: haiprof records again so long after a session, s, and some more.
RESUMED = 1.0
#: So many kernels of about half a millisecond each are under way when a session begins.
QUEUED = 400
FLOATS = 1 << 28
#: What a kernel's name has in it, by when it is launched.
NAMES = {"before": "neg_kernel", "inside": "abs", "after": "ceil_kernel"}
Counts = dict[str, int]


def measure(part: Part) -> None:
    part.needs_gpu()
    alone = part.child("alone", seconds=35)
    launched = SESSIONS * QUEUED
    outside = _outside(alone["theirs"])
    part.row("torch.profiler alone: kernels launched in its sessions", alone["theirs"]["inside"],
             "kernels", target=f"= {launched}", met=alone["theirs"]["inside"] == launched,
             note=f"and {outside} that were launched outside")  # fmt: skip
    both = part.child("with_haiprof", seconds=50)
    theirs, ours = both["theirs"], both["ours"]
    part.row("with haiprof: kernels launched in sessions that torch.profiler has",
             theirs["inside"], "kernels", target=f"= {launched}",
             met=theirs["inside"] == launched)  # fmt: skip
    part.row("with haiprof: kernels launched outside that torch.profiler has", _outside(theirs),
             "kernels", target=f"= {outside}, as alone",
             met=_outside(theirs) == outside)  # fmt: skip
    for when in ("before", "after"):
        # One more was launched before the first session, so that its code is there.
        wanted = launched + 1
        part.row(f"kernels launched {when} sessions that haiprof has", ours[when], "kernels",
                 target=f"= {wanted}", met=ours[when] == wanted)  # fmt: skip
    part.row("kernels that both have", max(0, ours["inside"] - 1) + _outside(theirs) - outside,
             "kernels", target="= 0",
             met=ours["inside"] <= 1 and _outside(theirs) <= outside)  # fmt: skip
    part.fact("counts", both["counts"])
    part.fact("kernels without a time after each session", both["timeless"])
    part.fact("events", both["events"])


def _outside(found: Counts) -> int:
    return found["before"] + found["after"]


def told_apart(kernels: dict[str, tuple[int, float]]) -> Counts:
    """How many kernels were launched when, by their names."""
    return {
        when: sum(count for name, (count, _) in kernels.items() if word in name.lower())
        for when, word in NAMES.items()
    }


def sessions(device: str, after_each: Callable[[], None] = lambda: None) -> Counts:
    """Launch it all; what torch.profiler has of it."""
    import torch

    x = torch.zeros(FLOATS, device=device)
    launch = {"before": x.neg_, "inside": x.abs_, "after": x.ceil_}
    for once in launch.values():
        once()
    jobs.Machine(device).wait()
    profilers = []

    def queue(when: str) -> None:
        for _ in range(QUEUED):
            launch[when]()

    for _ in range(SESSIONS):
        queue("before")
        with jobs.torch_profiler(device) as profiler:
            queue("inside")
        time.sleep(RESUMED)
        after_each()
        queue("after")
        profilers.append(profiler)
    jobs.Machine(device).wait()
    found = dict.fromkeys(NAMES, 0)
    with scratch() as folder:
        for number, profiler in enumerate(profilers):
            trace = Path(folder, f"{number}.json")
            profiler.export_chrome_trace(str(trace))
            for when, count in told_apart(recorded.kernels_of_trace(trace)[0]).items():
                found[when] += count
    return found


def _alone(device: str, words: Sequence[str]) -> dict[str, Any]:
    jobs.Machine(device)
    return {"theirs": sessions(device)}


def _with_haiprof(device: str, words: Sequence[str]) -> dict[str, Any]:
    import haiprof

    with scratch() as folder:
        haiprof.start(folder, run=recorded.RUN, hooks=False, kernels="all", budget=0.0, ring_mib=64)
        jobs.Machine(device)
        timeless = []
        theirs = sessions(device, lambda: timeless.append(modes.counts()["timeless"]))
        counts = modes.counts()
        haiprof.stop()
        if not recorded.closed(Path(folder), 20):
            raise RuntimeError("haiprof's recorder has not closed its files after 20 s")
        kernels, _ = recorded.kernels_of_rows(recorded.rows(Path(folder), "kernels"))
        events = recorded.events(Path(folder))
    return {"theirs": theirs, "ours": told_apart(kernels), "counts": counts, "events": events,
            "timeless": timeless}  # fmt: skip


if __name__ == "__main__":
    main(measure, {"alone": _alone, "with_haiprof": _with_haiprof})
