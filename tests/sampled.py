"""What a sampler gives of a process, and jobs with workers that are no copies of it.

Other Pythons import it, too: it needs nothing but haiprof.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, NamedTuple

from haiprof import _core
from haiprof.common.process_life import start_time_of

# A sample of one that never runs is not given for ten seconds.
WORKS = """
import time
def works():
    while True:
        time.sleep(0.01)
"""

SPAWNS = """
import multiprocessing, sys, time
# The worker imports it by name: what -c ran has none.
sys.path.insert(0, {folder!r})
import spawned_work
worker = multiprocessing.get_context({method!r}).Process(target=spawned_work.works, daemon=True)
worker.start()
print("ready", flush=True)
time.sleep(600)
"""


class Sample(NamedTuple):
    """As a sampler gives it."""

    time: int
    duration: int
    samples: int
    process: int
    thread: int
    stack: int
    state: str
    waits_in: str | None
    gil: int


class Sampled:
    """What was sampled of a process."""

    def __init__(self, pid: int, layout: bytes, hz: float) -> None:
        self.pid = pid
        self.sampler = _core.StackSampler(hz)
        self.samples: list[Sample] = []
        self.nodes: dict[int, tuple[Any, ...]] = {}
        assert self.sampler.watch(pid, start_time_of(pid), os.getuid(), layout)

    def take(self) -> list[Sample]:
        """Take what is new, and return all."""
        self._add(*self.sampler.take(self.pid))
        return self.samples

    def end(self) -> list[Sample]:
        """Sample no more; return all."""
        self._add(*self.sampler.unwatch(self.pid))
        return self.samples

    def _add(self, samples: list[_core.StackSample], nodes: list[_core.StackNode]) -> None:
        for number, *node in nodes:
            assert number == len(self.nodes)  # each once, one after the other
            assert node[0] is None or node[0] < number
            self.nodes[number] = tuple(node)
        self.samples += [Sample(*sample) for sample in samples]
        assert all(sample.stack in self.nodes for sample in self.samples)

    def names(self, sample: Sample) -> list[str]:
        """Return the functions of a stack, the innermost first."""
        names, number = [], sample.stack
        while number is not None:
            parent, function, *_ = self.nodes[number]
            names.append(function)
            number = parent
        return names

    def children(self) -> dict[int, set[str]]:
        """Take what is new; return the innermost functions of each other process."""
        found: dict[int, set[str]] = {}
        for sample in self.take():
            found.setdefault(sample.process, set()).add(self.names(sample)[0])
        found.pop(self.pid, None)
        return found

    def shares(self, thread: int) -> dict[str, float]:
        """Return the part of the time of each innermost function of a thread."""
        weights: Counter[str] = Counter()
        for sample in self.samples:
            if sample.thread == thread:
                weights[self.names(sample)[0]] += sample.duration
        return {name: weight / weights.total() for name, weight in weights.items()}
