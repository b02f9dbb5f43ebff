"""Overview of a deep trace: how busy each GPU was and how well used, and what the steps spent.

The formulas are the TensorBoard plugin's (``gpu_metrics_parser``, ``overall_parser``), so that the
numbers can be compared; what it is wrong about is right here.

Times are int64 ns, durations int64 ns, shares of one.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times, covered, merge
from haiprof.views.trace.compat import as_plugin
from haiprof.views.trace.linked import Linked

#: What a step's time is split by: of those that something does at an instant, the first counts.
PARTS = (
    "kernel",
    "memcpy",
    "memset",
    "communication",
    "runtime",
    "dataloader",
    "cpu",
)
#: The time of a step in which none of :data:`PARTS` does anything.
OTHER = "other"
#: A timeline has at most as many parts as this for each device.
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
            the first step's start to the last one's end in which some kernel ran);
            ``sm_efficiency`` (the sum of blocks for each multiprocessor of the kernels that run
            at an instant, at most 1, averaged over that time; null where no kernel tells);
            ``occupancy`` (estimated achieved, averaged over the time of the kernels that tell;
            null without); ``tensor_core`` (share of the time of the kernels that operators
            launched in which they were kernels of tensor cores; null without any).
        steps: ``step``, ``start``, ``duration`` and how long each of :data:`PARTS` took of it,
            and :data:`OTHER`. At an instant at which several happen the first counts, so that
            parts sum up to the step.
        mean: the same for an average step, in ns; empty without steps.
        timeline: ``device``, ``start``, ``end``, ``utilization``; bins are a power of ten of
            microseconds long, the last one is longer.
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
    """Sum a trace up.

    Args:
        linked: the trace.
        recorded: from when to when it was recorded, for the timeline; by default, from the first
            row to the last.
        compat: the plugin's own reading, see :mod:`haiprof.views.trace.compat`.
    """
    if compat:
        linked = as_plugin(linked)
    steps = linked.steps
    window = (0, 0)
    if steps.height:
        window = int(steps["start"][0]), int(steps["end"][-1])
    devices = _devices(linked)
    broken_down = _steps(linked)
    of_ops = _launched_by_ops(linked)
    return Overview(
        devices=_used(linked, devices, window, of_ops),
        steps=broken_down,
        mean=_means(broken_down),
        timeline=_timeline(devices, recorded or _extent(linked)),
        tensor_core=_share(*_kernel_times(linked, linked.activities["tensor_core"].to_numpy())),
        tensor_core_eligible=_eligible(linked, of_ops),
    )


Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class _Device:
    number: int
    rows: npt.NDArray[np.intp]
    start: Times
    end: Times


def _devices(linked: Linked) -> list[_Device]:
    """The kernels of each device, those that communicate included."""
    activities = linked.activities
    start, end = activities["start"].to_numpy(), activities["end"].to_numpy()
    device = activities["device"].cast(pl.Int32).fill_null(-1).to_numpy()
    kernel = _is_kernel(linked)
    made = []
    for number in np.unique(device[kernel & (device >= 0)]).tolist():
        rows = np.flatnonzero(kernel & (device == number))
        made.append(_Device(number, rows, start[rows], end[rows]))
    return made


def _is_kernel(linked: Linked) -> Mask:
    made: Mask = (linked.activities["kind"] == "kernel").fill_null(False).to_numpy()
    return made


def _used(
    linked: Linked, devices: list[_Device], window: tuple[int, int], of_ops: Mask
) -> pl.DataFrame:
    low, high = window
    blocks = linked.activities["blocks_per_sm"].cast(pl.Float64).to_numpy()
    occupancy = linked.activities["occupancy"].cast(pl.Float64).to_numpy()
    tensor = linked.activities["tensor_core"].to_numpy()
    rows = []
    for device in devices:
        start, end = np.clip(device.start, low, high), np.clip(device.end, low, high)
        busy = int(np.subtract(*merge(start, end)[::-1]).sum())
        told = (blocks[device.rows] > 0) & np.isfinite(blocks[device.rows])
        known = (occupancy[device.rows] >= 0) & np.isfinite(occupancy[device.rows])
        length = device.end - device.start
        launched = of_ops[device.rows]
        ran = (end - start)[known]
        rows.append(
            {
                "device": device.number,
                "kernels": len(device.rows),
                "utilization": _share(busy, high - low),
                "sm_efficiency": _share(
                    _swept(start[told], end[told], blocks[device.rows][told]), high - low
                )
                if told.any()
                else None,
                "occupancy": _share(
                    float((occupancy[device.rows][known] * ran).sum()) / 100, int(ran.sum())
                ),
                "tensor_core": _share(
                    int(length[launched & tensor[device.rows]].sum()), int(length[launched].sum())
                ),
            }
        )
    return pl.DataFrame(rows, DEVICES_SCHEMA)


def _swept(start: Times, end: Times, value: npt.NDArray[np.float64]) -> float:
    """Integrate over time the sum of the values of the intervals that are open, at most 1."""
    some = end > start
    start, end, value = start[some], end[some], value[some]
    instant = np.concatenate((start, end))
    change = np.concatenate((value, -value))
    order = np.argsort(instant, kind="stable")
    instant = instant[order]
    level = np.clip(np.cumsum(change[order]), 0, 1)
    return float((level[:-1] * np.diff(instant)).sum())


def _timeline(devices: list[_Device], recorded: tuple[int, int]) -> pl.DataFrame:
    begin, finish = recorded
    length = finish - begin
    width = _MICROSECOND
    while length > width * MOST_BINS:
        width *= 10
    count = max(length // width, 1 if length > 0 else 0)
    low = begin + np.arange(count) * width
    high = np.append(low[1:], finish)[:count]
    frames = [pl.DataFrame(schema=TIMELINE_SCHEMA)]
    for device in devices:
        busy = covered(*merge(device.start, device.end), low, high)
        frames.append(
            pl.DataFrame(
                {
                    "device": np.full(count, device.number),
                    "start": low,
                    "end": high,
                    "utilization": busy / (high - low),
                }
            ).select(pl.col(name).cast(kind) for name, kind in TIMELINE_SCHEMA.items())
        )
    return pl.concat(frames)


def _extent(linked: Linked) -> tuple[int, int]:
    begin, finish = linked.activities["start"].to_numpy(), linked.activities["end"].to_numpy()
    if not len(linked.start) + len(begin):
        return 0, 0
    return (
        int(np.concatenate((linked.start, begin)).min()),
        int(np.concatenate((linked.end, finish)).max()),
    )


def _steps(linked: Linked) -> pl.DataFrame:
    low, high = linked.steps["start"].to_numpy(), linked.steps["end"].to_numpy()
    united: tuple[Times, Times] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    before = np.zeros(len(low), np.int64)
    columns = {"duration": high - low}
    for part, (start, end) in _ranges(linked).items():
        united = merge(np.concatenate((united[0], start)), np.concatenate((united[1], end)))
        after = covered(*united, low, high)
        columns[part] = after - before
        before = after
    columns[OTHER] = high - low - before
    made = linked.steps.select("step", "start").with_columns(
        pl.Series(name, values) for name, values in columns.items()
    )
    return made.select(pl.col(name).cast(kind) for name, kind in STEPS_SCHEMA.items())


def _ranges(linked: Linked) -> dict[str, tuple[Times, Times]]:
    """When each of :data:`PARTS` happened, in their order."""
    role = linked.activities["role"].cast(pl.String)
    begin, finish = linked.activities["start"].to_numpy(), linked.activities["end"].to_numpy()
    host = linked.host

    def activities(name: str) -> tuple[Times, Times]:
        mine = (role == name).to_numpy()
        return begin[mine], finish[mine]

    above = linked.parent
    ends_within = linked.end <= np.append(linked.end, 0)[above]

    def spans(mine: Mask) -> tuple[Times, Times]:
        # The outermost ones say it all.
        outermost = mine & ~(np.append(mine, False)[above] & ends_within)
        return linked.start[outermost], linked.end[outermost]

    communication = activities("communication"), spans(host.communicates)
    return {
        "kernel": activities("kernel"),
        "memcpy": activities("memcpy"),
        "memset": activities("memset"),
        "communication": (
            np.concatenate([each[0] for each in communication]),
            np.concatenate([each[1] for each in communication]),
        ),
        "runtime": spans(linked.of("runtime")),
        "dataloader": spans(host.loads),
        "cpu": spans(host.works),
    }


def _means(steps: pl.DataFrame) -> dict[str, float]:
    if not steps.height:
        return {}
    return {name: float(steps[name].to_numpy().mean()) for name in ("duration", *PARTS, OTHER)}


def _launched_by_ops(linked: Linked) -> Mask:
    """Say of each activity whether an operator launched it itself."""
    op = linked.activities["op"].cast(pl.Int64).fill_null(-1).to_numpy()
    operator = linked.host.operator
    made: Mask = (op >= 0) & np.append(operator, False)[op]
    return made


def _kernel_times(linked: Linked, chosen: Mask, among: Mask | None = None) -> tuple[int, int]:
    kernel = _is_kernel(linked)
    if among is not None:
        kernel &= among
    length = linked.activities["end"].to_numpy() - linked.activities["start"].to_numpy()
    return int(length[kernel & chosen].sum()), int(length[kernel].sum())


def _eligible(linked: Linked, of_ops: Mask) -> float | None:
    can = linked.eligible
    # An operator is told by the innermost of those within it that can.
    innermost = can & (linked.within(can.astype(np.int32)) == 1)
    op = linked.activities["op"].cast(pl.Int64).fill_null(-1).to_numpy()
    chosen = of_ops & np.append(innermost, False)[op]
    return _share(*_kernel_times(linked, chosen, of_ops))


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole > 0 else None
