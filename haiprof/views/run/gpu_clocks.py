"""The clock at which each GPU of a node computed, and why it was lower than it could be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.run.series import usable

CLOCK: Final = "gpu.sm_clock.hertz"
UTIL: Final = "gpu.util.percent"
#: Reasons that are a fault of the machine, and what keeps a GPU within its power limit.
THERMAL: Final = "gpu.throttle_thermal.percent"
HW_THERMAL: Final = "gpu.throttle_hw_thermal.percent"
BRAKE: Final = "gpu.throttle_power_brake.percent"
CAPPED: Final = "gpu.throttle_power.percent"
FAULTS: Final = (THERMAL, HW_THERMAL, BRAKE)
METRICS: Final = (CLOCK, UTIL, *FAULTS, CAPPED)

#: Below this utilization, percent, a GPU may lower its clock because there is nothing to do.
_BUSY: Final = 50.0
#: A reading in which clocks were lowered for less of the time, percent, is as good as any.
_FREE: Final = 1.0
#: Of fewer readings nothing is concluded.
FEWEST: Final = 10


@dataclass(frozen=True, slots=True)
class Clocks:
    """The readings of one GPU.

    Attributes:
        readings: in which it was busy.
        busy: mean utilization over all readings, from 0 to 1.
        hertz: mean SM clock of the readings in which it was busy; None: too few of them.
        free_hertz: the median of those in which nothing lowered it; None: too few of them.
        slowed: share of the busy time in which a reason that is a fault lowered it, by metric.
        capped: share of the busy time in which it was kept within its power limit.
    """

    readings: int
    busy: float
    hertz: float | None
    free_hertz: float | None
    slowed: dict[str, float]
    capped: float


def clocks(samples: pl.DataFrame) -> dict[str, Clocks]:
    """Return the readings of each GPU by its instance.

    Args:
        samples: of a node: ``time``, ``metric``, ``instance``, ``value``, ``flags``; of
            :data:`METRICS`. A reason without a row at a reading was not given at that time.
    """
    rows = usable(samples).filter(pl.col("metric").is_in(METRICS), pl.col("instance").is_not_null())
    if not rows.height:
        return {}
    wide = rows.pivot(
        "metric", index=["instance", "time"], values="value", aggregate_function="mean"
    )
    wide = wide.with_columns(
        *(pl.lit(None, pl.Float64()).alias(m) for m in METRICS if m not in wide.columns)
    )
    found = {}
    for (instance,), one in wide.sort("time").group_by("instance", maintain_order=True):
        found[str(instance)] = _clocks(one)
    return found


def _clocks(rows: pl.DataFrame) -> Clocks:
    util = rows[UTIL].drop_nulls()
    busy = rows.filter(pl.col(UTIL) >= _BUSY)
    if not busy.height:
        return Clocks(0, _share(util.to_numpy()), None, None, {}, 0.0)
    reasons = {metric: busy[metric].fill_null(0.0).to_numpy() for metric in FAULTS}
    capped = busy[CAPPED].fill_null(0.0).to_numpy()
    hertz = busy[CLOCK].fill_null(0.0).to_numpy()
    free = np.maximum.reduce([*reasons.values(), capped]) < _FREE
    return Clocks(
        busy.height,
        _share(util.to_numpy()),
        _clock(hertz[hertz > 0], np.mean),
        _clock(hertz[free & (hertz > 0)], np.median),
        {metric: _share(percent) for metric, percent in reasons.items() if percent.any()},
        _share(capped),
    )


def _share(percent: npt.NDArray[np.float64]) -> float:
    return float(np.clip(percent, 0, 100).mean()) / 100 if len(percent) else 0.0


def _clock(
    hertz: npt.NDArray[np.float64], typical: Callable[..., np.floating[Any]]
) -> float | None:
    return float(typical(hertz)) if len(hertz) >= FEWEST else None
