"""Results of rocprofv3: every record becomes a row, the same from JSON and from CSV."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import rocprof_files
from real_data import DATA, need

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import csv

Write = Callable[[Path], Path]
FORMS: dict[str, Write] = {
    "json": lambda folder: rocprof_files.write_json(folder / "41_results.json"),
    "csv": rocprof_files.write_csv,
}


def texts(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return frame.select(pl.col(pl.Categorical).cast(pl.String), ~pl.selectors.categorical()).select(
        columns
    ).rows()  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_records_are_rows(form: str, tmp_path: Path) -> None:
    run = Analyzer(FORMS[form](tmp_path))
    assert run.problems() == []
    (process,) = run.run.processes
    assert process.pid == rocprof_files.PID
    assert [(gpu.device, gpu.name, gpu.multiprocessors) for gpu in process.gpus] == [
        (0, "MI300X", 4),
        (1, "MI300X", 4),
    ]
    kernels = run.kernels().sort("start")
    columns = ("kind", "name", "start", "duration", "device", "correlation")
    assert texts(kernels, *columns) == [
        ("memcpy", "Memcpy HtoD", 130, 50, 0, 1),
        ("kernel", rocprof_files.KERNEL, 300, 200, 0, 2),
        ("kernel", rocprof_files.KERNEL, 1300, 100, 1, 3),
    ]
    launch = ("grid_x", "grid_y", "block_x", "registers", "shared_memory")
    # A grid of rocprofv3 counts work items: 1000 are four groups of 256.
    assert texts(kernels, *launch)[1:] == [(4, 2, 256, 32, 64)] * 2
    assert run.kernels(by="launch")["blocks_per_sm"].to_list() == [2.0]
    assert kernels["bytes"].to_list() == [4096 if form == "json" else None, None, None]
    # Queues, named by addresses, are numbered.
    assert kernels["stream"].to_list() == [None, 0, 1]
    # The second step has less than the first: it was cut off.
    assert run.steps().select("step", "duration").rows() == [(7, 810)]
    launched = run.launches().sort("row")
    assert texts(launched, "call", "delay") == [
        ("hipMemcpyAsync", 10), ("hipLaunchKernel", 90), ("hipLaunchKernel", 90),
    ]  # fmt: skip
    spans = Counter(texts(run.spans(), "category", "name"))
    assert spans == Counter(
        {
            ("runtime", "hipMemcpyAsync"): 1,
            ("runtime", "hipLaunchKernel"): 2,
            ("runtime", "hsa_queue_create"): 1,
            ("user", "ncclAllReduce"): 1,
            ("user", "ncclGetVersion"): 1,
            ("user", "load"): 1,
            ("step", "step 7"): 1,
            ("step", "step 8"): 1,
        }
    )
    for view in csv.VIEWS.values():
        view(run)
    lacks = dict(run.unknown().select("missing", "why").iter_rows())
    assert "torch.profiler" in lacks["spans[op]"]


def test_what_was_not_recorded_is_named_with_the_option(tmp_path: Path) -> None:
    folder = rocprof_files.write_csv(tmp_path)
    for file in folder.iterdir():
        if "kernel" not in file.name:
            file.unlink()
    run = Analyzer(folder)
    # The agents are not known: GPUs are numbered in their order.
    assert run.kernels().sort("start")["device"].to_list() == [0, 1]
    lacks = dict(run.unknown("launches").select("missing", "why").iter_rows())
    assert "--hip-trace" in lacks["spans[runtime]"]


def test_impossible_records_are_left_out_and_counted(tmp_path: Path) -> None:
    content = rocprof_files.document()
    (process,) = content["rocprofiler-sdk-tool"]
    first, second = process["buffer_records"]["kernel_dispatch"]
    first["end_timestamp"] = first["start_timestamp"] - 1
    del second["dispatch_info"]["agent_id"]
    process["buffer_records"]["hip_api"][0]["start_timestamp"] = None
    content["rocprofiler-sdk-tool"] *= 2
    run = Analyzer(rocprof_files.write_json(tmp_path / "a.json", content))
    one, other = sorted(run.problems())
    assert "2 records without a time, or that end before they begin" in one
    assert "2 processes, of which the first is read" in other
    assert run.kernels(kind="kernel")["device"].to_list() == [None]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"rocprofiler-sdk-tool": []}', "has no process"),
        ('{"rocprofiler-sdk-tool": [{}]}', "has no kernels, copies, calls or ranges"),
        ('{"rocprofiler-sdk-tool": [{"agents": 7}]}', "not what rocprofv3 writes"),
        ('{"rocprofiler-sdk-tool": [{"agents"', "is cut off"),
        ('{"rocprofiler-sdk-tool": {"a": 1}}', "not what rocprofv3 writes"),
    ],
)
def test_damage_fails_in_one_line(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(HaiprofError, match=said) as error:
        Analyzer(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recorded_result_has_all_its_kernels(tmp_path: Path) -> None:
    name = "formats/rocprof_results.json"
    with tarfile.open(need(DATA / "other" / "formats.tar.xz")) as archive:
        archive.extract(name, tmp_path, filter="data")
    (process,) = json.loads((tmp_path / name).read_bytes())["rocprofiler-sdk-tool"]
    names = {row["kernel_id"]: row["formatted_kernel_name"] for row in process["kernel_symbols"]}
    wanted = Counter(
        (
            names[row["dispatch_info"]["kernel_id"]],
            row["start_timestamp"],
            row["end_timestamp"] - row["start_timestamp"],
            row["stream_id"]["handle"],
            row["dispatch_info"]["grid_size"]["x"] // row["dispatch_info"]["workgroup_size"]["x"],
        )
        for row in process["buffer_records"]["kernel_dispatch"]
    )
    run = Analyzer(tmp_path / name)
    assert Counter(texts(run.kernels(), "name", "start", "duration", "stream", "grid_x")) == wanted
    (device,) = run.overview().devices.to_dicts()
    assert (device["device"], device["kernels"]) == (0, 43_915)
    assert run.run.processes[0].gpus[0].name == "AMD Instinct MI350X"
