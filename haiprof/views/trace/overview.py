"""Overview of a deep trace: how busy and how well used each GPU was, and the steps' time.

The formulas are the TensorBoard plugin's (``gpu_metrics_parser``, ``overall_parser``), so that the
numbers can be compared; its errors are corrected here.

Times are int64 ns, durations int64 ns, shares of one.

Tests: tests/views/trace/test_breakdown.py.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times, by_rank, covered, merge, union
from haiprof.views.trace.as_other_tools.tensorboard_reading import as_plugin
from haiprof.views.trace.communication import on_host
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.ran import only_device, ran
from haiprof.views.trace.linking.work import ratio

Mask = npt.NDArray[np.bool_]

#: Columns of kernels that it needs.
COLUMNS = ("start", "duration", "kind", "name", "device", "blocks_per_sm", "occupancy")

#: The parts of a step's time: of those active at an instant, the first counts.
PARTS = (
    "kernel",
    "memcpy",
    "memset",
    "communication",
    "runtime",
    "dataloader",
    "cpu",
)
#: The time of a step in which none of :data:`PARTS` is active.
OTHER = "other"
#: A timeline has at most this many parts for each device.
MOST_BINS = 100
_MICROSECOND = 1000

DEVICES_SCHEMA = {
    "device": pl.UInt16(),
    "kernels": pl.UInt32(),
    "utilization": pl.Float64(),
    "sm_efficiency": pl.Float64(),
    "occupancy": pl.Float64(),
    "tensor_core": pl.Float64(),
}
STEPS_SCHEMA = {
    "step": pl.UInt32(),
    "start": pl.Int64(),
    "duration": pl.Int64(),
    **dict.fromkeys((*PARTS, OTHER), pl.Int64()),
}
TIMELINE_SCHEMA = {
    "device": pl.UInt16(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "utilization": pl.Float64(),
}


@dataclasses.dataclass(frozen=True)
class Overview:
    """What :func:`overview` returns.

    Attributes:
        devices: ``device``; ``kernels`` (how many ran); ``utilization`` (share of the time from
            the first step's start to the last one's end in which some kernel ran; of a run that
            recorded kernels at times only, of each of those times);
            ``sm_efficiency`` (the sum of blocks for each multiprocessor of the kernels that run
            at an instant, at most 1, averaged over that time; null if no kernel has it);
            ``occupancy`` (estimated achieved, averaged over the time of the kernels that have it;
            null without); ``tensor_core`` (share of the time of the kernels that operators
            launched in which they were kernels of tensor cores; null without any).
        steps: ``step``, ``start``, ``duration`` and how long each of :data:`PARTS` took of it,
            and :data:`OTHER`. Of several active at an instant the first counts, so the parts sum to
            the step. Communication is what
            :func:`haiprof.views.trace.communication.communications` lists.
        mean: the same for an average step, in ns; empty without steps.
        timeline: ``device``, ``start``, ``end``, ``utilization``; bins are a power of ten of
            microseconds long, the last one is longer. In a bin where kernels were recorded only at
            times, of those times; null if they were not recorded at all.
        tensor_core: share of the time of all kernels that kernels of tensor cores took; null
            without kernels.
        tensor_core_eligible: share of the time of the kernels that operators launched that those
            took which operators launched that can use tensor cores; null without.
    """

    devices: pl.DataFrame
    steps: pl.DataFrame
    mean: dict[str, float]
    timeline: pl.DataFrame
    tensor_core: float | None
    tensor_core_eligible: float | None


def overview(
    linked: Linked, recorded: tuple[int, int] | None = None, *, compat: bool = False
) -> Overview:
    """Summarise a trace.

    Args:
        linked: the trace.
        recorded: start and end of the recording, for the timeline; by default, from the first row
            to the last.
        compat: the plugin's own reading, see
            :mod:`haiprof.views.trace.as_other_tools.tensorboard_reading`.
    """
    if recorded is None and not compat:
        # Steps, headline and recommendations use it as well.
        return linked.once(_of_all)
    recorded = recorded or _extent(linked)
    if compat:
        # The plugin also counts the host's calls that launch the kernels.
        linked = as_plugin(linked)
        return _overview(linked, recorded, linked.host.communicates)
    return _overview(linked, recorded, on_host(linked))


def _of_all(linked: Linked) -> Overview:
    return _overview(linked, _extent(linked), on_host(linked))


def _overview(linked: Linked, recorded: tuple[int, int], calls: Mask) -> Overview:
    broken_down = _steps(linked, calls)
    of_ops = _launched_by_ops(linked)
    kernel = pl.col("kind") == "kernel"
    length = pl.col("end") - pl.col("start")
    on_tensor_cores, in_all = linked.activities.select(
        length.filter(kernel & pl.col("tensor_core")).sum().alias("tensor_core"),
        length.filter(kernel).sum().alias("all"),
    ).row(0)
    devices = _used(linked, of_ops)
    return Overview(
        devices=devices,
        steps=broken_down,
        mean=_means(broken_down),
        timeline=_timeline(linked, devices["device"].to_list(), recorded),
        tensor_core=_share(on_tensor_cores, in_all),
        tensor_core_eligible=_eligible(linked, of_ops),
    )


def _windows(linked: Linked) -> tuple[Times, Times]:
    """From the first step's start to the last one's end: for each recording, if there are several.

    In a trace that was not recorded all the time, these are the recorded steps.
    """
    begin, end = linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy()
    if not len(begin):
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    if linked.recorded is None:
        return begin[:1], end[-1:]
    of = np.searchsorted(linked.recorded[0], begin, side="right")
    first = np.flatnonzero(np.diff(of, prepend=-1))
    return begin[first], np.maximum.reduceat(end, first)


def _is_kernel(linked: Linked) -> Mask:
    mask: Mask = (linked.activities["kind"] == "kernel").fill_null(False).to_numpy()
    return mask


def _used(linked: Linked, of_ops: Mask) -> pl.DataFrame:
    low, high = _windows(linked)
    whole = int((high - low).sum())
    activities = linked.activities
    kernel = _is_kernel(linked)
    alone = only_device(activities) is not None
    rows = []
    for mine in ran(linked):
        if mine.device is None:
            continue
        chosen = kernel
        if not alone:
            chosen = kernel & (activities["device"] == mine.device).fill_null(False).to_numpy()
        count = int(np.count_nonzero(chosen))
        if not count:
            continue
        tensor_core = None
        if of_ops.any():
            tensor_core = _share(
                *_kernel_times(linked, activities["tensor_core"].to_numpy(), of_ops & chosen)
            )
        rows.append(
            {
                "device": mine.device,
                "kernels": count,
                "utilization": _share(int(covered(*mine.kernels, low, high).sum()), whole),
                "sm_efficiency": _sm_efficiency(linked, chosen, int(low[0]), int(high[-1])),
                "occupancy": _occupancy(linked, chosen, int(low[0]), int(high[-1])),
                "tensor_core": tensor_core,
            }
        )
    return pl.DataFrame(rows, DEVICES_SCHEMA)


def _sm_efficiency(linked: Linked, chosen: Mask, low: int, high: int) -> float | None:
    """Blocks per multiprocessor; kernels with this number were recorded all the time."""
    intervals = _intervals_with(linked, "blocks_per_sm", chosen, above=True)
    if intervals is None:
        return None
    start, end, blocks = intervals
    return _share(_swept(np.clip(start, low, high), np.clip(end, low, high), blocks), high - low)


def _occupancy(linked: Linked, chosen: Mask, low: int, high: int) -> float | None:
    intervals = _intervals_with(linked, "occupancy", chosen, above=False)
    if intervals is None:
        return None
    start, end, occupancy = intervals
    ran_for = np.clip(end, low, high) - np.clip(start, low, high)
    return _share(float((occupancy * ran_for).sum()) / 100, int(ran_for.sum()))


def _intervals_with(
    linked: Linked, column: str, chosen: Mask, *, above: bool
) -> tuple[Times, Times, npt.NDArray[np.float64]] | None:
    """Start, end and value of the chosen activities with a value (``above`` 0), or None."""
    values = linked.activities[column]
    if values.null_count() == len(values):
        return None
    value = values.cast(pl.Float64).to_numpy()
    rows = np.flatnonzero(chosen & np.isfinite(value) & (value > 0 if above else value >= 0))
    if not len(rows):
        return None
    activities = linked.activities
    return activities["start"].to_numpy()[rows], activities["end"].to_numpy()[rows], value[rows]


def _swept(start: Times, end: Times, value: npt.NDArray[np.float64]) -> float:
    """Integrate over time the sum of the values of the open intervals, at most 1."""
    some = end > start
    start, end, value = start[some], end[some], value[some]
    instant = np.concatenate((start, end))
    change = np.concatenate((value, -value))
    order = np.argsort(instant, kind="stable")
    instant = instant[order]
    level = np.clip(np.cumsum(change[order]), 0, 1)
    return float((level[:-1] * np.diff(instant)).sum())


def _timeline(linked: Linked, devices: list[int], recorded: tuple[int, int]) -> pl.DataFrame:
    begin, finish = recorded
    length = finish - begin
    width = _MICROSECOND
    while length > width * MOST_BINS:
        width *= 10
    count = max(length // width, 1 if length > 0 else 0)
    low = begin + np.arange(count) * width
    high = np.append(low[1:], finish)[:count]
    frames = [pl.DataFrame(schema=TIMELINE_SCHEMA)]
    for mine in ran(linked):
        if mine.device not in devices:
            continue
        busy = covered(*mine.kernels, low, high)
        known = high - low
        if linked.recorded is not None:
            # What is launched before a recording ends is recorded after it.
            known = covered(*union(linked.recorded, mine.windows(linked.recorded)), low, high)
        frames.append(
            pl.DataFrame(
                {
                    "device": np.full(count, mine.device),
                    "start": low,
                    "end": high,
                    "busy": busy,
                    "known": known,
                }
            )
            .with_columns(ratio(pl.col("busy"), pl.col("known")).alias("utilization"))
            .select(pl.col(name).cast(kind) for name, kind in TIMELINE_SCHEMA.items())
        )
    return pl.concat(frames)


def _extent(linked: Linked) -> tuple[int, int]:
    begin, finish = linked.activities["start"].to_numpy(), linked.activities["end"].to_numpy()
    if not len(linked.start) + len(begin):
        return 0, 0
    low = (each.min() for each in (linked.start, begin) if len(each))
    high = (each.max() for each in (linked.end, finish) if len(each))
    return int(min(low)), int(max(high))


def _steps(linked: Linked, calls: Mask) -> pl.DataFrame:
    low, high = linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy()
    parts = by_rank(list(_ranges(linked, calls).values()), low, high)
    columns = {"duration": high - low, **dict(zip((*PARTS, OTHER), parts, strict=True))}
    steps = linked.steps.select("step", "start").with_columns(
        pl.Series(name, values) for name, values in columns.items()
    )
    return steps.select(pl.col(name).cast(kind) for name, kind in STEPS_SCHEMA.items())


def _ranges(linked: Linked, calls: Mask) -> dict[str, tuple[Times, Times]]:
    """When each of :data:`PARTS` happened, in their order, as ``merge`` returns it.

    ``calls`` are the spans that communicate themselves; others that only launch such kernels are
    work of the host.
    """
    host = linked.host
    devices = ran(linked)

    def activities(*sets: tuple[Times, Times]) -> tuple[Times, Times]:
        return functools.reduce(union, sets) if sets else (linked.start[:0], linked.end[:0])

    above = linked.parent
    ends_within = linked.end <= np.append(linked.end, 0)[above]

    def spans(mine: Mask) -> tuple[Times, Times]:
        # The outermost ones cover everything.
        outermost = mine & ~(np.append(mine, False)[above] & ends_within)
        return merge(linked.start[outermost], linked.end[outermost])

    return {
        "kernel": activities(*(each.kernel for each in devices)),
        "memcpy": activities(*(each.memcpy for each in devices)),
        "memset": activities(*(each.memset for each in devices)),
        "communication": activities(*(each.communication for each in devices), spans(calls)),
        "runtime": spans(linked.of("runtime")),
        "dataloader": spans(host.loads),
        "cpu": spans(host.works | (host.communicates & ~calls)),
    }


def _means(steps: pl.DataFrame) -> dict[str, float]:
    if not steps.height:
        return {}
    return {name: float(steps[name].to_numpy().mean()) for name in ("duration", *PARTS, OTHER)}


def _launched_by_ops(linked: Linked) -> Mask:
    """Say of each activity whether an operator launched it itself."""
    operator = linked.host.operator
    if not operator.any():
        return np.zeros(linked.activities.height, np.bool_)
    op = linked.activities["op"].cast(pl.Int64).fill_null(-1).to_numpy()
    mask: Mask = (op >= 0) & np.append(operator, False)[op]
    return mask


def _kernel_times(linked: Linked, chosen: Mask, among: Mask | None = None) -> tuple[int, int]:
    kernel = _is_kernel(linked)
    if among is not None:
        kernel &= among
    length = linked.activities["end"].to_numpy() - linked.activities["start"].to_numpy()
    return int(length[kernel & chosen].sum()), int(length[kernel].sum())


def _eligible(linked: Linked, of_ops: Mask) -> float | None:
    if not of_ops.any():
        return None
    can = linked.eligible
    # An operator takes its value from the innermost one within it that has any.
    innermost = can & (linked.within(can.astype(np.int32)) == 1)
    op = linked.activities["op"].cast(pl.Int64).fill_null(-1).to_numpy()
    chosen = of_ops & np.append(innermost, False)[op]
    return _share(*_kernel_times(linked, chosen, of_ops))


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole > 0 else None
