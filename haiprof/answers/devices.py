"""The GPUs of a run: who used them, at which clocks, and what their driver reported.

Tests: tests/findings/recorded/test_device_rules.py.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import polars as pl

from haiprof import schema
from haiprof.answers.one_process import read_events
from haiprof.answers.ranks import Ranks
from haiprof.findings.recorded.case import Device, DeviceError
from haiprof.runs import ROLE_NODE, ROLE_RANK, Process
from haiprof.sources import tables
from haiprof.views.run import gpu_clocks, gpus
from haiprof.views.run.gpu_clocks import Clocks

_ERRORS: Final = ("xid", "ecc", "gpu_lost")
_COLUMNS: Final = ("time", "metric", "instance", "value", "flags")
#: Of a storm of errors the first say what is wrong.
_MOST: Final = 1024


class _Read(NamedTuple):
    clocks: dict[str, Clocks]
    errors: dict[str, list[DeviceError]]
    problems: list[str]


def devices(ranks: Ranks) -> list[Device]:
    """Return the GPUs that ranks used, as the recorders of their nodes saw them."""
    processes = ranks.run.processes
    nodes = [node for node in processes if node.role == ROLE_NODE and node.gpus]
    on: dict[str, list[Process]] = {}
    for process in processes:
        if process.role == ROLE_RANK:
            on.setdefault(process.node, []).append(process)
    found = []
    for node, read in ranks.map(_read, nodes):
        ranks.note(read.problems)
        users = _users(node, on.get(node.node, []))
        for gpu in node.gpus:
            if gpu.instance and gpu.instance in users:
                found.append(
                    Device(
                        node=node.node,
                        instance=gpu.instance,
                        name=gpu.name,
                        ranks=users[gpu.instance],
                        clocks=read.clocks.get(gpu.instance),
                        power_limit_w=gpu.power_limit_w,
                        pci=gpu.pci,
                        errors=read.errors.get(gpu.instance, ()),
                    )
                )
    return found


def _users(node: Process, ranks: list[Process]) -> dict[str, tuple[int, ...]]:
    """Return the ranks that used each GPU of a node, by its instance."""
    users: dict[str, set[int]] = {}
    for process in ranks:
        if process.rank is None or not process.gpus:
            continue
        for instances in gpus.instances(process, [node]).values():
            for instance in instances:
                users.setdefault(instance, set()).add(process.rank)
    return {instance: tuple(sorted(numbers)) for instance, numbers in users.items()}


def _read(node: Process) -> _Read:
    keep = {"metric": gpu_clocks.METRICS}
    samples = tables.read(node, schema.SAMPLES, _COLUMNS, keep)
    events = read_events(node, *_ERRORS)
    errors: dict[str, list[DeviceError]] = {}
    rows = events.frame.select(
        "time", pl.col("kind").cast(pl.String), pl.col("text").cast(pl.String), "attributes"
    )
    for time, kind, text, attributes in rows.sort("time").iter_rows():
        known = _attributes(attributes)
        several = errors.setdefault(str(known.get("instance", "")), [])
        if len(several) < _MOST:
            xid = known.get("xid")
            several.append(
                DeviceError(
                    time,
                    kind,
                    text or kind,
                    xid if isinstance(xid, int) else None,
                    known.get("type") == "corrected",
                )
            )
    problems = [*samples.problems, *events.problems]
    return _Read(gpu_clocks.clocks(samples.frame), errors, problems)


def _attributes(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):  # of a damaged file
        return {}
    return value if isinstance(value, dict) else {}
