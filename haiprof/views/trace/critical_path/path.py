"""The critical path: the chain of work that a step, a range or a whole trace waited for.

The idea is that of HTA's critical path analysis. Instants (where a call of the host or an activity
of a device begins or ends) are the nodes of a graph. An edge leads from one instant to a later one;
its weight is the time between them if the later instant could not have come sooner because of it,
else 0. The path is the heaviest one from the begin of the window to its last end.

Edges, by ``kind`` of the path's elements:

- ``host``: from instant to instant of one thread, the time of the innermost call. Its weight is 0
  while the call waits for a device, or for another thread: for backward operators that another
  thread runs while the main thread calls nothing. The path goes there with the first of them, and
  back with the last. Time between calls (``outside``) has weight on the main thread, which runs
  Python then, and between those operators; other threads may wait for anything.
- ``launch``: from the begin of the launching call to the begin of its activity, if all earlier work
  of the stream had ended when that call returned; for activities of a CUDA graph only if none of
  the same launch ended before.
  same launch ended before.
- ``stream``: from the end of the previous activity on the stream (or, in a graph, of the same
  launch), if that was what was waited for.
- ``event``: from the end of an activity of another stream, if the file shows that the stream had
  to wait for an event, and that activity was the last one to end before.
- ``kernel``, ``communication``, ``memcpy``, ``memset``: an activity, from its begin to its end.
- ``sync``: from the end of an activity to the return of the call that waited for it: a call that
  synchronizes, or a copy that returned after its own activity had ended.
- ``unexplained``: time for which nothing in the file gives a reason.

HTA's numbers differ from these (and between its versions): it gives no weight to the time between
operators, has no edges between threads, and ends its path at the heaviest node, not at the end of
the window.

Times are int64 ns.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import polars as pl

from haiprof.common.choices import quoted, unknown
from haiprof.views.trace.critical_path.graph import KIND, KINDS, graph
from haiprof.views.trace.critical_path.window import STEP, Activities, Int32s
from haiprof.views.trace.linking.linked import CALLS, Linked
from haiprof.views.trace.linking.names import numbered, one_of

PATH_SCHEMA: Final = {
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "kind": pl.Categorical(),
    "name": pl.Categorical(),
    "operator": pl.Categorical(),
    "share": pl.Float64(),
    "thread": pl.UInt32(),
    "device": pl.UInt16(),
    "stream": pl.UInt32(),
    "op": pl.UInt32(),
    "activity": pl.UInt32(),
}
SUMMARY_SCHEMA: Final = {
    "kind": pl.String(),
    "elements": pl.UInt32(),
    "duration": pl.Int64(),
    "share": pl.Float64(),
}
NAMES_SCHEMA: Final = {
    "kind": pl.String(),
    "name": pl.String(),
    "elements": pl.UInt32(),
    "duration": pl.Int64(),
    "share": pl.Float64(),
}


@dataclasses.dataclass(frozen=True)
class CriticalPath:
    """A critical path.

    Attributes:
        start: begin of the window.
        end: its end.
        length: the weight of the path: ``end - start`` less what is unexplained.
        path: its elements in the order of time, each begins where the one before ends: ``start``,
            ``duration``, ``kind``, ``name`` (of the call or the activity), ``operator`` (behind the
            activity), ``share`` (of the window), ``thread``, ``device``, ``stream``, ``op`` (row of
            the call in ``linked.ops``), ``activity`` (row in ``linked.activities``).
        summary: by kind, ``elements``, ``duration`` and ``share``; longest first.
        names: the same by kind and name.
        skewed: launches that come after their activity in the file: its clocks disagree there.
    """

    start: int
    end: int
    length: int
    path: pl.DataFrame
    summary: pl.DataFrame
    names: pl.DataFrame
    skewed: int


def of_step(linked: Linked, step: int) -> CriticalPath:
    """Return the critical path of one of ``linked.steps``.

    Raises:
        ValueError: there is no such step.
    """
    found = linked.steps.filter(pl.col("step") == step)
    if not found.height:
        raise ValueError(f"there is no step {step}; there are {_step_range(linked)}")
    return critical_path(linked, int(found["start"][0]), int(found["end"][0]))


def of_range(linked: Linked, name: str, nth: int = 0) -> CriticalPath:
    """Return the critical path of the ``nth`` call of a range, until what it launched has ended.

    Raises:
        ValueError: there is no such range.
    """
    around = (linked.category == CALLS.index("user")) | (linked.category == STEP)
    rows = np.flatnonzero(around & one_of(linked.ops["name"], [name]))
    if not len(rows):
        names = linked.ops["name"].filter(pl.Series(around)).unique().cast(pl.String).to_list()
        raise ValueError(f"there is no range {quoted(name)}: {unknown(name, names)}")
    if not -len(rows) <= nth < len(rows):
        raise ValueError(f"there are {len(rows)} ranges {name!r}: none has number {nth}")
    row = rows[np.argsort(linked.start[rows], kind="stable")][nth]
    start, end = int(linked.start[row]), int(linked.end[row])
    acts = Activities.of(linked, start, np.iinfo(np.int64).max)
    inside = (acts.launch >= start) & (acts.launch < end)
    return critical_path(linked, start, int(acts.end[inside].max(initial=end)))


def critical_path(linked: Linked, start: int | None = None, end: int | None = None) -> CriticalPath:
    """Return the critical path of a window of the trace; without one, of all of it."""
    low = linked.steps["start"].min() if start is None else start
    high = linked.steps["end"].max() if end is None else end
    begin, finish = (int(str(each)) if each is not None else 0 for each in (low, high))
    built = graph(linked, begin, finish)
    from haiprof import _core

    distance, taken = _core.longest_path(built.source, built.target, built.weight, len(built.time))
    source, target = built.source[taken], built.target[taken]
    begun = built.time[source]
    duration = built.time[target] - begun
    some = duration > 0
    whole = max(finish - begin, 1)
    kind = np.where(built.weight[taken] == duration, built.kind[taken], KIND["unexplained"])
    explained = kind != KIND["unexplained"]
    call = np.where(explained, built.call[taken], -1)[some]
    activity = np.where(explained, built.activity[taken], -1)[some]
    path = _described(linked, call, activity).with_columns(
        pl.Series("start", begun[some]),
        pl.Series("duration", duration[some]),
        pl.Series("kind", KINDS, pl.Categorical()).gather(kind[some]),
        pl.Series("share", duration[some] / whole),
    )
    path = path.select(pl.col(column).cast(to) for column, to in PATH_SCHEMA.items())
    return CriticalPath(
        begin,
        finish,
        int(distance[-1]),
        path,
        pl.DataFrame(_summary(path, whole, ["kind"]), SUMMARY_SCHEMA, orient="row"),
        pl.DataFrame(_summary(path, whole, ["kind", "name"]), NAMES_SCHEMA, orient="row"),
        built.skewed,
    )


def _step_range(linked: Linked) -> str:
    steps = linked.steps["step"].to_list()
    return f"{steps[0]} to {steps[-1]}" if steps else "none"


def _summary(path: pl.DataFrame, whole: int, by: list[str]) -> list[tuple[object, ...]]:
    """Group elements: the shared columns, their number, duration and share; longest first."""
    group, texts = np.zeros(path.height, np.int64), []
    for each in by:
        number, known = numbered(path[each])
        group = group * len(known) + number
        texts.append(known.cast(pl.String).to_list())
    found, of = np.unique(group, return_inverse=True)
    lasted = np.zeros(len(found), np.int64)
    np.add.at(lasted, of, path["duration"].to_numpy())
    keys = zip(*np.unravel_index(found, [len(known) for known in texts]), strict=True)
    rows = [
        (duration, count, [known[at] for known, at in zip(texts, key, strict=True)])
        for duration, count, key in zip(
            lasted.tolist(), np.bincount(of).tolist(), keys, strict=True
        )
    ]
    rows.sort(key=lambda row: (-row[0], [(text is not None, text) for text in row[2]]))
    return [(*key, count, duration, duration / whole) for duration, count, key in rows]


def _described(linked: Linked, call: Int32s, activity: Int32s) -> pl.DataFrame:
    rows, acts = _nullable("op", call), _nullable("activity", activity)
    ops, of = linked.ops, linked.activities
    device = of["name"].gather(acts)
    return pl.DataFrame(
        {
            "name": ops["name"].gather(rows).zip_with(acts.is_null(), device),
            "operator": ops["name"].gather(of["op"].gather(acts)),
            "thread": ops["thread"].gather(rows),
            "device": of["device"].gather(acts),
            "stream": of["stream"].gather(acts),
            "op": rows,
            "activity": acts,
        }
    )


def _nullable(name: str, rows: Int32s) -> pl.Series:
    column = pl.Series(name, rows.astype(np.int64))
    known: pl.Series = column.set(column < 0, None).cast(pl.UInt32)
    return known
