"""Work within each nn.Module, and where Python spent its time.

A call of a module is a Python function of which the trace names the module. It encloses the spans
of its thread that begin within its time. The numbers are those of the module view of the
TensorBoard plugin (``module_op.py``), with these differences: a module is a row for each path that
it was called by, while the plugin shows the sum over all paths in each place; self time is the time
that no operator and no other module covers, while the plugin also subtracts overlapping operators
and can get less than nothing; and work that was launched in a module without any operator counts
for it.

Times are int64 ns.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times, covered_per_group
from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.instants import Rows, around, innermost
from haiprof.views.trace.linking.linked import CALLS, PYTHON, Linked
from haiprof.views.trace.linking.names import numbered
from haiprof.views.trace.linking.work import rows as rows_of

#: torch's name for the Python function that calls a module.
_PREFIX: Final = "nn.Module: "

#: What a flame graph may show.
Of = Literal["python", "calls"]
OF = get_args(Of)

MODULES_SCHEMA: Final = {
    "module": pl.UInt32(),
    "parent": pl.UInt32(),
    "depth": pl.UInt32(),
    "name": pl.String(),
    "id": pl.UInt32(),
    "occurrences": pl.UInt32(),
    "operators": pl.UInt32(),
    "host": pl.Int64(),
    "self_host": pl.Int64(),
    "device": pl.Int64(),
    "self_device": pl.Int64(),
    "backward_host": pl.Int64(),
    "backward_device": pl.Int64(),
}
FLAMES_SCHEMA: Final = {
    "path": pl.UInt32(),
    "parent": pl.UInt32(),
    "depth": pl.UInt32(),
    "name": pl.Categorical(),
    "calls": pl.UInt32(),
    "total": pl.Int64(),
    "self": pl.Int64(),
}


def modules(linked: Linked) -> pl.DataFrame:
    """Return one row per module and path that it was called by; callers come first.

    Columns: ``module`` (the row's number), ``parent`` (that of the module which called it),
    ``depth``, ``name``, ``id`` (which one of that name); ``occurrences`` (calls), ``operators``
    (that it called itself), ``host`` (time of the calls), ``self_host`` (of that, under no operator
    and no other module), ``device`` (time of kernels, copies and sets launched within it),
    ``self_device`` (of those, not within another module), and ``backward_host`` and
    ``backward_device``, the time of the backward operators that belong to its forward ones, on the
    host and on devices; null where nothing joins the two.
    """
    calls = _Calls.of(linked)
    rows = calls.rows
    if not len(rows):
        return pl.DataFrame(schema=MODULES_SCHEMA)
    name, names = numbered(linked.ops["name"][rows])
    number = linked.ops["module"][rows].to_numpy()
    known, which = np.unique(number.astype(np.int64) * len(names) + name, return_inverse=True)
    from haiprof import _core

    path, parent, named, depth = _core.fold(calls.parent, which.astype(np.uint32))
    count = len(parent)

    def by_path(values: npt.NDArray[np.int64], of: Rows) -> npt.NDArray[np.int64]:
        totals = np.zeros(count, np.int64)
        np.add.at(totals, path[of], values)
        return totals

    everyone = np.arange(len(rows), dtype=np.int32)
    called, operators = calls.operators(linked)
    device = by_path(*calls.device(linked))
    backward = calls.backward(linked)
    labels = names.cast(pl.String).str.strip_prefix(_PREFIX)
    length = linked.end[rows] - linked.start[rows]
    own = length - calls.covered(linked, called, operators)
    columns = {
        "module": np.arange(count),
        "depth": depth,
        "id": known[named] // len(names),
        "occurrences": np.bincount(path, minlength=count),
        "operators": np.bincount(path[called], minlength=count),
        "host": by_path(length, everyone),
        "self_host": by_path(own, everyone),
        "device": _with_callees(device, parent, depth),
        "self_device": device,
    }
    frame = pl.DataFrame(columns).with_columns(
        pl.Series("parent", parent).replace(-1, None),
        labels[known[named] % len(names)].alias("name"),
    )
    for column, pair in zip(("backward_host", "backward_device"), backward or (), strict=False):
        total = _with_callees(by_path(*pair), parent, depth)
        frame = frame.with_columns(pl.Series(column, total))
    return frame.select(
        pl.col(column).cast(kind) if column in frame.columns else pl.lit(None, kind).alias(column)
        for column, kind in MODULES_SCHEMA.items()
    )


def flames(linked: Linked, of: Of = "python") -> pl.DataFrame:
    """Return the tree of calls folded by name, as a flame graph draws it; callers come first.

    Columns: ``path`` (the row's number), ``parent`` (that of its caller), ``depth``, ``name``,
    ``calls``, ``total`` (ns of those calls) and ``self`` (of that, within no call that is shown
    beneath). All threads are folded together, and so are all steps, which are called ``step``.

    Args:
        linked: the trace.
        of: ``python`` folds Python functions, ``calls`` operators, ranges, and the runtime.
    """
    python = linked.category == len(CALLS)
    rows = np.flatnonzero(python if of == PYTHON else ~python).astype(np.int32)
    from haiprof import _core

    place = np.full(len(python), -1, np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    above = linked.parent[rows]
    name, names = linked.named
    # The name of a step is its number, which would keep steps apart.
    name = np.where(linked.category == CALLS.index("step"), len(names), name)
    names = pl.concat([names.cast(pl.String), pl.Series(["step"])])
    path, parent, named, depth = _core.fold(
        np.where(above >= 0, place[above], np.int32(-1)) if len(rows) else above,
        name[rows].astype(np.uint32),
    )
    total, own = (np.zeros(len(parent), np.int64) for _ in range(2))
    np.add.at(total, path, linked.end[rows] - linked.start[rows])
    np.add.at(own, path, linked.ops["self"].to_numpy()[rows])
    return pl.DataFrame(
        {
            "path": np.arange(len(parent)),
            "parent": pl.Series(parent).replace(-1, None),
            "depth": depth,
            "name": names[named],
            "calls": np.bincount(path, minlength=len(parent)),
            "total": total,
            "self": own,
        }
    ).select(pl.col(column).cast(kind) for column, kind in FLAMES_SCHEMA.items())


class _Calls:
    """The calls of modules, numbered in the order of ``linked.ops``.

    Attributes:
        rows: of each call its row in ``linked.ops``.
        parent: the call around each, or -1.
    """

    def __init__(self, linked: Linked, rows: Rows) -> None:
        self.rows = rows
        self._is_op = linked.host.operator & linked.of("op")
        self._place = np.full(len(linked.category), -1, np.int32)
        self._place[rows] = np.arange(len(rows), dtype=np.int32)
        is_call = self._place >= 0
        self._around = np.full(len(is_call), -1, np.int32)
        self._around[rows] = around(linked.parent, rows, is_call)
        self.parent = _at(self._place, self._around[rows])

    @classmethod
    def of(cls, linked: Linked) -> _Calls:
        python = linked.category == len(CALLS)
        named = linked.ops["module"].is_not_null().to_numpy()
        return cls(linked, np.flatnonzero(python & named).astype(np.int32))

    def around(self, linked: Linked, rows: Rows) -> Rows:
        """For each row of ``linked.ops`` the innermost call that it begins in, or -1."""
        thread = linked.ops["thread"].to_numpy()[rows]
        found = innermost(linked, self.rows, self._around, thread, linked.start[rows])
        return _at(self._place, found)

    def operators(self, linked: Linked) -> tuple[Rows, Rows]:
        """Operators that a module called itself: the call, and the operator's row."""
        rows = np.flatnonzero(self._is_op).astype(np.int32)
        within = self.around(linked, rows)
        some = within >= 0
        rows, within = rows[some], within[some]
        # If an enclosing operator began after the module did, that operator called it.
        direct = around(linked.parent, rows, self._is_op) < self.rows[within]
        return within[direct], rows[direct]

    def covered(self, linked: Linked, called: Rows, operators: Rows) -> Times:
        """How much of each call is covered by its operators and the modules that it called."""
        inner = np.flatnonzero(self.parent >= 0)
        group = np.concatenate((called, self.parent[inner])).astype(np.intp)
        rows = np.concatenate((operators, self.rows[inner]))
        return covered_per_group(
            group,
            linked.start[rows],
            linked.end[rows],
            linked.start[self.rows],
            linked.end[self.rows],
        )

    def device(self, linked: Linked) -> tuple[npt.NDArray[np.int64], Rows]:
        """Time of each activity launched within a module, and the call that it was launched in."""
        duration, launch, _ = _launched(linked)
        within = self.around(linked, launch)
        some = within >= 0
        return duration[some], within[some]

    def backward(
        self, linked: Linked
    ) -> tuple[tuple[npt.NDArray[np.int64], Rows], tuple[npt.NDArray[np.int64], Rows]] | None:
        """Host and device time of backward operators, with the call of their forward operators."""
        forward, backward = _pairs(linked)
        if not len(forward):
            return None
        within = self.around(linked, forward)
        # The call of the module that each backward operator belongs to.
        belongs = np.full(len(self._is_op), -1, np.int32)
        belongs[backward] = within
        marked = np.zeros(len(self._is_op), bool)
        marked[backward] = True
        # An operator within another backward one is part of that one's time.
        outer = around(linked.parent, backward, marked) < 0
        roots = np.unique(backward[outer & (within >= 0)])
        duration, _, op = _launched(linked)
        root = climb(linked.parent, op, marked)
        device = np.where(root >= 0, belongs[root], -1)
        some = device >= 0
        return (
            (linked.end[roots] - linked.start[roots], belongs[roots]),
            (duration[some], device[some]),
        )


def _launched(linked: Linked) -> tuple[Times, Rows, Rows]:
    """For activities with a known launch: their duration, the launching span, and its op."""
    launch, op = rows_of(linked.activities["runtime"]), rows_of(linked.activities["op"])
    launch = np.where(launch >= 0, launch, op)
    busy = np.flatnonzero(linked.busy & (launch >= 0))
    duration = np.maximum(linked.activities["duration"].to_numpy()[busy], 0)
    return duration, launch[busy], op[busy]


def _pairs(linked: Linked) -> tuple[Rows, Rows]:
    """Forward operators and their backward operators.

    By the arrows that the trace has between the two; without, by the sequence number that they
    share, if only one forward operator has it.
    """
    flows = linked.flows
    is_op = linked.category == CALLS.index("op")
    rows = np.flatnonzero(is_op).astype(np.int32)
    thread = linked.ops["thread"].to_numpy()
    if flows.height and "fwdbwd" in (kinds := flows["kind"].cast(pl.String)):
        of = flows.filter(kinds == "fwdbwd").with_columns(pl.col("side").cast(pl.String))
        ends = of.filter(pl.col("side") == "end")
        both = of.filter(pl.col("side") == "start").join(ends, on="id", suffix="_end")
        begun = _begun(linked, rows, thread, both["thread"], both["time"])
        ended = _begun(linked, rows, thread, both["thread_end"], both["time_end"])
        some = (begun >= 0) & (ended >= 0)
        return begun[some], ended[some]
    sequences = linked.ops.lazy().select("sequence", "forward_thread").with_row_index("row")
    sequences = sequences.filter(pl.Series(is_op), pl.col("sequence") >= 0)
    away = pl.col("forward_thread").fill_null(0) > 0
    both = (
        sequences.filter(~away)
        .group_by("sequence")
        .agg(pl.col("row").first())
        .join(sequences.filter(away), on="sequence", suffix="_end")
        .select(pl.col("row", "row_end").cast(pl.Int32))
        .collect()
    )
    return both["row"].to_numpy(), both["row_end"].to_numpy()


def _begun(
    linked: Linked,
    rows: Rows,
    thread: npt.NDArray[np.uint32],
    on: pl.Series,
    time: pl.Series,
) -> Rows:
    """The outermost of ``rows`` that began on each thread just then; else the last before."""
    found = np.full(len(on), -1, np.int32)
    wanted, at = on.fill_null(0).to_numpy(), time.to_numpy()
    for each in np.unique(wanted):
        mine = rows[thread[rows] == each]
        asked = np.flatnonzero(wanted == each)
        start = linked.start[mine]
        first = np.searchsorted(start, at[asked], side="left")
        exact = (first < len(mine)) & (np.append(start, np.iinfo(np.int64).max)[first] == at[asked])
        found[asked] = np.where(exact, np.append(mine, -1)[first], np.append(mine, -1)[first - 1])
    return found


def _with_callees(
    values: npt.NDArray[np.int64], parent: npt.NDArray[np.int32], depth: npt.NDArray[np.uint32]
) -> Times:
    """Each path's own value plus those of all paths beneath it."""
    total: Times = values.copy()
    order = np.argsort(depth, kind="stable")
    level = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    for deep in range(len(level) - 2, 0, -1):
        beneath = order[level[deep] : level[deep + 1]]
        np.add.at(total, parent[beneath], total[beneath])
    return total


def _at(values: Rows, rows: Rows) -> Rows:
    return np.where(rows >= 0, values[rows], np.int32(-1)) if len(values) else rows
