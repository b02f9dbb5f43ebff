"""Every view as a CSV file: of recorded traces, and where nothing can be written."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import traces

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import csv


@pytest.mark.parametrize("run", ["tb_resnet50_num_workers_0", "hta_cpu_only", "tl_mi210_gpu_only"])
def test_the_files_hold_what_the_views_return(tmp_path: Path, run: str) -> None:
    opened = Analyzer(traces.files(run)[0].parent)
    told: list[str] = []
    written = csv.write(opened, tmp_path / "out", told.append)
    assert told == list(csv.VIEWS)
    assert sorted((tmp_path / "out").iterdir()) == sorted(written)
    for name in ("steps", "operators", "op_statistics", "recommendations"):
        file = tmp_path / "out" / f"{name}.csv"
        frame = csv.VIEWS[name](opened)
        assert file.exists() == bool(frame.height)
        if frame.height:
            read = pl.read_csv(file, infer_schema_length=None)
            assert (read.columns, read.height) == (frame.columns, frame.height)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    traces.write(tmp_path / "t" / "w.pt.trace.json", traces.small())
    (tmp_path / "file").write_text("x")
    with pytest.raises(HaiprofError, match=r"file/out: cannot be written \(.*\): choose another"):
        csv.write(Analyzer(tmp_path / "t"), tmp_path / "file" / "out")
