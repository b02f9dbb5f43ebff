"""A ring to record into, and hooks to record with."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from phases import PHASES, HandTimes, Row, read_spans

from haiprof import _core, hooks


class Recorded:
    """What the hooks have recorded since the test began."""

    def __init__(self, ring: Path) -> None:
        self.ring = ring
        self.reports: list[tuple[str, str]] = []

    def spans(self) -> list[Row]:
        """End the last step and return all spans."""
        _core.phases_finish()
        return read_spans(self.ring)

    def steps(self) -> list[Row]:
        """Return the steps in order."""
        return [row for row in self.spans() if row.name == "step"]

    def sums(self) -> dict[int | None, dict[str, int]]:
        """Return, for each step, the ns of each phase."""
        found: dict[int | None, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for row in self.spans():
            found[row.step][row.name] += row.duration
        return found

    def counts(self, step: int) -> dict[str, int]:
        """Return how many spans of each name one step has."""
        found: dict[str, int] = defaultdict(int)
        for row in self.spans():
            if row.step == step and row.name != "step":
                found[row.name] += 1
        return dict(found)


@pytest.fixture
def recorded(shm: Path) -> Iterator[Recorded]:
    """Hooks on torch and an open ring; afterwards torch is as it was."""
    record = Recorded(shm / "test.ring")
    _core.phases_reset()
    _core.open_ring(str(record.ring))
    hooks.install(lambda kind, text: record.reports.append((kind, text)))
    try:
        yield record
    finally:
        hooks.uninstall()
        _core.close_ring()
        _core.phases_reset()
    assert record.reports == []


@pytest.fixture
def by_hand() -> HandTimes:
    """Timers for the loop under test."""
    return HandTimes()


@pytest.fixture
def agree(recorded: Recorded) -> Callable[..., None]:
    """Compare what the hooks recorded with what was timed by hand in the same iterations.

    In the median step they may be 1 % apart, or 50 us for each call that a phase has in a step.
    """

    def check(
        times: HandTimes, phases: tuple[str, ...] = PHASES[:4], skip: int = 2, calls: int = 1
    ) -> None:
        found = recorded.sums()
        assert len(recorded.steps()) == len(times.steps)
        for phase in phases:
            hand = [step.get(phase, 0) for step in times.steps][skip:]
            ours = [found[n].get(phase, 0) for n in range(len(times.steps))][skip:]
            assert statistics.median(hand) > 0, f"the loop under test has no {phase}"
            apart = statistics.median(abs(a - b) for a, b in zip(hand, ours, strict=True))
            allowed = max(0.01 * statistics.median(hand), 50_000 * calls)
            assert apart <= allowed, f"{phase}: {apart} ns apart, {allowed:.0f} ns allowed"

    return check
