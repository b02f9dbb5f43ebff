"""``haiprof mcp``: serves tools to a program that acts on its own."""

from __future__ import annotations

import signal
from pathlib import Path

from haiprof.cli.logged import log_dir
from haiprof.common.choices import near_path
from haiprof.errors import HaiprofError


def serve(folder: Path | None) -> None:
    """Answer until stdin is closed.

    Args:
        folder: with the runs; None: the log directory of this environment, which may appear later.

    Raises:
        HaiprofError: a package is missing, or there is no such folder.
    """
    if folder is not None and not folder.is_dir():
        hint = near_path(folder) or "give a log directory"
        raise HaiprofError(f"{folder}: no such folder: {hint}")
    from haiprof.agents import server

    # The thread that reads stdin would make Ctrl-C wait for the next line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    server.serve(log_dir() if folder is None else folder)
