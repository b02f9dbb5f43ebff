"""What :mod:`haiprof.cli.hosts.ask` starts on each host: asks the processes recorded there.

A byte after the task (:mod:`haiprof.cli.hosts.fan_out_end`) says to ask the ranks.

Tests: tests/cli/hosts/test_ask.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from haiprof.cli.asking import ask_ranks
from haiprof.cli.hosts.fan_out_end import serve
from haiprof.control.jobs import Ambiguous, matching, processes
from haiprof.errors import HaiprofError


def main() -> NoReturn:
    """List the processes, or those that match and the answer of each."""
    serve(_obey)


def _obey(task: dict[str, Any], control: int, send: Callable[..., None]) -> None:
    if task["request"] == "ps":
        send(processes=[process.as_json() for process in processes()])
        return
    try:
        ranks = matching(task["target"])
    except Ambiguous as error:
        send(found=0, runs=error.runs)
        return
    except HaiprofError as error:
        send(found=0, runs=[], why=str(error))
        return
    send(found=len(ranks), runs=sorted({rank.run for rank in ranks if rank.run is not None}))
    if not os.read(control, 1):
        return

    def hear() -> None:
        os.read(control, 1)
        os._exit(0)  # what a rank has not begun is then not done

    threading.Thread(target=hear, daemon=True).start()
    send(answers=ask_ranks(ranks, task["request"], task["timeout"], task["arguments"]))
