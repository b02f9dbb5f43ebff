"""Which files are exports of Nsight Systems, their processes, and the errors for other files."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from random import Random

import nsys_exports
import pytest
import traces

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.sources.imports.formats import find


def test_a_folder_of_exports_is_one_run_of_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        nsys_exports.small(tmp_path / "run" / f"report_{rank}.sqlite")
    run = Analyzer(tmp_path / "run")
    assert run.ranks == [0, 1, 2]
    assert run.problems() == []
    assert run.steps().height == 6


def test_the_environment_counts_more_than_the_name(tmp_path: Path) -> None:
    file = nsys_exports.small(tmp_path / "rank3.sqlite", {"RANK": "5", "WORLD_SIZE": "8"})
    (process,) = Analyzer(file).run.processes
    assert (process.rank, process.world_size, process.host) == (5, 8, "node7")


def test_the_environment_of_a_launcher_is_no_rank(tmp_path: Path) -> None:
    export = nsys_exports.Export(tmp_path / "rank3.sqlite", {"SLURM_PROCID": "1"})
    for pid in (10, 11):
        export.kernel("k", 0, 10, pid)
    run = Analyzer(export.done())
    assert [(p.pid, p.rank) for p in run.run.processes] == [(10, None), (11, None)]


def joins(export: nsys_exports.Export, pid: int, group: int, rank: int, count: int) -> None:
    """Have a process join a communicator."""
    payload = {"NCCL communicator ID": group, "No. of ranks": count, "Rank": rank, "CUDA device": 0}
    export.range("ncclCommInitRankConfig", 0, 5, pid, domainId=1, jsonText=json.dumps(payload))


@pytest.mark.parametrize(("count", "ranks"), [(2, [1, 0]), (16, [])])
def test_a_communicator_of_all_processes_tells_their_ranks(
    tmp_path: Path, count: int, ranks: list[int]
) -> None:
    export = nsys_exports.Export(tmp_path / "a.sqlite")
    for pid, rank in ((10, 1), (11, 0)):
        joins(export, pid, group=rank, rank=0, count=1)
        joins(export, pid, group=7, rank=rank, count=count)
        export.kernel("k", 0, 10, pid)
    run = Analyzer(export.done())
    assert {p.pid: p.rank for p in run.run.processes} == dict(
        zip((10, 11), ranks or [None] * 2, strict=True)
    )
    assert run.problems() == []


def test_processes_that_used_no_gpu_are_counted(tmp_path: Path) -> None:
    export = nsys_exports.Export(tmp_path / "a.sqlite")
    export.kernel("k", 0, 10, pid=10)
    export.range("work", 0, 10, pid=10)
    export.range("load", 0, 10, pid=12)
    run = Analyzer(export.done())
    assert [p.pid for p in run.run.processes] == [10]
    assert run.problems() == [
        f"{tmp_path}/a.sqlite: NVTX ranges of 1 processes that used no GPU are left out"
    ]


def test_ranges_alone_are_a_process(tmp_path: Path) -> None:
    export = nsys_exports.Export(tmp_path / "a.sqlite")
    export.range("work", 0, 10, pid=12)
    run = Analyzer(export.done())
    assert [p.pid for p in run.run.processes] == [12]
    assert run.spans()["duration"].to_list() == [10]


@pytest.mark.parametrize("name", ["report1.nsys-rep", "report1.qdrep"])
def test_a_report_is_to_be_exported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\0" * 100)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(HaiprofError, match=r"nsys export --type sqlite .*report1\.") as raised:
            Analyzer(path)
        assert "\n" not in str(raised.value)


def test_a_report_beside_its_export_is_no_problem(tmp_path: Path) -> None:
    nsys_exports.small(tmp_path / "rank0.sqlite")
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.nsys-rep").write_bytes(b"\0" * 100)
    run = Analyzer(tmp_path)
    assert run.ranks == [0]
    (line,) = run.problems()
    assert "rank1.nsys-rep: only Nsight Systems itself can read" in line


def broken(folder: Path, how: str) -> tuple[Path, str]:
    """A file that cannot be read, and what is said of it."""
    file = nsys_exports.small(folder / "b.sqlite")
    if how == "empty":
        file.write_bytes(b"")
        return file, "is empty: export it again"
    if how == "text":
        file.write_text("hello " * 50)
        return file, "is not an SQLite file: give what nsys export"
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-5000])
        return file, r"is cut off: \d+ of \d+ bytes: copy it again"
    if how == "damaged":
        raw = bytearray(file.read_bytes())
        raw[4096:] = b"\x5a" * (len(raw) - 4096)
        file.write_bytes(raw)
        return file, r"is damaged \(.*\): export it again"
    if how == "being written":
        Path(f"{file}-journal").write_bytes(b"x")
        return file, r"is still being written \(b.sqlite-journal is beside it\)"
    if how == "of another":
        file.unlink()
        with sqlite3.connect(file) as connection:
            connection.execute("create table StringIds (id, value)")
        connection.close()
        return file, "is an SQLite file that Nsight Systems did not write"
    export = nsys_exports.Export(folder / "c.sqlite")
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", [{"start": 1, "end": 2, "globalPid": None}])
    return export.done(), "has no work of a GPU and no ranges of NVTX: profile with"


@pytest.mark.parametrize(
    "how", ["empty", "text", "cut", "damaged", "being written", "of another", "nothing"]
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, how: str) -> None:
    file, said = broken(tmp_path / "x", how)
    with pytest.raises(HaiprofError, match=said) as raised:
        Analyzer(file)
    assert "\n" not in str(raised.value)
    nsys_exports.small(tmp_path / "x" / "rank1.sqlite")
    run = Analyzer(tmp_path / "x")
    assert run.ranks == [1]
    assert any(str(file) in line for line in run.problems()) == (how != "of another")


def test_a_locked_file_is_read(tmp_path: Path) -> None:
    file = nsys_exports.small(tmp_path / "rank0.sqlite")
    connection = sqlite3.connect(file)
    connection.execute("begin exclusive")
    try:
        assert Analyzer(file).kernels().height == 2
    finally:
        connection.close()


def test_an_export_behind_a_url_is_one_line() -> None:
    with pytest.raises(HaiprofError, match=r"are read from files only: copy it here"):
        Analyzer("memory://run/report.sqlite")


def test_other_files_are_left_to_others(tmp_path: Path) -> None:
    traces.write(tmp_path / "w.pt.trace.json", traces.small())
    with sqlite3.connect(tmp_path / "else.db") as connection:
        connection.execute("create table t (a)")
    connection.close()
    for name in ("broken.sqlite", "report1.nsys-rep"):
        (tmp_path / name).write_bytes(b"")
    for path in (tmp_path, tmp_path / "w.pt.trace.json"):
        found = find(str(path))
        assert found is not None
        assert {source.tool for source in found.sources} == {"kineto"}


def opened(file: Path) -> Analyzer | str:
    """A run, or why it is none."""
    try:
        return Analyzer(file)
    except HaiprofError as error:
        return str(error)


def test_bytes_that_changed_are_one_line_or_none(tmp_path: Path) -> None:
    whole = nsys_exports.small(tmp_path / "a.sqlite").read_bytes()
    random = Random(7)
    file = tmp_path / "rank0.sqlite"
    for _ in range(60):
        raw = bytearray(whole)
        for _ in range(random.choice([1, 5, 50])):
            raw[random.randrange(len(raw))] = random.randrange(256)
        file.write_bytes(raw)
        run = opened(file)
        if isinstance(run, str):
            assert "\n" not in run
        else:
            assert run.kernels().height <= 2
            assert run.unknown().height


@pytest.mark.parametrize("value", [None, -1, 1 << 62, -(1 << 63), 0.5, "text", b"\xff\xfe"])
def test_a_value_that_cannot_be_is_no_traceback(tmp_path: Path, value: object) -> None:
    whole = nsys_exports.real("mock").read_bytes()
    file = tmp_path / "rank0.sqlite"
    for table, column in (
        ("PROCESSES", "globalPid"), ("StringIds", "value"), ("TARGET_INFO_CUDA_DEVICE", "cudaId"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId"), ("CUPTI_ACTIVITY_KIND_KERNEL", "end"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"), ("TARGET_INFO_GPU", "smCount"),
        ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"), ("CUPTI_ACTIVITY_KIND_MEMCPY", "bytes"),
    ):  # fmt: skip
        file.write_bytes(whole)
        with sqlite3.connect(file) as connection:
            connection.execute(f"update or ignore {table} set {column} = ?", (value,))
        connection.close()
        run = opened(file)
        if isinstance(run, str):
            assert "\n" not in run
        else:
            assert run.overview().ranks.height == 1
