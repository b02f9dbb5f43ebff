"""Which steps are slow, and in what."""

from __future__ import annotations

from charged_lives import MS, charged, span

from haiprof.views.run import slow_steps
from haiprof.views.run.ledger import CODE, Ledger


def loop(durations: list[float], phase: str = "forward") -> Ledger:
    """Charge steps of 2 ms and of these durations in a phase, ms."""
    rows, at = [], 10.0
    for number, ms in enumerate(durations):
        rows += [
            span(at, ms + 2, "step", "step", number),
            span(at + 1, ms, "phase", phase, number),
        ]
        at += ms + 2
    return charged(rows, at)


def test_steps_alike_are_not_slow() -> None:
    found = loop([20 + n % 5 for n in range(100)])
    assert not slow_steps.slow(found).any()
    assert not slow_steps.excess(found).any()


def test_a_slow_step_exceeds_the_others_in_its_phase() -> None:
    found = loop([60 if n % 10 == 7 else 20 for n in range(100)])
    assert slow_steps.slow(found).nonzero()[0].tolist() == list(range(7, 100, 10))
    excess = slow_steps.excess(found)
    assert excess.sum() == excess[:, CODE["forward"]].sum() == 10 * 40 * MS


def test_a_step_that_something_else_stops_is_not_slow_by_itself() -> None:
    found = loop([60 if n % 10 == 7 else 20 for n in range(100)], phase="gradient_sync")
    assert not slow_steps.slow(found).any()


def test_the_first_steps_warm_up() -> None:
    assert not slow_steps.slow(loop([500, 100] + [20] * 50)).any()


def test_of_few_steps_none_is_unusual() -> None:
    assert not slow_steps.slow(loop([20] * 10 + [100])).any()
