"""torch.profiler in a job that haiprof records: what each of the two gets, and with which times.

With the option ``teardown`` each session of torch.profiler ends CUPTI altogether.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.part import Part, Skipped, main, scratch

from gpu import jobs, modes, recorded

MODEL, STEPS = "small", 10
#: haiprof records again so long after a session, s, and some more.
RESUMED = 1.0


def measure(part: Part) -> None:
    part.needs_gpu()
    if "teardown" in part.options:
        os.environ["TEARDOWN_CUPTI"] = "1"
    expected = alone(part)
    part.row(f"kernels of {STEPS} steps, torch.profiler alone", expected, "kernels")
    if not expected:
        raise RuntimeError("torch.profiler recorded no kernel")
    part.piece("haiprof first", haiprof_first, part, expected)
    if "teardown" in part.options:
        return
    part.piece("torch.profiler first", torch_first, part, expected)


def alone(part: Part) -> int:
    """How many kernels torch.profiler records without haiprof."""
    try:
        return int(part.child("torch_alone", seconds=60)["theirs"])
    except RuntimeError as error:
        # Seen on an H100 with driver 580, torch 2.11 and its CUPTI 13.0.
        if "teardown" in part.options and "took more than" in str(error):
            raise Skipped(f"torch.profiler hangs with TEARDOWN_CUPTI=1: {error}") from None
        raise


def haiprof_first(part: Part, expected: int) -> None:
    result = part.child("haiprof_first", seconds=40)
    for name, found in result["found"]:
        whose = "haiprof" if name.startswith("haiprof") else "torch.profiler"
        # It is paused meanwhile.
        wanted = 0 if name.startswith("haiprof during") else expected
        part.row(f"haiprof recording first: {name}", found, "kernels", target=f"= {wanted}",
                 met=found == wanted, note=f"what {whose} got")  # fmt: skip
    part.check("haiprof recording first: all kernels lie within the job's time",
               result["stray"] == 0, f"{result['stray']} do not")  # fmt: skip
    part.fact("haiprof recording first: counts", result["counts"])
    part.fact("haiprof recording first: events", result["events"])


def torch_first(part: Part, expected: int) -> None:
    result = part.child("torch_first", seconds=40)
    part.row("torch.profiler first: torch.profiler", result["theirs"], "kernels",
             target=f"= {expected}", met=result["theirs"] == expected)  # fmt: skip
    part.row("torch.profiler first: haiprof afterwards", result["ours"], "kernels",
             target=f"= {expected}", met=result["ours"] == expected,
             note=f"{result['stray']} kernels lie outside the job's time")  # fmt: skip
    part.fact("torch.profiler first: events", result["events"])


class Job:
    """Trains in pieces and says what torch.profiler saw and when each piece was."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.machine = jobs.Machine(device)
        self.training = jobs.training(MODEL, self.machine)
        self.begin = time.time_ns()
        self.training.steps(10)
        self.machine.wait()

    def train(self) -> tuple[int, int]:
        """Return when this piece was, UTC ns."""
        # Apart from what came before by more than the clocks of host and GPU may differ.
        time.sleep(0.02)
        begin = time.time_ns()
        time.sleep(0.02)
        self.training.steps(STEPS)
        self.machine.wait()
        time.sleep(0.02)
        return begin, time.time_ns()

    def profiled(self) -> tuple[int, tuple[int, int]]:
        """The same under torch.profiler, and the number of kernels that it saw."""
        with jobs.torch_profiler(self.device) as profiler:
            when = self.train()
        with scratch() as folder:
            trace = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(trace))
            kernels, _ = recorded.kernels_of_trace(trace)
        return sum(count for count, _ in kernels.values()), when


def _torch_alone(device: str, words: Sequence[str]) -> dict[str, Any]:
    return {"theirs": Job(device).profiled()[0]}


def _ours(folder: str, when: tuple[int, int]) -> int:
    rows = recorded.rows(Path(folder), "kernels", *when)
    return sum(row["kind"] == "kernel" for row in rows)


def _stop(folder: str) -> None:
    import haiprof

    haiprof.stop()
    if not recorded.closed(Path(folder), 20):
        raise RuntimeError("haiprof's recorder has not closed its files after 20 s")


def _stray(folder: str, begin: int) -> int:
    rows = recorded.rows(Path(folder), "kernels")
    inside = recorded.rows(Path(folder), "kernels", begin - 10**9, time.time_ns())
    return len(rows) - len(inside)


def _haiprof_first(device: str, words: Sequence[str]) -> dict[str, Any]:
    import haiprof

    with scratch() as folder:
        begin = time.time_ns()
        haiprof.start(folder, run=recorded.RUN, kernels="all", budget=0.0, ring_mib=64)
        job = Job(device)
        pieces: list[tuple[str, tuple[int, int]]] = []
        theirs: list[tuple[str, int]] = []
        pieces.append(("haiprof before", job.train()))
        for session in ("first", "second"):
            count, when = job.profiled()
            theirs.append((f"torch.profiler, {session} session", count))
            pieces.append((f"haiprof during the {session} session", when))
            time.sleep(RESUMED)
            pieces.append((f"haiprof after the {session} session", job.train()))
        counts = modes.counts()
        _stop(folder)
        found = [(name, _ours(folder, when)) for name, when in pieces] + theirs
        events = recorded.events(Path(folder))
        stray = _stray(folder, begin)
    return {"found": found, "stray": stray, "counts": counts, "events": events}


def _torch_first(device: str, words: Sequence[str]) -> dict[str, Any]:
    import haiprof

    with scratch() as folder:
        begin = time.time_ns()
        job = Job(device)
        theirs, _ = job.profiled()
        haiprof.start(folder, run=recorded.RUN, kernels="all", budget=0.0, ring_mib=64)
        job.training.steps(2)
        when = job.train()
        _stop(folder)
        return {"theirs": theirs, "ours": _ours(folder, when), "stray": _stray(folder, begin),
                "events": recorded.events(Path(folder))}  # fmt: skip


if __name__ == "__main__":
    main(
        measure,
        {
            "torch_alone": _torch_alone,
            "haiprof_first": _haiprof_first,
            "torch_first": _torch_first,
        },
    )
