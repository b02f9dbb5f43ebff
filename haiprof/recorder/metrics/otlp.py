"""Sends series by OTLP over HTTP, with OpenTelemetry's exporter, from a thread of its own.

The SDK has no observable histogram, so what is sent is put together here from its own data types.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import groupby
from typing import Final, cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from haiprof import __version__
from haiprof.recorder.metrics.families import BUCKETS, Family, Histogram, Series, Snapshot

#: How often it is sent, s, and how long one attempt may take.
_EVERY_S: Final = 15.0
_LONGEST_S: Final = 10.0
#: For how long the last one is waited for, s.
_LAST_S: Final = 3.0
_PATH: Final = "/v1/metrics"
_SCOPE: Final = InstrumentationScope("haiprof", __version__)
#: Ends of names, and units as UCUM writes them.
_UNITS: Final = {
    "_bytes_per_second": "By/s",
    "_per_second": "1/s",
    **{"_seconds": "s", "_ratio": "1", "_bytes": "By", "_watts": "W", "_joules": "J"},
    **{"_hertz": "Hz", "_celsius": "Cel"},
}
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


class Otlp:
    """Sends the newest series now and then."""

    def __init__(self, exporter: MetricExporter, every_s: float = _EVERY_S) -> None:
        """Begin to send.

        Args:
            exporter: what sends.
            every_s: how often, s.
        """
        # It says each attempt that fails; we say the first.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._exporter, self._every = exporter, every_s
        self._snapshot: Snapshot | None = None
        self._failed = False
        self._wakes = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._send, name="haiprof-otlp", daemon=True)
        self._thread.start()

    @classmethod
    def to(cls, url: str) -> Otlp:
        """Begin to send to a collector.

        Args:
            url: of it, with or without the path for metrics; empty: as OTEL_EXPORTER_OTLP_ENDPOINT
                and the like say.
        """
        if url and not url.rstrip("/").endswith(_PATH):
            url = url.rstrip("/") + _PATH
        return cls(OTLPMetricExporter(endpoint=url or None, timeout=_LONGEST_S))

    def publish(self, snapshot: Snapshot) -> None:
        """Send this the next time.

        Raises:
            OSError: nothing could be sent the last time.
        """
        first, self._snapshot = self._snapshot is None, snapshot
        if first:
            self._wakes.set()
        if self._failed:
            raise ConnectionError(None, "the collector does not take what is sent")

    def close(self) -> None:
        """Send the newest once more, and wait for that a little."""
        self._ends = True
        self._wakes.set()
        self._thread.join(_LAST_S)
        self._exporter.shutdown(timeout_millis=0)

    def _send(self) -> None:
        ends = False
        while not ends:
            self._wakes.wait(self._every)
            self._wakes.clear()
            # Asked before it sends: what ends meanwhile is sent once more.
            ends = self._ends
            if self._snapshot is not None:
                try:
                    result = self._exporter.export(data_of(self._snapshot))
                    self._failed = result is not MetricExportResult.SUCCESS
                except Exception:  # of the transport: the next attempt is in a quarter of a minute
                    self._failed = True


def data_of(snapshot: Snapshot) -> MetricsData:
    """Return a snapshot as OpenTelemetry has it: names, units and kinds are Prometheus' own."""
    about = {"service.name": "haiprof", "service.version": __version__}
    about |= {"host.name": snapshot.node.get("node", "")}
    resource = Resource.create({**about, **snapshot.node})
    metrics = list(_metrics(snapshot))
    scopes = [ScopeMetrics(_SCOPE, metrics, "")]
    return MetricsData([ResourceMetrics(resource, scopes, "")])


def _metrics(snapshot: Snapshot) -> Iterator[Metric]:
    for family, series in groupby(snapshot.series, lambda one: one.family):
        points = list(series)
        data: Sum | Gauge | HistogramData
        if family.kind == "histogram":
            data = HistogramData([_histogram(one, snapshot) for one in points], _CUMULATIVE)
        elif family.kind == "counter":
            data = Sum([_number(one, snapshot) for one in points], _CUMULATIVE, True)
        else:
            data = Gauge([_number(one, snapshot) for one in points])
        yield Metric(family.name, family.meaning, _unit(family), data)


def _unit(family: Family) -> str:
    name = family.name.removesuffix("_total")
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def _attributes(one: Series) -> dict[str, str]:
    return dict(zip(one.family.labels, one.labels, strict=True))


def _number(one: Series, snapshot: Snapshot) -> NumberDataPoint:
    assert not isinstance(one.value, Histogram)
    return NumberDataPoint(_attributes(one), snapshot.since_ns, snapshot.time_ns, one.value)


def _histogram(one: Series, snapshot: Snapshot) -> HistogramDataPoint:
    assert isinstance(one.value, Histogram)
    return HistogramDataPoint(
        attributes=_attributes(one),
        start_time_unix_nano=snapshot.since_ns,
        time_unix_nano=snapshot.time_ns,
        count=sum(one.value.counts),
        sum=one.value.total,
        bucket_counts=list(one.value.counts),
        explicit_bounds=list(BUCKETS),
        min=cast(float, None),  # not known, and left out
        max=cast(float, None),
    )
