"""Edges to the begin and the end of activities of devices.

Tests: tests/views/trace/critical_path/test_path.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Index, Times
from haiprof.views.trace import blocked_launches
from haiprof.views.trace.critical_path import waits
from haiprof.views.trace.critical_path.edges import ACTIVITY, KIND, Edges
from haiprof.views.trace.critical_path.window import Activities, Bools

_NEVER = np.iinfo(np.int64).min


def add(edges: Edges, queued: Bools) -> int:
    """Add the edges. Returns how many activities began before their launch.

    ``queued``: activities launched by calls that a full queue blocked.
    """
    acts = edges.acts
    role = edges.role(np.arange(len(acts.row)))
    row = acts.row
    edges.add(edges.begins, edges.ends, role, part=None, who=ACTIVITY - row, activity=row)
    if not len(row):
        return 0
    _begin(edges, queued)
    known = acts.call >= 0
    return int(np.count_nonzero(known & (acts.launch > acts.start) & (acts.start > edges.low)))


def _begin(edges: Edges, queued: Bools) -> None:
    acts = edges.acts
    count = len(acts.row)
    known = acts.call >= 0
    before, cut = _before(acts)
    has = before >= 0
    previous = np.where(has, acts.end[before], _NEVER)
    together = has & (acts.correlation == acts.correlation[before]) & (acts.correlation != 0)
    works = np.where(known, acts.returned - acts.launch, 0)
    lag = np.where(known, acts.start - acts.launch, 0)
    free = known & ~cut & (previous <= acts.launch) & (lag > 0)
    usual = _median(lag, free & (acts.start - acts.returned <= waits.PROMPT))
    usual = _median(works, known) if usual is None else usual
    # A call that returns after its activity began had submitted it by then.
    handed = np.where(
        acts.returned <= acts.start,
        acts.returned,
        np.minimum(acts.launch + (usual or 0), acts.start),
    )
    # What was met last.
    by_stream = has & ~cut & (~known | together | (previous > handed))
    bound = np.where(known, np.maximum(previous, handed), _NEVER)
    other = waits.of_activities(edges.linked, acts)
    by_event = (other >= 0) & (acts.end[other] > bound)
    bound[by_event] = acts.end[other[by_event]]
    astride = has & cut & (~known | together | (handed <= acts.start[before]))
    by_launch = known & ~by_stream & ~by_event & ~astride
    # Later than all that is known: the device may have been occupied.
    prompt = acts.start - bound <= waits.PROMPT
    late = np.flatnonzero(known & ~astride & ~prompt)
    by = np.full(count, -1, np.intp)
    occupied = np.zeros(count, bool)
    by[late], occupied[late] = waits.of_devices(acts, late, np.maximum(bound[late], edges.low))
    # One that follows another on the device waited behind both: it goes on with that.
    occupied &= by_launch
    by_launch &= ~occupied
    # A copy from pageable memory begins while its call still prepares it.
    late = late[(by[late] >= 0) | (acts.returned[late] <= acts.start[late])]
    row = np.where(by >= 0, acts.row[by], acts.row)

    def why(kind: str) -> npt.NDArray[np.uint8]:
        kinds = np.full(count, KIND[kind], np.uint8)
        kinds[late] = np.where(by[late] >= 0, KIND["occupied"], KIND["unexplained"])
        kinds[~known] = KIND["unexplained"]
        return kinds

    mine = by_stream & ~by_event
    delay = _median(acts.start - previous, mine & known & prompt) or 0
    some = np.flatnonzero(has & ~cut)
    edges.add(
        edges.ends[before[some]],
        edges.begins[some],
        why("stream")[some],
        last=mine[some],
        least=np.where(known[some], delay, 0),
        activity=row[some],
    )
    some = np.flatnonzero(astride)
    edges.add(
        edges.begins[before[some]],
        edges.begins[some],
        edges.role(before[some]),
        last=~by_event[some],
        activity=acts.row[before[some]],
    )
    some = np.flatnonzero(other >= 0)
    edges.add(
        edges.ends[other[some]],
        edges.begins[some],
        why("event")[some],
        last=by_event[some],
        least=_median(acts.start - bound, by_event & prompt) or 0,
        activity=row[some],
    )
    _occupied(edges, np.flatnonzero(occupied), by)
    _unlaunched(edges, np.flatnonzero(~known & ~cut), previous)
    # A call that a full queue blocks takes longer than the launch needs.
    if queued.any():
        shortest = blocked_launches.shortest(edges.linked)[acts.call]
        works = np.where(queued, np.minimum(works, shortest), works)
    after = acts.start - acts.returned
    delay = _median(after, by_launch & prompt & (after >= 0)) or 0
    least = np.where(acts.returned <= acts.start, works + delay, usual or 0)
    _of_launch(edges, by_launch, least, works, why("launch"), row)


def _median(values: Times, of: Bools) -> int | None:
    return int(np.median(values[of])) if of.any() else None


def _of_launch(
    edges: Edges,
    last: Bools,
    least: Times,
    works: Times,
    kind: npt.NDArray[np.uint8],
    row: npt.NDArray[np.int32],
) -> None:
    """Add edges from the begin of the launching call: it submits the activity, then it starts."""
    acts, host = edges.acts, edges.host
    known = acts.call >= 0
    early = np.flatnonzero(known & (acts.launch < edges.low))
    edges.add(
        np.zeros(len(early), np.int32),
        edges.begins[early],
        kind[early],
        last=last[early],
        least=(acts.launch + least)[early] - edges.low,
        activity=row[early],
    )
    within = np.flatnonzero(known & (acts.launch >= edges.low) & (acts.launch < edges.high))
    node = host.first[acts.call[within]]
    skewed = (node < 0) | (acts.launch[within] >= acts.start[within])
    node[skewed] = edges.instant_before(
        edges.linked.ops["thread"].to_numpy()[acts.call[within[skewed]]],
        acts.start[within[skewed]],
    )
    within, node = within[node >= 0], node[node >= 0]
    edges.add(
        edges.instants[node],
        edges.begins[within],
        kind[within],
        last=last[within],
        least=least[within],
        part=works[within],
        who=acts.call[within],
        activity=row[within],
    )


def _before(acts: Activities) -> tuple[Index, Bools]:
    """For each activity the one it had to follow, or -1; whether that had not ended then."""
    before = np.arange(len(acts.row)) - 1
    before[np.append(True, acts.lane[1:] != acts.lane[:-1])] = -1
    earlier = _of_graph(acts)
    closer = (earlier >= 0) & ((before < 0) | (acts.end[earlier] > acts.end[before]))
    before = np.where(closer, earlier, before)
    end = acts.end[before]
    instant = end == acts.start[before]
    return before, (before >= 0) & ((end > acts.start) | ((end == acts.start) & instant))


def _of_graph(acts: Activities) -> Index:
    """Of activities launched together: the one of them that ended last before each, or -1."""
    found = np.full(len(acts.row), -1, np.intp)
    each, of, size = np.unique(acts.correlation, return_inverse=True, return_counts=True)
    some = np.flatnonzero((size[of] > 1) & (each[of] != 0))
    if not len(some):
        return found
    mine = pl.DataFrame({"row": some, "group": of[some], "at": acts.start[some]}).sort("at")
    theirs = pl.DataFrame({"earlier": some, "group": of[some], "at": acts.end[some]})
    joined = mine.join_asof(
        theirs.filter(pl.Series(acts.end[some] > acts.start[some])).sort("at"),
        on="at",
        by="group",
        strategy="backward",
        check_sortedness=False,
    )
    found[joined["row"].to_numpy()] = joined["earlier"].fill_null(-1).to_numpy()
    return found


def _occupied(edges: Edges, some: Index, by: Index) -> None:
    """Add edges to activities that had no room, from the begin or end of what occupied it."""
    acts = edges.acts
    found = by[some]
    going = acts.end[found] > acts.start[some]
    source = np.where(going, edges.begins[found], edges.ends[found])
    kind = np.where(going, edges.role(found), KIND["occupied"])
    row = acts.row[found]
    edges.add(source, edges.begins[some], kind, part=None, who=ACTIVITY - row, activity=row)


def _unlaunched(edges: Edges, rows: Index, previous: Times) -> None:
    """Add edges to activities of unknown launch, from what ended last on their device."""
    acts = edges.acts
    for device in np.unique(acts.lane[rows] >> 33):
        mine = rows[acts.lane[rows] >> 33 == device]
        there = np.flatnonzero((acts.lane >> 33 == device) & (acts.end > acts.start))
        there = there[np.argsort(acts.end[there], kind="stable")]
        at = np.searchsorted(acts.end[there], acts.start[mine], side="right") - 1
        mine, found = mine[at >= 0], there[at[at >= 0]]
        later = acts.end[found] > previous[mine]
        edges.add(edges.ends[found[later]], edges.begins[mine[later]], "unexplained", least=0)
