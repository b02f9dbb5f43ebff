"""When the GPUs of a process were busy, from its activities: kernels, copies and sets.

The host's waits and CUPTI's overhead keep no GPU busy. Times are int64 ns UTC, durations ns.

Tests: tests/show/test_gpu.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.intervals import Times, covered, merge
from haiprof.views.run.device_steps import STEPS_SCHEMA
from haiprof.views.trace.linking.roles import communicates

#: Kinds of activity that keep a GPU busy.
BUSY_KINDS = ("kernel", "memcpy", "memset")
_PIECE_ROWS = 1 << 18


def busy_times(kernels: pl.DataFrame) -> dict[int, tuple[Times, Times]]:
    """Return for each device when any activity ran on it, on any stream."""
    return _united(kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS))))


def computing_times(kernels: pl.DataFrame) -> dict[int, tuple[Times, Times]]:
    """Return for each device when any activity other than communication ran."""
    busy = kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)))
    return _united(busy.filter(_is_communication(busy).not_()))


def communication_times(kernels: pl.DataFrame) -> dict[int, tuple[Times, Times]]:
    """Return for each device when communication ran."""
    busy = kernels.filter(pl.col("kind").is_in(list(BUSY_KINDS)))
    return _united(busy.filter(_is_communication(busy)))


def kernel_times(kernels: pl.DataFrame) -> dict[int, tuple[Times, Times]]:
    """Return for each device when any kernel ran."""
    return _united(kernels.filter(pl.col("kind") == "kernel"))


def busy_by_step(kernels: pl.DataFrame, recorded_steps: pl.DataFrame) -> pl.DataFrame:
    """Return how busy each device was in each recorded step.

    Columns: those of ``recorded_steps`` (what :func:`haiprof.views.run.recorded.windows` returns),
    and ``duration``, ``busy`` and ``exposed`` (communication alone), in ns.
    """
    busy, computing = busy_times(kernels), computing_times(kernels)
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    frames = []
    for device in recorded_steps["device"].unique().sort().to_list():
        mine = recorded_steps.filter(pl.col("device") == device)
        low, high = mine["start"].to_numpy(), mine["end"].to_numpy()
        ran = covered(*busy.get(device, none), low, high)
        computed = covered(*computing.get(device, none), low, high)
        frames.append(
            mine.with_columns(
                pl.Series("duration", high - low),
                pl.Series("busy", ran),
                pl.Series("exposed", ran - computed),
            )
        )
    further = {"duration": pl.Int64(), "busy": pl.Int64(), "exposed": pl.Int64()}
    return pl.concat([pl.DataFrame(schema={**STEPS_SCHEMA, **further}), *frames])


def last_end(kernels: pl.DataFrame) -> int | None:
    """Return when the last recorded GPU activity ended; None without any."""
    ended = (pl.col("start") + pl.col("duration")).filter(pl.col("kind").is_in(list(BUSY_KINDS)))
    # Piece by piece: with tens of millions of rows, an intermediate copy would double the memory.
    found = [piece.select(ended.max()).item() for piece in kernels.iter_slices(_PIECE_ROWS)]
    return max((int(end) for end in found if end is not None), default=None)


def devices(kernels: pl.DataFrame) -> npt.NDArray[np.int32]:
    """Return the device of each activity, -1 for none."""
    numbers: npt.NDArray[np.int32] = kernels["device"].cast(pl.Int32).fill_null(-1).to_numpy()
    return numbers


def _is_communication(kernels: pl.DataFrame) -> pl.Series:
    names = pl.DataFrame({"name": kernels["name"].unique().drop_nulls()})
    named = names.filter(communicates())["name"]
    return kernels["name"].is_in(named.implode()) & (kernels["kind"] == "kernel")


def _united(kernels: pl.DataFrame) -> dict[int, tuple[Times, Times]]:
    device = devices(kernels)
    start = kernels["start"].to_numpy()
    end = start + kernels["duration"].to_numpy()
    by_device = {}
    for number in np.unique(device[device >= 0]).tolist():
        mine = device == number
        by_device[number] = merge(start[mine], end[mine])
    return by_device
