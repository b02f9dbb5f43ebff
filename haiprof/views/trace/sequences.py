"""Which sequences of device work an operator launches again and again.

The analysis of HTA (``get_frequent_cuda_kernel_sequences``): each call of the operator is one
sequence, of the names of all that was launched beneath it in the order in which it ran. HTA looks
at the calls of least depth in the whole trace only; here every call counts that no other matching
call is around of, whatever its depth.

Times are int64 ns.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.trace.ancestors import climb
from haiprof.views.trace.instants import around
from haiprof.views.trace.linked import BUSY, CALLS, Linked
from haiprof.views.trace.names import numbered, one_of

#: HTA's own choice: what launches less has hardly a pattern.
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
        shortest: sequences of fewer than that are left out.
    """
    name, names = numbered(linked.ops["name"])
    called = names.cast(pl.String).str.contains(operator, literal=True).fill_null(False)
    callable_ = (linked.category == CALLS.index("op")) | (linked.category == CALLS.index("user"))
    wanted = called.to_numpy()[name] & callable_
    rows = np.flatnonzero(wanted).astype(np.int32)
    outermost = np.zeros(len(wanted), bool)
    outermost[rows[around(linked.parent, rows, wanted) < 0]] = True

    busy = linked.activities.filter(
        pl.Series(one_of(linked.activities["kind"], BUSY)), pl.col("op").is_not_null()
    )
    below = climb(linked.parent, busy["op"].cast(pl.Int32).to_numpy(), outermost)
    some = np.flatnonzero(below >= 0)
    order = some[np.lexsort((busy["start"].to_numpy()[some], below[some]))]
    call = below[order]
    if not len(call):
        return pl.DataFrame(schema=SCHEMA)
    activity, activities = numbered(busy["name"])
    from haiprof import _core

    # A sequence is a path: of a call's first activity, then its second, and so on. Its root is the
    # operator's name, so that operators do not mix.
    first = np.append(True, call[1:] != call[:-1])
    last = np.append(first[1:], True)
    roots = call[first]
    place = np.arange(len(call), dtype=np.int32) + len(roots)
    above = np.where(first, np.cumsum(first, dtype=np.int32) - 1, place - 1)
    path, parent, named, depth = _core.fold(
        np.concatenate((np.full(len(roots), -1, np.int32), above)).astype(np.int32),
        np.concatenate((name[roots] + len(activities), activity[order])).astype(np.uint32),
    )
    ends = path[len(roots) :][last]
    device = np.add.reduceat(busy["duration"].to_numpy()[order], np.flatnonzero(first))
    counted = (
        pl.DataFrame(
            {
                "path": ends,
                "length": depth[ends],
                "device": device,
                "host": linked.end[roots] - linked.start[roots],
            }
        )
        .group_by("path")
        .agg(pl.len().alias("count"), pl.col("length").first(), pl.col("device", "host").sum())
        .filter(pl.col("length") >= shortest)
        .sort("count", "device", "path", descending=[True, True, False])
    )
    texts = activities.cast(pl.String).to_list()
    whole = [_names(path, parent, named, texts) for path in counted["path"].to_list()]
    operators = names.cast(pl.String)
    return counted.with_columns(
        operators.gather([root - len(texts) for root, _ in whole]).alias("operator"),
        pl.Series("sequence", [sequence for _, sequence in whole], pl.List(pl.String())),
    ).select(pl.col(column).cast(kind) for column, kind in SCHEMA.items())


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
