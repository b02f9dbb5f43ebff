"""The recording of this process: ``start()``, ``stop()`` and ``flush()`` of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from haiprof.capture.session.recording import (
    Session,
    active,
    begin,
    end_with,
    set_socket_opener,
    start_beside_imports,
    stop,
)
from haiprof.capture.stderr import captured_lines, say_once

__all__ = [
    "Session",
    "active",
    "arm",
    "captured_lines",
    "end_with",
    "flush",
    "say_once",
    "start",
    "start_beside_imports",
    "stop",
]


def start(
    log_dir: str | os.PathLike[str] | None = None,
    *,
    run: str | None = None,
    sample_hz: float | None = None,
    drain_hz: float | None = None,
    stack_hz: float | None = None,
    hang_after: float | None = None,
    on_finding: str | None = None,
    storage_limit: float | None = None,
    metrics: str | None = None,
    trackers: float | None = None,
    ring_mib: int | None = None,
    hooks: bool | None = None,
    kernels: str | None = None,
    kernels_period: float | None = None,
    graphs: str | None = None,
    budget: float | None = None,
    warmup: float | None = None,
    time: float | None = None,
    recorders: str | None = None,
    basic_interval: float | None = None,
    gpu_interval: float | None = None,
    ib_interval: float | None = None,
    mem_interval: float | None = None,
    power_interval: float | None = None,
    io_interval: float | None = None,
    trace: bool | None = None,
    trace_steps: int | None = None,
    trace_seconds: float | None = None,
    trace_warmup: float | None = None,
    trace_mib: int | None = None,
    trace_with: str | None = None,
    trace_ranks: str | None = None,
    flops: bool | None = None,
    peak_flops: float | None = None,
) -> Session:
    """Begin to record this process. Calling it again returns the same session.

    Every argument falls back to ``HAIPROF_<NAME>`` and then to its default.

    Args:
        log_dir: folder that runs are written to; default ``haiprof-logs``.
        run: name of the run's folder in it; generated if not given.
        sample_hz: how often the host is sampled, per second; default 1.
        drain_hz: how often the ring is drained, per second; default 4.
        stack_hz: how often the Python stacks of all threads are sampled, per second; default 10,
            0 for never.
        hang_after: seconds that ranks may wait for another before stderr says that the job hangs,
            and why; default 60, 0 for never.
        on_finding: command, with its arguments, that is run for hangs and for what costs the job
            time, with JSON on its stdin; default none.
        storage_limit: how many GiB the records of a node in a run may take on disk before the
            oldest are removed, kernels first; default 0, a tenth of the disk, from 1 to 100.
        metrics: where the recorder exports figures to while the job runs: ``HOST:PORT`` for
            Prometheus, a path that ends in ``.prom`` for node_exporter, ``otlp`` or ``otlp:URL``,
            several with commas, and ``host`` beside them for samples of the host; default none.
        trackers: seconds from one time to the next that values of haiprof are logged to the run of
            W&B, MLflow or TensorBoard that the job logs to; default 10, 0 for never.
        ring_mib: shared memory of this process, MiB; default 16.
        hooks: find steps and phases in torch, and record its allocator and the garbage
            collector; default true.
        kernels: which GPU activity is recorded: in ``windows`` of a few whole steps (the default),
            ``all``, or none (``off``).
        kernels_period: seconds from one window to the next; default 60.
        graphs: what is recorded of CUDA graphs: how long each replay took (``replays``: kernels are
            no longer recorded once a graph is replayed), or their ``kernels``, too, which makes
            graphs slower; default ``replays``, with ``kernels="all"`` it is ``kernels``.
        budget: share of the job's time that recording kernels may take before it is done less;
            default 0.005, 0 for any.
        warmup: seconds before the recording begins; default 0.
        time: seconds after which the recording of each process ends; default 0, with the process.
        recorders: what is sampled: ``all`` (the default) or comma-separated names, of
            ``basic``, ``gpu``, ``ib``, ``mem``, ``power``, ``io`` and ``trace``.
        basic_interval: seconds between two samples of it; default 0, as ``sample_hz`` says.
        gpu_interval: the same for the GPUs that the job uses.
        ib_interval: the same for InfiniBand.
        mem_interval: the same for the bandwidth of memory, and of PCIe.
        power_interval: the same for the power of CPUs and memory.
        io_interval: the same for block devices.
        trace: make a deep trace as soon as this process trains; see :func:`haiprof.trace`.
        trace_steps: its length in steps; default 3, or what ``trace_seconds`` or ``time`` say.
        trace_seconds: its length in seconds; default 0, any.
        trace_warmup: steps before it, seconds where only those are its length; default 5.
        trace_mib: memory that its events may take, MiB; default 128.
        trace_with: comma-separated contents beside operators; default
            ``shapes,stacks,memory,modules``; there is ``callstacks``, too.
        trace_ranks: ranks that make deep traces, comma-separated, as in ``0,3,8-15``; default
            all.
        flops: count the floating-point operations of one step of rank 0, for MFU; that step takes
            several times as long; default false. See :func:`haiprof.model` for another way.
        peak_flops: peak of each GPU, FLOP/s; default 0, the vendor's figure.

    Returns:
        The session. If there is a problem it records nothing, and stderr says why.
    """
    return begin(dict(locals()), lazily=False)


def _open_socket() -> None:
    from haiprof.capture.socket import server

    server.open_socket(_answer)


def _answer(request: str, arguments: dict[str, Any]) -> dict[str, Any]:
    from haiprof.capture.socket import requests

    return requests.answer(request, arguments)


set_socket_opener(_open_socket)


def arm() -> Session:
    """Begin when there is something to record: the way of ``HAIPROF_ENABLED=1``."""
    return begin({}, lazily=True)


def flush(timeout: float = 10.0) -> list[Path]:
    """Write everything recorded so far to disk and return this process's Arrow files.

    Args:
        timeout: how long to wait for the recorder, s.
    """
    session = active()
    return session.flush(timeout) if session is not None else []
