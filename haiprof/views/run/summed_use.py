"""How the GPUs of a process were used, from what was summed up of each of its steps.

The same as :func:`haiprof.views.run.gpu_use.use` says of the kernels, which are not needed for it:
they take most of the time of a question about many ranks, and are the first to be removed.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from haiprof.sources.arrays import NONE, Arrays
from haiprof.views.intervals import Index, Times
from haiprof.views.run.gpu_use import Use

#: Columns of ``step_parts`` that this needs, and which kinds of rows.
COLUMNS: Final = ("start", "duration", "kind", "name", "step", "device")
KINDS: Final = (
    "device_step", "device_phase", "busy", "communication", "exposed", "copying", "phase_busy",
    "idle",
)  # fmt: skip

_Mask: TypeAlias = npt.NDArray[np.bool_]


def use(parts: Arrays, devices: Times, intervals: int | None) -> Use | None:
    """Sum up how the GPUs of a process were used.

    Args:
        parts: the columns :data:`COLUMNS` of the rows of ``step_parts`` of the :data:`KINDS`, in
            their order. Those without a step, of evaluations, are ignored.
        devices: ordinals of those of which kernels are there.
        intervals: how often recording kernels began; None if the recorded steps do not stand for
            the others (CUDA graphs are replayed in these).

    Returns:
        The sums; None where the rows do not say it all: of a device with kernels there are none, or
        an earlier haiprof wrote them.
    """
    parts = parts.where(parts.numbers["step"] != NONE)
    kinds = {kind: parts.texts["kind"].among(kind) for kind in KINDS}
    start, duration, device = (parts.numbers[name] for name in ("start", "duration", "device"))
    if not parts.rows or not kinds["device_step"][0] or device.min() < 0:
        return None
    steps, busy = kinds["device_step"], kinds["busy"]
    step = np.cumsum(steps) - 1
    names = parts.texts["name"]

    def total(rows: _Mask) -> int:
        return int(duration[rows].sum())

    def by_name(rows: _Mask) -> dict[str, int]:
        return _by_name(names.codes[rows], duration[rows], names.words)

    result = Use(
        steps=int(steps.sum()),
        step_ns=total(steps),
        phase_ns=by_name(kinds["device_phase"]),
        intervals=intervals or 0,
    )
    if intervals is None:
        return result
    recorded = np.zeros(result.steps, np.bool_)
    recorded[step[busy]] = True
    if not np.isin(devices, device[busy]).all():
        return None
    if not busy.any():
        return result
    end = (start + duration)[steps]
    window = end[step[busy]] - start[busy]
    result.recorded = int(np.bincount(device[busy]).max())
    result.recorded_ns = int(window.sum())
    result.busy_ns = total(busy)
    result.communication_ns = total(kinds["communication"])
    result.exposed_ns = total(kinds["exposed"])
    result.copying_ns = total(kinds["copying"])
    result.idle_ns = by_name(kinds["idle"])
    result.recorded_phase_ns = by_name(kinds["device_phase"] & recorded[step])
    result.busy_phase_ns = by_name(kinds["phase_busy"])
    idle = result.recorded_ns - result.busy_ns
    complete = kinds["phase_busy"].any() and sum(result.idle_ns.values()) == idle
    return result if complete else None


def _by_name(codes: Index, duration: Times, words: list[str]) -> dict[str, int]:
    sums = np.zeros(len(words), np.int64)
    np.add.at(sums, codes, duration)
    return {words[code]: int(sums[code]) for code in np.unique(codes).tolist()}
