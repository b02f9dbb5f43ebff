"""What windows hold of a CUDA graph that was captured between two of them, as most graphs are."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu.part import Part, main, scratch

from gpu import jobs, modes, recorded

NODES = jobs.Launches.NODES
#: A window begins so often, s; how long replays go on.
PERIOD, SECONDS = 1.0, {"cuda": 8.0, "cpu": 4.0}
#: What the clocks of host and GPU may differ by, s; a replay is that far from its neighbours.
APART = 0.002
Interval = tuple[int, int]


def measure(part: Part) -> None:
    part.needs_kernels()
    for how in ("late", "early"):
        part.piece(how, one, part, how)


def one(part: Part, how: str) -> None:
    found = part.child("job", how, seconds=35)
    when = "between windows" if how == "late" else "in a window"
    counts = found["counts"]
    if not counts:
        raise RuntimeError(f"no whole replay lies in any of {found['windows']} windows")
    part.check(f"the graph was captured {when}", found["captured_inside"] == (how == "early"))
    part.row(f"captured {when}: kernels that a window holds of a replay",
             statistics.median(counts), "kernels", target=f"= {NODES}",
             met=set(counts) == {NODES},
             note=f"from {min(counts)} to {max(counts)} of {NODES}; {len(counts)} whole replays in "
                  f"{found['windows']} windows")  # fmt: skip
    part.fact(f"captured {when}: events", found["events"])


def windows_of(events: Sequence[dict[str, Any]], end: int) -> list[Interval]:
    """From when to when kernels were recorded, as the run's events say; ``end`` closes the last."""
    found: list[Interval] = []
    begin: int | None = None
    for event in sorted(events, key=lambda event: event["time"]):
        recording = json.loads(event["attributes"])["recording"]
        if recording and begin is None:
            begin = event["time"]
        elif not recording and begin is not None:
            found.append((begin, event["time"]))
            begin = None
    return [*found, (begin, end)] if begin is not None else found


def held(
    replays: Sequence[Interval], windows: Sequence[Interval], starts: Sequence[int], apart: int
) -> list[int]:
    """How many kernels each replay has that lies in a window as a whole."""
    whole = [r for r in replays if any(w[0] <= r[0] and r[1] <= w[1] for w in windows)]
    return [sum(begin - apart <= start <= end + apart for start in starts)
            for begin, end in whole]  # fmt: skip


def _job(device: str, words: Sequence[str]) -> dict[str, Any]:
    import haiprof

    [how] = words
    with scratch() as folder:
        haiprof.start(folder, run=recorded.RUN, hooks=False, kernels="windows", graphs="kernels",
                      kernels_period=PERIOD, budget=0.0, ring_mib=64)  # fmt: skip
        machine = jobs.Machine(device)
        modes.open_first_window(machine)
        if how == "late":
            # The first window is over after some steps, and the next one is not there yet.
            _steps(machine, lambda: None, 0.6)
        begin = time.time_ns()
        launches = jobs.Launches(machine)
        captured = begin, time.time_ns()
        replays = _steps(machine, launches.replay, SECONDS[device])
        haiprof.stop()
        if not recorded.closed(Path(folder), 15):
            raise RuntimeError("haiprof's recorder has not closed its files after 15 s")
        rows = recorded.rows(Path(folder), "kernels")
        events = recorded.rows(Path(folder), "events")
    windows = windows_of([e for e in events if e["kind"] == "kernels"], time.time_ns())
    starts = [row["start"] for row in rows if row["kind"] == "kernel"]
    return {
        "counts": held(replays, windows, starts, round(APART * 1e9 / 2)),
        "windows": len(windows),
        "captured_inside": any(w[0] <= captured[0] and captured[1] <= w[1] for w in windows),
        "events": [event["text"] for event in events if event["kind"] != "kernels"],
    }


def _steps(machine: jobs.Machine, run: Callable[[], object], seconds: float) -> list[Interval]:
    """Steps of one piece of work each, and when each was, UTC ns."""
    import haiprof

    found = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        haiprof.step()
        time.sleep(APART)
        begin = time.time_ns()
        run()
        machine.wait()
        found.append((begin, time.time_ns()))
        time.sleep(APART)
    haiprof.step()
    return found


if __name__ == "__main__":
    main(measure, {"job": _job})
