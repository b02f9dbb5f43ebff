"""What figures for Prometheus cost: a scrape of a node with eight ranks, and a step of a job."""

from __future__ import annotations

import gzip
import itertools
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exported import busy_node
from figures import Figure, Measured, Unit, at_most, least, median_in_range
from processes import recorder_of
from recording import wait_for, wait_recorded
from reporting import Report
from trainer import Training, keep_freed_memory

import haiprof
from haiprof.recorder.metrics.exposition import render

ROUNDS = 20
#: Recordings of one job with metrics, each between two without; so long, s, are its steps measured,
#: after so long.
RECORDINGS = 6
MEASURED_S, SETTLED_S = 2.5, 1.5
#: For how much longer at most, s, if nothing was scraped meanwhile.
LONGEST_S = 60.0
#: Scrapes once a second, and prints how many bytes it got.
SCRAPER = """
import sys, time, urllib.request
asked = urllib.request.Request(sys.argv[1], headers={"Accept-Encoding": "gzip"})
while True:
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            print(len(answer.read()), flush=True)
    except OSError:  # metrics are off
        pass
    time.sleep(1)
"""


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


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


@pytest.fixture
def scrapes(port: int, tmp_path: Path) -> Iterator[Callable[[], int]]:
    """How often somebody who scrapes once a second has got an answer."""
    file = tmp_path / "scrapes"
    command = [sys.executable, "-c", SCRAPER, f"http://127.0.0.1:{port}/metrics"]
    with file.open("w") as out, subprocess.Popen(command, stdout=out) as process:
        yield lambda: file.read_bytes().count(b"\n")
        process.kill()


def recorded_step(
    training: Training, run: Path, shm: Path, metrics: str, scrapes: Callable[[], int]
) -> float:
    """Mean time of a step, s, while a recorder of its own records them, and is scraped."""
    allowed, before = os.sched_getaffinity(0), scrapes()
    haiprof.start(run.parent, run=run.name, metrics=metrics)
    recorder_of(shm)
    # One core of a virtual machine may be faster than another; the recorder runs where it likes.
    os.sched_setaffinity(0, {max(allowed)})
    try:
        training.run(SETTLED_S)
        if metrics:
            wait_for(lambda: scrapes() > before, what="a scrape")
        seen, times, until = scrapes(), [], time.monotonic() + MEASURED_S
        while (now := time.monotonic()) < until or (
            metrics and scrapes() == seen and now < until + LONGEST_S
        ):
            times += training.steps(1)
        assert not metrics or scrapes() > seen, "nothing was scraped meanwhile"
    finally:
        os.sched_setaffinity(0, allowed)
        haiprof.stop()
    wait_recorded(shm, 120)
    return statistics.mean(times)


def test_a_step_of_a_job_that_is_scraped(
    benchmark: Any,
    report: Report,
    shm: Path,
    tmp_path: Path,
    port: int,
    scrapes: Callable[[], int],
) -> None:
    keep_freed_memory()
    training = Training()
    training.steps(100)

    def step(run: str, metrics: str) -> float:
        return recorded_step(training, tmp_path / run, shm, metrics, scrapes)

    def run() -> tuple[list[float], list[float]]:
        off, on = [step("off", "")], []
        for n in range(RECORDINGS):
            on.append(step(f"on{n}", f":{port},host"))
            off.append(step(f"off{n}", ""))
        return off, on

    off, on = benchmark.pedantic(run, rounds=1, iterations=1)
    pairs = list(itertools.pairwise(off))
    added = [2 * during / sum(pair) - 1 for pair, during in zip(pairs, on, strict=True)]
    nothing = [after / before - 1 for before, after in pairs]
    milliseconds = statistics.median(off) * 1e3
    benchmark.extra_info.update(step_ms=milliseconds, scrapes=scrapes())
    what = f"a scrape a second, added to a recorded step of {milliseconds:.1f} ms"
    report(
        Figure(what, Unit.SHARE, median_in_range(added), None, at_most(0.01)),
        Figure("added by nothing at all", Unit.SHARE, median_in_range(nothing)),
    )
