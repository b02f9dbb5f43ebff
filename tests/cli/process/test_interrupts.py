"""Ctrl-C ends a wait of the main thread, whatever libraries did to its signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recording import wait_for

WAITS = """
import queue, sys
from haiprof.cli.process.interrupts import interruptible
{before}
import polars
print("waits", flush=True)
queue.SimpleQueue().get()
"""


@pytest.mark.parametrize(
    ("before", "ends"), [("interruptible()", True), ("import signal", False)]
)  # fmt: skip
def test_a_wait_ends_with_ctrl_c(before: str, ends: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS.format(before=before)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    wait_for(lambda: ") S " in Path(f"/proc/{process.pid}/stat").read_text())
    process.send_signal(signal.SIGINT)
    try:
        if ends:
            _, err = process.communicate(timeout=60)
            assert process.returncode == -signal.SIGINT
            assert err.endswith("KeyboardInterrupt\n")
        else:  # if it did, there would be no need for interruptible()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=1)
    finally:
        process.kill()
        process.communicate()
