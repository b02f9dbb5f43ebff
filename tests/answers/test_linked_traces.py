"""Linked traces that are kept: up to a number of rows, and each once. Content: test_own.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import runs

from haiprof.answers import linked_traces
from haiprof.answers.linked_traces import Links
from haiprof.runs import Process
from haiprof.sources.own import open_run


@pytest.fixture
def processes(tmp_path: Path) -> list[Process]:
    run = open_run(runs.make_run(tmp_path / "run", ranks=3))
    return sorted((p for p in run.processes if p.rank is not None), key=lambda p: p.rank or 0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The ranks whose traces are read, in their order."""
    found: list[int | None] = []
    original = linked_traces._read

    def counted(process: Process, *more: Any) -> Any:
        found.append(process.rank)
        return original(process, *more)

    monkeypatch.setattr(linked_traces, "_read", counted)
    return found


def test_those_asked_for_last_are_kept_up_to_so_many_rows(
    processes: list[Process], read: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Links()
    rows = max(links.of(process).ops.height for process in processes)
    assert rows > 0
    read.clear()
    monkeypatch.setattr(linked_traces, "_KEPT_ROWS", 2 * rows)
    links = Links()
    for rank in (0, 1, 0, 2, 0, 1, 0, 1, 1):
        links.of(processes[rank])
    assert read == [0, 1, 2, 1]


def test_the_last_is_kept_however_large_it_is(
    processes: list[Process], read: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_traces, "_KEPT_ROWS", 0)
    links = Links()
    for rank in (0, 0, 1, 1, 0):
        links.of(processes[rank])
    assert read == [0, 1, 0]


def test_a_trace_that_is_read_again_with_more_columns_counts_once(
    processes: list[Process], read: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Links()
    rows = max(links.of(process).ops.height for process in processes[:2])
    monkeypatch.setattr(linked_traces, "_KEPT_ROWS", 2 * rows)
    with monkeypatch.context() as lacking:
        lacking.setattr(linked_traces, "_has", lambda *_: False)
        for _ in range(5):
            links.of(processes[0])
    links.of(processes[1])
    read.clear()
    for rank in (0, 1, 0):
        links.of(processes[rank])
    assert read == []
