"""Folders of unfinished things: nobody takes them from a process that lives, a killed one's go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recording import wait_for

from haiprof.common.claimed_folder import ClaimedFolder, remove_abandoned

HERE = os.uname().nodename
_HOLD = """
import os, sys
from pathlib import Path
from haiprof.common.claimed_folder import ClaimedFolder
claimed = ClaimedFolder(Path(sys.argv[1]), "x-")
(claimed.path / "file").write_text("unfinished")
if len(sys.argv) > 2 and os.fork():
    os._exit(0)
print(claimed.path, os.getpid(), flush=True)
sys.stdin.read()
"""


def hold(parent: Path, *words: str) -> tuple[subprocess.Popen[str], Path, int]:
    command = [sys.executable, "-c", _HOLD, str(parent), *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder, pid = process.stdout.readline().split()
    return process, Path(folder), int(pid)


def test_a_folder_is_its_processs_until_that_is_killed(tmp_path: Path) -> None:
    process, folder, _ = hold(tmp_path)
    assert remove_abandoned(tmp_path, "x-") == 0
    assert (folder / "file").read_text() == "unfinished"
    process.kill()
    process.wait()
    assert remove_abandoned(tmp_path, "x-") == 1
    assert list(tmp_path.iterdir()) == []
    process.communicate()


def test_a_child_that_lives_on_has_it_too(tmp_path: Path) -> None:
    process, folder, child = hold(tmp_path, "and fork")
    process.wait()
    assert remove_abandoned(tmp_path, "x-") == 0
    assert folder.exists()
    os.kill(child, signal.SIGKILL)
    process.communicate()  # its end of the pipe is closed with it, maybe before the lock
    wait_for(lambda: remove_abandoned(tmp_path, "x-") == 1)


def test_it_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    claimed = ClaimedFolder(tmp_path, "x-")
    (claimed.path / "a").mkdir()
    (claimed.path / "a" / "b").touch()
    claimed.remove()
    claimed.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [f"y-{HERE}-abc", "x-other-abc", f"x-{HERE}-2-abc", "x-abc"])
def test_what_is_not_of_this_kind_and_machine_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / f"x-{HERE}-file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"x-{HERE}-link").symlink_to(tmp_path / "elsewhere")
    assert remove_abandoned(tmp_path, "x-") == 0
    assert len(list(tmp_path.iterdir())) == 4
    assert remove_abandoned(tmp_path / "nowhere", "x-") == 0


def test_one_that_is_taken_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = os.open, []

    def swept(path: Path, flags: int, *rest: Any, **more: Any) -> int:
        if not taken:
            taken.append(path)
            assert remove_abandoned(tmp_path, "x-") == 1
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", swept)
    claimed = ClaimedFolder(tmp_path, "x-")
    assert taken != [claimed.path]
    assert list(tmp_path.iterdir()) == [claimed.path]
    monkeypatch.undo()
    assert remove_abandoned(tmp_path, "x-") == 0
