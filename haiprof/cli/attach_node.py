"""What :mod:`haiprof.cli.attach_nodes` starts on each host: records the job's processes there.

Its stdin brings the task, a line of JSON; then a byte says that the recording begins, and one that
it ends early, as the end of the stream does: then nobody waits for it any more. Its stdout is a
line of JSON for each thing that it has to say.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from haiprof import schema
from haiprof.cli.attach import record, ways
from haiprof.cli.node import take_task
from haiprof.control.attach import Wanted
from haiprof.control.find import find
from haiprof.errors import HaiprofError


def main() -> NoReturn:
    """Record what stdin tells; what came of it is in the last line, the exit code says nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for who started us
    answer = os.dup(1)
    os.dup2(2, 1)
    control, task = take_task()
    if task is not None:
        _obey(task, control, answer)
    sys.exit(0)


def _obey(task: dict[str, Any], control: int, answer: int) -> None:
    def tell(**what: object) -> None:
        # Who waited for it may be gone; what was begun is ended all the same.
        with contextlib.suppress(BrokenPipeError):
            os.write(answer, json.dumps(what).encode() + b"\n")

    os.environ.update(task["environment"])
    with contextlib.suppress(OSError):  # where a script is meant that was named from there
        os.chdir(task["folder"])
    processes = find(task["target"])
    if task["dry_run"]:
        lines, code = ways(processes)
        tell(found=len(processes), ways=lines, code=code)
        return
    tell(found=len(processes))
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
        run_dirs, code = record(processes, Wanted(**asked), lambda line: tell(told=line), stop)
    except HaiprofError as error:
        tell(told=str(error))
        run_dirs, code = [], 3
    tell(runs={str(run_dir): written(run_dir) for run_dir in run_dirs}, code=code)


def written(run_dir: Path) -> dict[str, int]:
    """Return which processes' folders lie in a run, and when each began to be recorded, ns."""
    found = {}
    for file in run_dir.glob(f"*/{schema.PROCESS_FILE}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found[file.parent.name] = int(json.loads(file.read_text("utf-8"))["started_ns"])
    return found
