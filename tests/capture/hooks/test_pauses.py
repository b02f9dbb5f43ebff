"""Pauses of the garbage collector, from gc.callbacks to the tables."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recording import rows_of, run_python, wait_recorded

from haiprof import Analyzer, _core, schema
from haiprof.capture import hooks
from haiprof.recorder.tables import RingTables


class Ring:
    """A ring whose rows are read as the recorder would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, table: schema.Table) -> list[dict[str, Any]]:
        reader = _core.RingReader(str(self.path))
        reader.take()
        raw = reader.rows().get(table.name)
        if raw is None:
            return []
        found = rows_of(RingTables().batch(table, raw, reader.texts))
        return found

    def pauses(self) -> list[dict[str, Any]]:
        return [row for row in self.rows(schema.SPANS) if row["category"] == "gc"]

    def values(self, metric: str, instance: str) -> list[float]:
        return [
            row["value"]
            for row in self.rows(schema.SAMPLES)
            if (row["metric"], row["instance"]) == (metric, instance)
        ]


@pytest.fixture
def quiet() -> Iterator[None]:
    """No collections but the test's own."""
    gc.disable()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def ring(shm: Path, quiet: None) -> Iterator[Ring]:
    """A ring and the hooks; no collections but the test's own."""
    _core.phases_reset()
    ring = Ring(shm / "test.ring")
    _core.open_ring(str(ring.path))
    hooks.install()
    try:
        yield ring
    finally:
        hooks.uninstall()
        _core.close_ring()
        _core.phases_reset()


def make_garbage(cycles: int) -> None:
    for _ in range(cycles):
        knot: list[Any] = []
        knot.append(knot)


def test_a_long_pause_is_a_span_with_its_thread_and_step(ring: Ring) -> None:
    _core.step_mark()
    make_garbage(100_000)
    begin = time.perf_counter_ns()
    gc.collect()
    by_hand = time.perf_counter_ns() - begin
    (row,) = ring.pauses()
    assert row["name"] == "gc 2"
    assert row["thread"] == threading.get_native_id()
    assert row["step"] == _core.current_step()
    assert 0.8 * by_hand < row["duration"] <= by_hand


def test_short_pauses_are_counted_and_none_is_a_span(ring: Ring) -> None:
    begin = time.perf_counter_ns()
    longest = 0
    for _ in range(5000):
        before = time.perf_counter_ns()
        gc.collect(0)
        longest = max(longest, time.perf_counter_ns() - before)
    by_hand = (time.perf_counter_ns() - begin) / 1e9
    _core.phases_finish()
    assert ring.values("python.gc.count", "gen0")[-1] == 5000
    assert 0 < ring.values("python.gc.seconds", "gen0")[-1] < by_hand
    assert ring.values("python.gc.count", "gen2") == []
    if longest < 100_000:
        assert ring.pauses() == []


def test_counts_are_recorded_four_times_a_second_at_most(ring: Ring) -> None:
    begun = time.monotonic()
    n = 0
    while time.monotonic() < begun + 1.1:
        gc.collect(0)
        n += 1
    gc.collect(0)  # the loop may have been held up for all of its time
    n += 1
    elapsed = time.monotonic() - begun
    count = len(ring.values("python.gc.count", "gen0"))
    assert 2 <= count <= 4 * elapsed + 1
    _core.phases_finish()
    _core.phases_finish()
    values = ring.values("python.gc.count", "gen0")
    assert len(values) - count in (0, 1)  # none if the loop ended with a row
    assert values[-1] == n
    assert values == sorted(values)


def test_a_recording_counts_from_zero(ring: Ring, shm: Path) -> None:
    for _ in range(3):
        gc.collect(1)
    _core.close_ring()
    gc.collect(1)
    _core.open_ring(str(shm / "second.ring"))
    gc.collect(1)
    _core.phases_finish()
    assert Ring(shm / "second.ring").values("python.gc.count", "gen1") == [1]


def test_without_collections_nothing_is_recorded(ring: Ring) -> None:
    make_garbage(1000)
    _core.phases_finish()
    assert ring.rows(schema.SAMPLES) == []
    assert ring.pauses() == []


def test_a_job_that_clears_the_callbacks_is_left_in_peace(ring: Ring) -> None:
    theirs: list[str] = []

    def callback(phase: str, information: dict[str, int]) -> None:
        theirs.append(phase)

    gc.collect(0)
    gc.callbacks.clear()
    gc.callbacks.append(callback)
    try:
        assert hooks.status()["gc"] == "off: the job has removed it from gc.callbacks"
        gc.collect(0)
        hooks.uninstall()
        assert gc.callbacks == [callback]
        gc.collect(0)
    finally:
        gc.callbacks.remove(callback)
    assert theirs == ["start", "stop"] * 2
    assert ring.values("python.gc.count", "gen0") == [1]


def test_callbacks_that_were_kept_and_put_back_do_nothing_after_the_end(ring: Ring) -> None:
    kept = list(gc.callbacks)
    hooks.uninstall()
    assert _core.collection not in gc.callbacks
    gc.callbacks.extend(kept)
    try:
        gc.collect(0)
    finally:
        for callback in kept:
            gc.callbacks.remove(callback)
    _core.phases_finish()
    assert ring.rows(schema.SAMPLES) == []


def test_a_callback_called_with_nonsense_records_nothing(ring: Ring) -> None:
    calls: list[tuple[Any, ...]] = [
        (), ("stop", {"generation": 0}), ("start", {}), ("stop", None), ("start", {}),
        ("stop", {}), ("start", {}), ("stop", {"generation": 7}), ("start", {}),
        ("stop", {"generation": -1}), ("start", {}), ("stop", {"generation": "0"}),
        ("start", {}), ("stop", {"generation": 2**80}), (1, 2), ("start", {}, 3),
    ]  # fmt: skip
    for arguments in calls:
        _core.collection(*arguments)
    _core.phases_finish()
    assert ring.rows(schema.SAMPLES) == []


def test_collections_while_the_interpreter_ends_are_safe(shm: Path) -> None:
    program = """
        import faulthandler, gc, sys
        from haiprof import _core
        from haiprof.capture import hooks
        faulthandler.enable()
        _core.open_ring(sys.argv[1])
        hooks.install()
        class Late:
            def __init__(self): self.own = self
            def __del__(self): gc.collect()
        keep = [Late() for _ in range(10)]
        sys.modules["kept"] = Late()
        print("ready")
    """
    assert run_python(program, str(shm / "test.ring")) == "ready\n"
    # The first of them reported its count while modules were being torn down.
    assert Ring(shm / "test.ring").values("python.gc.count", "gen2")[0] >= 1


def test_a_forked_child_counts_its_own(shm: Path) -> None:
    program = """
        import gc, os, sys
        from haiprof import _core
        from haiprof.capture import hooks
        gc.disable()
        _core.open_ring(sys.argv[1] + "/parent.ring")
        hooks.install()
        for _ in range(3): gc.collect(0)
        child = os.fork()
        if child == 0:
            gc.collect(0)
            _core.open_ring(sys.argv[1] + "/child.ring")
            gc.collect(0)
            _core.phases_finish()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        _core.phases_finish()
    """
    run_python(program, str(shm))
    assert Ring(shm / "child.ring").values("python.gc.count", "gen0")[-1] == 1
    assert Ring(shm / "parent.ring").values("python.gc.count", "gen0")[-1] == 3


JOB = """
    import gc, sys
    import haiprof
    haiprof.start(sys.argv[1], run="run", hooks=sys.argv[2] == "on")
    assert "torch" not in sys.modules
    for n in range(3):
        haiprof.step()
        knots = [[] for _ in range(100_000)]
        for knot in knots:
            knot.append(knot)
        del knots, knot
        gc.collect()
    haiprof.stop()
    assert not any("haiprof" in str(callback) for callback in gc.callbacks)
"""


def test_pauses_of_a_job_without_torch_reach_the_analyzer(shm: Path, tmp_path: Path) -> None:
    run_python(JOB, str(tmp_path), "on")
    wait_recorded(shm)
    run = Analyzer(tmp_path / "run")
    full = run.spans(category="gc", name="gc 2")
    assert set(full["step"]) >= {0, 1, 2}
    assert run.phases()["name"].unique().to_list() == ["other"]
    counts = run.samples("python.gc.count")
    seconds = run.samples("python.gc.seconds")
    assert counts.filter(counts["instance"] == "gen2")["value"].max() >= 3
    total = seconds.filter(seconds["instance"] == "gen2")["value"].max()
    assert total >= full["duration"].sum() / 1e9 * 0.999
    assert set(counts["rank"]) == {0}


def test_without_hooks_no_pause_is_recorded(shm: Path, tmp_path: Path) -> None:
    run_python(JOB, str(tmp_path), "off")
    wait_recorded(shm)
    run = Analyzer(tmp_path / "run")
    assert run.spans(category="gc").is_empty()
    assert run.samples("python.gc.*").is_empty()
