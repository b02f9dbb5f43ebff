"""Where two traces of a job differ: the trees of their calls, aligned path by path.

A path is a module, range or operator with all that it was called from: modules (if Python functions
were recorded), ranges of the user and operators, folded over steps and threads. Paths of the two
traces are the same if all names are, without what differs between runs, devices and their
libraries: addresses, numbers of generated kernels, and the library in an operator's name
(``aten::cudnn_convolution`` and ``aten::miopen_convolution``). Kernels need not have the same
names: they are listed for either side.

Counts and times are of one step, so that traces of different length can be compared; without steps
a trace is one. Times are ns.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.kernel_names import lasting_name
from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.linked import CALLS, Linked

SCHEMA: Final = {
    "path": pl.UInt32(),
    "parent": pl.UInt32(),
    "depth": pl.UInt32(),
    "name": pl.String(),
    "calls": pl.String(),
    "control_count": pl.Float64(),
    "test_count": pl.Float64(),
    "control_host": pl.Float64(),
    "test_host": pl.Float64(),
    "control_device": pl.Float64(),
    "test_device": pl.Float64(),
    "control_self_device": pl.Float64(),
    "test_self_device": pl.Float64(),
    "difference": pl.Float64(),
    "change": pl.String(),
    "control_kernels": pl.List(pl.String()),
    "test_kernels": pl.List(pl.String()),
}
#: Between the names of a path.
BETWEEN: Final = " > "
#: Kernels that are listed for a path and side, the longest first.
_KERNELS: Final = 5
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_LIBRARY: Final = re.compile(r"(?<=::)(cudnn|miopen|mkldnn|mps|npu)_")
_MODULE: Final = "nn.Module: "


@dataclasses.dataclass(frozen=True)
class _Side:
    """The calls of one trace; rows are numbered anew.

    Attributes:
        parent: the call around each, or -1.
        name: number of its name, among those of both traces.
        counted: whether it began in one of the steps that count.
        length: ns.
        launcher: of each activity that counts, the call that launched it.
        duration: of these, ns.
        kernel: of these, the name.
        steps: how many count; at least one.
    """

    parent: npt.NDArray[np.int32]
    name: npt.NDArray[np.uint32]
    counted: npt.NDArray[np.bool_]
    length: npt.NDArray[np.int64]
    launcher: npt.NDArray[np.int32]
    duration: npt.NDArray[np.int64]
    kernel: pl.Series
    steps: int


def call_differences(
    control: Linked,
    test: Linked,
    *,
    control_steps: Sequence[int] | None = None,
    test_steps: Sequence[int] | None = None,
) -> pl.DataFrame:
    """Return one row per path of calls of either trace, the largest difference first.

    Columns: ``path`` (its number), ``parent`` (that of its caller), ``depth``, ``name``, ``calls``
    (all names from the outermost); per step ``control_count`` and ``test_count``,
    ``control_host`` and ``test_host`` (ns, with what it calls), ``control_device`` and
    ``test_device`` (ns of kernels, copies and sets launched in it), ``control_self_device`` and
    ``test_self_device`` (not in what it calls); ``difference`` (test less control) of the latter,
    or of the host's time if it launched nothing in either; ``change``, of the count: ``new``,
    ``gone``, ``more``, ``fewer`` or ``same``; ``control_kernels`` and ``test_kernels`` (what it
    launched itself, the longest first).

    Args:
        control: the trace before.
        test: the trace after.
        control_steps: only these steps; by default all that were recorded.
        test_steps: the same for ``test``.
    """
    from haiprof import _core

    names: dict[str, int] = {}
    sides = _side(control, control_steps, names), _side(test, test_steps, names)
    offset = len(sides[0].parent)
    shifted = np.where(sides[1].parent >= 0, sides[1].parent + offset, np.int32(-1))
    path, parent, named, depth = _core.fold(
        np.concatenate((sides[0].parent, shifted)).astype(np.int32),
        np.concatenate([side.name for side in sides]),
    )
    if not len(parent):
        return pl.DataFrame(schema=SCHEMA)
    paths = path[:offset], path[offset:]
    texts = list(names)
    labels = [texts[number] for number in named.tolist()]
    frame = pl.DataFrame(
        {
            "path": np.arange(len(parent)),
            "parent": pl.Series(parent).replace(-1, None),
            "depth": depth,
            "name": labels,
            "calls": _written(labels, parent.tolist()),
            **{
                f"{which}_{column}": values
                for which, side, of in zip(("control", "test"), sides, paths, strict=True)
                for column, values in _sums(side, of, parent, depth).items()
            },
        }
    )
    for which, side, of in zip(("control", "test"), sides, paths, strict=True):
        frame = frame.join(_kernels(side, of, f"{which}_kernels"), on="path", how="left")
    return _compared(frame)


def _compared(frame: pl.DataFrame) -> pl.DataFrame:
    before, after = pl.col("control_count"), pl.col("test_count")
    launches = (pl.col("control_self_device") > 0) | (pl.col("test_self_device") > 0)
    inside = (pl.col("control_device") > 0) | (pl.col("test_device") > 0)
    return (
        # Paths that only others' steps have.
        frame.filter((before > 0) | (after > 0))
        .with_columns(
            pl.when(launches)
            .then(pl.col("test_self_device") - pl.col("control_self_device"))
            .when(~inside)
            .then(pl.col("test_host") - pl.col("control_host"))
            .otherwise(0.0)
            .alias("difference"),
            change(before, after),
            pl.col("control_kernels", "test_kernels").fill_null([]),
        )
        .sort(launches, pl.col("difference").abs(), "path", descending=[True, True, False])
        .select(pl.col(column).cast(kind) for column, kind in SCHEMA.items())
    )


def _side(linked: Linked, steps: Sequence[int] | None, names: dict[str, int]) -> _Side:
    from haiprof import _core

    is_module = (linked.category == len(CALLS)) & linked.ops["module"].is_not_null().to_numpy()
    is_call = linked.of("op", "user") | is_module
    is_launch = linked.of("runtime")
    chosen = np.flatnonzero(is_call | is_launch)
    start, end = linked.start[chosen], linked.end[chosen]
    thread = linked.ops["thread"].to_numpy()[chosen]
    parent, *_ = _core.nest(thread, np.zeros(len(chosen), np.uint8), start, end)
    rows = chosen[is_call[chosen]]
    place = np.full(len(chosen) + 1, -1, np.int32)
    place[:-1][is_call[chosen]] = np.arange(len(rows), dtype=np.int32)
    around = climb(parent, parent, is_call[chosen])

    number, texts = linked.named
    known = [_lasting(text) for text in texts.cast(pl.String).to_list()]
    shared = np.array([names.setdefault(name, len(names)) for name in known], np.uint32)

    launched = np.flatnonzero(linked.busy)
    by_call = np.full(len(linked.start) + 1, -1, np.int32)
    by_call[chosen] = np.where(is_call[chosen], place[:-1], place[around])
    runtime = linked.runtime[launched]
    op = linked.activities["op"].cast(pl.Int32).fill_null(-1).to_numpy()[launched]
    launcher = by_call[np.where(runtime >= 0, runtime, op)]
    counts = (launcher >= 0) & _in_steps(linked, linked.activities["step"], steps)[launched]
    which = launched[counts]
    recorded = linked.steps["step"].to_list() if linked.stepped else [0]
    wanted = recorded if steps is None else [step for step in recorded if step in set(steps)]
    return _Side(
        place[around][is_call[chosen]],
        shared[number[rows]] if len(rows) else np.zeros(0, np.uint32),
        _in_steps(linked, linked.ops["step"], steps)[rows],
        linked.end[rows] - linked.start[rows],
        launcher[counts],
        linked.activities["duration"].to_numpy()[which],
        linked.activities["name"].gather(which),
        max(len(wanted), 1),
    )


def _in_steps(
    linked: Linked, step: pl.Series, steps: Sequence[int] | None
) -> npt.NDArray[np.bool_]:
    if not linked.stepped and steps is None:
        return np.ones(len(step), np.bool_)
    wanted = linked.steps["step"].to_list() if steps is None else list(steps)
    found: npt.NDArray[np.bool_] = step.is_in(wanted).fill_null(False).to_numpy()
    return found


def _lasting(name: str | None) -> str:
    plain = _LIBRARY.sub("", _ADDRESS.sub("", name or ""))
    return lasting_name(plain.removeprefix(_MODULE))


def _sums(
    side: _Side,
    path: npt.NDArray[np.int32],
    parent: npt.NDArray[np.int32],
    depth: npt.NDArray[np.uint32],
) -> dict[str, npt.NDArray[np.float64]]:
    count = len(parent)
    mine = path[side.counted]
    own = np.bincount(path[side.launcher], side.duration, count)
    whole = own.copy()
    order = np.argsort(depth, kind="stable")
    level = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
    for deep in range(len(level) - 2, 0, -1):
        beneath = order[level[deep] : level[deep + 1]]
        np.add.at(whole, parent[beneath], whole[beneath])
    sums = {
        "count": np.bincount(mine, minlength=count),
        "host": np.bincount(mine, side.length[side.counted], count),
        "device": whole,
        "self_device": own,
    }
    return {name: values / side.steps for name, values in sums.items()}


def _kernels(side: _Side, path: npt.NDArray[np.int32], column: str) -> pl.DataFrame:
    ran = pl.DataFrame(
        {"path": path[side.launcher], "kernel": side.kernel, "duration": side.duration}
    )
    return (
        ran.group_by("path", "kernel")
        .agg(pl.col("duration").sum())
        .with_columns(pl.col("kernel").cast(pl.String))
        .sort("duration", "kernel", descending=[True, False])
        .group_by("path", maintain_order=True)
        .agg(pl.col("kernel").head(_KERNELS).alias(column))
        .with_columns(pl.col("path").cast(pl.Int64))
    )


def _written(labels: list[str], parent: list[int]) -> list[str]:
    """The names of each path; callers come before what they call."""
    written: list[str] = []
    for label, above in zip(labels, parent, strict=True):
        written.append(f"{written[above]}{BETWEEN}{label}" if above >= 0 else label)
    return written


def change(before: pl.Expr, after: pl.Expr) -> pl.Expr:
    """Name the change of a count: ``new``, ``gone``, ``more``, ``fewer`` or ``same``."""
    return (
        pl.when(before == 0)
        .then(pl.lit("new"))
        .when(after == 0)
        .then(pl.lit("gone"))
        .when(after > before)
        .then(pl.lit("more"))
        .when(after < before)
        .then(pl.lit("fewer"))
        .otherwise(pl.lit("same"))
        .alias("change")
    )
