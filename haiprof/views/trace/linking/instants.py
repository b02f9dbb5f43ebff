"""Which call was running on a thread at an instant.

Of the spans that are open at an instant, it is the one that started last: ``start <= t < end``.

Tests: tests/views/trace/test_memory.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from haiprof.views.intervals import Times
from haiprof.views.trace.linking.ancestors import climb, first_beyond
from haiprof.views.trace.linking.linked import CALLS, Linked

Rows = npt.NDArray[np.int32]


def running(linked: Linked, thread: npt.NDArray[np.uint32], instant: Times) -> Rows:
    """Return the row of the innermost call on each thread at each instant, or -1."""
    rows = np.flatnonzero(linked.category < len(CALLS)).astype(np.int32)
    return innermost(linked, rows, linked.parent, thread, instant)


def innermost(
    linked: Linked,
    rows: Rows,
    parent: Rows,
    thread: npt.NDArray[np.uint32],
    instant: Times,
) -> Rows:
    """Return which of ``rows`` is innermost on each thread at each instant, or -1.

    Args:
        linked: the trace.
        rows: the candidate spans, ascending.
        parent: for each span of ``linked.ops`` the one of ``rows`` around it, or -1.
        thread: for each instant its thread.
        instant: in ns.
    """
    found = np.full(len(instant), -1, np.int32)
    if not len(rows) or not len(instant):
        return found
    on = linked.ops["thread"].to_numpy()
    for each in np.unique(thread):
        low, high = np.searchsorted(on, each), np.searchsorted(on, each, side="right")
        asked = np.flatnonzero(thread == each)
        # The last span that had begun, then the last candidate up to that one: gathering when all
        # candidates began would take longer.
        last = low + np.searchsorted(linked.start[low:high], instant[asked], side="right") - 1
        last = last.astype(np.int32)
        candidate = rows[np.searchsorted(rows, last, side="right") - 1]
        found[asked] = np.where((candidate >= low) & (candidate <= last), candidate, -1)
    return first_beyond(parent, found, linked.end, instant)


def around(parent: Rows, rows: Rows, wanted: npt.NDArray[np.bool_]) -> Rows:
    """Return for each row the nearest span around it (never itself) that is ``wanted``, or -1."""
    return climb(parent, parent[rows], wanted)
