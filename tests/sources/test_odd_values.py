"""Values that no tool writes, each once met in a mutated file: the others of the file are read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import foreign_seeds

from haiprof.analyzer import Analyzer


def change(file: Path, *statements: str) -> None:
    with sqlite3.connect(file) as base:
        for statement in statements:
            base.execute(statement)
    base.close()


def test_a_number_of_an_ascend_database_that_is_none(tmp_path: Path) -> None:
    foreign_seeds.write(tmp_path / "seeds")
    folder = tmp_path / "seeds" / "ascend_database"
    change(
        folder / "ascend_pytorch_profiler_0.db",
        "update CONNECTION_IDS set connectionId = x'fffe'",
        "update TASK set connectionId = 'none'",
        "update HOST_INFO set hostName = cast(x'ff41' as text)",
    )
    assert Analyzer(folder).kernels().height == 2


def test_a_time_of_nsys_that_is_a_text(tmp_path: Path) -> None:
    foreign_seeds.write(tmp_path / "seeds")
    folder = tmp_path / "seeds" / "nsys"
    change(folder / "rank0.sqlite", "update NVTX_EVENTS set end = 'late' where text = 'step 0'")
    change(folder / "rank1.sqlite", "update NVTX_EVENTS set jsonText = 5")
    assert Analyzer(folder).kernels().height == 4


def test_half_a_character_in_a_timeline_of_megatron(tmp_path: Path) -> None:
    foreign_seeds.write(tmp_path / "seeds")
    folder = tmp_path / "seeds" / "megatron" / "own"
    file = folder / "benchmark-data-0-pipeline-0-tensor-0.json"
    file.write_text(file.read_text().replace('"forward"', '"\\ud800"'))
    assert Analyzer(folder).device_spans().height == 8


def test_a_time_of_paddle_beyond_all_times(tmp_path: Path) -> None:
    foreign_seeds.write(tmp_path / "seeds")
    folder = tmp_path / "seeds" / "paddle"
    log = folder / "workerlog.0"
    log.write_text(log.read_text().replace("job_end_time = 1", "job_end_time = 9999", 1))
    run = Analyzer(folder)
    assert run.device_spans().height == 19
    assert "in 1 lines: left out" in run.problems()[0]


def test_names_without_names_in_a_timeline_of_torch_npu(tmp_path: Path) -> None:
    foreign_seeds.write(tmp_path / "seeds")
    (file,) = (tmp_path / "seeds" / "torch_npu").rglob("trace_view.json")
    file.write_text(file.read_text().replace('"name": "process_name"', '"name": null'))
    assert Analyzer(tmp_path / "seeds" / "torch_npu").kernels().height == 1
