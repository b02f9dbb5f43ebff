"""What :mod:`haiprof.cli.hosts.launch` starts on each host: runs the command there under haiprof.

Its stdin brings what to run, a line of JSON; then a byte for each signal that the command and all
its processes are to get; its end means that they are to end.

Tests: tests/cli/hosts/test_launch.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, NoReturn

from haiprof.cli.hosts.launch import GRACE_SECONDS
from haiprof.cli.process.console import say
from haiprof.cli.recording import CLOSING_SECONDS, Recording
from haiprof.cli.run import run_here
from haiprof.common.launcher import placement
from haiprof.options import ENABLED_VARIABLE, resolve

#: How long the other hosts may hear nothing of a failure because its files are not closed, s.
_FAILED_SECONDS: Final = 2.0


def main() -> NoReturn:
    """Run what stdin asks for, and exit as it does; 128 + N where signal N ended it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    control, task = take_task()
    if task is None:
        sys.exit(1)
    os.environ.update(task["environment"])
    beside = str(Path(sys.executable).parent)
    if beside not in os.environ.get("PATH", "").split(os.pathsep):
        # Where a login knows nothing of the environment, its torchrun is to be found all the same.
        os.environ["PATH"] = beside + os.pathsep + os.environ.get("PATH", os.defpath)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    sys.exit(_run(task, control))


def take_task() -> tuple[int, dict[str, Any] | None]:
    """Take stdin away from whoever is started here.

    Returns:
        What brings the bytes behind the task, and the task; None where whoever starts us ended
        first.
    """
    control = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return control, _read_task(control)


def _read_task(control: int) -> dict[str, Any] | None:
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(control, 1)  # not more: what follows is signals
        if not byte:
            return None
        line += byte
    task: dict[str, Any] = json.loads(line)
    return task


def _run(task: dict[str, Any], control: int) -> int:
    try:
        os.chdir(task["folder"])
    except OSError as error:
        say(f"{task['folder']}: {error.strerror}; the folder must be there on every host")
        return 1
    options, _ = resolve({})  # its problems were reported where the run was started
    recording = Recording(options, placement(), task["command"])
    recording.possible &= os.environ[ENABLED_VARIABLE] == "1"
    ending = threading.Event()
    # Every signal, including SIGCHLD, is for the thread that waits for the command.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=_obey, args=(control, ending), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = run_here(task["command"], recording)
    failed = status != 0 and not ending.is_set()
    recording.wait_closed(_FAILED_SECONDS if failed else CLOSING_SECONDS)
    if ending.is_set():
        # Nothing of a command that was to end may stay; nobody waits for our exit code.
        os.killpg(0, signal.SIGKILL)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _obey(control: int, ending: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while byte := os.read(control, 1):
            os.killpg(0, byte[0])
    ending.set()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)
