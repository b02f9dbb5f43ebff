"""The folder of a process in a run: which one it has, and what its ``process.json`` says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from haiprof import schema
from haiprof.common.owned_files import Folder
from haiprof.common.places import safe_name


class Claimed(NamedTuple):
    """A process's place in a run."""

    folder: Folder
    #: The folder of its rank: its own, unless it is a fork or a helper.
    plain: Path
    #: ``rank`` or ``process``.
    role: str
    #: The ``process.json`` of an earlier recorder, if any.
    known: dict[str, Any] | None


def claim(run: Folder, process: Mapping[str, Any]) -> Claimed:
    """Find the folder of a process, or make it.

    Args:
        run: folder of the run.
        process: ``node``, ``rank``, ``pid``, ``start_time``, ``boot_id``, ``created_ns`` (of its
            recording) and ``attempt`` of it.

    Raises:
        OSError: it cannot be made.
    """
    node = safe_name(process["node"]) or "node"
    rank = process["rank"]
    plain = f"{node}#{rank if rank is not None else '-'}"
    own = f"{plain}.{process['pid']}"
    path = run.path / plain
    for name in (plain, *(n for n in run.names() if n.startswith(own))):
        with contextlib.suppress(OSError):
            folder = run.folder(name)
            known = read_process_file(folder)
            if known is not None and _is_of(process, known):
                role = "process" if known.get("role") == "process" else "rank"
                return Claimed(folder, path, role, known)
    # The first process of a rank is the rank; a fork of it or a helper stands beside it.
    # Whoever makes the folder owns it: containers with one host name may have a recorder each.
    with contextlib.suppress(FileExistsError):
        return Claimed(run.make(plain), path, "rank", None)
    for n in range(1000):
        with contextlib.suppress(FileExistsError):
            folder = run.make(own if n == 0 else f"{own}.{n}")
            before = _read_rank(run, plain)
            again = before.get("state") != "live" or before.get("pid") == process["pid"]
            newer = process["attempt"] > (whole(before, "attempt") or 0)
            return Claimed(folder, path, "rank" if again or newer else "process", None)
    raise FileExistsError(17, "no free folder name for this process", str(run.path / own))


def _read_rank(run: Folder, name: str) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        return read_process_file(run.folder(name)) or {}
    return {}


def _is_of(process: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    same = ("pid", "start_time", "boot_id", "created_ns")
    return all(known.get(name) == process[name] for name in same)


def read_process_file(folder: Folder) -> dict[str, Any] | None:
    """Return the folder's ``process.json``; None if there is no valid one."""
    try:
        content = json.loads(folder.read(schema.PROCESS_FILE))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def whole(known: Mapping[str, Any], field: str) -> int | None:
    """Return a field that is a whole number of 64 bits; None if it is not."""
    value = known.get(field)
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def gpus_of(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the GPUs of a ``process.json``; those without a UUID are left out."""
    gpus_known = known.get("gpus")
    gpus = gpus_known if isinstance(gpus_known, list) else []
    return [gpu for gpu in gpus if isinstance(gpu, dict) and isinstance(gpu.get("uuid"), str)]


def document(process: Mapping[str, Any], *, role: str, **more: Any) -> dict[str, Any]:
    """Return the ``process.json`` of a process.

    Args:
        process: as of :func:`claim`, with ``host``, ``local_rank`` and ``world_size``.
        role: ``rank`` or ``process``.
        more: fields that change during the recording or depend on its kind.
    """
    fields = (
        "node", "host", "rank", "local_rank", "world_size", "attempt", "pid", "start_time",
        "boot_id", "created_ns",
    )  # fmt: skip
    return {
        "format": schema.PROCESS_FORMAT,
        "version": f"{schema.MAJOR}.{schema.MINOR}",
        "role": role,
        **{name: process[name] for name in fields},
        **more,
    }


def write_json(folder: Folder, name: str, content: dict[str, Any]) -> None:
    """Write ``content`` to a file in one rename, mode 0600."""
    with folder.replacing(name) as file:
        file.write(f"{json.dumps(content, indent=1)}\n".encode())
