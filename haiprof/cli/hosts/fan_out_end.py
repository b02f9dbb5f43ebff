"""What the modules that :mod:`haiprof.cli.hosts.fan_out` starts on a host have in common.

Its stdin brings the task, a line of JSON, and then bytes whose meaning the module defines;
the end of the stream: nobody waits any more. It reports by lines of JSON on stdout. The exit code
means nothing.

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
    """Do what stdin asks for, in the folder and the environment of the caller.

    Args:
        what: called with the task, the descriptor that the later bytes come from, and a function
            that sends its keywords as a line of JSON.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for who started us
    answer = os.dup(1)
    os.dup2(2, 1)

    def send(**said: object) -> None:
        # The reader may be gone; what was begun is finished all the same.
        with contextlib.suppress(BrokenPipeError):
            os.write(answer, json.dumps(said).encode() + b"\n")

    control, task = take_task()
    if task is not None:
        os.environ.update(task["environment"])
        with contextlib.suppress(OSError):  # a script's name may be relative to it
            os.chdir(task["folder"])
        what(task, control, send)
    sys.exit(0)
