"""Ctrl-C while a command reads: it ends what the command waits for."""

from __future__ import annotations

import importlib
import signal


def interruptible() -> None:
    """Have SIGINT interrupt what the main thread waits for, and what it reads.

    From its first import on, polars has the system restart both: a command that reads from a pipe,
    or from a file server that hangs, would not end.
    """
    importlib.import_module("polars")
    signal.siginterrupt(signal.SIGINT, True)
