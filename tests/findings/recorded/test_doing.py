"""What a sampled thread was doing."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from recorded_cases import line

from haiprof.findings.recorded import doing
from haiprof.views.run.hot_lines import LINES_SCHEMA

QUEUE = {"package": "python", "outer": "python", "file": "/usr/lib/python3.11/queue.py"}
SOCKET = {"package": "urllib3", "outer": "requests urllib3"}
IN_TORCH = {"package": "python", "outer": "torch python"}


def done(waits_in: str, **more: Any) -> str:
    row = line("other", 1, **{"state": "waiting", "waits_in": waits_in, "gil": False, **more})
    found: str = doing.doing(pl.DataFrame([row], LINES_SCHEMA))["doing"][0]
    return found


@pytest.mark.parametrize(
    ("waits_in", "more", "expected"),
    [
        ("hrtimer_nanosleep", {}, doing.SLEEPING),
        ("folio_wait_bit_common", {}, doing.READING),
        ("ll_readpage", {}, doing.READING),
        # Whose name ends like those of Lustre begin.
        ("poll_schedule_timeout", SOCKET, doing.PIPED),
        ("pipe_read", {}, doing.PIPED),
        ("wait_woken", QUEUE, doing.PIPED),
        ("recvfrom", SOCKET, doing.PIPED),
        ("do_wait", QUEUE, doing.PROGRAM),
        ("kernel_clone", {"state": "uninterruptible"}, doing.PROGRAM),
        ("futex_do_wait", QUEUE, doing.THREAD),
        ("futex_do_wait", {**QUEUE, "blocked_by": "spin (/job/watch.py:3)"}, doing.OTHERS_GIL),
    ],
)
def test_what_it_waits_for(waits_in: str, more: dict[str, Any], expected: str) -> None:
    assert done(waits_in, **more) == expected


@pytest.mark.parametrize("waits_in", ["futex_do_wait", "poll_schedule_timeout", "wait_woken"])
@pytest.mark.parametrize("more", [{}, IN_TORCH, {"package": "torch", "outer": "torch"}])
def test_what_torch_waits_for_is_its_own_affair(waits_in: str, more: dict[str, Any]) -> None:
    """An operator waits for its threads, a loader for its processes, a job for its GPU."""
    assert done(waits_in, **more) not in doing.AWAY


def test_a_line_that_waits_for_the_disk_reads_or_writes_in_its_calls_without_the_gil() -> None:
    waits = line("other", 30, state="uninterruptible", waits_in="submit_bio_wait", gil=False)
    calls = line("other", 70, gil=False)
    elsewhere = line("other", 70, "mean (/job/train.py:3)", gil=False)
    frame = pl.DataFrame([waits, calls, elsewhere], LINES_SCHEMA)
    found = doing.doing(frame)["doing"].to_list()
    assert found == [doing.READING, doing.READING, doing.TENSORS]
    seldom = doing.doing(frame.with_columns(pl.Series("samples", [3, 70, 70])))
    assert seldom["doing"].to_list() == [doing.READING, doing.TENSORS, doing.TENSORS]
