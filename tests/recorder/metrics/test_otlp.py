"""OTLP, as a collector gets it: over HTTP, decoded by the protocol's own definitions."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from exported import busy_node
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from recording import wait_for

from haiprof.recorder.metrics.families import BUCKETS, FAMILIES
from haiprof.recorder.metrics.otlp import Otlp


class Collector(HTTPServer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.requests: list[ExportMetricsServiceRequest] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.append(self.path)
        self.server.requests.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as serves:
        thread = threading.Thread(target=serves.serve_forever, args=[0.01])
        thread.start()
        yield serves
        serves.shutdown()
        thread.join()


def test_a_collector_gets_all_series(collector: Collector) -> None:
    sends = Otlp.to(collector.url)
    sends.publish(busy_node(2).snapshot([{"name": "cpu", "state": "ok"}]))
    wait_for(lambda: collector.requests)
    sends.close()
    assert set(collector.paths) == {"/v1/metrics"}
    [resource] = collector.requests[0].resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "haiprof"
    assert (about["run"], about["node"]) == ("train-20261129-221240-25538", "node0123")
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    assert set(metrics) <= {family.name for family in FAMILIES}
    steps = metrics["haiprof_steps_total"].sum
    assert steps.is_monotonic
    assert (
        steps.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    by_rank = {
        point.attributes[0].value.string_value: point.as_double for point in steps.data_points
    }
    assert by_rank == {"0": 8, "1": 8}
    durations = metrics["haiprof_step_duration_seconds"]
    assert durations.unit == "s"
    point = durations.histogram.data_points[0]
    assert list(point.explicit_bounds) == list(BUCKETS)
    assert (point.count, sum(point.bucket_counts), len(point.bucket_counts)) == (8, 8, 12)
    assert not point.HasField("min")
    assert metrics["haiprof_source_up"].gauge.data_points[0].as_double == 1


def test_the_end_is_sent_at_once(collector: Collector) -> None:
    sends = Otlp.to(f"{collector.url}/v1/metrics")
    sends.publish(busy_node(1).snapshot([]))
    wait_for(lambda: collector.requests)
    before = len(collector.requests)
    sends.publish(busy_node(2).snapshot([]))
    sends.close()
    assert len(collector.requests) > before
    newest = collector.requests[-1].resource_metrics[0].scope_metrics[0].metrics
    steps = next(metric for metric in newest if metric.name == "haiprof_steps_total")
    assert len(steps.sum.data_points) == 2


def test_the_end_is_sent_even_while_it_sends(collector: Collector) -> None:
    for _ in range(3):
        before = len(collector.requests)
        sends = Otlp.to(collector.url)
        sends.publish(busy_node(1).snapshot([]))
        sends.publish(busy_node(2).snapshot([]))
        sends.close()
        assert len(collector.requests) > before
        newest = collector.requests[-1].resource_metrics[0].scope_metrics[0].metrics
        steps = next(metric for metric in newest if metric.name == "haiprof_steps_total")
        assert len(steps.sum.data_points) == 2


def test_a_collector_that_refuses_is_an_error(collector: Collector) -> None:
    collector.status = 400
    sends = Otlp.to(collector.url)
    snapshot = busy_node(1).snapshot([])

    def refused() -> bool:
        try:
            sends.publish(snapshot)
        except OSError:
            return True
        return False

    wait_for(refused)
    sends.close()
    assert collector.requests
