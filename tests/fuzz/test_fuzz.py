"""Fuzzes what reads untrusted bytes, seconds each; `make fuzz` takes five minutes for each.

Every program makes its seeds itself and says which of its runs failed, so that run can be repeated:
``--seed S --first N --runs 1``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures import ADDRESS, build_native

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("FUZZ_SECONDS", "2.5"))
SEED = os.environ.get("FUZZ_SEED", "1")
NATIVE = sorted(path.stem for path in HERE.glob("*_fuzz.cpp"))


def fuzz(*command: str | Path) -> None:
    done = subprocess.run(
        [*command, "--seed", SEED, "--seconds", str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert int(done.stdout.split()[0]) >= 50


sanitized = [pytest.mark.sanitizers, pytest.mark.xdist_group(ADDRESS)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=sanitized) for name in NATIVE])
def test_native(name: str) -> None:
    fuzz(build_native("fuzzers", ADDRESS) / "tests" / "fuzz" / name)


@pytest.mark.sanitizers
@pytest.mark.xdist_group(ADDRESS)
def test_five_hundred_forged_rings() -> None:
    build = build_native("fuzzers", ADDRESS)
    done = subprocess.run(
        [build / "tests" / "fuzz" / "ring_fuzz", "--seed", "5000", "--runs", "500"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert done.stdout == "500 runs\n"


@pytest.mark.parametrize(("name", "runs"), [("arrow_segments", 150), ("run_folders", 15)])
def test_damaged_files(shm: Path, name: str, runs: int) -> None:
    seconds = os.environ.get("FUZZ_SECONDS")
    until = ["--runs", str(runs)] if seconds is None else ["--seconds", seconds]
    done = subprocess.run(
        [sys.executable, HERE / f"{name}.py", "--seed", SEED, *until],
        capture_output=True,
        text=True,
        timeout=SECONDS + 600,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert int(done.stdout.split()[0]) >= 1
