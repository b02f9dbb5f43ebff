"""What the recorder does while it waits: rings are emptied and sources read without its Python."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from host_trees import SECOND, STAT, Node
from recording import rows_of

from haiprof import _core, schema
from haiprof.recorder.tables import RingTables

EVENTS = 5


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def reader(shm: Path, tmp_path: Path) -> Iterator[_core.RingReader]:
    ring = shm / "1.ring"
    _core.open_ring(str(ring), node="n0", run="run", run_dir=str(tmp_path))
    yield _core.RingReader(ring)
    _core.close_ring()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path / "node")
    node.write("stat", STAT)
    return node


def work(
    seconds: float,
    folder: Path,
    fds: Sequence[int] = (),
    often: Sequence[_core.Chore] = (),
    when_due: Sequence[_core.Chore] = (),
) -> tuple[list[int], float]:
    """Return what was ready, and after which part of the time."""
    at, begun = os.open(folder, os.O_RDONLY), time.monotonic_ns()
    try:
        ready = _core.do_chores(
            fds,
            until_ns=begun + int(seconds * SECOND),
            every_ns=SECOND // 100,
            folder=at,
            changed_ns=os.fstat(at).st_mtime_ns,
            often=often,
            when_due=when_due,
        )
    finally:
        os.close(at)
    return ready, (time.monotonic_ns() - begun) / SECOND / seconds


def after(seconds: float, action: object, *arguments: object) -> threading.Timer:
    timer = threading.Timer(seconds, action, arguments)  # type: ignore[arg-type]
    timer.start()
    return timer


def test_it_ends_when_it_should(tmp_path: Path) -> None:
    ready, part = work(0.3, tmp_path)
    assert ready == []
    assert part > 0.9


def test_it_ends_once_a_descriptor_can_be_read(tmp_path: Path, pipe: tuple[int, int]) -> None:
    timer = after(0.1, os.write, pipe[1], b"x")
    assert work(60.0, tmp_path, [pipe[0]])[0] == [pipe[0]]
    timer.join()


def test_it_ends_once_a_folder_has_changed(tmp_path: Path, reader: _core.RingReader) -> None:
    timer = after(0.1, (tmp_path / "new").touch)
    assert work(60.0, tmp_path, often=[reader])[1] < 0.5
    timer.join()


def test_it_ends_with_a_signal(tmp_path: Path) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    timer = after(0.1, os.kill, os.getpid(), signal.SIGUSR1)
    try:
        assert work(60.0, tmp_path)[1] < 0.5
    finally:
        signal.signal(signal.SIGUSR1, before)
        timer.join()
    assert came == [signal.SIGUSR1]


def test_rings_are_emptied_meanwhile(tmp_path: Path, reader: _core.RingReader) -> None:
    timers = [after(0.05 * n, _core.event, "mark", f"event {n}") for n in range(EVENTS)]
    ready, part = work(1.0, tmp_path, often=[reader])
    for timer in timers:
        timer.join()
    assert (ready, reader.taken, reader.waiting) == ([], EVENTS, EVENTS)
    assert part > 0.9
    batch = RingTables().batch(schema.EVENTS, reader.rows()["events"], reader.texts)
    assert [row["text"] for row in rows_of(batch)] == [f"event {n}" for n in range(EVENTS)]
    reader.clear()
    assert (reader.taken, reader.waiting) == (EVENTS, 0)


def test_a_ring_that_was_closed_is_for_python(tmp_path: Path, reader: _core.RingReader) -> None:
    _core.event("mark", "last")
    _core.close_ring()
    assert work(60.0, tmp_path, often=[reader])[1] < 0.5
    assert reader.closed


def test_many_records_are_for_python_to_write(tmp_path: Path, reader: _core.RingReader) -> None:
    for _ in range(1 << 14):
        _core.event("mark", "one of many")
    assert work(60.0, tmp_path, often=[reader])[1] < 0.5
    assert reader.waiting == 1 << 14


def test_a_ring_that_was_cut_off_is_for_python(
    shm: Path, tmp_path: Path, reader: _core.RingReader
) -> None:
    _core.event("mark", "one")
    os.truncate(shm / "1.ring", 4096)
    assert work(60.0, tmp_path, often=[reader])[1] < 0.5
    with pytest.raises(_core.BrokenRing):
        reader.take()


def test_sources_are_read_when_they_are_due(tmp_path: Path, node: Node) -> None:
    sampler = node.sampler(interval=0.05)
    rows = _core.SampleRows(utc_offset_ns=1_000)
    sampler.keep(0, rows)
    begun = time.monotonic_ns() + 1_000
    ready, part = work(0.5, tmp_path, when_due=[sampler])
    ended = time.monotonic_ns() + 1_000
    assert ready == []
    assert part > 0.5
    batch = RingTables().batch(schema.SAMPLES, rows.rows()["samples"], rows.texts)
    threads = [row for row in rows_of(batch) if row["metric"] == "cpu.run_queue.threads"]
    assert 1 < len(threads) <= 11
    assert {row["value"] for row in threads} == {3.0}
    times = [row["time"] for row in threads]
    assert times == sorted(set(times))
    assert begun <= times[0] < times[-1] <= ended


def test_rows_are_what_was_read_of_each_target(node: Node) -> None:
    seen, kept = node.sampler(), node.sampler()
    mine, others, labelled = (_core.SampleRows(utc_offset_ns=0) for _ in range(3))
    kept.keep(0, _core.SampleRows(utc_offset_ns=0))  # nobody has these
    kept.keep(0, labelled, "before")
    kept.keep(0, mine)
    kept.keep(7, others)
    second = _core.SampleRows(utc_offset_ns=0)
    kept.keep(0, second, "before")  # in place of the one that was called so
    read = []
    for _ in range(3):
        node.now += SECOND
        read += [(node.now, *row[1:]) for row in seen.read(node.now)]
        kept.collect(node.now)
    columns = ("time", "metric", "instance", "value", "flags")
    batch = RingTables().batch(schema.SAMPLES, mine.rows()["samples"], mine.texts)
    cost = "haiprof.cost.ratio"
    rows = [tuple(row[name] for name in columns) for row in rows_of(batch)]
    assert [row for row in rows if row[1] != cost] == [row for row in read if row[1] != cost]
    assert (len(others), len(labelled), len(second)) == (0, 0, len(mine))
    batch = RingTables().batch(schema.SAMPLES, second.rows()["samples"], second.texts)
    instances = [row[2] for row in rows]
    expected = ["before" if name is None else f"before {name}" for name in instances]
    assert [row["instance"] for row in rows_of(batch)] == expected
    mine.clear()
    assert (len(mine), mine.rows()) == (0, {})
