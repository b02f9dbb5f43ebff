"""``haiprof ps``: the jobs that are recorded on this node or on several, and their ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from haiprof.cli.asking import NOT_ALL
from haiprof.cli.process.columns import aligned, local_time
from haiprof.common.printable import printable
from haiprof.control.jobs import IDLE, RECORDING, SILENT, Process, processes

_HEADINGS: Final = ("RUN", "RANK", "PID", "STATE", "SINCE", "RECORDER", "FOLDER")


def list_jobs(*, as_json: bool, hosts: Sequence[str] = ()) -> int:
    """Print a line for each process, or all of them as JSON; then what is wrong with them.

    Args:
        as_json: print JSON.
        hosts: where, if not here.

    Returns:
        The exit code: 0; 3: a host did not answer.
    """
    if not hosts:
        found = processes()
        if as_json:
            print(json.dumps([process.as_json() for process in found], indent=1))
        else:
            _print_table([("", process) for process in found], "this node")
        return 0
    from haiprof.cli.hosts.ask import processes_on

    found_on, complete = processes_on(hosts)
    if as_json:
        rows = [{"host": host, **process.as_json()} for host, process in found_on]
        print(json.dumps(rows, indent=1))
    elif found_on or complete:
        _print_table(found_on, "any of these hosts")
    return 0 if complete else NOT_ALL


def _print_table(found: Sequence[tuple[str, Process]], where: str) -> None:
    """Print a line for each process, which has its host before it unless that is this one."""
    if not found:
        print(f"nothing is recorded on {where}; start something with: haiprof run train.py")
        return
    cells = ((host, *_row(process), process.user) for host, process in found)
    rows = [("HOST", *_HEADINGS, "USER"), *cells]
    first = 0 if found[0][0] else 1
    last = None if len({process.user for _, process in found}) > 1 else -1
    for line in aligned([row[first:last] for row in rows]):
        print(printable(line))
    for host, process in found:
        if process.state == SILENT:
            print(printable(f"{host}: {process.why}" if host else process.why))
    hangs = dict.fromkeys((host, p.run, p.hang, p.hang_since_ns) for host, p in found if p.hang)
    for host, run, hang, since_ns in hangs:
        where = f"{host}: " if host else ""
        print(printable(f"{where}{run} hangs since {local_time(since_ns)}. {hang}"))
    costs = dict.fromkeys(
        (host, p.run, each["problem"], each["since_ns"]) for host, p in found for each in p.findings
    )
    for host, run, problem, since_ns in costs:
        where = f"{host}: " if host else ""
        print(printable(f"{where}{run} loses time since {local_time(since_ns)}. {problem}"))


def _row(process: Process) -> tuple[str, ...]:
    idle = process.state == IDLE
    hangs = process.state == RECORDING and process.hang
    return (
        process.run or (f"({process.script})" if process.script else "-"),
        "-" if idle else process.name,
        str(process.pid),
        "hangs" if hangs else process.state,
        local_time(process.since_ns),
        "-" if process.recorder is None else str(process.recorder),
        process.run_dir or "-",
    )
