"""Tables as Parquet: read together they are what the run's methods return."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.export import parquet


@pytest.mark.parametrize("run", ["dlrm_8rank", ""])
def test_all_files_of_a_table_are_the_table(tmp_path: Path, run: str) -> None:
    path = traces.files(run)[0].parent if run else runs.make_gpu_run(tmp_path / "run", ranks=2)
    opened = Analyzer(path)
    written = parquet.write(opened, tmp_path / "out")
    assert sorted(written) == sorted(p for p in (tmp_path / "out").rglob("*") if p.is_file())
    whole = {"spans": opened.spans(), "samples": opened.samples(), "events": opened.events()}
    whole["kernels"] = opened.kernels()
    for name, frame in whole.items():
        columns = ["node", "rank", "pid", *(c.name for c in schema.TABLES[name].columns)]
        wanted = frame.select(columns).with_columns(pl.col(pl.Categorical).cast(pl.String))
        if not wanted.height:
            assert not (tmp_path / "out" / name).exists()
            continue
        found = pl.read_parquet(tmp_path / "out" / name / "*.parquet")
        found = found.with_columns(pl.col(pl.Categorical).cast(pl.String))
        assert found.columns == columns
        assert found.sort(columns).equals(wanted.sort(columns))
    processes = pl.read_parquet(tmp_path / "out" / "processes.parquet")
    assert processes["rank"].equals(opened.processes()["rank"])


def test_one_rank_has_its_node(tmp_path: Path) -> None:
    opened = Analyzer(runs.make_run(tmp_path / "run", ranks=2))
    parquet.write(opened, tmp_path / "out", rank=1)
    assert {file.name for file in (tmp_path / "out" / "samples").iterdir()} == {
        "rank_1.parquet",
        "node_n0.parquet",
    }
