"""A folder that TensorBoard's PyTorch plugin opens: one trace for each process, named as it wants.

HolisticTraceAnalysis reads the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from haiprof.common.places import safe_name
from haiprof.export import target
from haiprof.export.chosen import Chosen, done, traced
from haiprof.export.chrome import base_of, write_file

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer


def write(
    analyzer: Analyzer,
    folder: Path,
    rank: int | None = None,
    on_process: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write a trace for each process, of a run's deep traces where it has some; return the files.

    Args:
        analyzer: the run.
        folder: must not be there.
        rank: this one only.
        on_process: called with each process's label before it is written.

    Raises:
        HaiprofError: ``folder`` is there or cannot be written, or there is no such rank.
    """
    processes = traced(analyzer, rank)
    base = base_of(processes)
    names = _names(processes)
    with target.whole(folder) as partial:
        partial.mkdir()
        jobs = [
            (each, partial / name, base, True) for each, name in zip(processes, names, strict=True)
        ]
        written = [file for _, file in done(analyzer, write_file, jobs, on_process)]
    return [folder / file.name for file in written]


def _names(processes: Sequence[Chosen]) -> list[str]:
    """Name files as torch does, ``<host>_<pid>.<ms>``: several of a worker are its spans."""
    names: list[str] = []
    for process in [each.process for each in processes]:
        trace = process.trace
        worker = f"{process.node}_{process.pid}"
        if process.pid is None and trace is not None:
            worker = trace.worker
        begin = (process.started_ns if trace is None else trace.begin) or 0
        number = begin // 1_000_000
        while (name := f"{safe_name(worker)}.{number}.pt.trace.json.gz") in names:
            number += 1
        names.append(name)
    return names
