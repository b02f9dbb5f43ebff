"""The dependency graph of a window of a trace: what each instant had to wait for.

Instants (where a call of the host or an activity of a device begins or ends) are the nodes. An edge
leads from an instant to a later one that could not come before it; one edge into each node is the
one that was met last. :mod:`haiprof.views.trace.critical_path.path` describes them. Times are int64
ns.

Tests: tests/views/trace/critical_path/test_path.py.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from haiprof.views.intervals import Times
from haiprof.views.trace.critical_path import of_device, of_host
from haiprof.views.trace.critical_path.edges import KIND, OUTSIDE, Columns, Edges
from haiprof.views.trace.critical_path.window import Int32s, Window
from haiprof.views.trace.linking.linked import CALLS, Linked


class Graph(NamedTuple):
    """The graph of one window.

    Attributes:
        time: of each node; node 0 is the begin of the window, the last node its end.
        edges: every one goes from a lower-numbered node to a higher one.
        skewed: number of launches that come after their activity in the file.
    """

    time: Times
    edges: Columns
    skewed: int


def graph(linked: Linked, window: Window, low: int | None = None) -> Graph:
    """Return the graph of a window, or of what precedes it, from ``low`` on, too."""
    low = window.start if low is None else low
    latest = linked.once(_latest)
    found = latest.get((window, low))
    if found is None:
        edges = Edges(linked, low, window.end)
        queued = of_host.add(edges)
        skewed = of_device.add(edges, queued)
        _finish(edges, window)
        found = _ordered(edges, skewed)
        latest.clear()
        if len(found.time) <= _KEPT:
            latest[window, low] = found
    return found


#: Nodes up to which a graph is kept until the next one is asked for: tens of megabytes.
_KEPT: Final = 500_000


def _latest(_: Linked) -> dict[tuple[Window, int], Graph]:
    """The graph asked for last: findings look at the step whose path was asked for."""
    return {}


def _finish(edges: Edges, window: Window) -> None:
    """Add edges to the end of the window, from all that may end it."""
    host, acts, linked = edges.host, edges.acts, edges.linked
    ended = linked.activities["end"].to_numpy()[acts.row]
    if window.own is None:
        of = np.arange(len(acts.row))
        last = np.append(host.thread[1:] != host.thread[:-1], True)[: len(host.row)]
        at = np.flatnonzero(last)
    else:
        begun, done = window.own
        own = (acts.launch >= begun) & (acts.launch < done)
        of = np.flatnonzero(own & (ended <= edges.high))
        at = np.flatnonzero(~host.begins & (linked.end[host.row] == done))
    source = np.concatenate((edges.ends[of], edges.instants[at]))
    if not len(source):
        return
    python = _python(edges) if window.own is None else np.zeros(0, np.int32)
    runs = len(python) > 0 and edges.time[source].max() < edges.high
    if runs:
        edges.add(python, np.full(1, len(edges.time) - 1), "outside", part=None)
    whole = np.concatenate((ended[of], linked.end[host.row[at]])) <= edges.high
    # What ended last, whole, on a device rather than the host.
    order = np.lexsort((-np.arange(len(source)), whole, edges.time[source]))
    last = (np.arange(len(source)) == order[-1]) & ~runs
    sink = np.full(len(source), len(edges.time) - 1)
    edges.add(source, sink, "unexplained", last=last, least=0)


def _python(edges: Edges) -> Int32s:
    """The last instant of a main thread that runs Python until the window's end, if one does."""
    host, linked = edges.host, edges.linked
    python = (linked.category == len(CALLS)) & (linked.end >= edges.high)
    running = np.unique(linked.ops["thread"].to_numpy()[python & (linked.start < edges.high)])
    at = np.flatnonzero(host.main & np.isin(host.thread, running))
    return edges.instants[at[np.argsort(host.time[at], kind="stable")][-1:]]


def _ordered(edges: Edges, skewed: int) -> Graph:
    """Number the nodes in order of time, and give each an edge that was met last."""
    acts, time, nodes = edges.acts, edges.time, len(edges.time)
    # At one instant: ends of activities, begins of activities, ends of those that took no time,
    # then threads. Every edge between two nodes of one instant leads this way.
    rank = np.zeros(nodes, np.int8)
    rank[edges.begins] = 1
    rank[edges.ends] = np.where(acts.end > acts.start, 0, 2)
    rank[edges.instants] = 3
    rank[0], rank[-1] = -1, 4
    order = np.lexsort((rank, time))
    number = np.empty(nodes, np.int32)
    number[order] = np.arange(nodes, dtype=np.int32)
    columns = edges.columns()
    columns = columns._replace(source=number[columns.source], target=number[columns.target])
    forward = columns.source < columns.target
    if not forward.all():
        columns = Columns._make(column[forward] for column in columns)
    reached = np.zeros(nodes, bool)
    reached[columns.target[columns.last]] = True
    reached[0] = True
    # Where clocks disagree, the edge that was met last may lead back: another one takes its place.
    spare = np.flatnonzero(~reached[columns.target])
    if len(spare):
        spare = spare[np.lexsort((columns.source[spare], columns.target[spare]))]
        of = columns.target[spare]
        spare = spare[np.append(of[1:] != of[:-1], True)]
        columns.last[spare] = True
        reached[of] = True
    lost = np.flatnonzero(~reached)
    if len(lost):
        rest: tuple[Any, ...] = (0, lost, 0, 0, OUTSIDE, True, KIND["unexplained"], -1, -1)
        more = zip(cast(tuple[npt.NDArray[Any], ...], columns), rest, strict=True)
        columns = Columns._make(
            np.concatenate((column, np.broadcast_to(np.asarray(value, column.dtype), len(lost))))
            for column, value in more
        )
    return Graph(time[order], columns, skewed)
