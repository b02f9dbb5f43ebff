"""Wheels of haiprof as they are published, for Pythons that are here: in build/wheels, built once.

Tests: tests/wheels/test_make.py.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fixtures import ROOT

WHEELS = ROOT / "build" / "wheels"
MAKE = ROOT / "wheels" / "make.py"


def built_wheels(
    pythons: Sequence[str | Path], machine: str = platform.machine()
) -> list[tuple[Path, Path]]:
    """Return each Python with its wheel; all are built where one is older than its sources."""
    found = [_wheel(python, machine) for python in pythons]
    if None in found or _oldest(found) < _changed():
        words = [sys.executable, MAKE, "--machine", machine, WHEELS, *pythons]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        found = [_wheel(python, machine) for python in pythons]
    return [
        (Path(python), wheel)
        for python, wheel in zip(pythons, found, strict=True)
        if wheel is not None
    ]


def sdist() -> Path:
    """Return what the wheels were built from."""
    [path] = WHEELS.glob("haiprof-*.tar.gz")
    return path


def _wheel(python: str | Path, machine: str) -> Path | None:
    code = "import sys; v = sys.version_info; print(f'cp{v[0]}{v[1]}-cp{v[0]}{v[1]}{sys.abiflags}')"
    tag = subprocess.check_output([python, "-c", code], text=True).strip()
    [*found] = WHEELS.glob(f"haiprof-*-{tag}-*_{machine}.whl")
    return found[0] if found else None


def _oldest(wheels: Sequence[Path | None]) -> float:
    return min(wheel.stat().st_mtime for wheel in wheels if wheel is not None)


def _changed() -> float:
    """When what a wheel is made of was changed last; what is made on the way is not."""
    listed = ["git", "ls-files", "-z", "haiprof", "src", "page/src", "wheels", "*.toml", "*.txt"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    return max(path.stat().st_mtime for name in names if name and (path := ROOT / name).exists())
