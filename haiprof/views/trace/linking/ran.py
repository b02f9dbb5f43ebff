"""When each device did what: the union of its activities of each role, computed once for all views.

Waits of the host (``sync``) keep no device busy. Times are int64 ns.

Tests: tests/views/trace/linking/test_linked.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times, union, unite
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.names import texts
from haiprof.views.trace.linking.work import times, work

#: Roles of activities that keep a device busy, in the order of :class:`Ran`'s fields.
ROLES = ("kernel", "communication", "memcpy", "memset")
_LATEST = np.iinfo(np.int64).max


class Ran(NamedTuple):
    """The work of one device: per role the union of its activities, as ``merge`` returns it.

    ``first`` is when its first activity began, ``last`` when the last one had ended.
    """

    device: int | None
    first: int
    last: int
    kernel: tuple[Times, Times]
    communication: tuple[Times, Times]
    memcpy: tuple[Times, Times]
    memset: tuple[Times, Times]

    @property
    def kernels(self) -> tuple[Times, Times]:
        """When kernels ran, those that communicate included."""
        return union(self.kernel, self.communication)

    @property
    def memory(self) -> tuple[Times, Times]:
        """When memory was copied or set."""
        return union(self.memcpy, self.memset)

    def windows(self, recorded: tuple[Times, Times] | None) -> tuple[Times, Times]:
        """Return when the device's work is known: one row per recording.

        Each row is from the begin of the first activity to the end of the last one launched within
        it. ``recorded`` is :attr:`Linked.recorded`.
        """
        if recorded is None or len(recorded[0]) < 2:
            return np.array([self.first]), np.array([self.last])
        begin, end = union(self.kernels, self.memory)
        edges = np.concatenate(([-_LATEST], recorded[0][1:], [_LATEST]))
        at = np.searchsorted(begin, edges)
        some = np.flatnonzero(at[1:] > at[:-1])
        return begin[at[some]], np.minimum(end[at[some + 1] - 1], edges[some + 1])


def ran(linked: Linked, *, drop_last_step: bool = False) -> list[Ran]:
    """Return the work of each device that did any, one with an unknown number first.

    ``drop_last_step`` is as in :func:`haiprof.views.trace.linking.work.work`.
    """
    if drop_last_step:
        return united(work(linked, drop_last_step=True))
    return linked.once(_of_all)


def _of_all(linked: Linked) -> list[Ran]:
    return united(linked.activities)


def united(activities: pl.DataFrame) -> list[Ran]:
    """Unite rows of :attr:`Linked.activities` by device and role."""
    start, end = times(activities)
    which = _roles(activities["role"])
    # Most often there is one device, and all its activities keep it busy.
    numbers: list[Any] = [only_device(activities)]
    alone = numbers != [None]
    if not alone:
        known = activities["device"].cast(pl.Int32).fill_null(-1).to_numpy()
        numbers = np.unique(known).tolist()
    devices = []
    for number in numbers:
        mine = which if alone else np.where(known == number, which, np.uint8(len(ROLES)))
        busy = mine < len(ROLES)
        if not busy.any():
            continue
        whole = bool(busy.all())
        first = start.min() if whole else start[busy].min()
        last = end.max() if whole else end[busy].max()
        of = None if number < 0 else int(number)
        devices.append(Ran(of, int(first), int(last), *unite(start, end, mine, len(ROLES))))
    return devices


def only_device(activities: pl.DataFrame) -> int | None:
    """Return the number of the device of all rows, if they have only one."""
    device = pl.col("device")
    low, high, missing = activities.select(
        device.min().alias("low"), device.max().alias("high"), device.null_count().alias("missing")
    ).row(0)
    return int(low) if low is not None and low == high and not missing else None


def _roles(column: pl.Series) -> npt.NDArray[np.uint8]:
    """For each row the place of its text in :data:`ROLES`; their number for any other."""
    from haiprof import _core

    physical = column.to_physical()
    missing = physical.null_count() > 0
    codes = (physical.fill_null(0) if missing else physical).to_numpy()
    known = texts(column)
    table = np.full(int(codes.max(initial=0)) + 1, len(ROLES), np.uint8)
    table[known.to_physical().to_numpy()] = [
        ROLES.index(text) if text in ROLES else len(ROLES) for text in known.cast(pl.String)
    ]
    roles = _core.look_up(codes, table)
    if missing:
        roles[column.is_null().to_numpy()] = len(ROLES)
    return roles
