"""What :mod:`haiprof.cli.hosts.ask` starts on each host: asks the processes recorded there.

Behind the task (:mod:`haiprof.cli.hosts.fan_out_end`) a byte says that the ranks are to be asked.

Tests: tests/cli/hosts/test_ask.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from haiprof.cli.asking import ask_ranks
from haiprof.cli.hosts.fan_out_end import serve
from haiprof.control.jobs import Ambiguous, meant, processes
from haiprof.errors import HaiprofError


def main() -> NoReturn:
    """Say which processes there are, or who is meant and what each has answered."""
    serve(_obey)


def _obey(task: dict[str, Any], control: int, tell: Callable[..., None]) -> None:
    if task["request"] == "ps":
        tell(processes=[process.told() for process in processes()])
        return
    try:
        ranks = meant(task["target"])
    except Ambiguous as error:
        tell(found=0, runs=error.runs)
        return
    except HaiprofError as error:
        tell(found=0, runs=[], why=str(error))
        return
    tell(found=len(ranks), runs=sorted({rank.run for rank in ranks if rank.run is not None}))
    if not os.read(control, 1):
        return

    def hear() -> None:
        os.read(control, 1)
        os._exit(0)  # what a rank has not begun with is not done then

    threading.Thread(target=hear, daemon=True).start()
    tell(answers=ask_ranks(ranks, task["request"], task["timeout"]))
