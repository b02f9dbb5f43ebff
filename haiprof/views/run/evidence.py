"""What was sampled of a late rank's process, GPU and node but not of its peers'.

Evidence stands beside a finding and explains it; a number that is equal on all ranks is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from haiprof.views.run.hardware import LINK_FAULTS
from haiprof.views.run.series import usable


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing to check: more (or less) of a metric than on the peers.

    ``of`` is the source of the samples: ``rank``, ``gpu`` or ``node``. ``least`` is the value from
    which on it matters, ``times`` the required ratio to the peers' value (below 1: an upper limit).
    ``contention`` says that another process took what the rank needed. ``spent`` is the rank's
    waiting in percent of all time: that counts if it explains most of the delay, even if the peers
    wait, too.
    """

    metric: str
    of: str
    least: float
    times: float
    words: str
    instance: str | None = None
    scale: float = 1.0
    contention: bool = False
    spent: bool = False


WAIT: Final = "proc.cpu_wait.percent"
SWITCHES: Final = "proc.context_switches.per_s"
CPU: Final = "proc.cpu.percent"

SIGNS: Final = (
    Sign(WAIT, "rank", 0, 1, "its main thread waited for a core {:.0f} % of the time",
         contention=True, spent=True),
    Sign(SWITCHES, "rank", 5, 1.5, "its main thread was preempted {:.0f} times a second",
         instance="involuntary", contention=True),
    Sign("proc.allowed_cpus.count", "rank", 0, 0.99, "it may run on {:.0f} CPUs"),
    Sign("proc.major_faults.per_s", "rank", 10, 3, "it fetched {:.0f} pages a second from a disk"),
    Sign("proc.far_fills.ratio", "rank", 20, 1.5,
         "{:.0f} % of what it fetched lay on another NUMA node", scale=100),
    Sign("cpu.steal.percent", "node", 5, 2, "{:.0f} % of its node's CPU time was stolen",
         contention=True),
    Sign("psi.cpu_some.percent", "node", 20, 1.5,
         "tasks of its node waited for a CPU {:.0f} % of the time", contention=True),
    Sign("psi.io_some.percent", "node", 20, 1.5,
         "tasks of its node waited for storage {:.0f} % of the time"),
    Sign("psi.memory_some.percent", "node", 10, 1.5,
         "tasks of its node waited for memory {:.0f} % of the time"),
    Sign("cpu.frequency.hertz", "node", 0, 0.95, "its node's CPUs ran at {:.2f} GHz", scale=1e-9),
    Sign("io.nfs_read_rtt.milliseconds", "node", 10, 2, "a read from NFS took {:.0f} ms"),
    Sign("gpu.sm_clock.hertz", "gpu", 0, 0.95, "its GPU ran at {:.2f} GHz", scale=1e-9),
    Sign("gpu.throttle_thermal.percent", "gpu", 5, 2,
         "its GPU was slowed for heat {:.0f} % of the time"),
    Sign("gpu.throttle_hw_thermal.percent", "gpu", 5, 2,
         "its GPU was slowed by hardware for heat {:.0f} % of the time"),
    Sign("gpu.throttle_power.percent", "gpu", 5, 2,
         "its GPU was slowed for power {:.0f} % of the time"),
    Sign("gpu.throttle_power_brake.percent", "gpu", 5, 2,
         "its GPU was slowed by the power supply {:.0f} % of the time"),
    Sign("gpu.temperature.celsius", "gpu", 70, 1.15, "its GPU had {:.0f} °C"),
    Sign("gpu.ecc_uncorrected.count", "gpu", 1, 1.01, "its GPU had {:.0f} uncorrected ECC errors"),
    Sign("gpu.ecc_corrected.count", "gpu", 100, 2, "its GPU had {:.0f} corrected ECC errors"),
    *(Sign(f"ib.{name}.per_s", "node", 1, 2, "its fabric counted {:.0f} a second of " + name)
      for name in LINK_FAULTS),
)  # fmt: skip

#: What :func:`evidence` needs of the table of samples.
METRICS: Final = tuple(dict.fromkeys((CPU, *(sign.metric for sign in SIGNS))))

#: Start and end of the time examined, ns.
Window: TypeAlias = tuple[int, int]
MEANS: Final = {
    "window": pl.UInt32(),
    "metric": pl.String(),
    "instance": pl.String(),
    "value": pl.Float64(),
}
#: Metrics of rare things have no samples if these never happened.
_RARE: Final = re.compile(r"gpu\.throttle|.*(per_s|count)$").match
#: CPU time of a rank that others push away is at most a little more than that of its peers.
_SAME_WORK: Final = 1.3
#: Time spent on one thing explains a delay if it is at least this share of it.
_MOST_OF_IT: Final = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank's samples are: its node, its rank and pid, and its GPUs as the node has them."""

    node: str
    rank: int | None
    pid: int | None
    gpus: Sequence[str] = ()


def means(samples: pl.DataFrame, windows: Sequence[Window]) -> pl.DataFrame:
    """Return the mean of each metric and instance of one process in each window: :data:`MEANS`."""
    grouped = (
        usable(samples).group_by("metric", "instance", maintain_order=True).agg("time", "value")
    )
    several = grouped["time"].list.len().to_numpy()
    group = np.repeat(np.arange(grouped.height), several)
    time, value = (grouped[name].explode().to_numpy() for name in ("time", "value"))
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for number, (low, high) in enumerate(windows):
        inside = (time >= low) & (time <= high)
        counts = np.bincount(group[inside], minlength=grouped.height)
        rows = np.flatnonzero(counts)
        total = np.bincount(group[inside], value[inside], minlength=grouped.height)
        found.append((np.full(len(rows), number), rows, total[rows] / counts[rows]))
    window, rows, mean = (np.concatenate(each) for each in zip(*found, strict=True))
    return pl.DataFrame(
        {"window": window, **grouped[rows].select("metric", "instance").to_dict(), "value": mean},
        schema=MEANS,
    )


class Means:
    """Means of all samples of ranks and nodes in one window."""

    def __init__(self, rows: pl.DataFrame) -> None:
        """Take :func:`means` of all, with ``node``, ``rank`` and ``pid``; a node's have no rank."""
        self._of_rank: dict[tuple[Any, ...], float] = {}
        self._of_node: dict[tuple[str, str], dict[str | None, list[float]]] = {}
        wanted = ("metric", "node", "rank", "pid", "instance", "value")
        for metric, node, rank, pid, instance, value in rows.select(wanted).iter_rows():
            if rank is None:
                of_node = self._of_node.setdefault((metric, node), {})
                of_node.setdefault(instance, []).append(value)
            else:
                self._of_rank[metric, node, rank, pid, instance] = value

    def of_rank(self, metric: str, place: Place, instance: str | None = None) -> float | None:
        """Return what was sampled of a rank's process."""
        return self._of_rank.get((metric, place.node, place.rank, place.pid, instance))

    def of_gpus(self, metric: str, place: Place) -> list[float]:
        """Return what was sampled of each of a rank's GPUs."""
        known = self._of_node.get((metric, place.node), {})
        return [float(np.mean(known[gpu])) for gpu in place.gpus if gpu in known]

    def of_node(self, metric: str, place: Place) -> list[float]:
        """Return the highest mean of any part of a rank's node."""
        known = self._of_node.get((metric, place.node), {})
        return [max(value for values in known.values() for value in values)] if known else []


def evidence(
    sampled: Means, mine: Place, others: Sequence[Place], lasted: int, late: int
) -> tuple[list[str], bool]:
    """Say how a rank differs in a window; and whether others took its CPU.

    Args:
        sampled: the means of the window.
        mine: the rank.
        others: its peers.
        lasted: the window's length, ns.
        late: the rank's total delay in it, ns.
    """
    busy = _ratio(sampled, CPU, mine, others)
    share = 100 * late / max(lasted, 1)
    waits = sampled.of_rank(WAIT, mine) is not None
    lines, contended = [], False
    for sign in SIGNS:
        peers = [place for place in others if sign.of != "node" or place.node != mine.node]
        value = _value(sampled, sign, mine)
        known = [v for place in peers if (v := _value(sampled, sign, place)) is not None]
        if value is None or not peers or not (known or _RARE(sign.metric)):
            continue
        usual = float(np.median(known)) if known else 0.0
        if sign.spent:
            beyond = value - usual >= _MOST_OF_IT * share
        elif sign.times > 1:
            beyond = value >= sign.times * usual
        else:
            beyond = 0 < value <= sign.times * usual
        if value < sign.least or not beyond:
            continue
        if sign.metric == SWITCHES and (waits or busy is None or busy > _SAME_WORK):
            continue  # its waiting is explained; or it works more, and is pushed away more often
        contended |= sign.contention
        lines.append(f"{sign.words.format(value)} (the others {_plain(usual, sign)})")
    return lines, contended


def _plain(value: float, sign: Sign) -> str:
    return f"{value:.2f}" if sign.scale < 1e-3 else f"{value:.0f}"


def _value(sampled: Means, sign: Sign, place: Place) -> float | None:
    if sign.of == "rank":
        value = sampled.of_rank(sign.metric, place, sign.instance)
        known = [] if value is None else [value]
    elif sign.of == "gpu":
        known = sampled.of_gpus(sign.metric, place)
    else:
        known = sampled.of_node(sign.metric, place)
    return float(np.mean(known)) * sign.scale if known else None


def _ratio(sampled: Means, metric: str, mine: Place, others: Sequence[Place]) -> float | None:
    value = sampled.of_rank(metric, mine)
    known = [v for place in others if (v := sampled.of_rank(metric, place)) is not None]
    usual = float(np.median(known)) if known else 0.0
    return value / usual if value is not None and usual > 0 else None
