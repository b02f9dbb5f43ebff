"""Files in folders that others can write: how they are opened, and that nothing opens them else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from opened_by_path import problems

from haiprof.common.owned_files import Folder, open_regular, private_folder, replace_or_fill


def test_nothing_else_opens_files_in_folders_that_others_can_write() -> None:
    assert problems() == []


def test_a_name_leads_nowhere_else(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    for name in ("..", ".", "", "a/b", "/etc/passwd"):
        with pytest.raises(ValueError, match="not the name"):
            folder.create(name)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    (tmp_path / "real").write_text("text")
    path = tmp_path / "name"
    {
        "link": lambda: path.symlink_to("real"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[kind]()
    folder = Folder.at(tmp_path)
    for opens in (folder.open, folder.read, folder.update, folder.create):
        with pytest.raises(OSError, match=f"{path}"):
            opens("name")
    assert (tmp_path / "real").read_text() == "text"


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    with folder.replacing("file.json") as file:
        file.write(b"first")
    with pytest.raises(ValueError, match="halfway"), folder.replacing("file.json") as file:
        _fail(file.write(b"second"))
    assert folder.read("file.json") == b"first"
    assert folder.names() == ["file.json"]
    assert (tmp_path / "file.json").stat().st_mode & 0o777 == 0o600


def _fail(_: int) -> None:
    raise ValueError("halfway")


def test_a_folder_is_the_same_whatever_its_name_turns_to(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "trap").mkdir()
    folder = Folder.at(tmp_path).folder("run")
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "run").symlink_to("trap")
    os.close(folder.create("file"))
    assert [p.name for p in (tmp_path / "moved").iterdir()] == ["file"]
    assert not list((tmp_path / "trap").iterdir())


def test_no_link_below_the_root_of_a_process_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    root = Path(f"/proc/{os.getpid()}/root")
    assert Folder.at(root / str(tmp_path / "real")[1:]).names() == []
    assert Folder.at(tmp_path / "link").names() == []
    with pytest.raises(OSError, match="a link is not followed"):
        Folder.at(root / str(tmp_path / "link")[1:])


def test_a_private_folder_is_neither_a_link_nor_another_users(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "made", make=True)
    assert os.fstat(folder.fd).st_mode & 0o777 == 0o700
    assert private_folder(tmp_path / "made", make=True).names() == []
    (tmp_path / "link").symlink_to("made")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(PermissionError, match="not a folder of this user"):
            private_folder(tmp_path / name, make=True)
    if os.geteuid() == 0:
        os.chown(tmp_path / "made", 12345, 12345)
        with pytest.raises(PermissionError, match="not a folder of this user"):
            private_folder(tmp_path / "made")


def test_a_private_folder_is_nobody_elses_to_write(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    private_folder(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o7777 == 0o1755


def test_a_run_is_read_from_regular_files_and_links_of_ours(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("text")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "leads").symlink_to("pipe")
    for name in ("real", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"text"
    for name in ("pipe", "leads"):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(tmp_path / name)
    tmp_path.chmod(0o777)  # anybody can have made the link
    with pytest.raises(OSError, match="a link is not followed"):
        open_regular(tmp_path / "link")


@pytest.mark.parametrize("everybody", [False, True])
def test_a_link_is_written_through_where_the_user_made_it(tmp_path: Path, everybody: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "real").write_text("old")
    (folder / "link").symlink_to("../real")
    folder.chmod(0o1777 if everybody else 0o755)
    replace_or_fill(folder / "link", b"new", through=True)
    assert (folder / "link").is_symlink() is not everybody
    assert (folder / "link").read_text() == "new"
    assert (tmp_path / "real").read_text() == ("old" if everybody else "new")
