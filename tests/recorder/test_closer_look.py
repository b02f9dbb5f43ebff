"""More evidence for a while, then as before; and windows of kernels that somebody else asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gpu_jobs import run
from recording import wait_for, wait_recorded

import haiprof
from haiprof.recorder.closer_look import CloserLook

USUAL = {"basic": 1.0, "io": 0.05, "gpu": 1.0}
CLOSER = {"basic": 0.1, "io": 0.05, "gpu": 1.0}


def test_rates_are_higher_for_a_while_and_then_as_before() -> None:
    now = 5.0
    closer = CloserLook(lambda: now)
    assert (closer.stack_hz(10), closer.intervals(USUAL)) == (10, USUAL)
    closer.begin([])
    assert (closer.stack_hz(10), closer.intervals(USUAL)) == (100, CLOSER)
    assert (closer.stack_hz(0), closer.stack_hz(500)) == (0, 500)
    assert closer.looks
    now += 19.9
    assert closer.intervals(USUAL) == CLOSER
    now += 0.2
    assert (closer.stack_hz(10), closer.intervals(USUAL), closer.looks) == (10, USUAL, False)
    closer.begin([])
    closer.end()
    assert (closer.stack_hz(10), closer.intervals(USUAL)) == (10, USUAL)


def test_who_cannot_be_asked_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    closer = CloserLook()

    def said() -> bool:
        closer.turn()
        return "no window of kernels: process" in caplog.text

    with caplog.at_level("INFO"):
        closer.begin([os.getpid()])
        wait_for(said, what="why it has no window")
    levels = [line.levelname for line in caplog.records if "no window" in line.message]
    assert levels == ["INFO"]
    closer.end()


def test_a_window_of_kernels_begins_at_once(shm: Path, tmp_path: Path, native_build: Path) -> None:
    """The period is 15 s, and for 4.5 s after the first window there is none."""
    program = """
    from haiprof.recorder.closer_look import CloserLook
    use_gpu()
    haiprof.start(sys.argv[1], run="run", hooks=False, kernels_period=15, budget=0)
    closer, asked, windows, was = CloserLook(), False, 0, False
    while windows < 2:
        haiprof.step()
        launch(b"k", 1)
        time.sleep(0.01)
        is_open = bool(cupti.fake_enabled())
        windows, was = windows + (was and not is_open), is_open
        if windows and not asked:
            asked = True
            closer.begin([os.getpid()])
        closer.turn()
    haiprof.step()
    """
    assert run(program, tmp_path, native_build, HAIPROF_SHM_DIR=str(shm)) == ""
    wait_recorded(shm)
    rows = haiprof.Analyzer(tmp_path / "run").events(kind="kernels").sort("time").to_dicts()
    begins = [row["time"] for row in rows if json.loads(row["attributes"])["recording"]]
    assert begins[1] - begins[0] < 12e9
