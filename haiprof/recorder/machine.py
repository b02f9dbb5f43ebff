"""Describes the node for its ``process.json``: the reference for its samples."""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from typing import Any

from haiprof import _core
from haiprof.common.places import Access
from haiprof.recorder.synchronised import clock_error_ns

log = logging.getLogger(__name__)


def describe(access: Access) -> dict[str, Any]:
    """Return the constant properties of the node; None for what is unknown.

    Keys: ``cpu`` (``VENDOR:FAMILY:MODEL``), ``sockets``, ``numa_nodes``, ``dram_peak_bytes_per_s``
    (of all sockets together), ``dram_peak_how`` (where that comes from, in plain words) and
    ``clock_error_ns`` (how far its wall clock can be from UTC now, by NTP or PTP).
    """
    plan: dict[str, Any] = {}
    try:
        plan.update(_core.uncore_plan(sysfs=access.sysfs, procfs=access.procfs))
    except Exception:  # the samples are worth having without it
        log.exception("the machine cannot be described")
    return {
        "cpu": plan.get("cpu") or None,
        "sockets": plan.get("sockets") or None,
        "numa_nodes": _numa_nodes(Path(access.sysfs)),
        "dram_peak_bytes_per_s": plan.get("dram_peak_bytes_per_s") or None,
        "dram_peak_how": plan.get("dram_peak_how") or None,
        "clock_error_ns": clock_error_ns(),
    }


def _numa_nodes(sysfs: Path) -> int | None:
    count = 0
    with contextlib.suppress(OSError):
        nodes = (sysfs / "devices/system/node").iterdir()
        count = sum(re.fullmatch(r"node\d+", entry.name) is not None for entry in nodes)
    return count or None
