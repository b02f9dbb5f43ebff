"""What ended the job, or a rank of it: the first failure, not what followed from it.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from haiprof.common.frame_texts import frame_text
from haiprof.common.numbers import milliseconds
from haiprof.common.printable import readable
from haiprof.findings import endings
from haiprof.findings.finding import Evidence, Finding
from haiprof.findings.recorded import device_errors
from haiprof.findings.recorded.case import Device, DeviceError
from haiprof.runs import ROLE_RANK, Process

_TERMINATED: Final = "SIGTERM"
_FULL: Final = ("No space left on device", "Disk quota exceeded")
_MEMORY_FULL: Final = (
    "can't allocate memory", "Cannot allocate memory", "MemoryError", "std::bad_alloc",
    "Unable to allocate",
)  # fmt: skip
_DEVICE_FULL: Final = ("CUDA out of memory", "OutOfMemoryError", "HIP out of memory")
_WORKER: Final = "DataLoader worker"
_ADVICE: Final = {
    "out_of_memory": "raise the memory limit, or use less: fewer workers, smaller prefetching, "
    "no copies of the dataset in each process",
    "gpu_out_of_memory": "use smaller batches, activation checkpointing or sharded parameters",
    "disk_full": "free space, or write elsewhere",
    "loader_worker_died": "find what ended the worker: its memory (dmesg), or an error in the "
    "dataset's code (num_workers=0 shows it)",
    "exception": "fix the exception: the other ranks' errors follow from it",
    "crash": "look at the core dump or at the log's last lines of that process",
    "exit": "look at that process's last lines in the log: it ended itself (sys.exit, os._exit)",
    "left_early": "give all ranks as many batches (drop_last, DistributedSampler), or find what "
    "ends that one early: a break, a return, sys.exit(0)",
    "misses_others": "find what became of the ranks that it waited for or lost: their last lines "
    "in the log, their nodes",
    "restarted": "fix what ended it; save checkpoints more often where much training was lost",
    "preempted": "save a checkpoint when SIGTERM comes, and start again from it",
}


#: Lines of a traceback that are shown, and characters of it that are looked at.
_LINES: Final = 12
_LETTERS: Final = 4096


class Raised(NamedTuple):
    """What a process reported of the exception that ended it."""

    #: Of the job's own code, as ``function (file:line)``; None: not known.
    line: str | None
    #: The last lines of the traceback.
    last_lines: str


def raised(reports: Sequence[object]) -> Raised | None:
    """Return what the attributes of events say of the exception that ended their process."""
    for text in reversed(reports):
        try:
            known = json.loads(str(text))
        except (ValueError, RecursionError):  # of a damaged file
            continue
        # One of a thread ended that thread.
        if isinstance(known, dict) and "thread" not in known:
            return Raised(_place(known), _last_lines(known.get("traceback")))
    return None


def _place(known: Mapping[str, Any]) -> str | None:
    file, line, function = (known.get(name) for name in ("file", "line", "function"))
    if not isinstance(file, str) or not isinstance(function, str) or type(line) is not int:
        return None
    return frame_text(readable(function[:_LETTERS]), readable(file[:_LETTERS]), line)


def _last_lines(traceback: object) -> str:
    if not isinstance(traceback, str):
        return ""
    lines = readable(traceback[-_LETTERS:]).rstrip().splitlines()
    # Python underlines what failed in a line, which here says little.
    return "\n".join([line for line in lines if line.strip(" ^~")][-_LINES:])


def restarts_of(restarts: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Return a finding for each time that the job was started again.

    Args:
        restarts: rows of the frame of that name of a Goodput.
    """
    found = []
    for row in restarts:
        parts = {
            "lost": row["lost_ns"], "down": row["down_ns"], "starting up": row["startup_ns"],
        }  # fmt: skip
        cost = sum(parts.values())
        spent = ", ".join(f"{milliseconds(ns)} {what}" for what, ns in parts.items() if ns)
        why = "" if row["reason"] is None else f": {row['reason']}"
        found.append(
            Finding(
                kind="restarted",
                problem=f"The job was started again (attempt {row['attempt']}), "
                f"which cost {milliseconds(cost)}{why}",
                advice=_ADVICE["restarted"],
                ranks=() if row["rank"] is None else (row["rank"],),
                lost_ns=cost,
                confidence=0.95,
                evidence=(Evidence("goodput", "parts", spent, ""),) if spent else (),
                command="haiprof report",
            )
        )
    return found


def endings_of(
    processes: Sequence[Process],
    sentence: str | None,
    first: Process | None,
    reported: Raised | None = None,
    devices: Sequence[Device] = (),
    stayed: str | None = None,
) -> list[Finding]:
    """Return how the job failed, as at most one finding.

    Args:
        processes: those of the run, nodes and helpers, too.
        sentence: :func:`haiprof.findings.endings.failure` of them.
        first: :func:`haiprof.findings.endings.first_failed` of them.
        reported: what that one reported of its exception; None: there was none.
        devices: the GPUs that the ranks used: an error of one comes before what it leads to.
        stayed: at which line of the job it had been, and for how long, in words; None: at none.
    """
    if sentence is None:
        return []
    kind = _interruption(processes) if first is None else _kind(first)
    if kind is None:
        return []
    ending = None if first is None else first.ending
    error = None if first is None else _device_error(first, devices)
    if error is not None:
        kind = device_errors.kind(error)
        sentence = f"{sentence}. Its GPU's driver reported {error.text}"
    ranks = () if first is None or first.rank is None else (first.rank,)
    return [
        Finding(
            kind=kind,
            problem=sentence,
            advice=_advice(kind, first),
            ranks=ranks,
            confidence=0.95,
            line=None if reported is None else reported.line,
            evidence=(
                *(() if ending is None
                  else (Evidence("events", "end of the process", ending.text, ""),)),
                *(() if reported is None or not reported.last_lines
                  else (Evidence("events", "last lines", reported.last_lines, ""),)),
                *(() if stayed is None else (Evidence("stacks", "last samples", stayed, ""),)),
                *(() if error is None
                  else (Evidence("events", "driver's report", error.text, "",
                                 window=(error.time, error.time)),)),
            ),
            command="haiprof report",
            ended=True,
        )
    ]  # fmt: skip


def _advice(kind: str, first: Process | None) -> str:
    if first is not None and first.ending is not None:
        if kind == "crash" and first.ending.exit_code is not None:
            return _ADVICE["exit"]
        if kind == "exception" and endings.misses_others(first):
            return _ADVICE["misses_others"]
    return (_ADVICE | device_errors.ADVICE)[kind]


def _device_error(process: Process, devices: Sequence[Device]) -> DeviceError | None:
    """Return the error of its GPU that a process failed of, if it did."""
    assert process.ending is not None
    errors = [
        error for device in devices
        if device.node == process.node and process.rank in device.ranks
        for error in device.errors
    ]  # fmt: skip
    ending = process.ending
    return device_errors.behind(ending.text, ending.signal, ending.failed_ns, errors)


def _kind(process: Process) -> str:
    ending = process.ending
    assert ending is not None
    if not endings.failed(process):
        return "left_early"
    if ending.reason == "out of memory":
        return "out_of_memory"
    if any(words in ending.text for words in _FULL):
        return "disk_full"
    if any(words in ending.text for words in _DEVICE_FULL):
        return "gpu_out_of_memory"
    if any(words in ending.text for words in _MEMORY_FULL):
        return "out_of_memory"
    if ending.reason == "exception" and (kind := device_errors.of_exception(ending.text)):
        return kind
    if _WORKER in ending.text or (process.role != ROLE_RANK and process.rank is not None):
        return "loader_worker_died"
    return "exception" if ending.reason == "exception" else "crash"


def _interruption(processes: Sequence[Process]) -> str | None:
    """Return the kind of an end that was asked for, unless the user asked for it."""
    asked = [p.ending.signal for p in processes if p.ending is not None and endings.interrupted(p)]
    return "preempted" if _TERMINATED in asked else None
