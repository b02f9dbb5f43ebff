"""What the modules that :mod:`haiprof.cli.hosts.fan_out` starts on a host have in common.

Its stdin brings the task, a line of JSON, and then bytes that mean what the module has them mean;
the end of the stream: nobody waits any more. Its stdout is a line of JSON for each thing that it
has to say. The exit code says nothing.

Tests: tests/cli/hosts/test_ask.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from haiprof.cli.hosts.launch_end import take_task


def serve(what: Callable[[dict[str, Any], int, Callable[..., None]], None]) -> NoReturn:
    """Do what stdin tells, in the folder and the environment of whoever asks.

    Args:
        what: is called with the task, the descriptor that brings the bytes behind it, and what says
            something: its keywords are what there is to say.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for who started us
    answer = os.dup(1)
    os.dup2(2, 1)

    def tell(**said: object) -> None:
        # Who waited for it may be gone; what was begun is ended all the same.
        with contextlib.suppress(BrokenPipeError):
            os.write(answer, json.dumps(said).encode() + b"\n")

    control, task = take_task()
    if task is not None:
        os.environ.update(task["environment"])
        with contextlib.suppress(OSError):  # where a script is meant that was named from there
            os.chdir(task["folder"])
        what(task, control, tell)
    sys.exit(0)
