"""The folder of a process in a run: which one it has, and what its ``process.json`` says."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from haiprof import schema
from haiprof.places import safe_name


class Claimed(NamedTuple):
    """What a process has of a run."""

    folder: Path
    #: The folder of its rank; its own, unless it is a fork or a helper of that.
    plain: Path
    #: ``rank`` or ``process``.
    role: str
    #: What an earlier recorder that began it said there.
    known: dict[str, Any] | None


def claim(run_dir: Path, process: Mapping[str, Any]) -> Claimed:
    """Find the folder of a process, or make it.

    Args:
        run_dir: folder of the run.
        process: ``node``, ``rank``, ``pid``, ``start_time``, ``boot_id``, ``created_ns`` (of its
            recording) and ``attempt`` of it.

    Raises:
        OSError: it cannot be made.
    """
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    node = safe_name(process["node"]) or "node"
    rank = process["rank"]
    plain = run_dir / f"{node}#{rank if rank is not None else '-'}"
    own = plain.with_name(f"{plain.name}.{process['pid']}")
    for folder in (plain, *run_dir.glob(f"{own.name}*")):
        known = read_process_file(folder)
        if known is not None and _is_of(process, known):
            return Claimed(folder, plain, known.get("role", "rank"), known)
    # The first process of a rank is the rank; a fork of it or a helper stands beside it.
    # Whoever makes the folder has it: containers with one host name may have a recorder each.
    with contextlib.suppress(FileExistsError):
        plain.mkdir(mode=0o700)
        return Claimed(plain, plain, "rank", None)
    for n in range(1000):
        with contextlib.suppress(FileExistsError):
            folder = own if n == 0 else own.with_name(f"{own.name}.{n}")
            folder.mkdir(mode=0o700)
            before = read_process_file(plain) or {}
            again = before.get("state") != "live" or before.get("pid") == process["pid"]
            newer = process["attempt"] > before.get("attempt", 0)
            return Claimed(folder, plain, "rank" if again or newer else "process", None)
    raise FileExistsError(17, "no free folder name for this process", str(own))


def _is_of(process: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    same = ("pid", "start_time", "boot_id", "created_ns")
    return all(known.get(name) == process[name] for name in same)


def read_process_file(folder: Path) -> dict[str, Any] | None:
    """Return what the folder's ``process.json`` says; None where it says nothing."""
    try:
        content = json.loads((folder / schema.PROCESS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def document(process: Mapping[str, Any], *, role: str, **more: Any) -> dict[str, Any]:
    """Return the ``process.json`` of a process.

    Args:
        process: as of :func:`claim`, with ``host``, ``local_rank`` and ``world_size``.
        role: ``rank`` or ``process``.
        more: what changes while it is recorded, or is told by how.
    """
    told = (
        "node", "host", "rank", "local_rank", "world_size", "attempt", "pid", "start_time",
        "boot_id", "created_ns",
    )  # fmt: skip
    return {
        "format": schema.PROCESS_FORMAT,
        "version": f"{schema.MAJOR}.{schema.MINOR}",
        "role": role,
        **{name: process[name] for name in told},
        **more,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` to ``path`` in one rename, mode 0600."""
    partial = path.with_suffix(".partial")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
