"""Fuzzes the analysis of other tools' traces: some runs always, as long as it is told if it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("foreign_traces.py")
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
SEED = os.environ.get("FUZZ_SEED", "1")


def test_traces_of_other_tools() -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, "--seed", SEED, "--seconds", str(SECONDS), "--runs", "30"],
        capture_output=True,
        text=True,
        timeout=SECONDS + 600,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert int(done.stdout.split()[0]) >= 30
