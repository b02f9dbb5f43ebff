"""What is in the folder of rings is seen, also what comes in the tick of the last look."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from haiprof.common.owned_files import Folder
from haiprof.recorder.ring_folder import RingFolder


def names_in(folder: RingFolder) -> tuple[list[str], list[str], list[int]]:
    folder.look()
    pids = [command.pid for command in folder.commands]
    return folder.names, [path.name for path in folder.rings], pids


def test_names_are_told_apart(tmp_path: Path) -> None:
    folder = RingFolder(Folder.at(tmp_path))
    assert names_in(folder) == ([], [], [])
    for name in ("7.ring", "9-123.command", "doorbell", "8.outside"):
        (tmp_path / name).touch()
    names, rings, pids = names_in(folder)
    assert (len(names), rings, pids) == (4, ["7.ring"], [9])
    (tmp_path / "7.ring").unlink()
    assert names_in(folder)[1] == []


def test_nothing_that_comes_right_after_a_look_is_missed(tmp_path: Path) -> None:
    folder = RingFolder(Folder.at(tmp_path))
    for number in range(200):
        (tmp_path / f"{number}.ring").touch()
        assert len(names_in(folder)[1]) == number + 1


def test_a_folder_that_stays_as_it_is_is_listed_once(tmp_path: Path) -> None:
    (tmp_path / "7.ring").touch()
    old = time.time_ns() - 10**9
    os.utime(tmp_path, ns=(old, old))
    folder = RingFolder(Folder.at(tmp_path))
    assert not folder.unchanged()
    folder.look()
    assert folder.unchanged()
    (tmp_path / "8.ring").touch()
    assert not folder.unchanged()


def test_where_it_cannot_be_listed_it_is_as_before_and_looked_at_again(tmp_path: Path) -> None:
    (tmp_path / "7.ring").touch()
    folder = RingFolder(Folder.at(tmp_path))
    folder.look()
    (tmp_path / "8.ring").touch()
    old = time.time_ns() - 10**9
    os.utime(tmp_path, ns=(old, old))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # the listing opens a descriptor
    try:
        folder.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert folder.names == ["7.ring"]
    assert not folder.unchanged()
    assert names_in(folder)[1] == ["7.ring", "8.ring"]
