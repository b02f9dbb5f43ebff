"""Rings that a job forges or truncates while they are recorded: no other recording ends."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import haiprof
from recording import (
    process_file,
    python,
    read_table,
    recorders,
    run_python,
    the_recorder,
    wait_for,
    wait_recorded,
)

from haiprof import _core

#: Offsets of src/ring/layout.h.
LANE_OFFSET = 40
PID = 104
STATE = 1984
LANES_USED = STATE + 4
STRING_COMMITTED = STATE + 8
HEAD_SEQUENCE = 16

JOB = """
    import haiprof, sys
    haiprof.start(sys.argv[1], run="run", hooks=False, ring_mib=2)
    with haiprof.range("before"):
        pass
    haiprof.flush()
    print("ready", flush=True)
    for line in sys.stdin:
        with haiprof.range(line.strip()):
            pass
        print("recorded", flush=True)
"""


def start(folder: Path, rank: int) -> subprocess.Popen[str]:
    job = python(JOB, str(folder), stdin=-1, env={**os.environ, "RANK": str(rank)})
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    return job


def ring_of(shm: Path, job: subprocess.Popen[str]) -> Path:
    found = [r for r in shm.glob("*/*/*.ring") if _core.RingReader(str(r)).header["pid"] == job.pid]
    assert len(found) == 1
    return found[0]


def put(ring: Path, at: int, value: int, kind: str = "<Q") -> None:
    with ring.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(kind, value))


def run_away(ring: Path) -> None:
    (lane,) = struct.unpack("<Q", ring.read_bytes()[LANE_OFFSET : LANE_OFFSET + 8])
    put(ring, lane + HEAD_SEQUENCE, 2**64 - 1)


FORGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a_head_without_end": (run_away, "its lane 0 says that it is further than any can be"),
    "too_many_lanes": (
        lambda ring: put(ring, LANES_USED, 2**32 - 1, "<I"),
        "it says that it uses more than it has",
    ),
    "too_many_strings": (
        lambda ring: put(ring, STRING_COMMITTED, 2**64 - 1),
        "it says that it uses more than it has",
    ),
    "truncated_to_nothing": (
        lambda ring: os.truncate(ring, 0),
        "it was truncated to 0 bytes",
    ),
    "truncated": (lambda ring: os.truncate(ring, 5000), "it was truncated to 5000 bytes"),
}


def spans(folder: Path) -> list[str]:
    return list(read_table(folder, "spans")["name"].to_pylist())


def recorder_texts(folder: Path) -> list[str]:
    return [
        row["text"]
        for row in read_table(folder, "events").to_pylist()
        if row["kind"] == "recorder" and "ring" in row["text"]
    ]


@pytest.mark.parametrize("name", FORGES)
def test_a_forged_ring_is_set_aside_and_the_others_go_on(
    shm: Path, tmp_path: Path, name: str
) -> None:
    forge, wrong = FORGES[name]
    good, bad = start(tmp_path, 0), start(tmp_path, 1)
    assert good.stdin is not None
    assert good.stdout is not None
    ring = ring_of(shm, bad)
    os.kill(bad.pid, signal.SIGSTOP)  # it would die of what it truncates
    forge(ring)
    size = ring.stat().st_size
    time.sleep(1.0)
    for n in range(3):
        good.stdin.write(f"after {n}\n")
        good.stdin.flush()
        assert good.stdout.readline() == "recorded\n"
    (other,) = tmp_path.glob("run/*#0")
    wait_for(lambda: "after 2" in spans(other), seconds=10, what="the records of the other rank")
    (left,) = tmp_path.glob("run/*#1")
    wait_for(lambda: process_file(left)["state"] == "closed", what="the end of that recording")
    bad.kill()
    bad.communicate()
    good.communicate("\n", timeout=60)
    wait_recorded(shm)
    assert spans(left) == ["before"]
    wrong = f"{wrong}; what it still held is lost ({size} bytes)"
    assert recorder_texts(left) == [f"recording ended: {ring}: {wrong}"]
    node = next(p.parent for p in tmp_path.glob("run/*/process.json") if "#" not in p.parent.name)
    assert recorder_texts(node) == [f"a ring is set aside: {ring}: {wrong}"]
    assert process_file(other)["state"] == "closed"
    assert not ring.exists()  # else the next recorder would set it aside again


def test_the_recorder_of_a_forged_ring_obeys(shm: Path, tmp_path: Path) -> None:
    good, bad = start(tmp_path, 0), start(tmp_path, 1)  # without the good one it would leave
    recorder = the_recorder(shm)
    os.kill(bad.pid, signal.SIGSTOP)
    run_away(ring_of(shm, bad))
    node = next(p.parent for p in tmp_path.glob("run/*/process.json") if "#" not in p.parent.name)
    set_aside = "a ring is set aside: "
    wait_for(lambda: any(text.startswith(set_aside) for text in recorder_texts(node)))
    assert the_recorder(shm) == recorder

    def left() -> bool:
        # Of two signals that come before either is handled, a process sees one.
        with contextlib.suppress(ProcessLookupError):
            os.kill(recorder, signal.SIGTERM)
        return not recorders(shm)

    wait_for(left, what="the recorder's end")
    for job in (good, bad):
        job.kill()
        job.communicate()


@pytest.mark.parametrize("pid", [0, 2**32 - 1])
def test_a_process_that_cannot_be_does_not_end_the_recorder(
    shm: Path, tmp_path: Path, pid: int
) -> None:
    job = start(tmp_path, 0)
    assert job.stdin is not None
    forged = ring_of(shm, job).with_name("forged.ring")
    content = bytearray(ring_of(shm, job).read_bytes())
    content[PID : PID + 4] = struct.pack("<I", pid)
    forged.with_suffix(".made").write_bytes(content)
    forged.with_suffix(".made").rename(forged)
    node = next(p.parent for p in tmp_path.glob("run/*/process.json") if "#" not in p.parent.name)
    wait_for(lambda: recorder_texts(node), what="an event")
    assert recorder_texts(node) == [
        f"a ring could not be read: {forged}: damaged ring file: no process can have written it"
    ]
    job.communicate("after\n", timeout=60)
    wait_recorded(shm)
    (folder,) = tmp_path.glob("run/*#0")
    assert spans(folder) == ["before", "after"]
    assert process_file(folder)["state"] == "closed"


def test_who_only_looks_at_a_truncated_ring_lives(tmp_path: Path) -> None:
    said = run_python(
        """
        import os, sys
        from haiprof import _core
        ring = sys.argv[1] + "/1.ring"
        _core.open_ring(ring, bytes=_core.MIN_RING_BYTES)
        _core.event("mark", "here")
        reader = _core.RingReader(ring)
        reader.take()
        _core.close_ring()
        os.truncate(ring, 0)
        assert not reader.closed
        assert reader.header["pid"] == os.getpid()
        assert reader.flush_requested == 0
        reader.answer_flush(1)
        reader.free_records()
        assert reader.position == {0: 1}
        assert reader.losses["overwritten"] == 0
        assert len(reader.rows()["events"]) > 0
        for _ in range(2):
            try:
                reader.take()
            except _core.BrokenRing as error:
                assert str(error) == f"{ring}: it was truncated to 0 bytes"
            else:
                raise AssertionError("it was taken for whole")
        print("alive")
        """,
        str(tmp_path),
    )
    assert said == "alive\n"


def test_recover_writes_what_a_damaged_ring_gave_and_removes_it(shm: Path, tmp_path: Path) -> None:
    job = start(tmp_path, 0)
    ring = ring_of(shm, job)
    os.kill(the_recorder(shm), signal.SIGKILL)
    job.kill()
    job.communicate()
    run_away(ring)
    done = haiprof("recover")
    assert done.returncode == 1
    assert "what it still held is lost (2097152 bytes)" in done.stdout
    assert not ring.exists()
    (left,) = tmp_path.glob("run/*#0")
    assert process_file(left)["state"] == "died"
    assert not list(left.glob("*.arrows"))
    assert "nothing to recover" in haiprof("recover").stdout
