"""What an earlier recorder wrote of a process is taken over as far as it makes sense."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from recording import read_table

from haiprof import _core
from haiprof.common.owned_files import Folder
from haiprof.recorder import process as recorded
from haiprof.recorder.process_folder import claim, gpus_of, read_process_file, whole

PROCESS = {
    "node": "n0",
    "rank": 0,
    "pid": 7,
    "start_time": 5,
    "boot_id": "b",
    "created_ns": 9,
    "attempt": 1,
}


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b"", b"[]", b"null", b"{"])
def test_a_file_that_is_none_is_as_if_it_were_missing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "process.json").write_bytes(content)
    assert read_process_file(Folder.at(tmp_path)) is None


@pytest.mark.parametrize("gpus", [None, 7, {}, "x", [7, None, [], {}, {"uuid": 5}]])
def test_gpus_that_are_none_are_left_out(gpus: Any) -> None:
    assert gpus_of({"gpus": gpus}) == []
    assert gpus_of({"gpus": [7, {"uuid": "u", "device": 0}]}) == [{"uuid": "u", "device": 0}]


def test_a_number_is_whole_and_fits(tmp_path: Path) -> None:
    odd = (None, True, "7", 1.0, float("nan"), 2**63, -(2**63) - 1, [7])
    assert [whole({"n": value}, "n") for value in odd] == [None] * len(odd)
    assert whole({"n": -(2**63)}, "n") == -(2**63)


@pytest.mark.parametrize("attempt", [None, "1", [], float("inf")])
def test_another_process_claims_its_folder_beside_a_damaged_one(
    tmp_path: Path, attempt: object
) -> None:
    (tmp_path / "n0#0").mkdir()
    document = {**PROCESS, "pid": 6, "state": "live", "attempt": attempt}
    (tmp_path / "n0#0" / "process.json").write_text(json.dumps(document))
    claimed = claim(Folder.at(tmp_path), PROCESS)
    assert (claimed.folder.path.name, claimed.role) == ("n0#0.7", "rank")


def test_a_role_that_is_none_is_a_rank(tmp_path: Path) -> None:
    (tmp_path / "n0#0").mkdir()
    (tmp_path / "n0#0" / "process.json").write_text(json.dumps({**PROCESS, "role": ["x"]}))
    claimed = claim(Folder.at(tmp_path), PROCESS)
    assert (claimed.folder.path.name, claimed.role) == ("n0#0", "rank")


def test_what_was_only_taken_from_a_ring_is_written_when_that_is_due(
    shm: Path, tmp_path: Path
) -> None:
    ring = shm / "1.ring"
    _core.open_ring(str(ring), node="n0", run="run", run_dir=str(tmp_path))

    def wait() -> float:
        """Return for how long, s, there was nothing to do but to empty the ring."""
        begun = time.monotonic()
        do_chores_of(process, seconds=0.2)
        return time.monotonic() - begun

    try:
        process = recorded.RecordedProcess(ring, tmp_path)
        for number in range(3):
            _core.event("mark", f"event {number}")
            assert wait() > 0.15
        assert process.taken == 3
        assert not list(process.folder.glob("events-*"))
        process.drain(1000.0)
        assert not list(process.folder.glob("events-*"))
        process.drain(0.0)
        written = read_table(process.folder, "events").to_pylist()
        assert [row["text"] for row in written] == ["event 0", "event 1", "event 2"]
    finally:
        _core.close_ring()
    assert wait() < 0.15  # the goodbye is for who drains
    process.life.close()


def do_chores_of(process: recorded.RecordedProcess, seconds: float) -> None:
    folder = process.files
    _core.do_chores(
        [],
        until_ns=time.monotonic_ns() + int(seconds * 1e9),
        every_ns=10_000_000,
        folder=folder.fd,
        changed_ns=os.fstat(folder.fd).st_mtime_ns,
        often=[process.chore],
        when_due=[],
    )
