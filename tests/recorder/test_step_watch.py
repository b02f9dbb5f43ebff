"""Steps that become slower are seen soon; noise, bursts, drift and rare slow steps are none."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

import pytest

from haiprof.recorder.step_watch import Change, StepWatch

STEP_S = 0.1
#: What each step takes beside the others, as a factor.
Noise = Callable[[random.Random], Iterator[float]]


def normal(share: float) -> Noise:
    return lambda draw: (max(0.2, draw.gauss(1, share)) for _ in itertools.count())


def lengths(draw: random.Random) -> Iterator[float]:
    """Inputs of different lengths."""
    return (draw.lognormvariate(0, 0.5) for _ in itertools.count())


def two_kinds(draw: random.Random) -> Iterator[float]:
    """Three steps of ten take twice as long."""
    return ((2 if draw.random() < 0.3 else 1) * draw.gauss(1, 0.02) for _ in itertools.count())


def wanders(draw: random.Random) -> Iterator[float]:
    """Neighbouring steps are alike, as on a machine that does other things as well."""
    level = 0.0
    while True:
        level = 0.99 * level + math.sqrt(1 - 0.99**2) * draw.gauss(0, 0.05)
        yield math.exp(level + draw.gauss(0, 0.03))


def saves(draw: random.Random) -> Iterator[float]:
    """A checkpoint of ten seconds now and then."""
    return ((100 if n % 300 == 299 else 1) * draw.gauss(1, 0.03) for n in itertools.count())


def rarely(draw: random.Random) -> Iterator[float]:
    """One step of fifty takes twenty times as long."""
    return ((20 if draw.random() < 0.02 else 1) * draw.gauss(1, 0.02) for _ in itertools.count())


NOISE: dict[str, Noise] = {
    "even": normal(0.02), "noisy": normal(0.3), "lengths": lengths, "two kinds": two_kinds,
    "wanders": wanders, "saves": saves, "rarely": rarely,
}  # fmt: skip


def changes(
    noise: Noise, factor: Callable[[float], float], seconds: float, seed: int
) -> list[tuple[float, Change]]:
    """Return what is seen of a job, and when, s since it began."""
    watch, steps, now, found = StepWatch(), noise(random.Random(seed)), 0.0, []
    while now < seconds:
        takes = STEP_S * next(steps) * factor(now)
        for change in watch.add([(int(now * 1e9) + 1, int(takes * 1e9))]):
            found.append((now + takes, change))
        now += takes
    return found


@pytest.mark.parametrize("name", NOISE)
def test_steps_that_only_vary_have_not_changed(name: str) -> None:
    seen = [found for seed in range(6) for found in changes(NOISE[name], lambda _: 1, 600, seed)]
    assert len(seen) <= (1 if name == "wanders" else 0)


@pytest.mark.parametrize(
    ("name", "times"),
    [("even", 1.1), ("saves", 1.1), ("noisy", 1.5), ("two kinds", 1.5), ("lengths", 2.0),
     ("wanders", 1.5), ("rarely", 1.5)],
)  # fmt: skip
def test_steps_that_become_slower_are_seen_within_half_a_minute(name: str, times: float) -> None:
    late = 0
    for seed in range(10):
        begins = 60.0 + 3 * seed
        found = changes(NOISE[name], lambda now: times if now >= begins else 1, begins + 40, seed)  # noqa: B023
        seen, change = found[0] if found else (math.inf, None)
        late += not 0 < seen - begins < 30
        if change is not None and name not in ("wanders", "rarely"):
            assert change.slower
            assert change.after / change.before == pytest.approx(times, rel=0.25)
            assert abs(change.since / 1e9 - begins) < (13 if name == "saves" else 6)
            assert change.reference < change.until_before <= begins * 1e9 + 1e9
    assert late <= (3 if name in ("wanders", "rarely") else 0)


def test_long_steps_are_seen_after_as_many() -> None:
    watch = StepWatch()
    steps = [(int(n * 20e9) + 1, int((18 if n >= 100 else 15) * 1e9)) for n in range(160)]
    (at,) = [n for n, step in enumerate(steps) for _ in watch.add([step])]
    assert 100 < at <= 144


def test_what_is_as_before_again_is_seen_and_seen_again_later() -> None:
    def factor(now: float) -> float:
        return 1.3 if 100 <= now < 200 or now >= 900 else 1

    found = changes(normal(0.02), factor, 960, 1)
    assert [change.slower for _, change in found] == [True, False, True]
    slow, fast, _ = (change for _, change in found)
    assert fast.after == pytest.approx(slow.before, rel=0.02)


@pytest.mark.parametrize("seconds", [1, 4, 7])
def test_a_burst_of_slow_steps_that_ends_has_changed_nothing(seconds: float) -> None:
    assert changes(normal(0.02), lambda now: 2 if 0 <= now - 100 < seconds else 1, 200, 1) == []


def test_what_comes_again_and_again_is_no_change_after_the_first_time() -> None:
    found = changes(normal(0.02), lambda now: 1.5 if now % 90 >= 60 else 1, 900, 1)
    assert sum(change.slower for _, change in found) <= 2


def test_what_grows_slowly_is_no_change() -> None:
    assert changes(normal(0.02), lambda now: 1 + now / 3000, 900, 1) == []


def test_the_first_steps_do_not_count() -> None:
    """They compile; what comes after them is slower than nothing."""
    assert changes(normal(0.02), lambda now: 5 if now < 4 else 1, 120, 1) == []
    found = changes(normal(0.02), lambda now: 5 if now < 4 else 1.2 if now > 60 else 1, 120, 1)
    assert len(found) == 1


def test_how_long_the_newest_steps_take() -> None:
    watch, now = StepWatch(), 0
    for n in range(600):
        if n <= 400:
            # Five blocks of fifteen steps do not count, and it takes ten of them.
            assert watch.latest() == (math.inf if n < 15 * 15 else 100_000_000)
        takes = 130_000_000 if n >= 400 else 100_000_000
        list(watch.add([(now + 1, takes)]))
        now += takes
    assert watch.latest() == pytest.approx(130_000_000)


def test_whether_a_change_lasts() -> None:
    watch, slower = StepWatch(), []
    now = 0
    for n in range(1200):
        takes = 120_000_000 if 600 <= n < 900 else 100_000_000
        slower += list(watch.add([(now + 1, takes)]))
        now += takes
        if n == 880:
            assert watch.lasts(slower[0])
    assert not watch.lasts(slower[0])
