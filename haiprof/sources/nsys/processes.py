"""The processes of an export, and what is known of each: its rank, its host, its GPUs, its clock.

Tests: tests/sources/nsys/test_find.py.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from haiprof.sources.imports.imported import gpu, whole
from haiprof.sources.nsys import words
from haiprof.sources.nsys.words import FAR

if TYPE_CHECKING:
    from haiprof.sources.nsys.database import Database

#: Bit ranges of a serialized id: the thread's, and above them the process's.
TID_BITS: Final = 24
_PID_MASK: Final = 0xFFFFFF
#: Small tables that list the processes which used CUDA: table -> column of the pid.
_LISTED: Final = {
    "TARGET_INFO_CUDA_STREAM": "processId",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "processId",
    "TARGET_INFO_CUDA_DEVICE": "pid",
}
#: Tables whose rows name their process and thread.
_OF_PROCESS: Final = tuple(
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
_OF_THREAD: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
_VARIABLE: Final = re.compile(r'(?P<name>\w+)="(?P<value>.*)"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Target:
    """One process, as its rows name it: ``key`` is its ``globalPid``."""

    key: int
    pid: int

    @property
    def part(self) -> str:
        """Its name among the processes of a file."""
        return f"pid {self.pid}"

    @property
    def threads(self) -> tuple[int, int]:
        """First and last ``globalTid`` of its threads."""
        return self.key, self.key + (1 << TID_BITS) - 1


def targets(db: Database) -> list[Target]:
    """Return the processes that used a GPU, by pid; where none did, those with ranges of NVTX.

    Rows are only scanned if no small table lists such processes.
    """
    listed: set[int] = set()
    for table, column in _LISTED.items():
        if db.has(table, column):
            listed.update(_pids(db.rows(f"select distinct {column} from {table}")))
    known = _named(db)
    if listed and known.keys() >= listed:
        return _ordered({known[pid] for pid in listed}, known)
    keys: set[int] = set()
    for table in _OF_PROCESS:
        if db.has(table, "globalPid"):
            keys.update(filter(_is_key, _pids(db.rows(f"select distinct globalPid from {table}"))))
    for table in _OF_THREAD:
        if not keys and db.has(table, "globalTid"):
            found = db.rows(f"select distinct globalTid >> {TID_BITS} from {table}")
            keys.update(filter(_is_key, (number << TID_BITS for number in _pids(found))))
    return _ordered(keys, known)


def rank_and_world_size(db: Database) -> tuple[int | None, int | None]:
    """Return rank and world size from the environment of the profiled command.

    They are a process's own only if the command did not launch several.
    """
    variables: dict[str, str] = {}
    if db.has("META_DATA_CAPTURE", "name", "value"):
        sql = "select value from META_DATA_CAPTURE where name like 'PROCESS%:ENVIRONMENT_VARIABLE'"
        for (value,) in db.rows(sql):
            if (found := _VARIABLE.fullmatch(str(value))) is not None:
                variables.setdefault(found["name"], found["value"])
    return _number(variables, words.RANK_VARIABLES), _number(variables, words.WORLD_VARIABLES)


def host(db: Database) -> str | None:
    """Return the host that was profiled."""
    if not db.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        return None
    sql = "select value from TARGET_INFO_SYSTEM_ENV where name = 'Hostname'"
    return next((str(value) for (value,) in db.rows(sql) if value), None)


def epoch(db: Database) -> int | None:
    """Return the ns since the epoch that the file's times count from; None if it does not say.

    0 for an export whose times are already since the epoch (``--ts-normalize``).
    """
    if db.has("META_DATA_EXPORT", "name", "value"):
        sql = "select value from META_DATA_EXPORT where name = 'EXPORT_PARAM_TIME_NORMALIZE'"
        if any(value == "true" for (value,) in db.rows(sql)):
            return 0
    table = "TARGET_INFO_SESSION_START_TIME"
    if not db.has(table, "utcEpochNs"):
        return None
    found = (whole(value) for (value,) in db.rows(f"select utcEpochNs from {table}"))
    return next((value for value in found if value is not None and value < FAR), None)


def gpus(db: Database, target: Target) -> dict[int, dict[str, Any]]:
    """Return what is known of GPUs, by their ordinals in a process: rows of ``Imported.gpus``."""
    known = dict(_described(db))
    number = gpu_numbers(db, target) or {row: row for row in known}
    rows = {}
    for device, at in number.items():
        row = known.get(at, {})
        name = row.get("name")
        major, minor = whole(row.get("computeMajor")), whole(row.get("computeMinor"))
        rows[device] = gpu(
            device,
            name if isinstance(name, str) else "",
            memory_bytes=whole(row.get("totalMemory")),
            multiprocessors=whole(row.get("smCount")) or None,
            capability=None if major is None or minor is None else (major, minor),
        )
    return rows


def gpu_numbers(db: Database, target: Target) -> dict[int, int]:
    """Return the number in the machine of each known device of the process."""
    table = "TARGET_INFO_CUDA_DEVICE"
    if not db.has(table, "cudaId", "gpuId", "pid"):
        return {}
    sql = f"select cudaId, gpuId from {table} where pid = ?"
    return {
        device: number
        for device, number in db.rows(sql, (target.pid,))
        if type(device) is type(number) is int
    }


def _described(db: Database) -> Iterable[tuple[int, dict[str, Any]]]:
    columns = [
        name
        for name in ("id", "name", "totalMemory", "smCount", "computeMajor", "computeMinor")
        if db.has("TARGET_INFO_GPU", name)
    ]
    if "id" in columns:
        for row in db.rows(f"select {', '.join(columns)} from TARGET_INFO_GPU"):
            values = dict(zip(columns, row, strict=True))
            if type(values["id"]) is int:
                yield values["id"], values


def _named(db: Database) -> dict[int, int]:
    """Return the key of each pid that the file names."""
    if not db.has("PROCESSES", "globalPid", "pid"):
        return {}
    rows = db.rows("select globalPid, pid from PROCESSES")
    return {pid: key for key, pid in rows if type(pid) is int and _is_key(key)}


def _ordered(keys: Iterable[int], known: dict[int, int]) -> list[Target]:
    pids = {key: pid for pid, key in known.items()}
    targets = [Target(key, pids.get(key, key >> TID_BITS & _PID_MASK)) for key in keys]
    return sorted(targets, key=lambda target: (target.pid, target.key))


def _is_key(value: Any) -> bool:
    """Say whether it can be a ``globalPid``: it leaves room for the thread numbers."""
    return type(value) is int and 0 <= value < 1 << 62


def _pids(rows: Iterable[tuple[Any, ...]]) -> Iterable[int]:
    return (value for (value,) in rows if type(value) is int)


def _number(variables: dict[str, str], names: Iterable[str]) -> int | None:
    for name in names:
        with contextlib.suppress(KeyError, ValueError):
            return whole(int(variables[name]))
    return None
