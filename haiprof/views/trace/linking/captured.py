"""The calls that put the kernels of a CUDA graph into it, if the trace has the graph's capture.

While a stream is captured, launches run nothing: each makes a node of the graph, and the profiler
numbers nodes in the order in which they were made. In a replay, a kernel, copy or set has the
number of its node. So the launches of a capture, in order, are the nodes of its graph, in order.
torch instantiates a graph as soon as it is captured: graphs are numbered in the order of captures.

That is taken for granted only where the trace confirms it: a capture has as many launches as the
graph has nodes, and of the same kinds (kernel, copy, set) in the same order. Of several graphs that
are alike in this, all must have their captures in the trace. Otherwise it is not known what a
kernel belongs to.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.trace.linking.linked import Linked

Rows = npt.NDArray[np.int32]

_BEGINS: Final = re.compile(r"^(cuda|cu|hip)StreamBeginCapture")
_ENDS: Final = re.compile(r"^(cuda|cu|hip)StreamEndCapture")
#: What a call of the runtime adds to a graph.
_ADDS: Final = (
    (re.compile(r"^(cuda|cu|hip)(Ext)?(Module)?LaunchKernel|^(cuda|cu|hip)LaunchCooperative"), 1),
    (re.compile(r"^(cuda|cu|hip)Memcpy"), 2),
    (re.compile(r"^(cuda|cu|hip)Memset"), 3),
)
_KINDS: Final = {"kernel": 1, "memcpy": 2, "memset": 3}
#: The lower half of a node's number is its place in the graph.
_PLACE: Final = np.uint64(0xFFFFFFFF)


class _Capture(NamedTuple):
    """``calls``: rows of ``Linked.ops`` in order; ``kinds``: what each added."""

    ended: int
    calls: Rows
    kinds: bytes


class _Graph(NamedTuple):
    """``nodes``: their numbers in order; ``rows``: of its activities."""

    begun: int
    nodes: npt.NDArray[np.uint64]
    kinds: bytes
    rows: Rows


def captured(linked: Linked) -> Rows:
    """Return for each activity of a graph the call that put it in, a row of ``ops``; else -1."""
    return linked.once(_captured)


def _captured(linked: Linked) -> Rows:
    found = np.full(linked.activities.height, -1, np.int32)
    graphs = _graphs(linked)
    if not graphs:
        return found
    alike: dict[bytes, list[_Capture]] = defaultdict(list)
    for capture in _captures(linked):
        alike[capture.kinds].append(capture)
    by_kinds: dict[bytes, list[_Graph]] = defaultdict(list)
    for graph in graphs:
        by_kinds[graph.kinds].append(graph)
    place = linked.activities["graph_node"].fill_null(0).to_numpy() & _PLACE
    for kinds, same in by_kinds.items():
        captures = alike.get(kinds, [])
        if len(captures) != len(same):
            continue
        for capture, graph in zip(captures, same, strict=True):
            if graph.begun >= capture.ended:
                at = np.searchsorted(graph.nodes, place[graph.rows])
                found[graph.rows] = capture.calls[at]
    return found


def _graphs(linked: Linked) -> list[_Graph]:
    """The graphs of which anything ran, in the order of their numbers."""
    activities = linked.activities
    in_graph = activities.select(
        (pl.col("graph").is_not_null() & pl.col("graph_node").is_not_null()).alias("in")
    )["in"].to_numpy()
    rows = np.flatnonzero(in_graph & linked.busy).astype(np.int32)
    if not len(rows):
        return []
    numbers = activities["graph"].gather(rows).to_numpy()
    place = activities["graph_node"].gather(rows).to_numpy() & _PLACE
    kind = activities["kind"].gather(rows).cast(pl.String).replace_strict(_KINDS, default=0)
    kinds = kind.cast(pl.UInt8).to_numpy()
    begun = activities["start"].gather(rows).to_numpy()
    found = []
    for number in np.unique(numbers):
        mine = np.flatnonzero(numbers == number)
        nodes, first = np.unique(place[mine], return_index=True)
        found.append(
            _Graph(int(begun[mine].min()), nodes, kinds[mine][first].tobytes(), rows[mine])
        )
    return found


def _captures(linked: Linked) -> list[_Capture]:
    """The captures that are in the trace from begin to end, in order."""
    names = linked.named[1].cast(pl.String).to_list()
    number = linked.named[0]
    begins, ends = (
        np.array([bool(name and pattern.search(name)) for name in names], np.bool_)[number]
        for pattern in (_BEGINS, _ENDS)
    )
    edges = np.flatnonzero((begins | ends) & linked.of("runtime"))
    if not len(edges):
        return []
    adds = np.array([_added(name) for name in names], np.uint8)[number]
    # A call that launched something at once is in no graph.
    adds[linked.runtime[linked.runtime >= 0]] = 0
    calls = np.flatnonzero((adds > 0) & linked.of("runtime")).astype(np.int32)
    calls = calls[np.argsort(linked.start[calls], kind="stable")]
    begun = linked.start[calls]
    thread = linked.ops["thread"].to_numpy()
    found = []
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if not (begins[first] and ends[last] and thread[first] == thread[last]):
            continue
        # A backward pass launches from a thread of its own.
        low, high = np.searchsorted(begun, (linked.end[first], linked.start[last]))
        inside = calls[low:high]
        found.append(_Capture(int(linked.end[last]), inside, adds[inside].tobytes()))
    return sorted(found, key=lambda capture: capture.ended)


def _added(name: str | None) -> int:
    return next((kind for pattern, kind in _ADDS if pattern.search(name or "")), 0)
