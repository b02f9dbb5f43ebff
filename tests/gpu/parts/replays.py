"""Replays of a CUDA graph: haiprof's times of them against events by hand, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.estimates import added, difference, estimate
from gpu.part import Part, main, scratch

from gpu import jobs, recorded

REPLAYS = 200
#: Apart by so much, s, haiprof times each of them.
APART = 0.005
#: In a row, of which haiprof leaves most out.
IN_A_ROW = 500
LIMIT = 2.0


def measure(part: Part) -> None:
    part.needs_gpu()
    found = part.child("job", seconds=60)
    timed = found["timed"]
    part.row("replays that were timed", len(timed), "replays", target=f"= {REPLAYS}",
             met=len(timed) == REPLAYS)  # fmt: skip
    part.check("no kernel was recorded after the first replay", found["kernels_after"] == 0,
               f"{found['kernels_after']} kernels; {found['events']}")  # fmt: skip
    part.fact("seconds after the first of the replays: of kernels, of events", found["when"])
    if len(timed) == REPLAYS:
        longer = added(timed, found["by_hand"])
        part.row("a replay, against events around it by hand", longer, "% longer",
                 target=f"within {LIMIT:g}",
                 met=abs(longer.value) <= LIMIT)  # fmt: skip
    part.row("a replay in a row of many, the host's time without haiprof",
             estimate(found["without"]).scaled(1e6), "us")  # fmt: skip
    part.row("a replay in a row of many costs the host more",
             difference(found["during"], found["without"]).scaled(1e6), "us",
             note=f"{found['left_out']} replays were left out to keep the cost down")  # fmt: skip


def _job(device: str, words: Sequence[str]) -> dict[str, Any]:
    import torch

    import haiprof
    from haiprof import _core
    from haiprof.capture.hooks import cuda
    from haiprof.capture.session import instruments
    from haiprof.options import Options

    with scratch() as folder:
        haiprof.start(folder, run=recorded.RUN, hooks=False, kernels="windows", budget=0.0,
                      ring_mib=64)  # fmt: skip
        launches = jobs.Launches(jobs.Machine(device))
        launches.machine.wait()
        launches.replay()
        launches.machine.wait()
        time.sleep(1.0)  # recording kernels has ended
        begin = time.time_ns()
        marks = []
        for _ in range(REPLAYS):
            first = launches.machine.marker()
            launches.replay()
            marks.append((first, launches.machine.marker()))
            torch.cuda.synchronize()
            time.sleep(APART)
        end = time.time_ns()
        by_hand = [launches.machine.between(*pair) for pair in marks]

        def in_a_row() -> float:
            since = time.perf_counter()
            for _ in range(IN_A_ROW):
                launches.replay()
            took = time.perf_counter() - since
            launches.machine.wait()
            return took / IN_A_ROW

        during, without = [], []
        for _ in range(4):
            during.append(in_a_row())
            cuda.uninstall(5.0)
            without.append(in_a_row())
            instruments.install_kernels(Options())
        left_out = _core.gpu_counts()["replays_left_out"]
        haiprof.stop()
        if not recorded.closed(Path(folder), 15):
            raise RuntimeError("haiprof's recorder has not closed its files after 15 s")
        spans = recorded.rows(Path(folder), "device_spans", begin, end)
        kernels = recorded.rows(Path(folder), "kernels", begin, end)
        events = recorded.events(Path(folder), "graphs", "lost", "hook")
        turns = recorded.rows(Path(folder), "events")
    starts = sorted(kernel["start"] for kernel in kernels)
    when = [
        [(start - begin) / 1e9 for start in (starts[:1] + starts[-1:])],
        [[(turn["time"] - begin) / 1e9, turn["kind"], turn["attributes"]] for turn in turns],
    ]
    timed = [s["duration"] / 1e9 for s in sorted(spans, key=lambda s: s["start"])
             if s["category"] == "graph"]  # fmt: skip
    return {"timed": timed, "by_hand": by_hand, "kernels_after": len(kernels), "during": during,
            "without": without, "left_out": left_out, "events": events,
            "when": when}  # fmt: skip


if __name__ == "__main__":
    main(measure, {"job": _job})
