"""What ended the job, or a rank of it: the first failure, not what followed from it.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
    "preempted": "save a checkpoint when SIGTERM comes, and start again from it",
}


def endings_of(
    processes: Sequence[Process],
    sentence: str | None,
    aligned: endings.Aligned,
    devices: Sequence[Device] = (),
) -> list[Finding]:
    """Return how the job failed, as at most one finding.

    Args:
        processes: those of the run, nodes and helpers, too.
        sentence: :func:`haiprof.findings.endings.failure` of them.
        aligned: the clock by which the ends of processes on several nodes are compared.
        devices: the GPUs that the ranks used: an error of one comes before what it leads to.
    """
    if sentence is None:
        return []
    first = endings.first_failed(processes, aligned)
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
            advice=(_ADVICE | device_errors.ADVICE)[kind],
            ranks=ranks,
            confidence=0.95,
            evidence=(
                *(() if ending is None
                  else (Evidence("events", "end of the process", ending.text, ""),)),
                *(() if error is None
                  else (Evidence("events", "driver's report", error.text, "",
                                 window=(error.time, error.time)),)),
            ),
            command="haiprof report",
            ended=True,
        )
    ]  # fmt: skip


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
