"""Which stage of a pipeline the ranks of the others wait for.

A forward needs the forward of the same microbatch on the previous stage, a backward the backward on
the next stage. A rank that is idle before a job waits until what that job needs is done; if the
rank that is to do it is idle itself, both wait for whatever that rank waits for.

Tests: tests/views/run/test_pipeline.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Job(NamedTuple):
    """One forward (``step`` 1) or backward (-1) of a microbatch; 0 is a job that needs no other.

    ``place`` counts the stages of the model, ``lane`` is the rank, and ``line`` distinguishes the
    pipelines of one job.
    """

    lane: Hashable
    line: int
    start: int
    end: int
    step: int
    microbatch: int | None
    place: int


class _Stretch(NamedTuple):
    """A time in which a rank computes for ``place``, or else waits for another rank."""

    start: int
    end: int
    place: int | None
    waits_for: Hashable


def waited_for(jobs: Iterable[Job]) -> dict[int, int]:
    """Return for each place how long all ranks together waited until it was done, ns.

    Args:
        jobs: of one step, by start.
    """
    lanes: dict[Hashable, list[Job]] = defaultdict(list)
    done: dict[tuple[int, int, int | None, int], Job] = {}
    for job in jobs:
        lanes[job.lane].append(job)
        done[job.line, job.step, job.microbatch, job.place] = job
    begin = min((mine[0].start for mine in lanes.values()), default=0)
    stretches = {lane: _stretches(mine, done, begin) for lane, mine in lanes.items()}
    starts = {lane: [each.start for each in mine] for lane, mine in stretches.items()}
    found: dict[int, int] = defaultdict(int)

    def look(lane: Hashable, low: int, high: int, seen: frozenset[Hashable]) -> None:
        mine = stretches[lane]
        for each in mine[max(0, bisect_right(starts[lane], low) - 1) :]:
            if each.start >= high:
                break
            begin, end = max(low, each.start), min(high, each.end)
            if begin >= end:
                continue
            if each.place is not None:
                found[each.place] += end - begin
            # Unsynchronised clocks may make two ranks wait for each other.
            elif each.waits_for not in seen:
                look(each.waits_for, begin, end, seen | {lane})

    for lane, mine in stretches.items():
        for each in mine:
            if each.place is None:
                look(each.waits_for, each.start, each.end, frozenset({lane}))
    return dict(found)


def _stretches(
    jobs: list[Job], done: dict[tuple[int, int, int | None, int], Job], begin: int
) -> list[_Stretch]:
    stretches = []
    at = begin
    for job in jobs:
        if job.start > at:
            needs = done.get((job.line, job.step, job.microbatch, job.place - job.step))
            if job.step and needs is not None and needs.lane != job.lane and needs.end > at:
                stretches.append(_Stretch(at, min(needs.end, job.start), None, needs.lane))
        if job.end > max(at, job.start):
            stretches.append(_Stretch(max(at, job.start), job.end, job.place, None))
            at = job.end
    return stretches
