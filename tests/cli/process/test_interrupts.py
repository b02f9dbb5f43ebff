"""Ctrl-C: it ends a wait of the main thread, and lets a command finish what it writes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import wait_for

from haiprof.cli.process.interrupts import finished, interruptible

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


CALLED_BACK = """
import os, signal, time
from haiprof.cli.process.interrupts import interruptible
interruptible()
import polars
def called(value):
    os.kill(os.getpid(), signal.SIGINT)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        pass
    return value
try:
    found = polars.Series([1, 2]).map_elements(called, return_dtype=polars.Int64)
    print(found.to_list(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_called_back_from_polars_nothing_panics_and_the_interrupt_comes_afterwards() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLED_BACK], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("interrupted\n")  # in the middle of the line before, perhaps


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """Have Ctrl-C interrupt this process: a test runner's may have it ignored."""
    interruptible()  # another test may have imported polars
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    """Press it when the main thread waits for the result."""
    main = threading.main_thread().ident
    assert main is not None
    frames = sys._current_frames
    wait_for(lambda: "result" in [f.name for f in traceback.extract_stack(frames()[main])])
    signal.pthread_kill(main, signal.SIGINT)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_the_first_ctrl_c_is_reported_and_lets_it_finish() -> None:
    pressed = threading.Event()

    def closes() -> str:
        press_ctrl_c()
        return "closed" if pressed.wait(60) else "nobody was interrupted"

    assert finished(closes, pressed.set) == "closed"


@pytest.mark.usefixtures("hears_ctrl_c")
def test_the_second_ctrl_c_interrupts() -> None:
    pressed = threading.Event()

    def closes() -> None:
        press_ctrl_c()
        if pressed.wait(60):
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        finished(closes, pressed.set)


def test_without_ctrl_c_its_result_and_its_error_are_the_callers() -> None:
    def never() -> None:
        pytest.fail("nobody pressed Ctrl-C")

    assert finished(lambda: 7, never) == 7
    with pytest.raises(OSError, match="full"):
        finished(lambda: (_ for _ in ()).throw(OSError("full")), never)
