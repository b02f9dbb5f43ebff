"""What is on disk of a run, read with pyarrow alone; and kernels' names as people read them."""

from __future__ import annotations

import ctypes
import json
import time
from pathlib import Path
from typing import Any

from recording import read_table

RUN = "run"


def rows(log_dir: Path, table: str, begin: int = 0, end: int = 2**63 - 1) -> list[dict[str, Any]]:
    """Rows of a table that began in an interval (UTC ns)."""
    found: list[dict[str, Any]] = []
    for folder in sorted((log_dir / RUN).glob("*#*")):
        read = read_table(folder, table)
        if read.num_rows:
            found += read.to_pylist()
    when = "time" if table in ("events", "samples") else "start"
    return [row for row in found if begin <= row[when] < end]


def events(log_dir: Path, *kinds: str) -> list[str]:
    """Texts of the events of the run, of these kinds or of all."""
    return [
        f"{row['kind']}: {row['text']}"
        for row in rows(log_dir, "events")
        if not kinds or row["kind"] in kinds
    ]


def closed(log_dir: Path, seconds: float) -> bool:
    """Wait until the recorder has closed the run's files; False when it has not."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run = log_dir / RUN
        if any(run.glob("*#*/*.arrow")) and not any(run.glob("*#*/*.arrows")):
            return True
        time.sleep(0.05)
    return False


def _demangler() -> Any:
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    library.__cxa_demangle.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    return library.__cxa_demangle


def demangled(name: str) -> str:
    """A kernel's name as C++ has it; one that is not mangled stays as it is."""
    if not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    text = _demangler()(name.encode(), None, None, ctypes.addressof(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(text)


def kernels_of_trace(path: Path) -> tuple[dict[str, tuple[int, float]], dict[str, int]]:
    """What torch.profiler wrote: name -> (kernels, their ns), category -> other activities."""
    trace = json.loads(path.read_text())
    kernels: dict[str, tuple[int, float]] = {}
    others: dict[str, int] = {}
    for event in trace["traceEvents"]:
        category = event.get("cat", "")
        if category == "kernel":
            count, ns = kernels.get(event["name"], (0, 0.0))
            kernels[event["name"]] = (count + 1, ns + 1e3 * event["dur"])
        elif category.startswith("gpu_mem"):
            others[category] = others.get(category, 0) + 1
    return kernels, others


def kernels_of_rows(
    found: list[dict[str, Any]],
) -> tuple[dict[str, tuple[int, float]], dict[str, int]]:
    """The same of rows of the kernels table."""
    kernels: dict[str, tuple[int, float]] = {}
    others: dict[str, int] = {}
    names: dict[str, str] = {}
    for row in found:
        if row["kind"] != "kernel":
            others[row["kind"]] = others.get(row["kind"], 0) + 1
            continue
        name = names.setdefault(row["name"], "") or demangled(row["name"])
        names[row["name"]] = name
        count, ns = kernels.get(name, (0, 0.0))
        kernels[name] = (count + 1, ns + row["duration"])
    return kernels, others
