"""What the benchmarks share: private ring folders, native programs, CPU time of processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def away_from_the_checkout(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that tests start import the installed package, not the sources beside it."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture
def shm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for rings that no real run sees."""
    folder = Path(tempfile.mkdtemp(prefix="haiprof-bench-", dir="/dev/shm"))
    monkeypatch.setenv("HAIPROF_SHM_DIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def native_build() -> Path:
    """The folder of the native benchmark programs, built for speed."""
    build = ROOT / "build" / "native"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", "-DHAIPROF_PYTHON=OFF",
         "-DHAIPROF_TESTS=ON"],
        ["cmake", "--build", str(build), "--target", "push_cost", "kernel_pusher"],
    ):  # fmt: skip
        subprocess.run(command, env=environment, check=True, capture_output=True)
    return build / "benchmarks" / "native"
