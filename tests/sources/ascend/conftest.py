"""Real files of torch_npu, unpacked."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from ascend_files import ARCHIVE
from real_data import need


@pytest.fixture(scope="session")
def levels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``level0`` and ``level1``, each with folders of two ranks; only to be read."""
    need(ARCHIVE)
    folder = tmp_path_factory.mktemp("ascend")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return next(each.parent for each in folder.rglob("level1"))


@pytest.fixture
def job(levels: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a copy of a level's folder, which the test may change."""

    def copied(level: str = "level1") -> Path:
        return Path(shutil.copytree(levels / level, tmp_path / level))

    return copied
