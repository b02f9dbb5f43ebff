"""What one scrape of the figures of a node with eight ranks costs, and how large it is."""

from __future__ import annotations

import gzip
import time
from typing import Any

import pytest
from exported import busy_node
from figures import Figure, Measured, Unit, at_most, least
from reporting import Report

from haiprof.recorder.metrics.exposition import render

ROUNDS = 20


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
def test_a_scrape(benchmark: Any, report: Report, openmetrics: bool) -> None:
    node = busy_node()
    # The recorder takes one every two seconds, whether it is asked for or not.
    taken = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        snapshot = node.snapshot([])
        taken.append(time.process_time() - begun)
    counts: list[float] = []

    def scrape() -> bytes:
        begun = time.process_time()
        # As Prometheus asks for it.
        packed = gzip.compress(render(snapshot, openmetrics=openmetrics), 1)
        counts.append(time.process_time() - begun)
        return packed

    packed = benchmark.pedantic(scrape, rounds=ROUNDS, iterations=1, warmup_rounds=2)
    text = gzip.decompress(packed)
    assert text.count(b"haiprof_steps_total{") == 8
    what = "OpenMetrics" if openmetrics else "Prometheus' text"
    report(
        Figure("CPU time of a snapshot", Unit.SECONDS, least(taken), None, at_most(1e-3)),
        Figure(f"CPU time of a scrape, {what}", Unit.SECONDS, least(counts), None, at_most(5e-3)),
        Figure(f"size of a scrape, {what}", Unit.BYTES, Measured(len(packed)), None, at_most(20e3)),
        Figure(f"the same, not compressed, {what}", Unit.BYTES, Measured(len(text))),
    )
