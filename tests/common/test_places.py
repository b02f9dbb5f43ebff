"""Where the node's /proc and /sys are: the folder itself, or the one that holds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from haiprof.common.places import find_procfs, find_sysfs, mounted


@pytest.mark.parametrize(
    ("kind", "sign", "find"),
    [("sys", "bus", find_sysfs), ("sys", "class", find_sysfs), ("proc", "cpuinfo", find_procfs)],
)
def test_a_root_is_the_folder_or_holds_it(
    tmp_path: Path, kind: str, sign: str, find: Callable[[Path], Path]
) -> None:
    (tmp_path / kind / sign).mkdir(parents=True)
    assert find(tmp_path) == tmp_path / kind
    assert find(tmp_path / kind) == tmp_path / kind


def test_the_machines_own_are_found() -> None:
    assert find_sysfs("/sys") == find_sysfs("/") == Path("/sys")
    assert find_procfs("/proc") == find_procfs("/") == Path("/proc")


def test_what_is_neither_is_refused_in_words_that_follow_its_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^does not exist$"):
        find_sysfs(tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match=r"^is not a sysfs: there is no bus, class or devices in it$"
    ):
        find_sysfs(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^(is not a procfs|cannot be read)"):
        find_procfs(tmp_path / "file")


@pytest.mark.skipif(os.getuid() == 0, reason="root may look anywhere")
def test_an_unreadable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(ValueError, match="cannot be read"):
        find_sysfs(tmp_path / "closed")


def test_a_copy_is_not_mounted(tmp_path: Path) -> None:
    assert mounted(Path("/proc"), "proc")
    assert mounted(Path("/sys"), "sysfs")
    assert not mounted(Path("/sys"), "proc")
    assert not mounted(tmp_path, "sysfs")
    assert not mounted(tmp_path / "nowhere", "sysfs")
