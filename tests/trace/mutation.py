"""What mutations of traces are made with: the real traces, and a register of what was made."""

from __future__ import annotations

import functools
import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Trace = dict[str, Any]
Event = dict[str, Any]

#: Small traces: AMD, NVIDIA with synchronisation, one kernel, host only, 8 ranks, and one of ours
#: with allocations and Python calls.
SOURCES = {
    "amd": "hta_amd_mi250/worker0.pt.trace.json.gz",
    "sync": "hta_cp_event_sync/worker0.pt.trace.json.gz",
    "triton": "hta_triton/worker0.pt.trace.json.gz",
    "host": "hta_cpu_only/worker0.pt.trace.json.gz",
    "alexnet": "hta_cp_alexnet/worker0.pt.trace.json.gz",
    "ranks": "dlrm_8rank/worker0_step_12.1694128201545.pt.trace.json.gz",
    "whole": "handmade_modern/host_0.1700000000000.pt.trace.json.gz",
}
TURNS = ("amd", "sync", "whole", "alexnet", "triton")


class Sources:
    """The traces to mutate, and the chance by which one mutation chooses."""

    def __init__(self, traces: Path, chance: random.Random) -> None:
        self.chance = chance
        self._traces = traces

    def text(self, source: str) -> bytes:
        return _text(self._traces / SOURCES[source])

    def trace(self, source: str) -> Trace:
        trace: Trace = json.loads(self.text(source))
        return trace


Maker = Callable[[Sources], bytes]
MADE: dict[str, Maker] = {}
reported_names: set[str] = set()


def add(name: str, maker: Maker, reported: bool = False) -> None:
    assert name not in MADE, name
    MADE[name] = maker
    if reported:
        reported_names.add(name)


@functools.cache
def _text(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes())


def dump(trace: object) -> bytes:
    marked = json.dumps(trace, ensure_ascii=False)
    return re.sub(r'"\x7f@(.*?)@\x7f"', r"\1", marked).encode()


def raw(token: str) -> str:
    """A value that :func:`dump` writes as it is, be it JSON or not."""
    return f"\x7f@{token}@\x7f"


def some(events: list[Event], wanted: Callable[[Event], bool], every: int = 3) -> list[Event]:
    """Every third event that is wanted, the first one among them."""
    found = [event for event in events if wanted(event)][::every]
    assert found, "this source has nothing to mutate"
    return found


def timed(event: Event) -> bool:
    return event.get("ph") == "X" and event.get("cat") != "Trace"


def edit(source: str, change: Callable[[list[Event], random.Random], None]) -> Maker:
    def mutate(sources: Sources) -> bytes:
        trace = sources.trace(source)
        change(trace["traceEvents"], sources.chance)
        return dump(trace)

    return mutate
