"""Page faults of the training thread count as far as its time in the kernel is theirs."""

from __future__ import annotations

import polars as pl
import pytest
from charged_lives import MS
from recorded_cases import STEPS, found, life, line, rank, torch_lines

from haiprof.findings.finding import Finding
from haiprof.findings.recorded.case import MAIN_SCHEMA

SECOND = 10**9
#: Steps of 100 ms.
LASTS = STEPS // 10


def of(faults: float, system: float, seconds: int = LASTS, **more: bool) -> list[Finding]:
    """Return what is found of a thread with so many faults a second, and % of it in the kernel."""
    rows = [(n * SECOND, faults, system) for n in range(1, seconds + 1)]
    samples = pl.DataFrame(rows, MAIN_SCHEMA, orient="row")
    lines = [line("forward", 60, gil=False), *torch_lines(10)] if more else torch_lines(100)
    return found(rank(life(), lines, main_thread=samples))


def test_memory_that_is_requested_in_each_step() -> None:
    (finding,) = of(200_000, 45.0)
    assert finding.kind == "page_faults"
    assert "with 20000 page faults of the training thread" in finding.problem
    assert finding.lost_ns == pytest.approx(0.45 * STEPS * 100 * MS)


@pytest.mark.parametrize(
    ("faults", "system"),
    [
        (20_000, 3.0),  # as any program has
        (260_000, 29.0),  # as a small model has that trains on a CPU
        (10, 60.0),  # reads, writes, is woken
        (20_000, 60.0),  # mostly that: these faults take 4 % at most
        (900_000, 2.0),  # not that many in so little time
        (0, 0.0),
    ],
)
def test_other_time_in_the_kernel_is_not_that(faults: float, system: float) -> None:
    assert of(faults, system) == []


def test_a_few_samples_prove_nothing() -> None:
    assert of(200_000, 45.0, seconds=3) == []
    assert found(rank(life(), torch_lines(100))) == []


def test_what_happens_before_the_steps_does_not_count() -> None:
    rows = [(n * SECOND, 200_000.0, 90.0) for n in range(1, 20)]
    rows += [(n * SECOND, 100.0, 1.0) for n in range(21, 30)]
    samples = pl.DataFrame(rows, MAIN_SCHEMA, orient="row")
    own = rank(life(startup=20_000), torch_lines(100), main_thread=samples)
    assert [one.kind for one in found(own)] == []
