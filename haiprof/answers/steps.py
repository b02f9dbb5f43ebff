"""Steps and phases of one process, as recorded on the host.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

import functools

import polars as pl

from haiprof import schema
from haiprof.answers import host_clocks, late_ranks
from haiprof.answers.one_process import read_device_phases, read_phase_spans
from haiprof.answers.ranks import Ranks
from haiprof.runs import ROLE_RANK, Process
from haiprof.sources import tables
from haiprof.views.run import steps as step_views
from haiprof.views.run.rank_parts import RankParts, most_steps, thinned


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


def phase_parts(process: Process, most: int) -> tables.Read:
    """Return what the phases of at most so many steps of one process took.

    On its GPU where that is known.
    """
    read, phases = read_phase_spans(process), read_device_phases(process)
    read.frame = thinned(late_ranks.recorded_parts(read.frame, phases.frame), most)
    read.problems += phases.problems
    return read


def all_parts(ranks: Ranks) -> late_ranks.AllParts:
    """Return what the phases of the steps of all ranks took; nothing if there is only one rank."""
    # A rank that was started again is as fast as it is now.
    latest = {p.rank: p for p in ranks.run.processes if p.role == ROLE_RANK}
    processes = list(latest.values()) if len(latest) > 1 else []
    clocks = host_clocks.by_node(ranks) if processes else {}
    work = functools.partial(phase_parts, most=most_steps(len(processes)))
    found = late_ranks.AllParts({}, RankParts(), {})
    for process, read in ranks.map(work, processes):
        ranks.note(read.problems)
        found.parts.add(process.label, read.frame, clocks.get(process.node))
        found.processes[process.label] = process
        found.lasted[process.label] = (
            read.frame.drop_nulls(["step", "part", "duration"])
            .group_by("step")
            .agg(pl.col("duration").sum())
            .sort("step")
        )
    return found
