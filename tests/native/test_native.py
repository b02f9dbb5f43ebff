"""Builds the native tests and runs each as one test here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMES = sorted(p.stem for p in HERE.glob("*_test.cpp"))


@pytest.mark.parametrize("name", NAMES)
def test_native(native_build: Path, name: str) -> None:
    done = subprocess.run(
        [native_build / "tests" / "native" / name], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " checks, 0 failed" in done.stdout
