"""Makes a long trace out of a real one, laid end to end.

    python benchmarks/concatenate.py SOURCE COPIES TARGET [--rank N]
    python benchmarks/concatenate.py SOURCE COPIES --check

Each copy begins a millisecond after the one before it has ended. What identifies something (ids of
operators and launches, flows, Python calls, sequence numbers) is unique in the whole, and steps go
on counting; what describes the file is there once. Nothing else changes, so every count and every
total of N copies is N times the source's. The target is written event by event: its memory is that
of the source. Names repeat, so what keeps each name once has an easier life than with a real trace
of that length.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

Event = dict[str, Any]
#: Between two copies, µs.
GAP = 1000
STEP = re.compile(r"ProfilerStep#(\d+)")
#: Ids of operators, launches and flows: they refer to each other, so all move alike.
LINKS = ("External id", "external id", "correlation")
CALLS = ("Python id", "Python parent id")
#: Marks of the profiler's own window.
WINDOW = ("Iteration Start: PyTorch Profiler", "Record Window End")


def read(source: Path) -> dict[str, Any]:
    """The whole trace."""
    opener = gzip.open if source.suffix == ".gz" else Path.open
    with opener(source, "rt", encoding="utf-8") as file:
        document: dict[str, Any] = json.load(file)
    return document


def write(source: Path, copies: int, target: Path, rank: int | None = None) -> int:
    """Write ``copies`` of ``source`` to ``target`` as the trace of ``rank``; return the events.

    Raises:
        ValueError: a time of it has a fraction of a µs, which would not stay exact.
    """
    document = read(source)
    once, repeated = divide(document.pop("traceEvents"))
    if rank is not None:
        own = document.get("distributedInfo") or {}
        document["distributedInfo"] = {**own, "rank": rank}
    document.pop("traceName", None)
    partial = target.with_name(f".{target.name}")
    opener = gzip.open if target.suffix == ".gz" else Path.open
    with opener(partial, "wt", encoding="utf-8") as file:
        file.write(_head(document))
        written = _write_events(file, once, repeated, copies)
        file.write(f'\n], "traceName": {json.dumps(target.name)}}}\n')
    partial.replace(target)
    return written


def copy_as(rank: int, path: Path, target: Path) -> None:
    """Write the trace that :func:`write` made, uncompressed, as that of another rank."""
    with path.open("rb") as source, target.open("wb") as file:
        head = json.loads(source.readline().rpartition(b', "traceEvents"')[0] + b"}")
        head["distributedInfo"] = {**(head.get("distributedInfo") or {}), "rank": rank}
        file.write(_head(head).encode())
        shutil.copyfileobj(source, file, 1 << 20)


def _head(document: dict[str, Any]) -> str:
    return json.dumps(document)[:-1] + ', "traceEvents": [\n'


def divide(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Events that are in the whole once, and those that each copy has."""
    once, repeated = [], []
    for event in events:
        described = event.get("ph") == "M" or event.get("cat") == "Trace"
        (once if described or event.get("name") in WINDOW else repeated).append(event)
    return once, repeated


def _write_events(file: TextIO, once: list[Event], repeated: list[Event], copies: int) -> int:
    shift = _Shift(repeated)
    separator = ""
    for copy in range(copies):
        if copy:
            shift.move(repeated)
        for event in repeated:
            file.write(separator + json.dumps(event))
            separator = ",\n"
    added = shift.time * (copies - 1)
    for event in once:
        if event.get("cat") == "Trace":
            event["dur"] += added
        elif event.get("name") == "Record Window End":
            event["ts"] += added
        file.write(separator + json.dumps(event))
        separator = ",\n"
    return copies * len(repeated) + len(once)


class _Shift:
    """How far each time and each id of a copy is from the same one of the copy before it."""

    def __init__(self, events: list[Event]) -> None:
        if not all(isinstance(e[k], int) for e in events for k in ("ts", "dur") if k in e):
            raise ValueError("a time is no whole number of µs: take a trace of an older torch")
        ends = [e["ts"] + e.get("dur", 0) for e in events]
        self.time = max(ends) - min(e["ts"] for e in events) + GAP
        links = [*_values(events, LINKS), *(e["id"] for e in events if "id" in e)]
        self.links = max(links, default=0) + 1
        self.calls = max(_values(events, CALLS), default=0) + 1
        self.indices = max(_values(events, ("Ev Idx",)), default=0) + 1
        self.sequence = max(_values(events, ("Sequence number",)), default=0) + 1
        steps = [int(m[1]) for e in events if (m := STEP.fullmatch(e["name"]))]
        self.steps = max(steps) - min(steps) + 1 if steps else 0
        self._of = {
            **dict.fromkeys(LINKS, self.links),
            **dict.fromkeys(CALLS, self.calls),
            "Ev Idx": self.indices,
            "Sequence number": self.sequence,
        }

    def move(self, events: list[Event]) -> None:
        """Make of one copy the next, in place."""
        for event in events:
            event["ts"] += self.time
            if "id" in event:
                event["id"] += self.links
            if step := STEP.fullmatch(event["name"]):
                event["name"] = f"ProfilerStep#{int(step[1]) + self.steps}"
            arguments = event.get("args", {})
            for name in self._of.keys() & arguments.keys():
                if _identifies(name, arguments[name]):
                    arguments[name] += self._of[name]


def _values(events: list[Event], names: tuple[str, ...]) -> Iterator[int]:
    for event in events:
        arguments = event.get("args", {})
        for name in names:
            if name in arguments and _identifies(name, arguments[name]):
                yield arguments[name]


def _identifies(name: str, value: object) -> bool:
    """Whether it is an id: a launch's 0 means that there is none, and so does what is negative."""
    return isinstance(value, int) and value >= (name in LINKS)


def check(source: Path, copies: int, folder: Path) -> None:
    """Assert that one copy is the source, and several are it several times, none with another's id.

    Args:
        source: the trace.
        copies: how many to lay end to end, at least 2.
        folder: where to write them for the while.
    """
    whole = read(source)
    once, repeated = divide(whole["traceEvents"])
    alone, several = folder / "alone.json", folder / "several.json"
    try:
        assert write(source, 1, alone) == len(whole["traceEvents"])
        trace = read(alone)
        assert trace["traceEvents"] == repeated + once
        for name in whole.keys() - {"traceEvents", "traceName"}:
            assert trace[name] == whole[name], name

        assert write(source, copies, several) == copies * len(repeated) + len(once)
        events = divide(read(several)["traceEvents"])[1]
    finally:
        alone.unlink(missing_ok=True)
        several.unlink(missing_ok=True)
    parts = [events[i : i + len(repeated)] for i in range(0, len(events), len(repeated))]
    assert len(parts) == copies

    def calls(part: list[Event]) -> Counter[tuple[Any, ...]]:
        return Counter(
            (e["ph"], e.get("cat"), STEP.sub("step", e["name"]), e.get("dur")) for e in part
        )

    assert all(calls(part) == calls(repeated) for part in parts)
    begins = [min(e["ts"] for e in part) for part in parts]
    ends = [max(e["ts"] + e.get("dur", 0) for e in part) for part in parts]
    assert all(begin == end + GAP for begin, end in zip(begins[1:], ends[:-1], strict=True))
    for names in (LINKS, CALLS, ("Ev Idx",), ("Sequence number",)):
        _assert_apart([set(_values(part, names)) for part in parts], names)
    _assert_apart([{e["id"] for e in part if "id" in e} for part in parts], ("id",))
    steps = [
        sorted({int(m[1]) for e in part if (m := STEP.fullmatch(e["name"]))}) for part in parts
    ]
    if steps[0]:
        assert all(later[0] == earlier[-1] + 1 for earlier, later in itertools.pairwise(steps))


def _assert_apart(found: list[set[int]], what: tuple[str, ...]) -> None:
    assert len(set().union(*found)) == sum(map(len, found)), f"{what} of two copies are the same"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("copies", type=int)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--check", action="store_true", help="of what this would write")
    asked = parser.parse_args()
    if asked.copies < 1 + asked.check:
        parser.error(f"COPIES is {asked.copies}: give 1 or more, 2 or more to check")
    if asked.check:
        check(asked.source, asked.copies, Path.cwd())
        print(f"{asked.source}: {asked.copies} copies are it {asked.copies} times")
    elif asked.target is None:
        parser.error("TARGET is missing: where to write the long trace")
    else:
        events = write(asked.source, asked.copies, asked.target, asked.rank)
        print(f"{asked.target}: {events} events, {asked.target.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
