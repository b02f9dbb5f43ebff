"""Asks one question of a run of many ranks, on the executor that is wanted.

What it measured of itself is one JSON object: ``open_s``, ``ask_s``, ``cpu_s`` (of this process),
``peak_bytes`` and ``before_bytes`` (the most memory that this process had resident, in all and
before it asked), ``worker_bytes`` (the same of each process of the executor) and ``shared_bytes``
(how much of all these is counted more than once: pages of libraries, at the end). The answer is
written beside it, to be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import polars
import psutil

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError

QUESTIONS: dict[str, Callable[[Analyzer], Any]] = {
    "show_overview": lambda run: run.show_overview(),
    "kernel_totals": lambda run: run.kernel_totals(),
    "distributed": lambda run: run.distributed(),
    "stragglers": lambda run: run.stragglers(),
    "headline_and_overview": lambda run: f"{run.headline()}\n{run.show_overview()}",
}
WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("executor", choices=("threads", "processes", "dask"))
    asked = parser.parse_args()
    begun = time.perf_counter()
    with _executor(asked.executor) as executor:
        if executor is not None:
            ready = [executor.submit(importlib.import_module, "haiprof.analyzer") for _ in range(4)]
            for each in ready:
                each.exception()
        run = Analyzer(asked.run, executor=executor)
        opened, before, used = time.perf_counter(), _peak(os.getpid()), time.process_time()
        try:
            answer = QUESTIONS[asked.question](run)
        except HaiprofError as error:
            raise SystemExit(str(error)) from None
        done, spent = time.perf_counter(), time.process_time() - used
        report = {
            "open_s": opened - begun,
            "ask_s": done - opened,
            "cpu_s": spent,
            "before_bytes": before,
            "peak_bytes": _peak(os.getpid()),
            "worker_bytes": [_peak(child.pid) for child in _workers()],
            "shared_bytes": sum(map(_counted_twice, (os.getpid(), *(c.pid for c in _workers())))),
            "problems": run.problems(),
        }
    _write(answer, asked.report)
    asked.report.write_text(json.dumps(report))


@contextlib.contextmanager
def _executor(kind: str) -> Iterator[Executor | None]:
    if kind == "processes":
        with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
            yield pool
    elif kind == "dask":
        from distributed import Client, LocalCluster

        with (
            LocalCluster(
                n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client.get_executor(pure=False)
    else:
        yield None


def _workers() -> list[psutil.Process]:
    """The processes of the executor; not those that only tidy up behind them."""
    children = psutil.Process().children(recursive=True)
    return [
        each for each in children if not any("resource_tracker" in word for word in each.cmdline())
    ]


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _counted_twice(pid: int) -> int:
    """What a process has resident beyond its own share of it (Pss)."""
    memory = psutil.Process(pid).memory_full_info()
    return memory.rss - memory.pss


def _write(answer: Any, report: Path) -> None:
    """Write each frame of an answer, or its text, so that two answers can be compared."""
    frames = [answer] if isinstance(answer, polars.DataFrame) else answer
    if isinstance(frames, tuple) and all(isinstance(each, polars.DataFrame) for each in frames):
        frames = list(frames)
    if isinstance(frames, list) and all(isinstance(each, polars.DataFrame) for each in frames):
        for number, frame in enumerate(frames):
            frame.write_ipc(f"{report}.{number}.arrow")
    else:
        Path(f"{report}.txt").write_text(repr(answer))


if __name__ == "__main__":
    main()
