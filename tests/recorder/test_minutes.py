"""Samples by the minute, beside the samples themselves: tests/native/sampler_minutes_test.cpp."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from recording import read_table, run_python, wait_recorded

from haiprof.schema import FLAG_IMPLAUSIBLE

MINUTE = 60 * 10**9
JOB = """
import haiprof, sys, time
haiprof.start(sys.argv[1], run="run", hooks=False, sample_hz=10)
for number in range(30):
    haiprof.mark("loss", number / 3)
    time.sleep(0.05)
haiprof.stop()
"""


def frame(folder: Path, table: str) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(read_table(folder, table)))


def test_minutes_sum_up_the_samples_of_ranks_and_nodes(shm: Path, tmp_path: Path) -> None:
    run_python(JOB, str(tmp_path))
    wait_recorded(shm)
    folders = [path for path in tmp_path.glob("run/*") if path.is_dir()]
    assert len(folders) == 2
    seen = set()
    for folder in folders:
        minutes, samples = frame(folder, "minutes"), frame(folder, "samples")
        usable = samples.filter(
            pl.col("value").is_finite() & (pl.col("flags") & FLAG_IMPLAUSIBLE == 0)
        )
        key = ["time", "metric", "instance"]
        value = pl.col("value")
        expected = usable.group_by((pl.col("time") // MINUTE * MINUTE).alias("time"), *key[1:]).agg(
            value.len().alias("count"),
            value.min().alias("min"),
            value.mean().alias("mean"),
            value.max().alias("max"),
        )
        both = minutes.join(expected, on=key, how="full", nulls_equal=True, suffix="_of_samples")
        assert both.height == minutes.height == expected.height
        for name in ("count", "min", "max"):
            assert both.filter(pl.col(name) != pl.col(f"{name}_of_samples")).height == 0
        off = (pl.col("mean") / pl.col("mean_of_samples") - 1).abs()
        assert both.filter(pl.col("mean_of_samples") != 0).select(off.max()).item() < 1e-9
        seen.update(minutes["metric"])
    assert {"loss", "proc.cpu.percent", "cpu.util.percent"} <= seen
