"""Steps and phases of one process, as recorded on the host.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haiprof import schema
from haiprof.answers import host_clocks, late_ranks
from haiprof.answers.one_process import read_phase_spans
from haiprof.answers.ranks import Ranks
from haiprof.answers.summaries import Sums
from haiprof.runs import ROLE_RANK, Process
from haiprof.sources import tables
from haiprof.views.run import steps as step_views
from haiprof.views.run.rank_parts import RankParts


def steps(process: Process) -> tables.Read:
    """Return the steps of one process that ended."""
    keep = {"category": ("step",)}
    read = tables.read(process, schema.SPANS, step_views.COLUMNS, keep)
    read.frame = step_views.steps(read.frame)
    return read


def phases(process: Process) -> tables.Read:
    """Return the phases of the steps of one process that ended."""
    read = read_phase_spans(process)
    read.frame = step_views.phases(read.frame, step_views.steps(read.frame))
    return read


def all_parts(ranks: Ranks, sums: Sequence[Sums]) -> late_ranks.AllParts:
    """Return what the phases of the steps of all ranks took; nothing if there is only one rank.

    On its GPU where that is known.

    Args:
        ranks: of the run.
        sums: its processes summed up.
    """
    # A rank that was started again is as fast as it is now.
    latest = {p.rank: p for p in ranks.run.processes if p.role == ROLE_RANK}
    processes = list(latest.values()) if len(latest) > 1 else []
    clocks = host_clocks.by_node(ranks) if processes else {}
    tables_of = {each.summary.process.folder: each.parts for each in sums}
    found = late_ranks.AllParts({}, RankParts(), {})
    for process in processes:
        table = tables_of.get(process.folder)
        if table is None:  # it could not be read
            continue
        found.parts.add_packed(process.label, table, clocks.get(process.node))
        found.processes[process.label] = process
        found.lasted[process.label] = table.steps, table.duration.sum(1, dtype=np.int64)
    return found
