"""What NCCL says of its operations in a run.

Tests: tests/nccl/test_job.py.
"""

from __future__ import annotations

import json
from typing import Final

from haiprof import schema
from haiprof.answers.collectives import GROUP
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.views.run import nccl as view

_UNHEARD: Final = (
    "nccl: torch communicated with NCCL, which did not load haiprof's plugin: that needs NCCL 2.27 "
    "or newer, and a job that names no other plugin and was recorded from its start"
)


def of_process(process: Process) -> tables.Read:
    """Return the operations of one process, see :func:`view.operations`."""
    read = tables.read(process, schema.NCCL, [column.name for column in schema.NCCL.columns])
    if read.frame.is_empty() and _torch_used_it(process):
        read.problems.append(_UNHEARD)
    read.frame = view.operations(read.frame)
    return read


def _torch_used_it(process: Process) -> bool:
    events = tables.read(process, schema.EVENTS, ("text", "attributes"), {"kind": [GROUP]}).frame
    groups = [name for name, text in events.iter_rows() if name and _backend(text) == "nccl"]
    if not groups:
        return False
    asked = tables.read(process, schema.COLLECTIVES, ("group",), {"group": groups})
    return not asked.frame.is_empty()


def _backend(attributes: object) -> object:
    try:
        return json.loads(str(attributes))["backend"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # of a damaged file
