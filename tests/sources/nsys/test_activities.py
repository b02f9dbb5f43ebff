"""Activities that the real exports have none of: graphs, metrics of GPUs, odd rows and columns."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl
from nsys_exports import START_NS, Export, key

from haiprof.analyzer import Analyzer


def test_a_graph_that_was_traced_as_a_whole_is_one_activity(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.call("cudaGraphLaunch_v10000", 5, 9, correlation=4)
    row = {"start": 20, "end": 90, "deviceId": 1, "streamId": 7, "correlationId": 4,
           "globalPid": key(10), "graphId": 6}  # fmt: skip
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", [row])
    kernels = Analyzer(export.done()).kernels()
    wanted = ("kind", "name", "device", "graph", "duration", "correlation")
    assert kernels.cast({"kind": pl.String, "name": pl.String}).select(wanted).rows() == [
        ("kernel", "CUDA graph 6", 1, 6, 70, 4)
    ]


def test_nodes_of_graphs_and_blocks_per_sm(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.add("TARGET_INFO_CUDA_DEVICE", [{"gpuId": 3, "cudaId": 0, "pid": 10}])
    gpu = {"id": 3, "name": "NVIDIA H100", "smCount": 100, "totalMemory": 80_000,
           "computeMajor": 9, "computeMinor": 0}  # fmt: skip
    export.add("TARGET_INFO_GPU", [gpu])
    export.kernel("k", 0, 9, gridX=25, gridY=4, gridZ=3, graphId=2, graphNodeId=(2 << 32) + 7)
    export.kernel("k", 10, 19, gridX=None, streamId=0xFFFFFFFF)
    run = Analyzer(export.done())
    kernels = run.kernels().sort("start")
    assert kernels["blocks_per_sm"].to_list() == [3.0, None]
    assert kernels["graph_node"].to_list() == [(2 << 32) + 7, None]
    assert kernels["stream"].to_list() == [7, None]
    (process,) = run.run.processes
    (found,) = process.gpus
    assert (found.device, found.name, found.multiprocessors) == (0, "NVIDIA H100", 100)
    assert (found.memory_bytes, found.capability) == (80_000, (9, 0))


def test_rows_without_a_time_are_counted_and_ends_before_starts_are_moments(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.kernel("k", 10, 5)
    for odd in ("later", None, 1 << 62, -(1 << 63)):
        export.kernel("k", odd, 15)
    run = Analyzer(export.done())
    assert run.kernels().select("start", "duration").rows() == [(START_NS + 10, 0)]
    (line,) = run.problems()
    assert line.endswith("in 4 rows of pid 10: left out; export it again with a newer nsys")


def test_a_column_that_a_version_lacks_is_null_and_that_of_the_process_is_one_line(
    tmp_path: Path,
) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.call("cudaMalloc_v3020", 0, 3)
    export.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        [{"start": 4, "end": 9, "globalPid": key(10), "copyKind": 1, "bytes": 64}],
    )
    run = Analyzer(export.done())
    (row,) = run.kernels().select("name", "copy_kind", "bytes", "device", "stream").rows()
    assert row == ("Memcpy HtoD (Unknown -> Unknown)", "HtoD", 64, None, None)


def test_without_the_sessions_beginning_times_count_from_it(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.kernel("k", 10, 15)
    file = export.done()
    with sqlite3.connect(file) as connection:
        connection.execute("drop table TARGET_INFO_SESSION_START_TIME")
    connection.close()
    run = Analyzer(file)
    assert run.kernels()["start"].to_list() == [10]
    assert "does not say when the session began" in run.problems()[0]


def test_times_that_were_normalized_are_on_the_epoch_already(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.add("META_DATA_EXPORT", [{"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "true"}])
    export.kernel("k", START_NS + 3, START_NS + 9)
    assert Analyzer(export.done()).kernels()["start"].to_list() == [START_NS + 3]


def test_metrics_are_of_the_gpus_that_the_process_used(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.kernel("k", 10, 15, deviceId=1)
    for gpu in (0, 1):
        row = {"typeId": 0x500 + gpu, "metricId": 4, "metricName": "SMs Active [Throughput %]"}
        export.add("TARGET_INFO_GPU_METRICS", [row])
        sample = {"timestamp": 20, "typeId": 0x500 + gpu, "metricId": 4, "value": 50 + gpu}
        export.add("GPU_METRICS", [sample])
    found = Analyzer(export.done()).samples().cast({"metric": pl.String, "instance": pl.String})
    assert found.select("time", "metric", "instance", "value").rows() == [
        (START_NS + 20, "SMs Active [Throughput %]", "gpu1", 51.0)
    ]


def test_warnings_of_nsight_systems_are_events(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.kernel("k", 10, 15)
    for severity, text, pid in ((1, "began", 10), (2, "buffers full", 10), (3, "other", 11)):
        row = {"timestamp": 7, "severity": severity, "text": text, "globalPid": key(pid)}
        export.add("DIAGNOSTIC_EVENT", [row])
    events = Analyzer(export.done()).events().cast({"kind": pl.String})
    assert events.select("time", "kind", "text").rows() == [
        (START_NS + 7, "warning", "buffers full")
    ]
