"""``haiprof doctor``: what works here, what does not, and the mend."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof

STATES = {"ok", "absent", "denied", "broken"}


def findings(**environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = haiprof("doctor", "--json", env={**os.environ, **environment})
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["ok"] == (done.returncode == 0)
    return done.returncode, {f["what"]: f for f in told["findings"]}


def test_here_the_core_works_and_every_finding_is_whole(shm: Path) -> None:
    code, found = findings()
    assert code == 0
    assert {w for w, f in found.items() if f["core"]} == {"shared memory", "clock", "recorder"}
    for what, f in found.items():
        assert f["state"] in STATES
        assert f["found"], what
        assert f["state"] not in ("denied", "broken") or f["mend"], what
    assert {"start file", "torch", "host cpu", "host memory", "GPU"} <= set(found)
    assert not list(shm.glob("*/*"))
    assert not list(shm.glob("*/.*"))


def test_what_it_prints_is_one_line_each_when_nobody_watches(shm: Path) -> None:
    done = haiprof("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= STATES
    assert any(line.startswith("ok      shared memory: ") for line in lines)
    assert "\x1b" not in done.stdout


def test_without_shared_memory_the_core_does_not_work(shm: Path, tmp_path: Path) -> None:
    code, found = findings(HAIPROF_SHM_DIR=str(tmp_path / "nowhere"))
    assert code == 1
    assert found["shared memory"]["state"] == "absent"
    assert "HAIPROF_SHM_DIR" in found["shared memory"]["mend"]
    assert found["recorder"]["state"] == "broken"


def test_a_file_where_rings_should_lie_is_found(shm: Path) -> None:
    (shm / f"haiprof-{os.getuid()}").write_text("")
    code, found = findings()
    assert code == 1
    assert found["recorder"]["state"] == "broken"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_ring_folder_of_somebody_else_is_refused(shm: Path) -> None:
    folder = shm / f"haiprof-{os.getuid()}"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    code, found = findings()
    assert code == 1
    assert found["shared memory"]["state"] == "denied"
    assert "12345" in found["shared memory"]["found"]


def test_rings_without_a_recorder_are_named(shm: Path) -> None:
    folder = shm / f"haiprof-{os.getuid()}" / "forgotten"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "1.ring").write_bytes(b"x")
    code, found = findings()
    assert code == 0
    assert "forgotten" in found["left over"]["found"]
    assert found["left over"]["mend"] == "haiprof recover"


def test_a_wrong_variable_is_named(shm: Path) -> None:
    _, found = findings(HAIPROF_SAMPLE_HZ="often")
    assert "HAIPROF_SAMPLE_HZ='often'" in found["environment"]["found"]
    assert found["environment"]["mend"]
