"""A device's work: the activities that keep it busy, and their unions by role and device.

Waits of the host (``sync``) keep no device busy. Times are int64 ns.

Tests: tests/answers/test_own.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times, merge
from haiprof.views.trace.linking.linked import BUSY, Linked
from haiprof.views.trace.linking.names import numbered

#: Roles of activities that move memory.
MEMORY = ("memcpy", "memset")


def work(linked: Linked, *, drop_last_step: bool = False) -> pl.DataFrame:
    """Return the activities that keep a device busy, with their columns.

    Args:
        linked: the trace.
        drop_last_step: leave out what was launched in the last step, or after it, and what of
            unknown launch began then. A trace that ends within a step has only a part of the last
            one's device work. Nothing is left out of a trace with fewer than two steps.
    """
    keep = worked(linked, drop_last_step=drop_last_step)
    return linked.activities if keep.all() else linked.activities.filter(pl.Series(keep))


def worked(linked: Linked, *, drop_last_step: bool = False) -> npt.NDArray[np.bool_]:
    """Say of each activity whether :func:`work` returns it."""
    keep = linked.in_role(*BUSY, "communication")
    if drop_last_step:
        keep &= launch_times(linked) < last_step(linked)
    return keep


def launch_times(linked: Linked) -> Times:
    """Return when each activity was launched; if unknown, when it began."""
    runtime = linked.runtime
    begun = linked.activities["start"].to_numpy()
    if not len(linked.start):
        return begun
    return np.where(runtime >= 0, linked.start[runtime], begun)


def last_step(linked: Linked) -> int:
    """Return when the host began its last step; the maximum time with fewer than two steps."""
    begun = linked.start[linked.of("step")]
    distinct = np.unique(begun)
    return int(distinct[-1]) if len(distinct) > 1 else int(np.iinfo(np.int64).max)


def devices(linked: Linked, *, drop_last_step: bool = False) -> Iterator[tuple[int | None, Index]]:
    """Iterate over the devices in order, each with its rows of :func:`work`."""
    keep = worked(linked, drop_last_step=drop_last_step)
    for number in sorted(set(linked.device[keep].tolist())):
        mine = np.flatnonzero(keep & (linked.device == number))
        yield None if number < 0 else number, mine


def times(frame: pl.DataFrame) -> tuple[Times, Times]:
    """Return when each activity began and ended."""
    return frame["start"].to_numpy(), frame["end"].to_numpy()


def union(linked: Linked, mine: Index, *roles: str) -> tuple[Times, Times]:
    """Return when some of these activities ran that has one of ``roles``, as ``merge`` does."""
    chosen = mine[linked.in_role(*roles)[mine]]
    start, end = times(linked.activities)
    return merge(start[chosen], end[chosen])


def ratio(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Return ``part / whole``, null if the whole is 0."""
    return pl.when(whole > 0).then(part / whole)


def texts_in(column: pl.Series) -> tuple[list[str], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Return a column's distinct texts, for each row the index of its own, and where it has one."""
    number, texts = numbered(column)
    some = np.ones(len(number), np.bool_)
    if texts.null_count():
        some = number < len(texts) - 1
        number[~some] = 0
    return texts.drop_nulls().cast(pl.String).to_list(), number, some


def rows(column: pl.Series) -> npt.NDArray[np.int32]:
    """Return a column of row numbers as an array: -1 for null."""
    # With nulls an array of doubles, which represent every row number exactly.
    known = column.to_numpy()
    numbers: npt.NDArray[np.int32] = (
        np.nan_to_num(known, nan=-1) if column.null_count() else known
    ).astype(np.int32)
    return numbers
