"""Which call of the job's own thread caused a task on a device.

torch_npu's operators put their launches into a queue (``Enqueue``). A separate thread takes them
out (``Dequeue``) and calls CANN, which launches the tasks. The launch on the host is the first of
these calls.

Tests: tests/sources/ascend/test_text.py.
"""

from __future__ import annotations

from typing import Final

import polars as pl

#: Dequeue operations: thread, start and end, and the number that both ends of the queue share.
DEQUEUED: Final = {
    "by": pl.UInt32(),
    "at": pl.Int64(),
    "until": pl.Int64(),
    "correlation": pl.UInt64(),
}
#: CANN's calls: the number that their tasks share, the thread, and when each began.
CALLS: Final = {"connection": pl.UInt64(), "by": pl.UInt32(), "at": pl.Int64()}
#: CANN numbers its calls from 1, as the queue does: its numbers are shifted past the queue's.
OF_CANN: Final = 1 << 32


def through_queue(launched: pl.DataFrame, dequeued: pl.DataFrame) -> pl.DataFrame:
    """Return ``task`` and ``correlation`` of the tasks whose launch came out of the queue.

    Args:
        launched: ``task``, and ``by`` and ``at``: the thread of CANN's call and when it began.
        dequeued: columns of :data:`DEQUEUED`.
    """
    return (
        launched.drop_nulls()
        .sort("at")
        .join_asof(dequeued.sort("at"), on="at", by="by", check_sortedness=False)
        .filter(pl.col("at") <= pl.col("until"))
        .select("task", "correlation")
        .unique("task", keep="first")
    )
