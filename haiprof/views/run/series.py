"""Samples as time series: thinned for display, and summarised."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.schema import FLAG_IMPLAUSIBLE
from haiprof.sources.arrays import NONE, Arrays, Texts, of_frame
from haiprof.views.intervals import Index, Times, distinct

#: Units whose instances add up to the whole; the others (%, ratio, °C) are averaged.
ADDITIVE_UNITS = frozenset({"bytes", "bytes_per_s", "watts", "count", "count_per_s", "per_s"})
#: A packet passes several interfaces (a bond and its members, a VLAN), so these are not added.
_INTERFACES = "net."
#: Traffic on it never leaves the node.
_LOOPBACK = "lo"
#: The time that a single value stands for, ns: the sampler reads once a second.
_ALONE_NS = 10**9


@dataclass(frozen=True, slots=True)
class Stat:
    """One metric over a run, its instances combined; ``parts`` is the number of instances.

    ``mean`` is over the time from ``begin`` to ``end`` (ns UTC), which the ``samples`` cover: their
    number, over all instances combined.
    """

    mean: float
    maximum: float
    parts: int
    begin: int
    end: int
    samples: int


def decimate(x: Times, y: npt.NDArray[np.float64], points: int) -> Index:
    """Return indices of at most ``points`` points, including the minimum and the maximum.

    Args:
        x: positions, ascending.
        y: values, none of them NaN.
        points: at least 4.
    """
    if len(x) <= points:
        return np.arange(len(x))
    buckets = (points - 2) // 2
    span = max(int(x[-1]) - int(x[0]), 1)
    bucket = np.minimum(((x - x[0]) / span * buckets).astype(np.int64), buckets - 1)
    order = np.lexsort((y, bucket))
    changes = np.flatnonzero(np.diff(bucket[order])) + 1
    least = order[np.concatenate(([0], changes))]
    greatest = order[np.concatenate((changes - 1, [len(order) - 1]))]
    return distinct(np.concatenate(([0], least, greatest, [len(x) - 1])))


def usable(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the samples with a measured value, ``metric`` and ``instance`` as strings.

    A value beyond what the hardware can do (``flags``) comes from a counter that went wrong.
    """
    measured = pl.col("value").is_not_null() & pl.col("value").is_finite()
    if "flags" in samples.columns:
        measured &= _implausible().not_()
    return samples.filter(measured).with_columns(
        pl.col("metric").cast(pl.String), pl.col("instance").cast(pl.String)
    )


def left_out(samples: Arrays) -> dict[str, int]:
    """Return how many values of each metric :func:`usable` drops as implausible."""
    flagged = _flagged(samples)
    if not flagged.any():
        return {}
    metric = samples.texts["metric"]
    counts = np.bincount(
        metric.codes[flagged & (metric.codes != NONE)], minlength=len(metric.words)
    )
    return {metric.words[code]: int(counts[code]) for code in np.flatnonzero(counts)}


def _flagged(samples: Arrays) -> npt.NDArray[np.bool_]:
    flags = samples.numbers.get("flags")
    if flags is None:
        return np.zeros(samples.rows, np.bool_)
    flagged: npt.NDArray[np.bool_] = (flags != NONE) & (flags & FLAG_IMPLAUSIBLE != 0)
    return flagged


def _implausible() -> pl.Expr:
    return pl.col("flags").fill_null(0) & FLAG_IMPLAUSIBLE != 0


def stats(samples: Arrays) -> dict[str, Stat]:
    """Summarise each metric over time, from its values that :func:`usable` keeps.

    Names are shared by all ranks: thousands of copies would take more than what they name.

    Values without an instance are the whole, and instances its parts. If a metric has only parts,
    those of one instant are added or, in a unit that does not add up, averaged; among network
    interfaces the busiest stands for all, and a part of a part (``gpu0/mig1`` of ``gpu0``) is
    already included.
    """
    found = _busiest(_outermost(_measured(samples)))
    metric, instance = found.texts["metric"], found.texts["instance"]
    parts = [0] * len(metric.words)
    some = instance.codes != NONE
    for pair in distinct(_pairs(metric, instance)[some]).tolist():
        parts[pair // (len(instance.words) + 1)] += 1
    whole = _whole(found)
    return {
        sys.intern(metric.words[code]): Stat(mean, top, parts[code], begin, end, count)
        for code, mean, top, begin, end, count in _over_time(whole, whole.texts["metric"].codes)
    }


def together(samples: pl.DataFrame) -> pl.DataFrame:
    """Return ``metric``, ``time`` and ``value``, sorted: instances combined as in a Stat."""
    found = _whole(_busiest(_outermost(_measured(of_frame(samples)))))
    metric = found.texts["metric"]
    code, time, value = _instants(found, metric.codes)
    names = pl.Series(metric.words, dtype=pl.String).gather(code)
    return pl.DataFrame({"metric": names, "time": time, "value": value}).sort("metric", "time")


def _whole(samples: Arrays) -> Arrays:
    """Leave out the parts of metrics that are known as a whole."""
    metric, alone = samples.texts["metric"], samples.texts["instance"].codes == NONE
    whole = np.zeros(len(metric.words), np.bool_)
    whole[metric.codes[alone]] = True
    return samples.where(alone | ~whole[metric.codes])


def stats_by_instance(samples: Arrays, *prefixes: str) -> dict[str, dict[str, Stat]]:
    """Summarise each metric of each instance over time: instance -> metric -> statistics.

    Args:
        samples: ``time``, ``metric``, ``instance``, ``value`` and ``flags``.
        prefixes: how the names of the metrics begin; all if none is given.
    """
    metric = samples.texts["metric"]
    wanted = [n for n, word in enumerate(metric.words) if not prefixes or word.startswith(prefixes)]
    by_instance: dict[str, dict[str, Stat]] = {}
    if not wanted:
        return by_instance
    mine = np.isin(metric.codes, wanted) & (samples.texts["instance"].codes != NONE)
    found = _measured(samples.where(mine))
    metric, instance = found.texts["metric"], found.texts["instance"]
    pairs, many = _pairs(metric, instance), len(instance.words) + 1
    for pair, mean, top, begin, end, count in _over_time(found, pairs):
        name, of = sys.intern(metric.words[pair // many]), instance.words[pair % many]
        by_instance.setdefault(of, {})[name] = Stat(mean, top, 1, begin, end, count)
    return by_instance


def _measured(samples: Arrays) -> Arrays:
    """Return the samples with a measured value, as :func:`usable` does."""
    kept = np.isfinite(samples.numbers["value"]) & ~_flagged(samples)
    kept &= samples.texts["metric"].codes != NONE
    return samples if kept.all() else samples.where(kept)


def _pairs(metric: Texts, instance: Texts) -> npt.NDArray[np.int64]:
    """Number the pairs of a metric and an instance; the last of each metric is of none."""
    many = len(instance.words) + 1
    return metric.codes * many + np.where(instance.codes == NONE, many - 1, instance.codes)


def _instants(
    samples: Arrays, key: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Times, npt.NDArray[np.float64]]:
    """Return the key, time and value of each instant, sorted by key and time.

    Values of one instant are added, or averaged where sums make no sense.
    """
    metric, time = samples.texts["metric"], samples.numbers["time"]
    order = np.lexsort((time, key))
    key, time = key[order], time[order]
    first = np.flatnonzero((np.diff(key, prepend=-1) != 0) | (np.diff(time, prepend=0) != 0))
    if not len(first):
        return key, time, np.zeros(0)
    value = np.add.reduceat(samples.numbers["value"][order], first)
    adds = np.array([_adds(word) for word in metric.words], np.bool_)[metric.codes[order][first]]
    value = np.where(adds, value, value / np.diff(np.append(first, len(key))))
    return key[first], time[first], value


def _over_time(
    samples: Arrays, key: npt.NDArray[np.int64]
) -> Iterator[tuple[int, float, float, int, int, int]]:
    """Yield each key, mean over time, greatest value, begin, end and number of its instants.

    Each value is weighted by the time since the last one: an expensive source is read less often,
    and its values stand for longer.
    """
    key, time, value = _instants(samples, key)
    if not len(key):
        return
    begins = np.flatnonzero(np.diff(key, prepend=-1))
    ends = np.append(begins[1:], len(key))
    weight = np.diff(time, prepend=0)
    for low, high in zip(begins.tolist(), ends.tolist(), strict=True):
        weight[low] = _median(weight[low + 1 : high]) if high - low > 1 else _ALONE_NS
    weight = np.maximum(weight, 1)
    mean = np.add.reduceat(value * weight, begins) / np.add.reduceat(weight, begins)
    top = np.maximum.reduceat(value, begins)
    yield from zip(
        key[begins].tolist(), mean.tolist(), top.tolist(), (time - weight)[begins].tolist(),
        time[ends - 1].tolist(), (ends - begins).tolist(), strict=True,
    )  # fmt: skip


def _median(values: Times) -> int:
    """Return the median, rounded down; numpy's own takes ten times as long for a few values."""
    ordered = np.sort(values)
    return int(ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) // 2


def mean_over_time(column: str) -> pl.Expr:
    """Average ``column`` of rows sorted by ``time`` as the mean of a Stat is."""
    distance = pl.col("time").diff()
    usual = distance.median().cast(pl.Int64)
    weight = distance.fill_null(usual).fill_null(_ALONE_NS).clip(lower_bound=1)
    return (pl.col(column) * weight).sum() / weight.sum()


def _adds(metric: str) -> bool:
    """Say whether the instances of a metric add up to the whole."""
    return metric.rpartition(".")[2] in ADDITIVE_UNITS or metric == "proc.cpu.percent"


def _outermost(samples: Arrays) -> Arrays:
    """Leave out parts of parts where the whole is there."""
    metric, instance = samples.texts["metric"], samples.texts["instance"]
    nested = [n for n, word in enumerate(instance.words) if "/" in word]
    if not nested:
        return samples
    places = {word: n for n, word in enumerate(instance.words)}
    outer = np.arange(len(instance.words) + 1)
    for n in nested:
        outer[n] = places.get(instance.words[n].partition("/")[0], -1)
    many = len(instance.words) + 1
    inside = np.isin(instance.codes, nested)
    of = outer[instance.codes]
    there = np.isin(metric.codes * many + of, _pairs(metric, instance)) & (of >= 0)
    return samples.where(~(inside & there))


def _busiest(samples: Arrays) -> Arrays:
    """Of network interfaces, keep those with the most traffic."""
    metric, instance = samples.texts["metric"], samples.texts["instance"]
    of_net = [n for n, word in enumerate(metric.words) if word.startswith(_INTERFACES)]
    if not of_net:
        return samples
    interface = np.isin(metric.codes, of_net) & (instance.codes != NONE)
    pairs, many = _pairs(metric, instance), len(instance.words) + 1
    most: dict[int, tuple[float, str, int]] = {}
    some = samples.where(interface & ~instance.among(_LOOPBACK))
    for pair, mean, *_ in _over_time(some, pairs[interface & ~instance.among(_LOOPBACK)]):
        best = most.get(pair // many)
        if best is None or (-mean, instance.words[pair % many]) < best[:2]:
            most[pair // many] = (-mean, instance.words[pair % many], pair)
    return samples.where(~interface | np.isin(pairs, [pair for *_, pair in most.values()]))
