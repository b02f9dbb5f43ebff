"""Asks processes for a window of kernels now, for a recorder that has seen that steps are slower.

A process of its own, see :mod:`haiprof.recorder.closer_look`: a job may take long to answer.

Tests: tests/recorder/test_closer_look.py.
"""

from __future__ import annotations

import math
import signal
import sys

from haiprof.common.printable import printable
from haiprof.control.client import ControlError, ask
from haiprof.control.jobs import at_once
from haiprof.control.sockets import socket_of
from haiprof.recorder.closer_look import SECONDS


def main() -> None:
    """Ask those whose pids are the arguments, and print a line for each that cannot be asked."""
    # Should whoever wants to know this have ended, nobody else ends us.
    signal.alarm(math.ceil(SECONDS))
    for problem in filter(None, at_once(_ask, [int(pid) for pid in sys.argv[1:]])):
        print(printable(problem))


def _ask(pid: int) -> str:
    try:
        ask(socket_of(pid), "kernels", timeout=SECONDS / 2)
    except ControlError as error:
        return f"no window of kernels: {error}"
    return ""
