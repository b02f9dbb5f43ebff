"""A month of a rank, scaled down: the recorder stays below its limit, and grows in nothing.

A rank of 10 steps and 10 000 kernels a second has 26 billion kernels in a month. At 10 bytes each
at most (test_records.py) they fill the usual limit of 100 GiB no more than two and a half times.
Here a smaller limit is filled more often, by as many records as a recorder takes in some minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from figures import Figure, Measured, Reference, Unit, added_within, at_most
from processes import KeptRecorder, own_mib
from recording import wait_for, wait_recorded
from reporting import Report

from haiprof import schema
from haiprof.common.places import DOORBELL_NAME

STEPS_A_SECOND, KERNELS_A_STEP = 10, 1000
MONTH_STEPS = 30 * 24 * 3600 * STEPS_A_SECOND
#: Minutes of the job that are recorded, and the limit that their records fill several times.
MINUTES, LIMIT, FILLED = 100, 64 << 20, 3
EVERY_SECONDS = 0.5


class Seen(NamedTuple):
    """What the recorder took at one time."""

    minute: int
    memory: float
    descriptors: int
    files: int
    bytes: int
    #: Whether anything was removed yet.
    thinned: bool


def look(pid: int, run: Path, minute: int) -> Seen:
    sizes = []
    for file in run.rglob("*"):
        try:
            if file.is_file():
                sizes.append(file.stat().st_size)
        except FileNotFoundError:
            pass  # closed or removed meanwhile
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    thinned = (run / "node#0" / schema.THINNED_FILE).exists()
    return Seen(minute, own_mib(pid) * 2**20, descriptors, len(sizes), sum(sizes), thinned)


def record(
    pusher: Path, shm: Path, run: Path, minutes: int, limit: int, say: Callable[[Seen], None]
) -> float:
    """Record so many minutes of the job as fast as the recorder takes them; return how long, s."""
    recorder = KeptRecorder(shm, run, storage_limit=limit / (1 << 30))
    doorbell = recorder.rings / DOORBELL_NAME
    wait_for(doorbell.exists, what="a recorder")
    words = [pusher, recorder.rings / "1.ring", run, "node", doorbell]
    begun = time.monotonic()
    with subprocess.Popen(
        [*map(str, words), str(minutes * 60 * STEPS_A_SECOND)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        minute = 0
        while process.poll() is None:
            minute += len(process.stdout.read() or b"")
            say(look(recorder.pid, run, minute))
            time.sleep(EVERY_SECONDS)
        assert process.returncode == 0
    seconds = time.monotonic() - begun
    wait_for(lambda: not list(recorder.rings.glob("*.ring")), what="the end of the ring")
    recorder.release()
    wait_recorded(shm, 120)
    return seconds


@pytest.mark.soak
def test_a_month_stays_below_the_limit(
    benchmark: Any, report: Report, native_programs: Path, shm: Path, tmp_path: Path
) -> None:
    seen: list[Seen] = []
    run = tmp_path / "bench"
    pusher = native_programs / "month_pusher"

    def measure() -> float:
        return record(pusher, shm, run, MINUTES, LIMIT, seen.append)

    seconds = benchmark.pedantic(measure, rounds=1, iterations=1)
    note = json.loads((run / "node#0" / schema.THINNED_FILE).read_text())
    removed = sum(table["bytes"] for table in note["tables"].values())
    filled = (removed + seen[-1].bytes) / LIMIT
    share = MINUTES * 60 * STEPS_A_SECOND / MONTH_STEPS
    benchmark.extra_info.update(
        share_of_a_month=share, filled=filled, seconds=seconds, seen=seen, note=note
    )
    assert filled > FILLED
    full = next(n for n, one in enumerate(seen) if one.thinned)
    # Memory is taken only while a stream is closed: both halves see that often.
    half = (full + len(seen)) // 2
    first, last = seen[full:half], seen[half:]

    def most(of: list[Seen], what: str) -> Measured:
        return Measured(max(getattr(one, what) for one in of))

    kernels = MINUTES * 60 * STEPS_A_SECOND * KERNELS_A_STEP
    what = f"the run of {kernels:,} kernels, which fill the limit {filled:.1f} times"
    memory = Reference("in the first half since it was full", most(first, "memory"))
    report(
        Figure(what, Unit.BYTES, most(seen, "bytes"), target=at_most(LIMIT)),
        Figure(
            "the recorder's memory in the second half", Unit.BYTES, most(last, "memory"), memory,
            added_within(5 * 2**20),
        ),
    )  # fmt: skip
    # Some are open only for a moment.
    assert most(last, "descriptors").value <= most(first, "descriptors").value + 2
    # Kernels fill the limit again and again, and the few other segments until it is full of them.
    assert most(last, "files").value <= most(first, "files").value + 30
