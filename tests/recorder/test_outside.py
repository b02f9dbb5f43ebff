"""Processes that a note names are watched from outside until that is over."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recording import process_file, recorders, the_recorder, wait_for

from haiprof import Analyzer
from haiprof.common.places import ring_dir
from haiprof.common.process_life import start_time_of
from haiprof.options import Options
from haiprof.recorder.election import recorder_running
from haiprof.recorder.launch import start_recorder
from haiprof.recorder.outside import Note, end_note, notes_in, processes_of_notes, write_note
from haiprof.recorder.recover import recover_rings
from haiprof.recorder.run_folder import open_run_folder


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            yield process
        finally:
            process.kill()


def note_of(pid: int, rank: int = 0, seconds: float = 100) -> Path:
    started = start_time_of(pid)
    assert started is not None
    until = time.monotonic() + seconds
    note = Note("/a/run", pid, started, rank, rank, 2, 0, "a reason", until, time.time_ns())
    return write_note(ring_dir(Path("run")), note)


def process_document(run: Path, rank: int = 0) -> dict[str, Any]:
    (folder,) = run.glob(f"*#{rank}")
    return process_file(folder)


def live(run: Path) -> bool:
    return bool(list(run.glob("*#*/process.json")))


@pytest.fixture
def run(shm: Path, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    open_run_folder(run, ["sleep", "100"], Options())
    return run


def left(shm: Path) -> list[Path]:
    return [path for path in shm.rglob("*") if not path.is_dir()]


@pytest.mark.parametrize("over", ["its time", "its life"])
def test_it_ends_with(over: str, run: Path, shm: Path) -> None:
    with sleeper() as process:
        note_of(process.pid, seconds=8 if over == "its time" else 100)
        start_recorder(ring_dir(Path("run")), run, Options())
        wait_for(lambda: live(run))
        assert processes_of_notes(ring_dir(Path("run"))) == [process.pid]
        assert (process_document(run)["state"], process_document(run)["outside"]) == (
            "live",
            "a reason",
        )
        if over == "its life":
            time.sleep(1.5)
            process.kill()
        wait_for(lambda: not recorders(shm))
    assert process_document(run)["state"] == "closed"
    assert left(shm) == []
    assert Analyzer(run).samples("proc.*").height > 0
    assert Analyzer(run).events()["text"].to_list()[0] == (
        f"rank 0 (pid {process.pid}) is watched from outside: a reason"
    )


def test_a_note_that_is_taken_back_at_once(run: Path, shm: Path) -> None:
    with sleeper() as process:
        note = note_of(process.pid)
        start_recorder(ring_dir(Path("run")), run, Options())
        begun = time.monotonic()
        end_note(note, 60)
        end_note(note, 60)  # of which there is nothing left
        assert time.monotonic() - begun < 30
        wait_for(lambda: not recorders(shm))
        assert left(shm) == []


def test_a_note_without_a_recorder_is_not_waited_for_long(run: Path, shm: Path) -> None:
    with sleeper() as process:
        begun = time.monotonic()
        end_note(note_of(process.pid), 20)
        assert time.monotonic() - begun < 10
        assert notes_in(ring_dir(Path("run"))) == []


def test_two_that_say_they_are_the_same_rank_have_a_folder_each(run: Path, shm: Path) -> None:
    with sleeper() as one, sleeper() as other:
        notes = [note_of(one.pid), note_of(other.pid)]
        start_recorder(ring_dir(Path("run")), run, Options())
        wait_for(lambda: len(list(run.glob("*#*/process.json"))) == 2)
        time.sleep(1.5)
        for note in notes:
            end_note(note, 20)
        wait_for(lambda: not recorders(shm))
    folders = {process_file(p)["pid"]: process_file(p) for p in run.glob("*#*")}
    assert {pid: f["state"] for pid, f in folders.items()} == {
        one.pid: "closed",
        other.pid: "closed",
    }
    assert sorted(f["role"] for f in folders.values()) == ["process", "rank"]


def test_a_folder_that_was_removed_is_not_made_again(run: Path, shm: Path) -> None:
    with sleeper() as process:
        note = note_of(process.pid)
        start_recorder(ring_dir(Path("run")), run, Options())
        wait_for(lambda: live(run))
        shutil.rmtree(next(run.glob("*#0")))
        time.sleep(1.5)
        end_note(note, 20)
        wait_for(lambda: not recorders(shm))
    assert not list(run.glob("*#*"))
    assert process_file(next(p for p in run.iterdir() if p.is_dir()))["state"] == "closed"


def test_what_a_killed_recorder_leaves_is_removed_by_recover(run: Path, shm: Path) -> None:
    with sleeper() as process:
        note_of(process.pid)
        start_recorder(ring_dir(Path("run")), run, Options())
        wait_for(lambda: live(run))
        recorder = the_recorder(shm)
        os.kill(recorder, 9)
        wait_for(lambda: not recorder_running(ring_dir(Path("run"))))
        assert list(recover_rings()) == []
        assert notes_in(ring_dir(Path("run")))  # somebody may be about to start a recorder
        long_ago = time.time() - 100
        os.utime(ring_dir(Path("run")), (long_ago, long_ago))
        assert list(recover_rings()) == []
        assert left(shm) == []
