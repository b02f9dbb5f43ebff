"""Tables of ``nsys stats``: traces become rows, in any unit; summaries become metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nsys_csvs
import polars as pl
import pytest

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import csv


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    texts = [pl.col(each).cast(pl.String) for each, kind in frame.schema.items()
             if kind == pl.Categorical]  # fmt: skip
    return frame.with_columns(texts).select(columns).rows()


def check(run: Analyzer) -> None:
    assert run.problems() == []
    (process,) = run.run.processes
    assert process.pid == 41
    assert [(gpu.device, gpu.name) for gpu in process.gpus] == [(0, "NVIDIA H100")]
    kernels = run.kernels().sort("start")
    columns = ("kind", "name", "start", "duration", "device", "stream", "correlation")
    assert rows(kernels, *columns) == [
        ("kernel", "void k<int, 2>(int*)", 500, 200, 0, 7, 11),
        ("memcpy", "Memcpy HtoD (Pinned -> Device)", 900, 50, 0, 8, 12),
        ("memset", "Memset (Device)", 990, 5, 0, 7, 13),
        ("kernel", "ncclDevKernel_AllReduce", 2600, 100, 0, 7, 14),
    ]
    sizes = ("grid_x", "grid_y", "block_x", "registers", "shared_memory", "bytes", "copy_kind")
    assert rows(kernels, *sizes)[:3] == [
        (8, 2, 256, 40, 20_000, None, None),
        (None, None, None, None, None, 2_000_000, "HtoD"),
        (None, None, None, None, None, 1_000, None),
    ]
    assert rows(run.launches().sort("row"), "call", "delay") == [
        ("cudaLaunchKernel", 80),
        ("cudaMemcpyAsync", 80),
        ("cudaMemsetAsync", 5),
        ("cudaLaunchKernel", 80),
    ]
    assert run.operators().select("name", "calls", "device_total").rows() == [("aten::mm", 1, 200)]
    spans = rows(run.spans().sort("start"), "category", "name")
    assert [row for row in spans if row[0] != "runtime"] == [
        ("step", "step 7"),
        ("op", "aten::mm"),
        ("step", "step 8"),
        ("user", "ncclAllReduce"),
    ]
    assert run.distributed().collectives.select("op", "kernels").rows() == [("all_reduce", 1)]
    domains = run.spans(category="user")["attributes"].cast(pl.String).to_list()
    assert domains == ['{"domain": "NCCL"}']


def test_traces_become_rows(tmp_path: Path) -> None:
    run = Analyzer(nsys_csvs.write(tmp_path))
    check(run)
    # Totals follow from the trace.
    assert run.samples().height == 0
    for view in csv.VIEWS.values():
        view(run)


def test_printed_tables_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "stats.txt"
    file.write_text(nsys_csvs.printed())
    check(Analyzer(file))


def test_units_are_those_of_the_columns(tmp_path: Path) -> None:
    folder = nsys_csvs.write(tmp_path)
    file = folder / "report1_cuda_gpu_trace.csv"
    text = file.read_text().replace("(ns)", "(us)").replace("(MB)", "(byte)")
    for before, after in (("500,200", "0.5,0.2"), ("900,50", "0.9,0.05"), ("990,5", "0.99,0.005"),
                          ("2600,100", "2.6,0.1"), ("0.004,0.016", "4000,16000"),
                          (",2.000,", ",2000000,"), (",0.001,", ",1000,")):  # fmt: skip
        assert before in text
        text = text.replace(before, after)
    file.write_text(text)
    check(Analyzer(folder))


def test_ranges_beside_their_projection_are_those_of_the_host(tmp_path: Path) -> None:
    folder = nsys_csvs.write(tmp_path, "cuda_gpu_trace", "cuda_api_trace")
    (folder / "report1_nvtx_gpu_proj_trace.csv").write_text(nsys_csvs.PROJECTED)
    run = Analyzer(folder)
    spans = run.spans().filter(pl.col("category").cast(pl.String) != "runtime").sort("start")
    assert rows(spans, "category", "name", "start", "duration") == [
        ("step", "step 7", 100, 1900),
        ("op", "aten::mm", 350, 100),
        ("step", "step 8", 2100, 900),
    ]


def test_a_summary_alone_becomes_metrics(tmp_path: Path) -> None:
    run = Analyzer(nsys_csvs.write(tmp_path, "cuda_gpu_kern_sum"))
    found = run.samples(metric="gpu.time.ns").sort("value")
    assert rows(found, "instance", "value") == [
        ("ncclDevKernel_AllReduce", 100.0),
        ("void k<int, 2>(int*)", 200.0),
    ]
    assert run.samples(metric="gpu.calls.count")["value"].to_list() == [1.0, 1.0]
    lacks = dict(run.unknown("kernels").select("missing", "why").iter_rows())
    assert "a summary has only totals" in lacks["kernels"]
    assert "--report cuda_gpu_trace" in lacks["kernels"]


def test_several_processes_have_no_launches(tmp_path: Path) -> None:
    folder = nsys_csvs.write(tmp_path)
    file = folder / "report1_cuda_api_trace.csv"
    file.write_text(file.read_text() + "1,1,cudaMalloc,0,11,77,78,20,other\n")
    run = Analyzer(folder)
    (problem,) = run.problems()
    assert "has 2 processes" in problem
    assert run.kernels()["correlation"].null_count() == 4
    assert run.run.processes[0].pid is None


def test_rows_that_are_cut_are_counted(tmp_path: Path) -> None:
    folder = nsys_csvs.write(tmp_path, "cuda_gpu_trace")
    file = folder / "report1_cuda_gpu_trace.csv"
    file.write_text(file.read_text() + "27xx,5\n-3,5,1\n2700,-1\n")
    run = Analyzer(folder)
    (problem,) = run.problems()
    assert "3 rows without a start or a duration" in problem
    assert run.kernels().height == 4
    lacks = dict(run.unknown().select("missing", "why").iter_rows())
    assert "--report cuda_api_trace" in lacks["spans[runtime]"]


def test_a_table_without_rows_fails_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(nsys_csvs.GPU + "\n")
    with pytest.raises(HaiprofError, match="no table of nsys stats has a row") as error:
        Analyzer(file)
    assert str(file) in str(error.value)
