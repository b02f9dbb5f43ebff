"""Builds the native tests under the sanitizers and runs each as one test here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fixtures import SANITIZERS, THREAD, build_native

HERE = Path(__file__).parent
NAMES = sorted(p.stem for p in HERE.glob("*_test.cpp"))
#: The tracer is a process that shares the test's memory, of which that sanitizer knows nothing.
HANGS = {(THREAD, "attach_injection_test")}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_native(sanitizers: str, name: str) -> None:
    if (sanitizers, name) in HANGS:
        pytest.skip("the thread sanitizer hangs where processes share memory")
    build = build_native("native_tests", sanitizers)
    done = subprocess.run(
        [build / "tests" / "native" / name], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " checks, 0 failed" in done.stdout
