"""At which lines of the job each cause of the ledger took its time: from sampled stacks.

A sample stands for the wall time until the next one. A line is the innermost frame in a file of
the job's own; what runs there may be a library, which is the innermost frame of all.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.frame_texts import SEPARATOR, frame_text, in_package
from haiprof.views.run.ledger import CAUSES, CODE, Ledger
from haiprof.views.run.stacks import Tree

LINES_SCHEMA: Final = {
    "cause": pl.String(),
    "worker": pl.Boolean(),
    "line": pl.String(),
    "path": pl.String(),
    "function": pl.String(),
    "file": pl.String(),
    "package": pl.String(),
    "outer": pl.String(),
    "state": pl.String(),
    "waits_in": pl.String(),
    "gil": pl.Boolean(),
    "blocked_by": pl.String(),
    "beside": pl.String(),
    "slow": pl.Boolean(),
    "later": pl.Boolean(),
    "samples": pl.Int64(),
}

Numbers = npt.NDArray[np.int64]

#: Threads sampled within this time were sampled at once, ns.
_AT_ONCE: Final = 20_000_000
#: Of fewer samples no share is worth the name.
_ENOUGH: Final = 30
#: Samples are closer than usual if their distance is this part of the usual one.
_OFTEN: Final = 0.7
#: States of a thread that has work to do.
RUNNING: Final = ("running", "ready")


def hot_lines(
    samples: pl.DataFrame,
    tree: Tree,
    charged: Ledger,
    slow: npt.NDArray[np.bool_],
    since: int | None,
    pid: int | None,
    training: int | None,
) -> pl.DataFrame:
    """Return how many samples of which line each cause has, the most first.

    Columns: ``cause`` (of the training thread at that time), ``worker`` (whether the sample is of a
    process of the DataLoader's, else it is of the training thread), ``line`` (text; null: no frame
    is the job's own), ``path`` (all frames that are, the outermost first, as folded stacks have
    them), ``function`` and ``file`` (innermost frame), ``package`` (that the innermost
    frame belongs to: null: to the job itself), ``outer`` (packages that the frames between the line
    and the innermost one pass through), ``state``, ``waits_in``, ``gil``, ``blocked_by`` (the line
    of another thread of the process, which had the GIL while this one waited), ``beside`` (the
    line of another thread that ran while this one waited), ``slow`` (whether the step is),
    ``later`` (whether it is one of those that take longer, to the end), ``samples``.

    Args:
        samples: of all threads, as :func:`haiprof.views.run.stacks.placed` gives them.
        tree: their nodes.
        charged: ledger of the process.
        slow: of each group of its steps.
        since: number of the group from which on steps take longer; None: none do.
        pid: of the process itself, as its workers have others.
        training: kernel id of the thread that trains.
    """
    mine = pl.col("process") == (pid or 0)
    own = samples.filter(mine, pl.col("thread") == (training or 0))
    workers = samples.filter(~mine, pl.col("process") == pl.col("thread"))
    others = samples.filter(mine, pl.col("thread") != (training or 0))
    with_gil = _expanded(others.filter(pl.col("gil") == 1))
    running = _expanded(others.filter(pl.col("state").cast(pl.String).is_in(RUNNING)))
    names = _Names(tree)
    parts = [pl.DataFrame(schema=LINES_SCHEMA)]
    for worker, some in ((False, own), (True, workers)):
        expanded = _evenly(_expanded(some))
        times = expanded["start"].to_numpy()
        cause = charged.cause_at(times)
        expanded = expanded[_at_any_moment(times, expanded["state"], cause).tolist()]
        nobody: list[str | None] = [None] * len(times)
        blocked = nobody if worker else _others(times, with_gil, names, "a library")
        beside = nobody if worker else _others(times, running, names)
        group = np.searchsorted(charged.start, times, "right") - 1
        is_slow = np.zeros(len(times), bool)
        if len(charged.start):
            is_slow = (group >= 0) & slow[np.maximum(group, 0)]
        waits = (expanded["state"].cast(pl.String) == "waiting").to_list()
        texts = [CAUSES[code] if code >= 0 else None for code in cause.tolist()]
        described = names.of(expanded["row"].to_numpy()).with_columns(
            pl.Series("cause", texts, pl.String()),
            pl.lit(worker).alias("worker"),
            expanded["state"].cast(pl.String),
            expanded["waits_in"].cast(pl.String),
            expanded["gil"] == 1,
            *(
                pl.Series(
                    name,
                    [by if w else None for by, w in zip(found, waits, strict=True)],
                    pl.String(),
                )
                for name, found in (("blocked_by", blocked), ("beside", beside))
            ),
            pl.Series("slow", is_slow),
            pl.Series("later", group >= (len(charged.start) if since is None else since)),
        )
        parts.append(
            described.filter(pl.col("cause").is_not_null())
            .group_by([name for name in LINES_SCHEMA if name != "samples"])
            .agg(pl.len().cast(pl.Int64).alias("samples"))
            .select(pl.col(name).cast(kind) for name, kind in LINES_SCHEMA.items())
        )
    return pl.concat(parts).sort("samples", "line", "function", descending=[True, False, False])


class _Names:
    """Of each node of a tree its innermost frame, its package, and the job's frames around it."""

    def __init__(self, tree: Tree) -> None:
        frames = tree.frames.select("function", "file", "line").cast(
            {"function": pl.String, "file": pl.String}
        )
        self._frames = frames
        self._parent = tree.parent.tolist()
        self._texts = frames.rows()
        self._package = [in_package(function, file) for function, file, _ in self._texts]
        self._known: dict[int, tuple[str | None, str | None, str | None]] = {}

    def line(self, row: int) -> str | None:
        """Return the text of the innermost frame of the job's own around a node."""
        return self._around(row)[0]

    def _around(self, row: int) -> tuple[str | None, str | None, str | None]:
        """Return the job's line around a node, its path, and the packages after the line."""
        if row in self._known:
            return self._known[row]
        passed: dict[str, None] = {}
        own: list[str] = []
        at = row
        while at >= 0:
            package = self._package[at]
            if package is None:
                own.append(frame_text(*self._texts[at]))
            elif not own:
                passed[package] = None
            at = self._parent[at]
        found = own[0] if own else None, SEPARATOR.join(own[::-1]) or None, " ".join(passed) or None
        self._known[row] = found
        return found

    def of(self, rows: Numbers) -> pl.DataFrame:
        """Return ``line``, ``path``, ``function``, ``file``, ``package``, ``outer`` of nodes."""
        distinct, back = np.unique(rows, return_inverse=True)
        places = distinct.tolist()
        found = [self._around(row) for row in places]
        texts = {
            "line": [line for line, _, _ in found],
            "path": [path for _, path, _ in found],
            "package": [self._package[row] for row in places],
            "outer": [outer for *_, outer in found],
        }
        table = self._frames[places].with_columns(
            pl.Series(name, values, pl.String()) for name, values in texts.items()
        )
        taken: pl.DataFrame = table[back.tolist()]
        return taken


def _expanded(samples: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each sample: rows of a thread that did not run stand for several."""
    count = np.maximum(samples["samples"].to_numpy().astype(np.int64), 1)
    which = np.repeat(np.arange(len(count)), count)
    ordinal = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    rows: pl.DataFrame = samples[which.tolist()]
    period = (samples["duration"].to_numpy() // count)[which]
    return rows.with_columns(
        pl.Series("start", rows["start"].to_numpy() + ordinal * period), pl.Series("period", period)
    )


def _evenly(samples: pl.DataFrame) -> pl.DataFrame:
    """Return samples that are as far apart as they are for most of the time.

    A part of it in which threads were sampled more often would count for more than it lasted.
    """
    if not samples.height:
        return samples
    ordered = samples["period"].sort()
    usual = int(ordered[int(np.searchsorted(ordered.cum_sum(), ordered.sum() / 2))])
    often = pl.col("period") < _OFTEN * usual
    each = pl.struct("process", "thread", pl.col("start") // usual)
    return samples.filter(~often | each.is_first_distinct())


def _at_any_moment(
    times: Numbers, state: pl.Series, cause: npt.NDArray[np.integer]
) -> npt.NDArray[np.intp]:
    """Return which sample says what a thread did at the time of each: mostly itself.

    A thread that is ready to run gave its CPU to whoever sampled it: often at the end of a system
    call, which would look as if it took long. The nearest sample of the same cause that was taken
    while it ran stands for it, if there are enough of these. The start is looked at apart.

    Args:
        times: of each sample, ns UTC.
        state: of each.
        cause: code of each.
    """
    found = np.arange(len(times))
    texts = state.cast(pl.String).to_numpy()
    ready, runs = texts == "ready", texts == "running"
    starting = cause == CODE["startup"]
    for part in (starting, ~starting):
        if np.count_nonzero(runs & part) < _ENOUGH:
            continue
        for code in np.unique(cause[ready & part]):
            known = np.flatnonzero(runs & (cause == code))
            if len(known):
                unknown = np.flatnonzero(ready & (cause == code))
                known = known[np.argsort(times[known], kind="stable")]
                found[unknown] = known[_nearest(times[known], times[unknown])]
    return found


def _nearest(sorted_times: Numbers, times: Numbers) -> npt.NDArray[np.intp]:
    """Return the places of the sorted times that are nearest to others."""
    at = np.clip(np.searchsorted(sorted_times, times), 0, len(sorted_times) - 1)
    before = np.maximum(at - 1, 0)
    closer = np.abs(sorted_times[before] - times) <= np.abs(sorted_times[at] - times)
    return np.where(closer, before, at)


def _others(
    times: Numbers, others: pl.DataFrame, names: _Names, unnamed: str | None = None
) -> list[str | None]:
    """Return the line of the other thread that was sampled with each sample, if any was."""
    if not others.height:
        return [None] * len(times)
    others = others.sort("start")
    start, rows = others["start"].to_numpy(), others["row"].to_numpy()
    nearer = _nearest(start, times)
    close = np.abs(start[nearer] - times) <= _AT_ONCE
    return [
        names.line(int(rows[place])) or unnamed if near else None
        for place, near in zip(nearer.tolist(), close.tolist(), strict=True)
    ]
