"""The texts that Prometheus reads: by its own parsers, and by promtool where that is installed."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from exported import Process, busy_node, each_sample, parts, rows, step_spans
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from haiprof import schema
from haiprof.recorder.metrics.exposition import render
from haiprof.recorder.metrics.node import Node


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_parsers_of_the_client_read_it(openmetrics: bool) -> None:
    node = Node({"run": "r", "node": "n"})
    rank = node.begin(Process(3, 1))
    assert rank is not None
    rank.read(step_spans(0.02, 0.02, 0.3))
    text = render(node.snapshot([]), openmetrics=openmetrics).decode()
    read = openmetrics_families if openmetrics else text_string_to_metric_families
    samples = {
        (s.name, s.labels.get("le")): s.value
        for family in read(text)
        for s in family.samples
        if s.labels.get("rank") == "3"
    }
    name = "haiprof_step_duration_seconds"
    assert samples[f"{name}_bucket", "0.025"] == 2
    assert samples[f"{name}_bucket", "0.5"] == samples[f"{name}_bucket", "+Inf"] == 3
    assert samples[f"{name}_count", None] == samples["haiprof_steps_total", None] == 3
    assert samples[f"{name}_sum", None] == pytest.approx(0.34)


def test_hostile_names_stay_values() -> None:
    node = Node({"run": 'r"} 1\nhaiprof_forged 1', "node": "n\\"})
    rank = node.begin(Process())
    assert rank is not None
    forged = 'x"} 1\nhaiprof_forged{a="\udcff'
    rank.read(parts(("step", "step", 1.0), ("phase", forged, 1.0)))
    rank.read(rows(schema.COLLECTIVES, {"side": "wait", "duration": 1, "group": forged}))
    node.note("finding", {"kind": forged, "ranks": [0], "over": False})
    text = render(node.snapshot([{"name": forged, "state": "ok"}])).decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    assert "haiprof_forged" not in names
    assert all(line.startswith(("haiprof_", "# ")) for line in text.splitlines())


def test_promtool_finds_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    node = busy_node()
    node.samples.read(each_sample())
    text = render(node.snapshot([{"name": "cpu", "state": "ok"}]))
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
