"""Fixtures of tests and benchmarks: a private place for rings, and the native programs."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import wait_for

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def away_from_the_checkout(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that tests start import the installed package, not the sources beside it."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture
def shm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for rings that no other test and no real run sees."""
    folder = Path(tempfile.mkdtemp(prefix="haiprof-test-", dir="/dev/shm"))
    monkeypatch.setenv("HAIPROF_SHM_DIR", str(folder))
    for name in list(os.environ):
        if name.startswith("HAIPROF_") and name != "HAIPROF_SHM_DIR":
            monkeypatch.delenv(name)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


THREAD, ADDRESS = "thread", "address,undefined"
#: Values of a parameter of tests that `make sanitize` runs: one worker each, as they wait for one
#: build.
SANITIZERS = [
    pytest.param(name, marks=[pytest.mark.sanitizers, pytest.mark.xdist_group(name)])
    for name in (THREAD, ADDRESS)
]

#: What scikit-build-core leaves in the folder of a build that was installed.
_INSTALLED = "CMakeInit.txt"


def _folder(sanitizers: str) -> Path:
    """Return where a build is; without sanitizers the one that was installed, if it is here."""
    if sanitizers:
        # No comma: to the linker it would end a path.
        return ROOT / "build" / f"sanitize-{sanitizers.partition(',')[0]}"
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    installed = sorted((ROOT / "build").glob(f"{tag}-*/{_INSTALLED}"))
    return installed[0].parent if installed else ROOT / "build" / "native"


@functools.cache
def build_native(target: str, sanitizers: str = "") -> Path:
    """Build one of CMake's targets and return the folder of that build.

    Args:
        target: ``native_tests``, ``fuzzers``, ``test_programs``, ``gpu_programs``,
            ``nccl_programs`` or ``benchmark_programs``.
        sanitizers: as the compiler's ``-fsanitize`` takes them; none by default.
    """
    build = _folder(sanitizers)
    build.parent.mkdir(exist_ok=True)
    how = [] if (build / _INSTALLED).exists() else ["-G", "Ninja", "-DHAIPROF_PYTHON=OFF"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with Path(f"{build}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers one builds
        for command in (
            ["cmake", "-S", str(ROOT), "-B", str(build), *how, "-DHAIPROF_TESTS=ON",
             f"-DHAIPROF_SANITIZE={sanitizers}"],
            ["cmake", "--build", str(build), "--target", target],
        ):  # fmt: skip
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return build


@pytest.fixture(scope="session")
def native_build() -> Path:
    """The folder of a build that has the programs which tests start."""
    return build_native("test_programs")


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):  # somebody is in it
        group.rmdir()
    return not group.exists()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with a limit of 200 MiB."""
    top = Path("/sys/fs/cgroup")
    for base, name in ((top / "memory", "memory.limit_in_bytes"), (top, "memory.max")):
        group = base / f"haiprof-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / name).write_text(str(200 << 20))
                with contextlib.suppress(OSError):
                    (group / "memory.swap.max").write_text("0")
                yield group
            finally:
                wait_for(functools.partial(_removed, group), 60.0, "its last end")
            return
    pytest.skip("no control group with a limit of memory can be made here")
