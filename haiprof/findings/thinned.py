"""Sentences on what was removed of a run to stay below its limit.

Tests: tests/answers/test_thinned.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from haiprof.common.numbers import utc
from haiprof.runs import Process, Thinned

#: The tables in the order in which they are thinned, in words.
_WORDS: Final = {
    "kernels": "Kernels",
    "allocations": "Allocations",
    "flows": "Flows",
    "spans": "Steps, phases and other spans",
    "device_spans": "Phases of GPUs",
    "collectives": "Collectives",
    "nccl": "Operations of NCCL",
    "stacks": "Stacks",
    "samples": "Samples",
}
#: What is known of them all the same.
_SUMMED_UP: Final = {
    "spans": "; of that time steps and their parts are shown as they were summed up",
    "samples": "; of that time the mean and the greatest value of each minute are shown",
}


def lines(processes: Iterable[Process]) -> Iterator[str]:
    """Say of each table until when its rows were removed, and why: one line each."""
    found: dict[str, list[Thinned]] = {}
    several = 0
    for process in processes:
        several += 1
        for one in process.thinned:
            found.setdefault(one.table, []).append(one)
    order = list(_WORDS)
    for table in sorted(found, key=lambda t: (order.index(t) if t in order else len(order), t)):
        each = found[table]
        until = max(one.until_ns for one in each)
        limit = max(one.limit_bytes for one in each) / (1 << 30)
        of = f" of {len(each)} of {several} processes" if len(each) < several else ""
        rows = sum(one.rows for one in each)
        summed_up = all(one.summed_up for one in each)
        yield (
            f"{_WORDS.get(table, table)}{of} before {utc(until)[:-4]} UTC were removed to stay "
            f"below the limit of {limit:.4g} GiB a node (storage_limit): {rows} rows"
            + (_SUMMED_UP.get(table, "") if summed_up else "")
        )
