"""What is written appears whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from haiprof.errors import HaiprofError
from haiprof.export import target


@pytest.mark.parametrize(
    ("error", "raised_type"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), HaiprofError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (HaiprofError("a table cannot be read"), HaiprofError),
    ],
)
def test_what_ends_early_leaves_nothing(
    tmp_path: Path, error: BaseException, raised_type: type[BaseException]
) -> None:
    def begin() -> None:
        with target.whole(tmp_path / "new" / "out") as partial:
            partial.mkdir()
            (partial / "file").write_text("half")
            raise error

    with pytest.raises(raised_type) as raised:
        begin()
    assert list((tmp_path / "new").iterdir()) == []
    if isinstance(error, OSError):
        fix = "cannot be written (No space left on device): choose another place with --out"
        assert fix in str(raised.value)


def test_nothing_is_there_before_the_end(tmp_path: Path) -> None:
    with target.whole(tmp_path / "out") as partial:
        partial.write_text("x")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out").read_text() == "x"
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_what_is_there_stays(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "out"
    if kind == "file":
        place.write_text("mine")
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(HaiprofError, match="out: already exists: remove it"), target.whole(place):
        pytest.fail("must not begin")
    assert kind != "file" or place.read_text() == "mine"
