"""Which metrics a run has, of each process and node."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.schema import FLAG_IMPLAUSIBLE


def test_each_metric_of_each_process_is_a_row(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    folder = runs.write_process(run)
    rows = [
        runs.sample(1, "gpu.util.percent", 10.0, "gpu0"),
        runs.sample(2, "gpu.util.percent", 40.0, "gpu1"),
        runs.sample(3, "proc.rss.bytes", 7.0),
        runs.sample(4, "gpu.util.percent", 1e30, "gpu1") | {"flags": FLAG_IMPLAUSIBLE},
    ]
    runs.write_closed(folder, schema.SAMPLES, rows)
    found = Analyzer(run).metrics()
    assert found.columns[:2] == ["rank", "metric"]
    columns = ("rank", "metric", "instances", "samples", "min", "mean", "max")
    assert found.select(columns).rows() == [
        (0, "gpu.util.percent", 2, 2, 10.0, 25.0, 40.0),
        (0, "proc.rss.bytes", 0, 1, 7.0, 7.0, 7.0),
    ]
    assert (
        found.filter(pl.col("metric") == "gpu.util.percent")
        .select((pl.col("last") - pl.col("first")) / 1e9)
        .item()
        == 1.0
    )


def test_names_that_it_lists_are_those_that_samples_takes(tmp_path: Path) -> None:
    run = Analyzer(runs.make_run(tmp_path / "r", ranks=2))
    for metric in run.metrics()["metric"].unique():
        assert run.samples(metric).height
