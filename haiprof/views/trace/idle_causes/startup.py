"""Which calls and operators do what a job does once: set up the device, or load code at first use.

Tests: tests/views/trace/idle_causes/test_host.py.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.trace.linking.linked import Linked, enclosing

#: A launch of a kernel that the trace has not had before, and that takes this long, loads its code.
_LAUNCH: Final = 1_000_000
#: An operator that allocates and itself takes this long at its first use sets up the allocator.
_EMPTY: Final = 1_000_000
#: A call that allocates, or asks for devices, and takes this long creates a context, and so does an
#: operator that allocates and itself takes this long: many short calls in it give memory back. Any
#: operator at its first use does, or loads a library, if it takes this long and this many times as
#: long as at other times.
_CONTEXT: Final = 20_000_000
_RARE: Final = 10
_EMPTIES: Final = r"^aten::empty"
_ASKS: Final = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|GetDeviceCount|GetDeviceProperties\w*)$"
)

Mask = npt.NDArray[np.bool_]


def starts_up(linked: Linked) -> Mask:
    """Say of each span whether it does what a job does once."""
    mask = np.zeros(len(linked.start), np.bool_)
    length, own = linked.end - linked.start, linked.ops["self"].to_numpy()
    long = (linked.of("op") & (length >= _EMPTY)) | (linked.of("runtime") & (length >= _LAUNCH))
    rows = np.flatnonzero(long)
    if not len(rows):
        return mask
    number, texts = linked.named
    names = texts.cast(pl.String)
    empties = names.str.contains(_EMPTIES).fill_null(False).to_numpy()
    asks = np.array([bool(name and _ASKS.search(name)) for name in names.to_list()], np.bool_)
    of, op = number[rows], linked.of("op")[rows]
    first = np.isin(rows, _first_of_each(number, linked.start, of))
    rare = np.zeros(len(rows), np.bool_)
    for place in np.flatnonzero(op & first & (own[rows] >= _CONTEXT)).tolist():
        others = own[(number == of[place]) & (np.arange(len(own)) != rows[place])]
        rare[place] = len(others) > 0 and own[rows[place]] >= _RARE * np.median(others)
    allocates = empties[of] & ((own[rows] >= _CONTEXT) | first)
    sets_up = np.zeros(len(mask), np.bool_)
    sets_up[rows[op & allocates]] = True
    loads = np.isin(rows, _first_launches(linked, rows))
    mask[rows] = np.where(op, rare | allocates, loads | (asks[of] & (length[rows] >= _CONTEXT)))
    # And all that such an operator calls.
    return mask | (enclosing(linked, sets_up) >= 0) if sets_up.any() else mask


def _first_of_each(
    number: npt.NDArray[np.int32], time: npt.NDArray[np.int64], wanted: npt.NDArray[np.int32]
) -> npt.NDArray[np.intp]:
    """Return for each of some numbers the first row that has it, by time."""
    if not len(wanted):
        return np.zeros(0, np.intp)
    chosen = np.zeros(int(number.max()) + 1, np.bool_)
    chosen[wanted] = True
    among = np.flatnonzero(chosen[number])
    # Of those with one number the last assignment stays: that of the earliest.
    late = among[np.argsort(time[among], kind="stable")][::-1]
    first = np.full(len(chosen), -1, np.intp)
    first[number[late]] = late
    return first[first >= 0]


def _first_launches(linked: Linked, calls: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
    """Those of some calls (rows) that launched the first kernel of a name."""
    known = np.flatnonzero((linked.runtime >= 0) & linked.in_role("kernel", "communication"))
    call = linked.runtime[known]
    asked = np.zeros(len(linked.start), np.bool_)
    asked[calls] = True
    names = linked.named_activities[0][known]
    first: npt.NDArray[np.int32] = call[
        _first_of_each(names, linked.start[call], names[asked[call]])
    ]
    return first
