"""Tables in memory: each is read from disk once for a report, and memory stays bounded."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.sources import table_cache, tables
from haiprof.sources.table_cache import TableCache, caching_tables

Reads = Counter[tuple[str, str]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """How often each table of each process is read from disk."""
    counts: Reads = Counter()
    read = tables._read_table

    def counted(folder: Path, table: schema.Table, *args: object) -> tables.Read:
        counts[folder.name, table.name] += 1
        return read(folder, table, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "_read_table", counted)
    return counts


@pytest.mark.parametrize("make", [runs.make_run, runs.make_gpu_run])
def test_a_report_reads_each_table_of_each_process_once(
    make: Callable[..., Path], reads: Reads, tmp_path: Path
) -> None:
    run = make(tmp_path / "r", ranks=3)
    Analyzer(run).report(tmp_path / "report.html")
    folders = {folder.name for folder in run.iterdir() if (folder / "process.json").exists()}
    assert {folder for folder, _ in reads} == folders
    assert {table for _, table in reads} >= {"spans", "samples", "events", "device_spans"}
    assert set(reads.values()) == {1}


def test_without_room_a_report_is_the_same_and_reads_again(
    reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.make_gpu_run(tmp_path / "g", ranks=2)
    cached = Analyzer(run).report(tmp_path / "cached.html").read_text()
    once = reads.total()
    monkeypatch.setattr(table_cache, "LIMIT", 0)
    assert Analyzer(run).report(tmp_path / "read.html").read_text() == cached
    assert reads.total() > 2 * once


def test_a_cached_table_answers_as_its_files_do(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "g")
    folder = next(folder for folder in run.iterdir() if (folder / "kernels-0.arrow").exists())
    for table in schema.TABLES.values():
        names = [column.name for column in table.columns]
        texts = [column.name for column in table.columns if column.kind == "text"]
        for columns in (None, names[::2], names[:1]):
            for keep in ({}, {texts[0]: ["step", "mark", "kernel", "proc.rss.bytes"]}):
                expected = tables.read_table(folder, table, columns, keep)
                with caching_tables():
                    for _ in range(2):
                        found = tables.read_table(folder, table, columns, keep)
                        assert found.frame.equals(expected.frame)
                        assert found.frame.schema == expected.frame.schema
                        assert (found.cut, found.problems) == (expected.cut, expected.problems)


def test_a_cut_file_counts_for_each_answer(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    folder = runs.write_process(run, 0)
    file = runs.write_live(folder, schema.SPANS, [runs.loop(20), runs.loop(20)])
    os.truncate(file, file.stat().st_size - 100)
    with caching_tables():
        cuts = [tables.read_table(folder, schema.SPANS).cut for _ in range(2)]
    assert cuts == [1, 1]


def test_blocks_end_with_what_they_cached(reads: Reads, tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    folder = next(folder for folder in run.iterdir() if (folder / "process.json").exists())
    with caching_tables():
        with caching_tables():
            tables.read_table(folder, schema.SPANS)
        tables.read_table(folder, schema.SPANS)
    assert reads.total() == 1
    tables.read_table(folder, schema.SPANS)
    assert reads.total() == 2


def test_threads_that_ask_at_once_read_once() -> None:
    cache: TableCache[str] = TableCache(1000)
    loads, barrier = [], threading.Barrier(8)

    def load() -> tuple[str, int]:
        loads.append(1)
        return "rows", 100

    def ask(_: int) -> str | None:
        barrier.wait(10)
        return cache.get(Path("rank-0"), "spans", lambda: 10, load)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["rows"] * 8
    assert len(loads) == 1


def test_memory_is_bounded() -> None:
    cache: TableCache[int] = TableCache(1000)
    found = [
        cache.get(Path(f"rank-{rank}"), "spans", lambda: 20, lambda: (1, 300)) for rank in range(6)
    ]
    # Each is expected to take 160 bytes, and takes 300.
    assert found == [1, 1, 1, None, None, None]


def test_a_table_that_cannot_be_read_takes_no_room() -> None:
    cache: TableCache[int] = TableCache(1000)

    def fail() -> tuple[int, int]:
        raise OSError("no such file")

    for _ in range(20):
        with pytest.raises(OSError, match="no such file"):
            cache.get(Path("rank-0"), "spans", lambda: 100, fail)
    assert cache.get(Path("rank-1"), "spans", lambda: 100, lambda: (1, 1000)) == 1
