"""Steps and phases of one process, as recorded on the host.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

from haiprof import schema
from haiprof.answers import late_ranks
from haiprof.answers.one_process import read_device_phases, read_phase_spans
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.views.run import steps as step_views
from haiprof.views.run.rank_parts import thinned


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
