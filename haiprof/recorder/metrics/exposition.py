"""Series as the texts that Prometheus reads, by ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from haiprof.recorder.metrics.families import BUCKETS, Family, Histogram, Snapshot

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_LIMITS: Final = (*(str(limit) for limit in BUCKETS), "+Inf")


class _Snapshot(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        node = tuple(self._snapshot.node.values())
        family: Family | None = None
        metric: Metric | None = None
        for series in self._snapshot.series:
            if series.family is not family:
                if metric is not None:
                    yield metric
                family = series.family
                metric = _metric(family, (*self._snapshot.node, *family.labels))
            labels, value = (*node, *series.labels), series.value
            if isinstance(value, Histogram):
                assert isinstance(metric, HistogramMetricFamily)
                metric.add_metric(labels, _cumulative(value.counts), value.total)
            else:
                assert isinstance(metric, (CounterMetricFamily, GaugeMetricFamily))
                metric.add_metric(labels, value)
        if metric is not None:
            yield metric


def _metric(family: Family, labels: tuple[str, ...]) -> Metric:
    if family.kind == "histogram":
        return HistogramMetricFamily(family.name, family.meaning, labels=labels)
    if family.kind == "counter":
        return CounterMetricFamily(family.name, family.meaning, labels=labels)
    return GaugeMetricFamily(family.name, family.meaning, labels=labels)


def _cumulative(counts: tuple[int, ...]) -> list[tuple[str, float]]:
    buckets, sum_ = [], 0
    for limit, count in zip(_LIMITS, counts, strict=True):
        sum_ += count
        buckets.append((limit, float(sum_)))
    return buckets


def render(snapshot: Snapshot, *, openmetrics: bool = False) -> bytes:
    """Return the text of all series.

    Args:
        snapshot: those.
        openmetrics: in that format, else in Prometheus' older one.
    """
    registry = CollectorRegistry()
    registry.register(_Snapshot(snapshot))
    text: bytes = (generate_openmetrics if openmetrics else generate_text)(registry)
    return text
