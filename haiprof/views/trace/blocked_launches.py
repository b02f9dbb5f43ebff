"""Launches that waited for room in the full queue of their stream: that is the device's time.

A trace does not say so. A call counts as blocked if, when it returned, its stream had at least
:data:`QUEUED` launches that had not begun, and if it took at least :data:`LONG`, and at least
:data:`TIMES` times as long as the shortest call of its name.

Tests: tests/views/trace/critical_path/test_path.py.
Tests: tests/views/trace/idle_causes/test_host.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from haiprof.views.intervals import Times
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import worked

#: CUDA's queues take 1024 commands, of which not all are activities.
QUEUED: Final = 512
#: ns.
LONG: Final = 20_000
TIMES: Final = 5


def blocked(linked: Linked) -> npt.NDArray[np.bool_]:
    """Say of each span whether it is a launch that waited for room in a full queue."""
    return linked.once(_blocked)


def _blocked(linked: Linked) -> npt.NDArray[np.bool_]:
    mask = np.zeros(len(linked.start), np.bool_)
    known = np.flatnonzero(worked(linked) & (linked.runtime >= 0))
    # Of those that one call launched on a stream, any stands for all.
    keys = np.stack((linked.stream[known], linked.device[known], linked.runtime[known]))
    order = np.lexsort(keys)
    keys, known = keys[:, order], known[order]
    known = known[np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(known)]]
    call = linked.runtime[known]
    lasted = linked.end[call] - linked.start[call]
    slow = known[(lasted >= LONG) & (lasted >= TIMES * shortest(linked)[call])]
    begun = linked.activities["start"].to_numpy()
    for device, stream in set(zip(linked.device[slow], linked.stream[slow], strict=True)):
        there = known[(linked.device[known] == device) & (linked.stream[known] == stream)]
        if len(there) <= QUEUED:
            continue
        asked = slow[(linked.device[slow] == device) & (linked.stream[slow] == stream)]
        returned = linked.end[linked.runtime[asked]]
        # Nearly sorted, which a stable sort is quick about.
        launches, begins = (
            np.sort(each, kind="stable")
            for each in (linked.start[linked.runtime[there]], begun[there])
        )
        launched = np.searchsorted(launches, returned)
        started = np.searchsorted(begins, returned, side="right")
        mask[linked.runtime[asked[launched - started >= QUEUED]]] = True
    return mask


def shortest(linked: Linked) -> Times:
    """Return for each span of ``linked.ops`` how long the shortest of its name is, ns."""
    return linked.once(_shortest)


def _shortest(linked: Linked) -> Times:
    number, texts = linked.named
    least = np.full(len(texts), np.iinfo(np.int64).max)
    np.minimum.at(least, number, linked.end - linked.start)
    result: Times = least[number]
    return result
