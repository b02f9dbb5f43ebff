"""Temporal breakdown: how long each device computed, did something else, and idled.

The formula is HTA's (``get_temporal_breakdown``). ``span`` is the time from the begin of the
device's first activity to the end of its last one. ``compute`` is the union of its kernels that are
no communication, ``idle`` what no activity covers, and ``non_compute`` the rest: communication and
copies that no computation hides. Here that is broken down further: an instant in which both ran is
``communication``. The parts sum to ``span``.

HTA counts the host's waits (``cuda_sync``) as work of the GPU, and every kernel whose name begins
with ``hip`` as communication; here neither is so.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from haiprof.views.intervals import by_priority
from haiprof.views.trace.linked import Linked
from haiprof.views.trace.work import MEMORY, by_device, ratio, times, united, work

SCHEMA = {
    "device": pl.UInt16(),
    "span": pl.Int64(),
    "compute": pl.Int64(),
    "non_compute": pl.Int64(),
    "idle": pl.Int64(),
    "communication": pl.Int64(),
    "memory": pl.Int64(),
}


def temporal(linked: Linked, *, drop_last_step: bool = False) -> pl.DataFrame:
    """Break the time of each device down.

    Args:
        linked: the trace.
        drop_last_step: as :func:`haiprof.views.trace.work.work` has it, and as HTA does.

    Returns:
        One row per device: ``device`` (null where the trace names none), ``span``, ``compute``,
        ``non_compute``, ``idle``, ``communication``, ``memory`` in ns; ``compute_ratio``,
        ``non_compute_ratio`` and ``idle_ratio`` of the span.
    """
    rows = []
    for device, mine in by_device(work(linked, drop_last_step=drop_last_step)):
        start, end = times(mine)
        low, high = start.min(), end.max()
        roles = [united(mine, *names) for names in (("kernel",), ("communication",), MEMORY)]
        parts = by_priority(roles, np.array([low]), np.array([high]))[:, 0].tolist()
        compute, communication, memory, idle = parts
        moved = communication + memory
        rows.append((device, int(high - low), compute, moved, idle, communication, memory))
    made = pl.DataFrame(rows, SCHEMA, orient="row")
    return made.with_columns(
        ratio(pl.col(name), pl.col("span")).alias(f"{name}_ratio")
        for name in ("compute", "non_compute", "idle")
    )
