"""Where the time of a process goes, line by line: its sampled Python stacks.

A sample stands for the wall time of the period in which it was taken. Of ``n`` samples in all a
function with the share ``p`` of the time is in ``p n``, give or take ``sqrt(p (1 - p) n)``; in the
flame graph of the training thread less is left to chance, as its phases are known:
:func:`weighed`.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.frame_texts import OUR_THREADS, SEPARATOR, frame_text
from haiprof.views.intervals import covered, merge, subtract

By = Literal["line", "function"]
BY: Final[tuple[By, ...]] = ("line", "function")
Threads = Literal["all", "training", "workers"]
THREADS: Final[tuple[Threads, ...]] = ("all", "training", "workers")
#: What stands for time in no phase.
NO_PHASE: Final = "other"

#: Columns of spans that tell the phases.
SPAN_COLUMNS: Final = ("start", "duration", "category", "name", "thread", "step")
STACKS_SCHEMA: Final = {
    "start": pl.Int64(),
    "duration": pl.Int64(),
    "samples": pl.UInt32(),
    "process": pl.UInt32(),
    "thread": pl.UInt32(),
    "state": pl.Categorical(),
    "waits_in": pl.Categorical(),
    "gil": pl.Boolean(),
    "step": pl.UInt32(),
    "phase": pl.Categorical(),
    "function": pl.String(),
    "file": pl.String(),
    "line": pl.UInt32(),
    "stack": pl.String(),
}
FLAME_SCHEMA: Final = {
    "path": pl.UInt32(),
    "parent": pl.UInt32(),
    "depth": pl.UInt32(),
    "function": pl.String(),
    "file": pl.String(),
    "line": pl.UInt32(),
    "total": pl.Int64(),
    "self": pl.Int64(),
    "running": pl.Int64(),
    "samples": pl.UInt32(),
}

Numbers = npt.NDArray[np.int64]


class Tree:
    """The nodes of stacks as arrays, in the order of their numbers.

    Attributes:
        id: of each node its number, ascending.
        parent: of each node the row of its parent, or -1.
        frames: ``function``, ``file`` and ``line`` of each node.
    """

    def __init__(self, frames: pl.DataFrame) -> None:
        """Take the table ``frames`` of one process; a node whose parent is missing is outermost."""
        self.frames = frames.unique("id", keep="first").sort("id")
        self.id: Numbers = self.frames["id"].cast(pl.Int64).to_numpy()
        self.parent = self.rows_of(self.frames["parent"].cast(pl.Int64).fill_null(-1).to_numpy())
        # A parent comes before its children, whatever a damaged file says.
        self.parent[self.parent >= np.arange(len(self.id))] = -1

    def rows_of(self, ids: Numbers) -> Numbers:
        """Return the row of each number; -1: there is no such node."""
        if not len(self.id):
            return np.full(len(ids), -1, np.int64)
        place = np.minimum(np.searchsorted(self.id, ids), len(self.id) - 1)
        return np.where(self.id[place] == ids, place, -1)

    def is_ours(self) -> npt.NDArray[np.bool_]:
        """Say of each node whether it is of a thread of haiprof's in the job."""
        begins = self.frames["file"].cast(pl.String).str.ends_with(OUR_THREADS)
        return self._from_outermost(begins.to_numpy())

    def _from_outermost(self, own: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        outermost = np.arange(len(self.parent))
        for _ in range(len(self.parent)):
            above = self.parent[outermost]
            if (above < 0).all():
                break
            outermost = np.where(above >= 0, above, outermost)
        return own[outermost]

    def texts(self, rows: Numbers) -> list[str]:
        """Return whole stacks as texts, the outermost frame first: ``function (file:line);…``."""
        rows_of_frames = (
            self.frames.select("function", "file", "line")
            .cast({"function": pl.String, "file": pl.String})
            .iter_rows()
        )
        clean = [frame_text(*frame) for frame in rows_of_frames]
        known: dict[int, str] = {}
        parent = self.parent.tolist()

        def text(row: int) -> str:
            missing = []
            while row >= 0 and row not in known:
                missing.append(row)
                row = parent[row]
            for each in reversed(missing):
                above = parent[each]
                known[each] = (
                    clean[each] if above < 0 else f"{known[above]}{SEPARATOR}{clean[each]}"
                )
            return known[missing[0]] if missing else known[row]

        return [text(row) for row in rows.tolist()]


def rooted(stacks: pl.DataFrame, tree: Tree) -> pl.DataFrame:
    """Return the samples of the job's threads, and in ``row`` which node of the tree each is at."""
    rows = tree.rows_of(stacks["stack"].cast(pl.Int64).to_numpy())
    known = rows >= 0
    if known.any():
        known[known] = ~tree.is_ours()[rows[known]]
    return stacks.with_columns(pl.Series("row", rows)).filter(pl.Series(known))


def placed(stacks: pl.DataFrame, tree: Tree, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the samples of one process with their step and phase, and the row of their node.

    Columns are those of :func:`rooted`, ``step`` and ``phase``. Step
    and phase are the process's at that time; null for a sample that goes on beyond the phase, as
    of a thread that waits for long. haiprof's own threads are left out.

    Args:
        stacks: table ``stacks``.
        tree: of table ``frames``.
        spans: its steps and phases, with :data:`SPAN_COLUMNS`.
    """
    stacks = rooted(stacks, tree)
    start = stacks["start"].to_numpy()
    # From the first sample to the last one: each of them stands for the time that follows it.
    count = np.maximum(stacks["samples"].to_numpy().astype(np.int64), 1)
    last = start + stacks["duration"].to_numpy() // count * (count - 1)
    found = {}
    for category in ("step", "phase"):
        some = spans.filter(pl.col("category") == category).sort("start")
        found[category] = some, _innermost(some, start, last)
    steps, at_step = found["step"]
    phases, at_phase = found["phase"]
    return stacks.with_columns(
        _taken(steps["step"], at_step).alias("step"),
        _taken(phases["name"].cast(pl.Categorical), at_phase).alias("phase"),
    )


def of_threads(
    samples: pl.DataFrame, spans: pl.DataFrame, pid: int | None, threads: Threads
) -> pl.DataFrame:
    """Return the samples of some threads of one process.

    Args:
        samples: as :func:`placed` gives them.
        spans: its steps and phases, with :data:`SPAN_COLUMNS`.
        pid: the process's own, as its workers have others.
        threads: ``training``: the thread with most phases, the main one where there are none;
            ``workers``: the main threads of the processes that it forked; or ``all``.
    """
    if threads == "all" or pid is None:
        return samples
    if threads == "workers":
        return samples.filter(pl.col("process") != pid, pl.col("process") == pl.col("thread"))
    return samples.filter(_of_training(spans, pid))


def _of_training(spans: pl.DataFrame, pid: int) -> pl.Expr:
    of_phases = spans.filter(pl.col("category") == "phase")["thread"].value_counts(sort=True)
    training = of_phases["thread"][0] if of_phases.height else pid
    return (pl.col("process") == pid) & (pl.col("thread") == training)


def weighed(samples: pl.DataFrame, spans: pl.DataFrame, pid: int) -> pl.DataFrame:
    """Return samples; phases share those of the training thread as they shared its time.

    How many samples a phase has is chance, how long it took is known: what is left to chance is
    which lines share its time (post-stratification: W. G. Cochran, Sampling Techniques, 5A.9). All
    samples together keep their weight. Time in no phase counts as one more phase; a sample that
    goes on beyond its phase stays as it is.

    Args:
        samples: as :func:`placed` gives them.
        spans: the steps and phases of their process, with :data:`SPAN_COLUMNS`.
        pid: of that process.
    """
    phases = spans.filter(pl.col("category") == "phase").sort("start")
    training = samples.filter(_of_training(spans, pid))
    in_one = pl.col("phase").is_not_null() | (pl.col("samples") <= 1)
    if not phases.height or not training.filter(in_one).height:
        return samples
    # A sample is at a random moment of its period, so its neighbours are less than two away.
    low, high = merge(*_around(training.filter(in_one), 1))
    sampled = subtract(low, high, *merge(*_around(training.filter(~in_one), 0)))
    own = _own_time(phases, *sampled).astype(np.float64)
    stratum = pl.col("phase").cast(pl.String).alias("stratum")
    known = phases.select(pl.col("name").cast(pl.String).alias("stratum"), pl.Series("took", own))
    rest = max(float((sampled[1] - sampled[0]).sum()) - float(own.sum()), 0.0)
    none = pl.DataFrame({"stratum": [None], "took": [rest]}, known.schema)
    took = pl.concat([known, none]).group_by("stratum").agg(pl.col("took").sum())
    seen = training.filter(in_one).group_by(stratum).agg(pl.col("duration").sum().alias("seen"))
    share = pl.col("took") / pl.col("took").sum() * pl.col("seen").sum() / pl.col("seen")
    factors = seen.filter(pl.col("seen") > 0).join(took, on="stratum", nulls_equal=True)
    joined = samples.with_columns(stratum).join(
        factors.select("stratum", share.fill_nan(1.0).alias("factor")),
        on="stratum", how="left", nulls_equal=True, maintain_order="left",
    )  # fmt: skip
    factor = pl.when(_of_training(spans, pid) & in_one).then(pl.col("factor")).fill_null(1.0)
    # Damaged files may have times that no number holds.
    weight = (pl.col("duration") * factor).round().cast(pl.Int64, strict=False)
    weight = weight.fill_null(pl.col("duration"))
    return joined.with_columns(weight.alias("duration")).drop("stratum", "factor")


def _around(samples: pl.DataFrame, periods: int) -> tuple[Numbers, Numbers]:
    """Return from when to when samples were taken, and so many periods before and after."""
    count = np.maximum(samples["samples"].to_numpy().astype(np.int64), 1)
    period = np.maximum(samples["duration"].to_numpy(), 0) // count
    start = samples["start"].to_numpy()
    return start - periods * period, start + (count - 1 + periods) * period


def described(samples: pl.DataFrame, tree: Tree) -> pl.DataFrame:
    """Return samples as :func:`placed` gives them, with their frames as texts.

    ``function``, ``file`` and ``line`` are the innermost frame's; ``stack`` is the whole stack, the
    outermost frame first.
    """
    rows = samples["row"].unique().sort()
    named = tree.frames[rows.to_list()].select(
        rows,
        pl.col("function").cast(pl.String),
        pl.col("file").cast(pl.String),
        "line",
        pl.Series("stack", tree.texts(rows.to_numpy()), dtype=pl.String()),
    )
    return (
        samples.drop("stack")
        .join(named, on="row", how="left", maintain_order="left")
        .with_columns(pl.col("gil") == 1)
        .select(pl.col(name).cast(kind) for name, kind in STACKS_SCHEMA.items())
        .sort("start", maintain_order=True)
    )


def flame(samples: pl.DataFrame, tree: Tree, by: By = "line") -> pl.DataFrame:
    """Return a flame graph: the wall time of each path of calls; callers come first.

    Columns: ``path`` (the row's number), ``parent`` (that of its caller), ``depth``, ``function``,
    ``file``, ``line`` (null by function), ``total`` and ``self`` (ns: with and without what it
    called), ``running`` (ns of ``self`` in which the thread ran, or was ready to), ``samples`` (of
    ``self``).

    Args:
        samples: as :func:`placed` gives them.
        tree: their nodes.
        by: what makes two frames the same.
    """
    path, parent, frames, depth = folded_by(tree, by)
    row = samples["row"].to_numpy()
    weight = samples["duration"].to_numpy()
    own, running, count = (np.zeros(len(parent), np.int64) for _ in range(3))
    np.add.at(own, path[row], weight)
    ran = (samples["state"].cast(pl.String) == "running").to_numpy()
    np.add.at(running, path[row[ran]], weight[ran])
    np.add.at(count, path[row], samples["samples"].to_numpy())
    total = own.copy()
    for level in range(int(depth.max(initial=0)), 0, -1):
        at = np.flatnonzero((depth == level) & (parent >= 0))
        np.add.at(total, parent[at], total[at])
    whole = pl.DataFrame(
        {
            "path": np.arange(len(parent)),
            "parent": pl.Series(parent).replace(-1, None),
            "depth": depth,
            "function": frames["function"],
            "file": frames["file"],
            "line": frames["line"] if by == "line" else pl.repeat(None, len(parent), eager=True),
            "total": total,
            "self": own,
            "running": running,
            "samples": count,
        }
    ).select(pl.col(column).cast(kind) for column, kind in FLAME_SCHEMA.items())
    return _renumbered(whole.filter(pl.col("total") > 0))


def folded_by(tree: Tree, by: By) -> tuple[Numbers, Numbers, pl.DataFrame, Numbers]:
    """Return the paths of calls of a tree: nodes of the same frames below the same path are one.

    Returns:
        Of each node its path; of each path its parent (-1: none), its frame (``function``,
        ``file`` and, by line, ``line``) and its depth, 0 for the outermost.
    """
    from haiprof import _core

    what = ["function", "file", *(["line"] if by == "line" else [])]
    frames = tree.frames.select(what).cast({"function": pl.String, "file": pl.String})
    names = _numbered(frames)
    path, parent, name, depth = _core.fold(tree.parent.astype(np.int32), names)
    first = np.zeros(int(names.max(initial=0)) + 1, np.int64)
    first[names] = np.arange(len(names))
    numbers = (np.asarray(each, np.int64) for each in (path, parent, depth))
    of_node, above, level = numbers
    return of_node, above, frames[first[name].tolist()], level


def flame_by_phase(samples: pl.DataFrame, tree: Tree, by: By = "line") -> pl.DataFrame:
    """Return :func:`flame` of each phase, the longest first, under a row with the phase's name.

    That row has no ``file`` and no ``line``; time in no phase is under ``other``.
    """
    phase = pl.col("phase").cast(pl.String).fill_null(NO_PHASE)
    parts = samples.with_columns(phase).partition_by("phase", as_dict=True, maintain_order=True)
    longest = sorted(parts.items(), key=lambda item: -int(item[1]["duration"].sum()))
    frames, height = [pl.DataFrame(schema=FLAME_SCHEMA)], 0
    for (name,), part in longest:
        of_phase = flame(part, tree, by)
        root = {"path": height, "depth": 0, "function": str(name), "file": ""}
        root |= {"total": int(part["duration"].sum()), "self": 0, "running": 0, "samples": 0}
        frames += [
            pl.DataFrame([{**dict.fromkeys(FLAME_SCHEMA), **root}], FLAME_SCHEMA),
            of_phase.with_columns(
                (pl.col("path") + height + 1).cast(pl.UInt32),
                (pl.col("parent") + height + 1).fill_null(height).cast(pl.UInt32),
                pl.col("depth") + 1,
            ),
        ]
        height += of_phase.height + 1
    return pl.concat(frames)


def _numbered(frames: pl.DataFrame) -> npt.NDArray[np.uint32]:
    """Return a number for each row, the same for equal rows."""
    distinct = frames.unique(maintain_order=True).with_row_index("number")
    joined = frames.join(
        distinct, on=frames.columns, how="left", maintain_order="left", nulls_equal=True
    )
    numbers: npt.NDArray[np.uint32] = joined["number"].cast(pl.UInt32).to_numpy()
    return numbers


def _renumbered(flame: pl.DataFrame) -> pl.DataFrame:
    """Number the paths anew: those without samples were taken out. Callers are never among them."""
    numbers = flame.select(pl.col("path").alias("parent")).with_row_index("new")
    return (
        flame.join(numbers, on="parent", how="left", maintain_order="left")
        .with_columns(pl.col("new").alias("parent"))
        .drop("new")
        .with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("path"))
    )


def _innermost(spans: pl.DataFrame, first: Numbers, last: Numbers) -> Numbers:
    """Return the row of the span around each interval that began last; -1: there is none."""
    if not spans.height:
        return np.full(len(first), -1, np.int64)
    order, start, end, parent = _nested(spans)
    at = np.searchsorted(start, first, side="right") - 1
    while True:
        over = (at >= 0) & (end[at] <= last)
        if not over.any():
            return np.where(at >= 0, order[at], -1)
        at = np.where(over, parent[at], at)


def _own_time(spans: pl.DataFrame, begin: Numbers, end: Numbers) -> Numbers:
    """Return how much of some disjoint intervals each span has, without the spans in it, ns."""
    order, start, until, parent = _nested(spans)
    own = covered(begin, end, start, until)
    inside = np.flatnonzero(parent >= 0)
    of_children = np.zeros(len(own), np.int64)
    np.add.at(of_children, parent[inside], own[inside])
    result = np.zeros(len(own), np.int64)
    result[order] = np.maximum(own - of_children, 0)
    return result


def _nested(spans: pl.DataFrame) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return spans, each before those inside it: rows, starts, ends, and which it is inside of.

    Args:
        spans: sorted by start; they nest.
    """
    from haiprof import _core

    start = spans["start"].to_numpy()
    end = start + np.maximum(spans["duration"].to_numpy(), 0)
    groups, kinds = np.zeros(len(start), np.uint32), np.zeros(len(start), np.uint8)
    order = _core.nesting_order(groups, start, end, kinds)
    start, end = start[order], end[order]
    parent, *_ = _core.nest(groups, kinds, start, end)
    return order.astype(np.int64), start, end, parent.astype(np.int64)


def _taken(values: pl.Series, rows: Numbers) -> pl.Series:
    """Return values by row; null for row -1."""
    chosen = pl.Series(rows).set(pl.Series(rows < 0), None)
    return values.gather(chosen) if len(values) else values.clear(len(rows))
