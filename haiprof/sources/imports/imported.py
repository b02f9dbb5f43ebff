"""The result of importing one process's trace.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from haiprof.sources.found import Source


@dataclass(slots=True)
class Imported:
    """What one trace is, and one line for each thing that it lacks.

    ``rank``, ``host`` and ``world_size`` are what the trace itself says; None if it does not.
    """

    source: Source
    #: Where its tables are.
    folder: str
    rank: int | None = None
    host: str | None = None
    world_size: int | None = None
    pid: int | None = None
    #: First start and last end of its rows, ns since the epoch.
    begin: int | None = None
    end: int | None = None
    #: Rows of ``gpus`` in ``process.json``, one for each device that ran something.
    gpus: list[dict[str, Any]] = field(default_factory=list)
    #: torch.profiler's ``distributedInfo`` and version, unchanged.
    distributed: dict[str, Any] = field(default_factory=dict)
    version: int | None = None
    #: What this tool or this trace does not record, and why, with the fix if there is one: a table
    #: (``allocations``) or a column (``kernels.occupancy``) of :mod:`haiprof.schema`, a category of
    #: spans or a kind of kernels (``spans[op]``), or ``communication``.
    lacks: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    #: Why nothing could be read.
    failed: str | None = None


def gpu(
    device: int,
    name: str = "",
    *,
    memory_bytes: int | None = None,
    multiprocessors: int | None = None,
    capability: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return one row of :attr:`Imported.gpus`; ``device`` is its ordinal in the process."""
    return {
        "uuid": "",
        "name": name,
        "device": device,
        "instance": "",
        "memory_bytes": memory_bytes,
        "multiprocessors": multiprocessors,
        "capability": None if capability is None else list(capability),
    }


def whole(value: Any) -> int | None:
    """Return the value if it is an integer that an id or a size can be, else None."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None
