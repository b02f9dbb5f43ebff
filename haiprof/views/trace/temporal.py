"""Temporal breakdown: how long each device computed, did something else, and idled.

The formula is HTA's (``get_temporal_breakdown``). ``span`` is the time from the begin of the
device's first activity to the end of its last one. ``compute`` is the union of its kernels that do
not communicate, ``idle`` is the time without any activity, and ``non_compute`` the rest:
communication and copies that no computation hides. Here that is broken down further: an instant in
which both ran is ``communication``. The parts sum to ``span``. If kernels were recorded only at
times, ``span`` is the sum over those times, each from the first activity within it to the last:
unrecorded time is not known to be idle.

HTA counts the host's waits (``cuda_sync``) as work of the GPU, and every kernel whose name begins
with ``hip`` as communication; this view does neither.
"""

from __future__ import annotations

import polars as pl

from haiprof.views.intervals import by_rank
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.ran import ran
from haiprof.views.trace.linking.work import ratio

#: Columns of kernels that it needs.
COLUMNS = ("start", "duration", "kind", "name", "device")

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
    """Break down the time of each device.

    Args:
        linked: the trace.
        drop_last_step: as in :func:`haiprof.views.trace.linking.work.work`, and as in HTA.

    Returns:
        One row per device: ``device`` (null if the trace names none), ``span``, ``compute``,
        ``non_compute``, ``idle``, ``communication``, ``memory`` in ns; ``compute_ratio``,
        ``non_compute_ratio`` and ``idle_ratio`` of the span.
    """
    rows = []
    for mine in ran(linked, drop_last_step=drop_last_step):
        low, high = mine.windows(linked.recorded)
        roles = [mine.kernel, mine.communication, mine.memory]
        parts = by_rank(roles, low, high).sum(axis=1).tolist()
        compute, communication, memory, idle = parts
        moved = communication + memory
        span = int((high - low).sum())
        rows.append((mine.device, span, compute, moved, idle, communication, memory))
    frame = pl.DataFrame(rows, SCHEMA, orient="row")
    return frame.with_columns(
        ratio(pl.col(name), pl.col("span")).alias(f"{name}_ratio")
        for name in ("compute", "non_compute", "idle")
    )
