"""Which sequences of device work an operator launches again and again.

The analysis of HTA (``get_frequent_cuda_kernel_sequences``): each call of the operator is one
sequence: the names of everything launched beneath it, in the order in which it ran. HTA uses only
the calls of least depth in the whole trace; here every call counts that is not within another
matching call, whatever its depth.

Times are int64 ns.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.instants import around
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import rows

#: HTA's own choice: a shorter sequence is hardly a pattern.
SHORTEST: Final = 3

SCHEMA: Final = {
    "operator": pl.String(),
    "sequence": pl.List(pl.String()),
    "count": pl.UInt32(),
    "device": pl.Int64(),
    "host": pl.Int64(),
}


def sequences(linked: Linked, operator: str, shortest: int = SHORTEST) -> pl.DataFrame:
    """Return the sequences below operators and ranges whose name contains ``operator``.

    Columns: ``operator`` (its whole name), ``sequence`` (names of kernels, copies and sets in the
    order of their start), ``count`` (calls that launched just these), ``device`` (ns that they ran,
    all calls together) and ``host`` (ns of the calls); the most frequent first, of those the ones
    that ran longest.

    Args:
        linked: the trace.
        operator: part of a name.
        shortest: sequences with fewer launches are left out.
    """
    name, names = linked.named
    called = names.cast(pl.String).str.contains(operator, literal=True).fill_null(False)
    wanted = called.to_numpy()[name] & linked.of("op", "user")
    calls = np.flatnonzero(wanted).astype(np.int32)
    outermost = np.zeros(len(wanted), bool)
    outermost[calls[around(linked.parent, calls, wanted) < 0]] = True

    op = rows(linked.activities["op"])
    busy = np.flatnonzero(linked.busy & (op >= 0))
    below = climb(linked.parent, op[busy], outermost)
    busy, below = busy[below >= 0], below[below >= 0]
    if not len(busy):
        return pl.DataFrame(schema=SCHEMA)
    order = np.lexsort((linked.activities["start"].to_numpy()[busy], below))
    busy, call = busy[order], below[order]
    activity, activities = linked.named_activities
    from haiprof import _core

    # A sequence is a path: from a call's first activity to its second, and so on. Its root is the
    # operator's name, so that operators do not mix.
    first = np.append(True, call[1:] != call[:-1])
    last = np.append(first[1:], True)
    roots = call[first]
    place = np.arange(len(call), dtype=np.int32) + len(roots)
    above = np.where(first, np.cumsum(first, dtype=np.int32) - 1, place - 1)
    path, parent, named, depth = _core.fold(
        np.concatenate((np.full(len(roots), -1, np.int32), above)).astype(np.int32),
        np.concatenate((name[roots] + len(activities), activity[busy])).astype(np.uint32),
    )
    ends = path[len(roots) :][last]
    count = np.bincount(ends, minlength=len(parent))
    device, host = (np.zeros(len(parent), np.int64) for _ in range(2))
    duration = linked.activities["duration"].to_numpy()[busy]
    np.add.at(device, ends, np.add.reduceat(duration, np.flatnonzero(first)))
    np.add.at(host, ends, linked.end[roots] - linked.start[roots])
    found = np.flatnonzero((count > 0) & (depth >= shortest))
    found = found[np.lexsort((found, -device[found], -count[found]))]
    texts = activities.cast(pl.String).to_list()
    whole = [_names(each, parent, named, texts) for each in found.tolist()]
    operators = np.array([root for root, _ in whole], np.int64) - len(texts)
    return pl.DataFrame(
        {
            "operator": names[operators].cast(pl.String),
            "sequence": [sequence for _, sequence in whole],
            "count": count[found],
            "device": device[found],
            "host": host[found],
        },
        schema=SCHEMA,
    )


def _names(
    path: int,
    parent: npt.NDArray[np.int32],
    named: npt.NDArray[np.uint32],
    texts: list[str],
) -> tuple[int, list[str]]:
    """The number at the root of a path, and the names beneath it."""
    numbers: list[int] = []
    while path >= 0:
        numbers.append(int(named[path]))
        path = int(parent[path])
    return numbers[-1], [texts[number] for number in numbers[-2::-1]]
