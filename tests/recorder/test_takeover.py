"""What a recorder that takes over must know of the one before: times, losses, folders."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

from commands import haiprof
from recording import (
    process_file,
    python,
    read_table,
    the_recorder,
    wait_for,
    wait_recorded,
)

HOUR = 3600 * 10**9


def kill_recorder(shm: Path) -> None:
    pid = the_recorder(shm)
    os.kill(pid, signal.SIGKILL)
    wait_recorded(shm)


def test_losses_that_an_earlier_recorder_knew_of_are_kept_and_reported_once(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    import haiprof, sys
    haiprof.start(sys.argv[1], run="run", hooks=False, ring_mib=2)
    work = haiprof.range("work")
    def record(count):
        for _ in range(count):
            with work:
                pass
    haiprof.flush()
    for count in (60_000, 100, 100):
        print("ready", flush=True)
        sys.stdin.readline()
        record(count)
    """
    job = python(program, str(tmp_path), stdin=-1)
    assert job.stdin is not None
    assert job.stdout is not None

    def go_on() -> None:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()

    assert job.stdout.readline() == "ready\n"
    recorder = the_recorder(shm)
    os.kill(recorder, signal.SIGSTOP)
    go_on()
    assert job.stdout.readline() == "ready\n"
    os.kill(recorder, signal.SIGCONT)
    folder = next(tmp_path.glob("run/*#0"))
    wait_for(
        lambda: any(row["kind"] == "lost" for row in read_table(folder, "events").to_pylist()),
        what="a reported loss",
    )
    go_on()
    assert job.stdout.readline() == "ready\n"
    kill_recorder(shm)
    go_on()
    job.communicate(timeout=60)
    done = haiprof("recover")
    assert done.returncode == 0, done.stderr
    names = Counter(read_table(folder, "spans")["name"].to_pylist())
    lost = process_file(folder)["lost"]["overwritten"]
    assert lost > 0
    assert names["work"] + lost == 60_200
    events = [
        json.loads(row["attributes"])["n"]
        for row in read_table(folder, "events").to_pylist()
        if row["kind"] == "lost"
    ]
    assert sum(events) == lost


def test_times_go_on_with_the_offset_that_the_earlier_recorder_had(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    import haiprof, sys
    haiprof.start(sys.argv[1], run="run", hooks=False)
    with haiprof.range("before"):
        pass
    haiprof.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    with haiprof.range("after"):
        pass
    haiprof.stop()
    """
    job = python(program, str(tmp_path), stdin=-1)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    kill_recorder(shm)
    folder = next(tmp_path.glob("run/*#0"))
    about = process_file(folder)
    # As if the wall clock had been an hour ahead when the first recorder came.
    about["utc_offset_ns"] += HOUR
    (folder / "process.json").write_text(json.dumps(about))
    job.communicate("\n", timeout=60)
    wait_recorded(shm)
    start = {row["name"]: row["start"] for row in read_table(folder, "spans").to_pylist()}
    assert HOUR < start["after"] - start["before"] < HOUR + 60 * 10**9
    end = next(row for row in read_table(folder, "events").to_pylist() if row["kind"] == "exit")
    assert 0 <= end["time"] - start["after"] < 60 * 10**9


def test_the_third_ring_of_a_process_keeps_its_folder_too(shm: Path, tmp_path: Path) -> None:
    program = """
    import haiprof, sys
    for n in range(3):
        haiprof.start(sys.argv[1], run="run", hooks=False)
        for _ in range(10):
            with haiprof.range(f"ring {n}"):
                pass
        if n == 2:
            haiprof.flush()
            print("ready", flush=True)
            sys.stdin.readline()
        haiprof.stop()
    """
    job = python(program, str(tmp_path), stdin=-1)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    kill_recorder(shm)
    job.communicate("\n", timeout=60)
    assert job.returncode == 0
    wait_recorded(shm)
    folders = list(tmp_path.glob("run/*#0*"))
    assert len(folders) == 3
    names = Counter(name for f in folders for name in read_table(f, "spans")["name"].to_pylist())
    assert names == {f"ring {n}": 10 for n in range(3)}
    assert {process_file(folder)["state"] for folder in folders} == {"closed"}
