"""Every view, the report and the commands answer from exports of Nsight Systems."""

from __future__ import annotations

from pathlib import Path

import nsys_exports
import polars as pl
import pytest
from commands import haiprof, only_line

from haiprof.analyzer import Analyzer
from haiprof.export import csv


@pytest.mark.parametrize("name", nsys_exports.REAL)
def test_every_view_answers(tmp_path: Path, name: str) -> None:
    run = Analyzer(nsys_exports.real(name))
    written = {file.stem for file in csv.write(run, tmp_path / "out")}
    assert {"overview_devices", "kernels", "idle", "launches", "bandwidth", "unknown"} < written
    assert ("operators" in written) == (name != "mock")
    assert run.traced


def test_busy_time_of_a_gpu_is_the_union_of_its_kernels() -> None:
    file = nsys_exports.real("h100_2gpu_1s")
    run = Analyzer(file)
    rows = run.kernels(kind="kernel").sort("start").select("pid", "start", "duration").rows()
    busy: dict[int, int] = {}
    reached: dict[int, int] = {}
    for pid, start, duration in rows:
        begin = max(start, reached.get(pid, start))
        busy[pid] = busy.get(pid, 0) + max(start + duration - begin, 0)
        reached[pid] = max(reached.get(pid, 0), start + duration)
    devices = run.overview().devices.join(run.overview().ranks.select("pid", "duration"), on="pid")
    used = devices.select("pid", (pl.col("utilization") * pl.col("duration")).round()).rows()
    assert dict(used) == busy


def test_a_run_is_compared_with_another(tmp_path: Path) -> None:
    for name, slower in (("a", 1), ("b", 2)):
        for rank in range(2):
            nsys_exports.small(tmp_path / name / f"rank{rank}.sqlite", slower=slower)
    before, after = (Analyzer(tmp_path / name) for name in "ab")
    frame = before.differences(after, of="kernels")
    assert frame["rank"].to_list() == [0, 1]
    done = haiprof("compare", tmp_path / "a", tmp_path / "b")
    assert (done.returncode, done.stderr) == (0, "")


def test_processes_without_a_rank_are_compared_by_their_gpus(tmp_path: Path) -> None:
    files = []
    for pids in ((10, 11), (31, 30)):
        export = nsys_exports.Export(tmp_path / f"{pids[0]}.sqlite")
        for device, pid in enumerate(pids):
            export.kernel(f"gpu{device}", 0, 10 + device, pid, deviceId=device)
        files.append(export.done())
    before, after = map(Analyzer, files)
    found = before.differences(after, of="kernels")
    assert dict(found.select("pid", "name").rows()) == {10: "gpu0", 11: "gpu1"}
    assert set(before.compare(after)) == {"10 pid 10", "10 pid 11"}


def test_the_commands(tmp_path: Path) -> None:
    file = tmp_path / "report.sqlite"
    file.write_bytes(nsys_exports.real("mock").read_bytes())
    done = haiprof("import", file)
    assert (done.returncode, done.stdout) == (0, f"{file}.haiprof\n")
    report = tmp_path / "report.html"
    done = haiprof("report", file, "-o", report)
    assert (done.returncode, done.stderr) == (0, "")
    page = report.read_text("utf-8")
    assert "What these traces lack" in page
    assert "no ranges are operators of torch" in page
    done = haiprof("export", file, "-o", tmp_path / "csv")
    assert str(tmp_path / "csv" / "unknown.csv") in done.stdout
    (tmp_path / "r.nsys-rep").write_bytes(b"\0")
    assert "nsys export --type sqlite" in only_line(haiprof("report", tmp_path / "r.nsys-rep"))


def lost(run: Analyzer) -> dict[str, str]:
    """What is missing, and why."""
    return dict(run.unknown().select("missing", "why").unique().rows())


def test_what_an_import_says_counts_more() -> None:
    reasons = lost(Analyzer(nsys_exports.real("h100_2gpu_1s")))
    assert reasons["allocations"].startswith("Nsight Systems records cudaMalloc only")
    assert reasons["kernels.blocks_per_sm"].startswith("the export has no TARGET_INFO_GPU")
    assert reasons["spans.shapes"] == "recorded without emit_nvtx(record_shapes=True)"
    assert "spans[op]" not in reasons
    mock = lost(Analyzer(nsys_exports.real("mock")))
    assert "kernels.blocks_per_sm" not in mock
    assert "emit_nvtx" in mock["spans[op]"]


def test_a_kept_import_is_read_instead(tmp_path: Path) -> None:
    nsys_exports.small(tmp_path / "rank0.sqlite")
    first = Analyzer(tmp_path).kernels()
    assert haiprof("import", tmp_path).returncode == 0
    assert Analyzer(tmp_path).run.folder == tmp_path / "haiprof-import"
    assert Analyzer(tmp_path).kernels().equals(first)
