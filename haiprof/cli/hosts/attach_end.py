"""What :mod:`haiprof.cli.hosts.attach` starts on each host: records the job's processes there.

Behind the task (:mod:`haiprof.cli.hosts.fan_out_end`) a byte says that the recording begins, and
one that it ends early, as the end of the stream does.

Tests: tests/cli/hosts/test_attach.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from haiprof import schema
from haiprof.cli.attach import record, ways
from haiprof.cli.hosts.fan_out_end import serve
from haiprof.control.attach import RecordingPlan
from haiprof.control.find import find
from haiprof.errors import HaiprofError


def main() -> NoReturn:
    """Record what stdin asks for; the outcome is the last line of stdout."""
    serve(_obey)


def _obey(task: dict[str, Any], control: int, send: Callable[..., None]) -> None:
    processes = find(task["target"])
    if task["dry_run"]:
        lines, code = ways(processes)
        send(found=len(processes), ways=lines, code=code)
        return
    send(found=len(processes))
    if not processes or not os.read(control, 1):
        return
    stop = threading.Event()

    def hear() -> None:
        os.read(control, 1)
        stop.set()

    threading.Thread(target=hear, daemon=True).start()
    asked = dict(task["asked"])
    asked |= {"log_dir": Path(asked["log_dir"]), "options": tuple(map(tuple, asked["options"]))}
    try:
        run_dirs, code = record(
            processes, RecordingPlan(**asked), lambda line: send(told=line), stop
        )
    except HaiprofError as error:
        send(told=str(error))
        run_dirs, code = [], 3
    send(runs={str(run_dir): written(run_dir) for run_dir in run_dirs}, code=code)


def written(run_dir: Path) -> dict[str, int]:
    """Return which processes' folders lie in a run, and when each began to be recorded, ns."""
    found = {}
    for file in run_dir.glob(f"*/{schema.PROCESS_FILE}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            begun = json.loads(file.read_text("utf-8"))["started_ns"]
            if type(begun) is int:
                found[file.parent.name] = begun
    return found
