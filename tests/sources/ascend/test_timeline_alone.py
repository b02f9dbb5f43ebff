"""A timeline of torch_npu without the tables beside it, under whatever name."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import foreign_seeds
import polars as pl
import pytest
from ascend_files import output

from haiprof.analyzer import Analyzer
from haiprof.sources.ascend.find import is_timeline


@pytest.mark.parametrize(
    ("head", "timeline"),
    [
        (b'[{"ph": "X", "ts": "1736408883688177.930"', True),
        (b' [{"args": {"name": "CANN"}, "name": "process_name"}, {"name": "CANN"', True),
        (b'[{"ph": "X", "ts": 1736408883688177.930', False),
        (b'{"traceEvents": [{"ts": "1"', False),
        (b"", False),
    ],
)
def test_times_are_texts_in_a_list(head: bytes, timeline: bool) -> None:
    assert is_timeline(head) is timeline


@pytest.mark.parametrize("name", ["node7_41.1700000000000.pt.trace.json", "rank3.json"])
def test_a_timeline_of_any_name_is_read(name: str, tmp_path: Path) -> None:
    foreign_seeds.write(tmp_path / "seeds")
    (whole,) = (tmp_path / "seeds" / "torch_npu").rglob("trace_view.json")
    file = tmp_path / name
    shutil.copy(whole, file)
    run = Analyzer(file)
    assert run.problems() == []
    (process,) = run.run.processes
    assert process.pid == 41
    assert process.rank == (3 if "rank" in name else None)
    kernels = run.kernels().sort("start").with_columns(pl.col("name", "unit").cast(pl.String))
    assert kernels.select("name", "unit", "duration").rows() == [
        ("MatMul", "AI_CORE", 30_000),
        ("hcom_allReduce__1_0_1", "HCCL", 20_000),
    ]
    assert run.operators()["name"].cast(pl.String).to_list() == ["aten::mm"]
    lacks = dict(run.unknown().select("missing", "why").iter_rows())
    assert "there is only a timeline" in lacks["allocations"]


def test_a_real_one_has_the_same_work_as_its_folder(levels: Path, tmp_path: Path) -> None:
    file = tmp_path / "host_1.1736408883686.pt.trace.json.gz"
    view = output(levels / "level1") / "trace_view.json"
    file.write_bytes(gzip.compress(view.read_bytes()))
    alone, whole = Analyzer(file), Analyzer(levels / "level1" / "rank0_ascend_pt")
    assert alone.spans().height == whole.spans().height
    (mine,), (theirs,) = (run.step_trace().to_dicts() for run in (alone, whole))
    for part in ("computing", "communication", "overlapped", "exposed"):
        # The tables print durations that are up to a ns apart from the timeline's.
        assert mine[part] == pytest.approx(theirs[part], abs=300)
    assert json.loads(view.read_text())[0]["ts"].count(".") == 1
