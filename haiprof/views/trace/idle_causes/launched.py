"""When the host launched each activity, as far as the trace tells.

Times are int64 ns.

Tests: tests/views/trace/idle_causes/test_causes.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from haiprof.views.intervals import Times
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import rows, worked

_EARLIEST = np.int64(-(2**62))
_LATEST = np.int64(2**62)


class Launched(NamedTuple):
    """What is known of each activity's launch."""

    #: It was not launched before this instant.
    low: Times
    #: It was launched by this instant, at the latest when it began.
    high: Times
    #: Row of ``Linked.ops``: the call that launched it, or the operator in which it was launched;
    #: -1 if the trace has neither. Then the bounds come from the launches before and after it on
    #: its stream, which runs in the order of the launches.
    span: npt.NDArray[np.int32]
    #: It is a node of a graph that was launched as a whole.
    graph: npt.NDArray[np.bool_]
    #: It is the first activity of its call on its device.
    first: npt.NDArray[np.bool_]


def launched(linked: Linked) -> Launched:
    """Return when each activity of a trace was launched."""
    runtime = linked.runtime
    begun = linked.activities["start"].to_numpy()
    span = np.where(runtime >= 0, runtime, rows(linked.activities["op"]))
    known = span >= 0
    low, high = np.full(len(begun), _EARLIEST), np.full(len(begun), _LATEST)
    low[known], high[known] = linked.start[span[known]], linked.end[span[known]]
    if not known.all():
        _between(linked, low, high, known)
    high = np.minimum(high, begun)
    return Launched(np.minimum(low, high), high, span, _graphs(linked), _first(linked))


def _between(linked: Linked, low: Times, high: Times, known: npt.NDArray[np.bool_]) -> None:
    """Bound unknown launches by those before and after them on their stream."""
    mine = np.flatnonzero(worked(linked))
    begun = linked.activities["start"].to_numpy()
    device, stream = linked.device[mine], linked.stream[mine]
    order = np.lexsort((begun[mine], stream, device))
    mine, device, stream = mine[order], device[order], stream[order]
    change = (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])
    edges = np.concatenate(([0], np.flatnonzero(change) + 1, [len(mine)]))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        there = mine[first:last]
        earliest = np.maximum.accumulate(low[there])
        latest = np.minimum.accumulate(high[there][::-1])[::-1]
        lost = ~known[there]
        low[there[lost]], high[there[lost]] = earliest[lost], latest[lost]


def _graphs(linked: Linked) -> npt.NDArray[np.bool_]:
    graph = linked.activities["graph"].is_not_null().to_numpy()
    runtime = linked.runtime
    known = runtime >= 0
    if known.any():
        graph = graph | (known & linked.matches("GraphLaunch", runtime))
    return graph


def _first(linked: Linked) -> npt.NDArray[np.bool_]:
    """Of the activities that one call launched on a device, those that began first."""
    first = np.ones(len(linked.runtime), np.bool_)
    known = np.flatnonzero(linked.runtime >= 0)
    begun = linked.activities["start"].to_numpy()[known]
    call, device = linked.runtime[known], linked.device[known]
    order = np.lexsort((begun, device, call))
    call, device = call[order], device[order]
    first[known[order[1:]]] = (call[1:] != call[:-1]) | (device[1:] != device[:-1])
    return first
