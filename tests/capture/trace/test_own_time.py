"""The time that a deep trace takes from the job is a phase of its own."""

from __future__ import annotations

from pathlib import Path

from deep_jobs import run_job
from recording import read_table


def test_its_end_is_not_the_optimizers(shm: Path, tmp_path: Path) -> None:
    left, _ = run_job("train(30)", shm, tmp_path, trace=1)
    phases = [s for s in read_table(left.folder, "spans").to_pylist() if s["category"] == "phase"]
    own = [s for s in phases if s["name"] == "deep_trace"]
    end = left.end()
    took = 1e6 * (end["stop_ms"] + end["save_ms"])
    longest = max(own, key=lambda s: s["duration"])
    assert longest["duration"] >= took
    for phase in phases:
        inside = min(phase["start"] + phase["duration"], longest["start"] + longest["duration"])
        if phase is not longest:
            assert inside <= max(phase["start"], longest["start"]) + 2  # ns, rounded


def test_on_a_thread_that_does_not_train_it_is_no_phase() -> None:
    from haiprof import _core
    from haiprof.capture.trace.own_time import own_time

    _core.phases_reset()
    with own_time():
        assert _core.current_step() is None
    assert _core.begin_own_work() == 0
