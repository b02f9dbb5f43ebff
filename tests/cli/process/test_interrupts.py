"""Ctrl-C ends a wait of the main thread, whatever libraries did to its signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from recording import wait_for

WAITS = """
import queue
from haiprof.cli.process.interrupts import interruptible
interruptible()
import polars  # had it been loaded here only, the wait would go on
print("waits", flush=True)
queue.SimpleQueue().get()
"""


def test_a_wait_ends_with_ctrl_c() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    wait_for(lambda: ") S " in Path(f"/proc/{process.pid}/stat").read_text())
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGINT
    assert err.endswith("KeyboardInterrupt\n")
