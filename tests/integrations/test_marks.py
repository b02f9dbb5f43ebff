"""What callbacks record in the same way, and that they do a job no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recording import read_table, run_python, wait_recorded

from haiprof.integrations.marks import harmless

CALLS = """
    from haiprof.integrations import marks
    marks.train("mine", run="r", epochs=2)
    marks.epoch(0, 0)
    for number in (1, 2):
        marks.step_done(number)
    marks.evaluated(2)
    marks.train_end(2)
"""


def test_each_is_a_mark_or_a_value(shm: Path, tmp_path: Path) -> None:
    begin = "import sys, haiprof\n    haiprof.start(sys.argv[1], run='run', hooks=False)"
    run_python(f"\n    {begin}{CALLS}    haiprof.stop()\n", str(tmp_path))
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    events = [each for each in read_table(folder, "events").to_pylist() if each["kind"] == "mark"]
    assert [(each["text"], json.loads(each["attributes"])) for each in events] == [
        ("train", {"framework": "mine", "run": "r", "epochs": 2}),
        ("epoch", {"number": 0, "step": 0}),
        ("evaluated", {"step": 2}),
        ("train_end", {"step": 2}),
    ]
    samples = read_table(folder, "samples").to_pylist()
    assert [each["value"] for each in samples if each["metric"] == "trainer.step.count"] == [1, 2]


def test_in_a_job_that_is_not_recorded_they_do_nothing(shm: Path, tmp_path: Path) -> None:
    seen = """
    import os, sys
    print(os.listdir(), "torch" in sys.modules)
"""
    assert run_python(CALLS + seen, cwd=tmp_path) == "[] False\n"
    assert not list(shm.iterdir())


def test_no_error_of_a_hook_reaches_its_framework() -> None:
    calls = []

    @harmless
    def hook(*words: str, **options: int) -> None:
        """Say what it was called with."""
        calls.append((words, options))
        raise AttributeError("another version")

    hook("a", n=1)
    assert calls == [(("a",), {"n": 1})]
    assert hook.__doc__ == "Say what it was called with."


def test_ctrl_c_reaches_the_job() -> None:
    @harmless
    def hook() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hook()
