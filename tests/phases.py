"""Spans read back from a ring, and timers written by hand to compare them with."""

from __future__ import annotations

import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haiprof import _core

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
    """Return all spans of a ring file, in the order of their starts."""
    reader = _core.RingReader(str(ring))
    reader.take()
    table = reader.rows().get("spans")
    if table is None:
        return []
    assert reader.losses["overwritten"] == 0
    texts = [str(text) for text in reader.texts("spans", "name", 0)]

    def column(name: str, kind: str) -> list[Any]:
        rows, _, values, valid = table[name]
        found: list[Any] = list(struct.unpack(f"<{rows}{kind}", values))
        if valid is None:
            return found
        return [v if valid[i // 8] >> (i % 8) & 1 else None for i, v in enumerate(found)]

    names = [texts[n] for n in column("name", "I")]
    rows = zip(
        names, column("start", "q"), column("duration", "q"), column("step", "I"), strict=True
    )
    return sorted((Row(*row) for row in rows), key=lambda row: row.start)


@dataclass
class HandTimes:
    """Phases of a loop, timed by clock reads written right outside the calls."""

    steps: list[dict[str, int]] = field(default_factory=list)

    def step(self) -> None:
        self.steps.append(defaultdict(int))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            self.steps[-1][name] += time.perf_counter_ns() - begin

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
            if name == "dataloader":
                self.step()
            self.steps[-1][name] += time.perf_counter_ns() - begin
            yield batch
            begin = time.perf_counter_ns()

    def merged(self, every: int) -> HandTimes:
        """Return the times with ``every`` batches made one step."""
        made = HandTimes()
        for first in range(0, len(self.steps), every):
            made.step()
            for step in self.steps[first : first + every]:
                for name, spent in step.items():
                    made.steps[-1][name] += spent
        return made
