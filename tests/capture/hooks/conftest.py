"""A ring to record into, and hooks to record with."""

from __future__ import annotations

import json
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from phases import PHASES, HandTimes, Row, assert_agreement, read_spans

from haiprof import _core
from haiprof.capture import hooks


class Recorded:
    """What the hooks have recorded since the test began."""

    def __init__(self, ring: Path) -> None:
        self.ring = ring
        self.reports: list[tuple[str, str]] = []

    def spans(self) -> list[Row]:
        """End the last step and return all spans."""
        _core.phases_finish()
        return read_spans(self.ring)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the attributes of the events of a kind, in their order."""
        reader = _core.RingReader(str(self.ring))
        reader.take()
        table = reader.rows().get("events", {})

        def column(name: str) -> list[str]:
            texts = [str(text) for text in reader.texts("events", name)[1]]
            rows, _, values, valid = table[name]
            numbers = struct.unpack(f"<{rows}I", values)
            there = [valid is None or valid[n // 8] >> (n % 8) & 1 for n in range(rows)]
            return [texts[n] if known else "{}" for n, known in zip(numbers, there, strict=True)]

        if "kind" not in table or "attributes" not in table:
            return []
        rows = zip(column("kind"), column("attributes"), strict=True)
        return [json.loads(attributes) for which, attributes in rows if which == kind]

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
            if row.step == step and row.name not in ("step", "inference_step"):
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
def rewriting() -> Iterator[None]:
    """Hooks that are attached now rewrite code, on every Python: all monitoring tools are taken."""
    if sys.version_info < (3, 12):
        yield
        return
    hooks.uninstall()
    for tool in (3, 4):
        sys.monitoring.use_tool_id(tool, "somebody")
    yield
    hooks.uninstall()
    for tool in (3, 4):
        assert sys.monitoring.get_tool(tool) == "somebody"
        sys.monitoring.free_tool_id(tool)


@pytest.fixture
def by_hand() -> HandTimes:
    """Timers for the loop under test."""
    return HandTimes()


@pytest.fixture
def agree(recorded: Recorded) -> Callable[..., None]:
    """Compare what the hooks recorded with what was timed by hand in the same iterations."""

    def check(times: HandTimes, phases: tuple[str, ...] = PHASES[:4], skip: int = 2) -> None:
        found = recorded.sums()
        assert len(recorded.steps()) == len(times.steps)
        ours = [found[n] for n in range(len(times.steps))]
        assert_agreement(times.steps[skip:], ours[skip:], phases, recorded.counts(skip))

    return check
