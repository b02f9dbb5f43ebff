"""Spans read back from a ring, and timers written by hand to compare them with."""

from __future__ import annotations

import statistics
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

from haiprof import _core

_GC = 9  # ring::Category
PHASES = ("dataloader", "forward", "backward", "optimizer", "eval", "eval_dataloader")


@dataclass(frozen=True)
class Row:
    """One span as the ring's reader gives it, ns."""

    name: str
    start: int
    duration: int
    step: int | None

    @property
    def end(self) -> int:
        return self.start + self.duration


def read_spans(ring: Path) -> list[Row]:
    """Return all spans of a ring file but the garbage collector's, in the order of their starts."""
    reader = _core.RingReader(str(ring))
    reader.take()
    table = reader.rows().get("spans")
    if table is None:
        return []
    assert reader.losses["overwritten"] == 0
    texts = [str(text) for text in reader.texts("spans", "name")[1]]

    def column(name: str, kind: str) -> list[Any]:
        if name not in table:  # nothing but nulls
            return [None] * table["start"][0]
        rows, _, values, valid = table[name]
        found: list[Any] = list(struct.unpack(f"<{rows}{kind}", values))
        if valid is None:
            return found
        return [v if valid[i // 8] >> (i % 8) & 1 else None for i, v in enumerate(found)]

    names = [texts[n] for n in column("name", "I")]
    rows = zip(
        names, column("start", "q"), column("duration", "q"), column("step", "I"), strict=True
    )
    wanted = [n != _GC for n in column("category", "I")]
    return sorted((Row(*row) for row in compress(rows, wanted)), key=lambda row: row.start)


def assert_agreement(
    hand: Sequence[Mapping[str, int]],
    ours: Sequence[Mapping[str, int]],
    phases: Iterable[str],
    spans: Mapping[str, int] | None = None,
) -> None:
    """Require each phase's ns in the median step to be within 1 % or 50 us, the larger of them.

    50 us for each of its ``spans`` in a step (one, unless given), which is the Python of torch
    between the hand's readings of the clock and ours; a machine that is slow at that gets longer.

    A machine that is interrupted all the time puts hundreds of us between two readings of the clock
    with some Python between them, as the hand's and ours are at both ends of a phase. That is
    looked at first; such a machine can only tell whether they are within 10 % or 2 ms.
    """
    assert len(hand) == len(ours) > 3
    lost = interrupted_share()
    share, least = (0.01, max(50_000, _some_python())) if lost < 0.02 else (0.1, 2_000_000)
    for phase in phases:
        by_hand = [step.get(phase, 0) for step in hand]
        recorded = [step.get(phase, 0) for step in ours]
        middle = statistics.median(by_hand)
        assert middle > 0, f"the loop under test has no {phase}"
        apart = statistics.median(abs(a - b) for a, b in zip(by_hand, recorded, strict=True))
        rows = (
            f"{phase}: {middle / 1e6:.3f} ms by hand, {apart / 1e3:.1f} us apart; "
            f"interrupted for {lost:.1%} of the time"
        )
        print(rows)
        assert apart <= max(share * middle, least * (spans or {}).get(phase, 1)), rows


def _some_python() -> float:
    """Return how long a machine takes for 3,000 calls of a function, ns: 60 us on a fast one."""

    def once() -> int:
        begin = time.perf_counter_ns()
        for _ in range(3000):
            nothing()
        return time.perf_counter_ns() - begin

    def nothing() -> None:
        pass

    return statistics.median(once() for _ in range(51))


def interrupted_share() -> float:
    """Return the part of the time in which this thread wants to run and does not."""
    clock = time.perf_counter_ns
    begin = last = clock()
    lost = 0
    while last - begin < 200_000_000:
        now = clock()
        if now - last > 20_000:
            lost += now - last
        last = now
    return lost / (last - begin)


class Timer:
    """Adds the time of a ``with`` block, ns, to one name of a step; no contextlib between."""

    __slots__ = ("_begin", "_name", "_step")

    def __init__(self, step: dict[str, int], name: str) -> None:
        self._step = step
        self._name = name

    def __enter__(self) -> None:
        self._begin = time.perf_counter_ns()

    def __exit__(self, *raised: object) -> None:
        end = time.perf_counter_ns()
        self._step[self._name] += end - self._begin


@dataclass
class HandTimes:
    """Phases of a loop, timed by clock reads written right outside the calls."""

    steps: list[dict[str, int]] = field(default_factory=list)

    def step(self) -> None:
        self.steps.append(defaultdict(int))

    def phase(self, name: str) -> Timer:
        return Timer(self.steps[-1], name)

    def batches(self, loader: Any, name: str = "dataloader") -> Iterator[Any]:
        """Iterate over ``loader`` with a new step for each batch (but for evaluation)."""
        begin = time.perf_counter_ns()
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                if self.steps:
                    self.steps[-1][name] += time.perf_counter_ns() - begin
                return
            end = time.perf_counter_ns()
            if name == "dataloader":
                self.step()
            self.steps[-1][name] += end - begin
            yield batch
            begin = time.perf_counter_ns()

    def merged(self, every: int) -> HandTimes:
        """Return the times with ``every`` batches made one step."""
        times = HandTimes()
        for first in range(0, len(self.steps), every):
            times.step()
            for step in self.steps[first : first + every]:
                for name, spent in step.items():
                    times.steps[-1][name] += spent
        return times
