"""Operators against the roofline: what they compute and move, how fast, and how fast they could be.

A row is all calls of one operator with the same inputs on one device. Kernels count for the
innermost operator around their launch whose formula is known (:mod:`.formulas`); without such a one
for the innermost operator, and its FLOPs and bytes are null. Kernels of a CUDA graph count for the
operators of its capture, each replay as a call, if the trace has that
(:mod:`haiprof.views.trace.linking.captured`); else for what replays it, without a formula. Unknown
shapes, types and devices give null, never a guess. The device's time is the sum of its kernels,
copies and sets; those that communicate are in :mod:`.collectives`.

``bytes`` is what must be moved at least, so bandwidth and efficiency are of the ideal, too: data
that is read twice lowers them, data that is found in a cache raises them, possibly above one.

Times are ns, shares of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.common.short_texts import kept_if_short
from haiprof.runs import Gpu
from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.captured import captured
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.names import one_of
from haiprof.views.trace.roofline.device import LATENCY, Peaks, device_peaks
from haiprof.views.trace.roofline.formulas import known
from haiprof.views.trace.roofline.formulas.call import Call, Cost

SCHEMA: Final = {
    "operator": pl.String(),
    "kind": pl.String(),
    "shapes": pl.String(),
    "types": pl.String(),
    "inputs": pl.String(),
    "device": pl.UInt16(),
    "graph": pl.Boolean(),
    "calls": pl.UInt32(),
    "kernels": pl.UInt32(),
    "kernel": pl.String(),
    "blocks": pl.Int64(),
    "tensor_core": pl.Boolean(),
    "device_time": pl.Int64(),
    "share": pl.Float64(),
    "flops": pl.Int64(),
    "bytes": pl.Int64(),
    "intensity": pl.Float64(),
    "flops_per_s": pl.Float64(),
    "bytes_per_s": pl.Float64(),
    "flops_share": pl.Float64(),
    "bytes_share": pl.Float64(),
    "bound": pl.String(),
    "ideal": pl.Float64(),
    "efficiency": pl.Float64(),
}
#: A copy between devices, or between a device and the host.
TRANSFER: Final = "transfer"
_CALL: Final = ("operator", "shapes", "types", "inputs", "kernel")
_KEY: Final = ("name", "shapes", "types", "inputs", "device", "graph")


def operators(linked: Linked, gpus: Sequence[Gpu] = ()) -> pl.DataFrame:
    """Return one row per operator, inputs and device, the longest on the device first.

    Columns: ``operator`` (null for what no operator launched), ``kind`` (``gemm``,
    ``convolution``, ``attention``, ``normalisation``, ``softmax``, ``elementwise``,
    ``reduction``, ``embedding``, ``pooling``, ``experts``, :data:`TRANSFER`; null without a formula
    or the inputs for it), ``shapes``, ``types`` and ``inputs`` (as recorded; the last only where
    the formula needs it), ``device``, ``graph`` (replayed from a CUDA graph), ``calls``,
    ``kernels`` (that they launched), ``kernel`` (the one with most time) and its ``blocks`` and
    ``tensor_core``, ``device_time`` (ns of all calls) and its ``share`` of the device's; of one
    call ``flops`` and ``bytes``, ``intensity`` (FLOP/B); ``flops_per_s`` and ``bytes_per_s``
    (achieved) and ``flops_share`` and ``bytes_share`` of the device's peak; ``bound``
    (``compute``, ``memory``, or ``latency``: too small for the device, :data:`LATENCY`), ``ideal``
    (ns that one call takes at least) and ``efficiency`` (ideal by measured).

    Args:
        linked: the trace.
        gpus: of the process, for their peaks.
    """
    return with_costs(linked, gpus)[0]


def with_costs(linked: Linked, gpus: Sequence[Gpu] = ()) -> tuple[pl.DataFrame, list[Cost | None]]:
    """Return :func:`operators`, and for each row what one call must compute and move."""
    groups = linked.once(_groups)
    if not groups.height:
        return pl.DataFrame(schema=SCHEMA), []
    devices = groups["device"].unique().to_list()
    peaks = {device: device_peaks(gpus, device) for device in devices}
    measured, costs = [], []
    for row in groups.iter_rows(named=True):
        call, cost = _priced(row)
        of = peaks[row["device"]]
        measured.append({} if cost is None else _measured(row, call, cost, of))
        costs.append(cost)
    columns = {
        name: pl.Series([each.get(name) for each in measured], dtype=kind)
        for name, kind in SCHEMA.items()
        if name not in _OWN
    }
    return groups.with_columns(**columns).select(*SCHEMA), costs


def call_of(row: Mapping[str, Any]) -> Call:
    """Return the call that a row of :func:`operators` is about."""
    return _priced(row)[0]


def _priced(row: Mapping[str, Any]) -> tuple[Call, Cost | None]:
    return _price(*(None if row[name] is None else str(row[name]) for name in _CALL))


@kept_if_short
def _price(
    operator: str | None,
    shapes: str | None,
    types: str | None,
    inputs: str | None,
    kernel: str | None,
) -> tuple[Call, Cost | None]:
    call = Call.recorded(operator or "", shapes, types, inputs, kernel)
    return call, known.cost(call)


def _measured(row: Mapping[str, Any], call: Call, cost: Cost, peaks: Peaks) -> dict[str, Any]:
    """Return what the calls of a group must compute and move, and how fast they did."""
    if row["copy_kind"] not in (None, "DtoD"):
        # It crosses a link once, of which no peak is known.
        crossing = call.tensor(0)
        moved = None if crossing is None else crossing.bytes
        cost, peaks = dataclasses.replace(cost, kind=TRANSFER, bytes=moved), Peaks()
    mean = _mean(row)
    tensor_cores = bool(row["tensor_core"])
    ideal, bound = peaks.ideal(cost, tensor_cores=tensor_cores)
    computing = peaks.computing(cost, tensor_cores=tensor_cores)
    flops_per_s, bytes_per_s = _rate(cost.flops, mean), _rate(cost.bytes, mean)
    return {
        "kind": cost.kind,
        "flops": cost.flops,
        "bytes": cost.bytes,
        "intensity": _ratio(cost.flops, cost.bytes),
        "flops_per_s": flops_per_s,
        "bytes_per_s": bytes_per_s,
        "flops_share": _ratio(flops_per_s, computing),
        "bytes_share": _ratio(bytes_per_s, peaks.bandwidth),
        "bound": "latency" if ideal is not None and ideal < LATENCY else bound,
        "ideal": ideal,
        "efficiency": _ratio(ideal, mean),
    }


def _mean(row: Mapping[str, Any]) -> float:
    return float(row["device_time"]) / max(int(row["calls"]), 1)


def _rate(amount: float | None, ns: float) -> float | None:
    return None if amount is None or ns <= 0 else amount / ns * 1e9


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _groups(linked: Linked) -> pl.DataFrame:
    """Calls and device time by operator, inputs and device; the columns that need no formula."""
    counts = linked.busy & ~linked.in_role("communication")
    rows = np.flatnonzero(counts)
    if not len(rows):
        return pl.DataFrame(schema=SCHEMA)
    ran = linked.activities.select(
        pl.col("name").alias("kernel"), "duration", "device", "tensor_core", "copy_kind"
    )[rows].with_columns(_blocks(linked, rows))
    operator = counted(linked)[rows]
    in_graph, replay = _replays(linked, rows)
    launched = ran.with_columns(pl.Series("row", operator), in_graph, replay).with_columns(
        pl.struct("row", "replay", "device", "graph").is_first_distinct().alias("calls")
    )
    keyed = launched.join(_calls(linked, operator), on="row", how="left", maintain_order="left")
    by_kernel = keyed.group_by(*_KEY, "kernel", "blocks", "copy_kind").agg(
        pl.col("duration", "calls").sum(), pl.len(), pl.col("tensor_core").any()
    )
    text = pl.col("kernel").cast(pl.String)
    longest = by_kernel.sort("duration", "blocks", text, descending=True, nulls_last=True)
    groups = longest.group_by(_KEY, maintain_order=True).agg(
        pl.col("len").sum().alias("kernels"),
        pl.col("kernel").first(),
        pl.col("blocks").first(),
        pl.col("copy_kind").cast(pl.String).first(),
        pl.col("tensor_core").any(),
        pl.col("duration").sum().alias("device_time"),
        pl.col("calls").sum(),
    )
    whole = pl.col("device_time").sum().over("device")
    return (
        groups.with_columns(
            pl.when(whole > 0).then(pl.col("device_time") / whole).alias("share"),
            # Without an operator it is not known how often anything was called.
            pl.when(pl.col("name").is_null()).then("kernels").otherwise("calls").alias("calls"),
            pl.when(pl.col("blocks") > 0).then("blocks").alias("blocks"),
        )
        .rename({"name": "operator"})
        .select(
            "copy_kind", *(pl.col(name).cast(SCHEMA[name]) for name in _OWN)
        )
        .sort(
            "device_time", "operator", "shapes", "types", "inputs",
            descending=[True, False, False, False, False],
        )
    )  # fmt: skip


#: These calls of HIP take a grid of threads, not of blocks.
_OF_THREADS: Final = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
_OWN: Final = (
    "operator", "shapes", "types", "inputs", "device", "graph", "calls", "kernels", "kernel",
    "blocks", "tensor_core", "device_time", "share",
)  # fmt: skip


def counted(linked: Linked) -> npt.NDArray[np.int32]:
    """Return for each activity the operator that it counts for, a row of ``ops``; or -1."""
    return linked.once(_counted)


def _counted(linked: Linked) -> npt.NDArray[np.int32]:
    number, texts = linked.named
    names = texts.cast(pl.String).to_list()
    has = np.array([known.formula(name) is not None for name in names], np.bool_)
    is_op = linked.of("op")
    launcher = linked.activities["op"].cast(pl.Int32).fill_null(-1).to_numpy()
    put_in = captured(linked)
    launcher = np.where(put_in >= 0, put_in, launcher)
    known_one = climb(linked.parent, launcher, has[number] & is_op)
    # What replays a graph has other inputs than its kernels.
    replayed = linked.activities["graph"].is_not_null().to_numpy() & (put_in < 0)
    innermost = climb(linked.parent, launcher, is_op)
    return np.where((known_one >= 0) & ~replayed, known_one, innermost)


def _blocks(linked: Linked, rows: npt.NDArray[np.intp]) -> pl.Series:
    """Return how many blocks the grid of each activity has."""
    grid, block = (
        pl.col(f"{of}_x").cast(pl.Int64) * pl.col(f"{of}_y") * pl.col(f"{of}_z")
        for of in ("grid", "block")
    )
    threads = np.append(one_of(linked.ops["name"], _OF_THREADS), False)[linked.runtime]
    count = pl.when(pl.Series(threads) & (block > 0)).then(grid // block).otherwise(grid)
    return linked.activities.select(count.alias("blocks"))["blocks"].gather(rows)


def _replays(linked: Linked, rows: npt.NDArray[np.intp]) -> tuple[pl.Series, pl.Series]:
    """Say of activities whether they are of a graph, and number the runs of its nodes."""
    in_graph = linked.activities["graph"].is_not_null().gather(rows)
    if not in_graph.any():
        none = pl.repeat(0, len(in_graph), dtype=pl.UInt32, eager=True)
        return in_graph, none.alias("replay")
    nodes = linked.activities.select("graph", "graph_node", "start")[rows]
    run = pl.col("start").rank("ordinal").over("graph", "graph_node")
    return in_graph, nodes.select(
        pl.when(pl.col("graph").is_not_null()).then(run).otherwise(0).alias("replay")
    )["replay"]


def _calls(linked: Linked, operators: npt.NDArray[np.int32]) -> pl.DataFrame:
    """Name and inputs of these operators, by ``row``."""
    wanted = np.zeros(len(linked.start) + 1, np.bool_)
    wanted[operators] = True
    rows = np.flatnonzero(wanted[:-1]).astype(np.int32)
    number, texts = linked.named
    names = texts.cast(pl.String).to_list()
    needs = np.array([name is not None and known.needs_values(name) for name in names], np.bool_)
    found = linked.ops.select("name", "shapes", "types", "inputs")[rows]
    if not len(rows):
        return found.with_columns(pl.Series("row", rows))
    return found.with_columns(
        pl.Series("row", rows),
        pl.when(pl.Series(needs[number[rows]])).then("inputs").alias("inputs"),
    )
