"""What the sampled stacks of one process answer.

Tests: tests/views/run/test_stacks.py.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import polars as pl

from haiprof import schema
from haiprof.answers.one_process import read_phase_spans
from haiprof.answers.ranks import Ranks
from haiprof.runs import ROLE_RANK, Process
from haiprof.sources import tables
from haiprof.views.run import stack_changes
from haiprof.views.run import stacks as stack_views
from haiprof.views.run import steps as step_views


def stacks(
    process: Process, phases: Collection[str] | None, threads: stack_views.Threads
) -> tables.Read:
    """Return what was sampled of some threads of one process, in some phases or in all."""
    read, tree = _placed(process, phases, threads)
    read.frame = stack_views.described(read.frame, tree)
    return read


def flame(
    process: Process,
    phases: Collection[str] | None,
    threads: stack_views.Threads,
    by: stack_views.By,
    by_phase: bool,
) -> tables.Read:
    """Return the flame graph of some threads of one process, of some phases or of all time."""
    read, tree = _placed(process, phases, threads, by_phases=True)
    draw = stack_views.flame_by_phase if by_phase else stack_views.flame
    read.frame = draw(read.frame, tree, by)
    return read


def step_parts(process: Process, by: stack_views.By) -> tables.Read:
    """Return what the steps of one process spend in each function, or line, of their thread."""
    read, tree = _placed(process, None, "training")
    steps = step_views.steps(read_phase_spans(process).frame)
    mean = float(steps["duration"].to_numpy().mean()) if steps.height else None
    read.frame = stack_changes.parts(read.frame, tree, mean, by)
    return read


def _placed(
    process: Process,
    phases: Collection[str] | None,
    threads: stack_views.Threads,
    by_phases: bool = False,
) -> tuple[tables.Read, stack_views.Tree]:
    """Return samples of one process; ``by_phases``: weighed by what phases took."""
    read = tables.read(process, schema.STACKS)
    frames, spans = tables.read(process, schema.FRAMES), read_phase_spans(process)
    tree = stack_views.Tree(frames.frame)
    samples = stack_views.placed(read.frame, tree, spans.frame)
    if by_phases and process.pid is not None:
        samples = stack_views.weighed(samples, spans.frame, process.pid)
    samples = stack_views.of_threads(samples, spans.frame, process.pid, threads)
    if phases is not None:
        samples = samples.filter(pl.col("phase").cast(pl.String).is_in(list(phases)))
    return tables.Read(samples, read.cut, read.problems + frames.problems + spans.problems), tree


def changes(before: Ranks, after: Ranks, rank: int | None, by: stack_views.By) -> pl.DataFrame:
    """Return what a step of each rank spends in which function in two runs."""
    work = functools.partial(step_parts, by=by)
    found: list[dict[int | None, pl.DataFrame]] = []
    for run in (before, after):
        of_rank: dict[int | None, pl.DataFrame] = {}
        ranks = [p for p in run.jobs(rank) if p.role == ROLE_RANK]
        for process, read in run.map(work, ranks):
            run.note(read.problems)
            of_rank[process.rank] = read.frame  # of several attempts the last one
        found.append(of_rank)
    frames = [pl.DataFrame(schema={"rank": pl.Int64(), **stack_changes.CHANGES_SCHEMA})]
    for number in sorted(set(found[0]) & set(found[1]), key=lambda n: -1 if n is None else n):
        rows = stack_changes.changes(found[0][number], found[1][number])
        frames.append(rows.select(pl.lit(number, pl.Int64()).alias("rank"), pl.all()))
    return pl.concat(frames)
