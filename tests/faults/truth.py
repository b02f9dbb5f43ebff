"""What is true of a run, from what the program measured of itself."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.cases import Case

FORMAT = "haiprof-planted"
VERSION = "1.0"
#: Parts of a step that follow each other; others lie inside them.
PARTS = ("fetch", "forward", "backward", "optimizer", "between")
#: Index of: the clock, time on a core, time ready to run with no core free.
CLOCK, ON_CORE, READY = 0, 1, 2
Line = dict[str, Any]
#: The lines of each rank, those of its steps only.
Steps = list[list[Line]]


def read_notes(folder: Path, world: int) -> list[list[Line]]:
    """Return the lines of each rank; of a line that was cut short, nothing."""
    ranks = []
    for rank in range(world):
        path = folder / f"notes-{rank}.jsonl"
        lines: list[Line] = []
        for text in path.read_text("utf-8").splitlines() if path.exists() else ():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
        ranks.append(lines)
    return ranks


def part(line: Line, name: str, which: int = CLOCK) -> int:
    """Return what a part of a step took."""
    return int(line.get(name, (0, 0, 0))[which])


def whole(line: Line, which: int = CLOCK) -> int:
    """Return what a step took."""
    return sum(part(line, name, which) for name in PARTS)


def blocked(line: Line, names: tuple[str, ...] = PARTS) -> int:
    """Return how long a step's thread neither ran nor could have."""
    return sum(
        part(line, n) - part(line, n, ON_CORE) - part(line, n, READY) for n in names
    )  # fmt: skip


#: Low and high, ns: they differ by the time for which there was no core.
Lost = tuple[float, float]


def summed(name: str) -> Callable[[Case, Steps, Steps], Lost]:
    """Measure by what a part took, of the rank that it took longest."""

    def measure(case: Case, steps: Steps, starts: Steps) -> Lost:
        sums = [
            (
                sum(part(one, name) - part(one, name, READY) for one in lines),
                sum(part(one, name) for one in lines),
            )
            for lines in steps
        ]
        return max(sums, key=lambda both: both[1])

    return measure


def at_start(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by what the program did before its first step."""
    return summed("tasks")(case, starts, starts)


def fetched(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by what the loop waited for its loader, but for the start of its workers."""
    late = [lines[1:] for lines in steps]
    return summed("fetch")(case, late, starts)


def compiled(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by what was compiled after the first step, in which it is expected."""
    lines = [line for line in steps[0][1:] if part(line, "compiled")]
    clock = sum(part(line, "compiled") for line in lines)
    # It is measured by the clock; how much of that was on a core is known of the forward pass.
    core, around = (
        sum(part(line, "forward", which) for line in lines) for which in (ON_CORE, CLOCK)
    )
    return clock * core / max(around, 1), clock


def over_ranks(case: Case, steps: Steps, names: tuple[str, ...], which: int) -> float:
    """Return by how much the ranks' slowest takes longer than their mean, over the steps."""
    total = 0.0
    for lines in zip(*steps, strict=False):
        took = [sum(part(line, name, which) for name in names) for line in lines]
        total += max(took) - statistics.fmean(took)
    return total


def spread(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by how unevenly the work of each step is spread over the ranks."""
    on_core = over_ranks(case, steps, PARTS, ON_CORE)
    # Where cores are shared with other programs, each second of work takes longer by the clock.
    worked = [
        (sum(whole(line, ON_CORE) for line in lines), sum(whole(line, READY) for line in lines))
        for lines in steps
    ]
    return on_core, on_core * max(1 + ready / max(core, 1) for core, ready in worked)


def waiting_thread(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by how much more the thread waited, for a core or for others, than before."""
    before, after = steps[0][2 : case.since], steps[0][case.since :]
    waits: list[Callable[[Line], int]] = [blocked, lambda line: whole(line, READY)]
    lost, ready = (
        sum(map(wait, after)) - len(after) * statistics.median(map(wait, before)) for wait in waits
    )
    return lost, lost + max(0.0, ready)


def queued(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by how long a rank was ready to run and had no core."""
    waits = [sum(whole(line, READY) for line in lines) for lines in steps]
    return min(waits), max(waits)


def off_core(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by how long a rank that only computes was not on a core."""
    waits = [sum(whole(line) - whole(line, ON_CORE) for line in lines) for lines in steps]
    return min(waits), max(waits)


def excess(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by how much longer steps take than before it began."""
    lines = steps[0]
    before = [whole(line) for line in lines[2 : case.since]]
    after = [whole(line) for line in lines[case.since + 1 :]]
    low, _, high = statistics.quantiles(before, n=4)
    return sum(after) - high * len(after), sum(after) - low * len(after)


def in_kernel(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by the time in the kernel of the thread of the steps."""
    spent = sum(float(line["kernel_ns"]) for line in steps[0])
    return spent, spent


def longest(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by how much longer single steps take than most."""
    lines = steps[0][1:]
    lost = []
    for took in ([whole(line) - part(line, "fetch") for line in lines], list(map(whole, lines))):
        usual = statistics.median(took)
        lost.append(sum(one - usual for one in took if one > 1.5 * usual))
    return min(lost), max(lost)


def exchanged(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by the exchanges of the loop's own, without waiting for who comes later."""
    pairs = [[part(line, "exchange") for line in lines] for lines in zip(*steps, strict=False)]
    least = float(sum(min(pair) for pair in pairs))
    ready = [
        [part(line, "exchange", READY) for line in lines] for lines in zip(*steps, strict=False)
    ]
    return least - sum(min(pair) for pair in ready), least


def synchronized(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by how long backward passes were blocked, without waiting for who comes later."""
    total = ready = 0.0
    for lines in zip(*steps, strict=False):
        total += min(blocked(line, ("forward", "backward", "optimizer")) for line in lines)
        ready += min(part(line, "backward", READY) for line in lines)
    return total, total + ready


def bubble(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by what a schedule of so few microbatches must leave idle."""
    stages, pieces = case.world, int(case.job["microbatches"])
    took = sum(whole(line) for line in steps[0])
    share = (stages - 1) / (pieces + stages - 1)
    return (took - sum(whole(line, READY) for line in steps[0])) * share, took * share


def left_out(case: Case, steps: Steps, starts: Steps) -> Lost:
    """Measure by the steps whose update was left out."""
    lines = [line for line in steps[0] if "left_out" in line]
    clock = sum(whole(line) for line in lines)
    return clock - sum(whole(line, READY) for line in lines), clock


MEASURES: dict[str, Callable[[Case, Steps, Steps], Lost]] = {
    "tasks": summed("tasks"),
    "pauses": summed("pauses"),
    "kernel": in_kernel,
    "between": summed("between"),
    "evaluated": summed("evaluated"),
    "compiled": compiled,
    "start": at_start,
    "fetch": fetched,
    "spread": spread,
    "blocked": waiting_thread,
    "queue": queued,
    "off_core": off_core,
    "excess": excess,
    "longest": longest,
    "exchanged": exchanged,
    "synchronized": synchronized,
    "bubble": bubble,
    "left_out": left_out,
}


def truth(case: Case, folder: Path, outside: dict[str, float], code: int) -> dict[str, Any]:
    """Return what is true of a run, for ``truth.json``; times are ns.

    ``ready_ns`` and ``time_ns`` are of the steps of the rank that waited longest for a core: where
    the machine is shared with others, that is a loss, too, and not the planted one. So is
    ``blocked_share``: for how much of the time all ranks waited for an exchange, as they do where
    even a network within one machine is not hidden.
    """
    notes = read_notes(folder, case.world)
    steps = [[line for line in lines if line.get("step", -1) >= 0] for lines in notes]
    starts = [[line for line in lines if line.get("step") == -1] for lines in notes]
    lost: Lost | None = None
    if case.measure == "stopped":
        lost = (outside["stopped_ns"],) * 2 if "stopped_ns" in outside else None
    elif case.measure and all(steps):
        lost = MEASURES[case.measure](case, steps, starts)
        if "throttled_ns" in outside:
            # Of the time off a core, no more than the limit took; it took some before the steps.
            lost = (min(lost[1], outside["throttled_ns"]),) * 2
    since = case.since if len(steps[0]) > case.since else 0
    times = [sum(whole(line) for line in lines) for lines in steps]
    return {
        "format": FORMAT,
        "version": VERSION,
        "label": case.label,
        "kind": case.kind,
        "also": list(case.also),
        "seed": case.seed,
        "style": case.style,
        "world": case.world,
        "ranks": list(case.ranks),
        "places": list(case.places),
        "measure": case.measure,
        "lost_low_ns": None if lost is None else int(min(lost)),
        "lost_high_ns": None if lost is None else int(max(lost)),
        "since": steps[0][since]["at"] - whole(steps[0][since]) if steps[0] else None,
        "since_step": since,
        "steps": min(map(len, steps)),
        "time_ns": max(times),
        "ready_ns": max(sum(whole(line, READY) for line in lines) for lines in steps),
        "fetch_share": _share(steps, "fetch"),
        "blocked_share": _blocked_share(steps),
        "outside": outside,
        "exit_code": code,
        "job": case.job,
        "conditions": list(case.conditions),
    }


def read(folder: Path) -> dict[str, Any]:
    """Return what is true of a recorded run, measured again from what the program wrote."""
    known: dict[str, Any] = json.loads((folder / "truth.json").read_text("utf-8"))
    names = {field.name for field in dataclasses.fields(Case)}
    case = Case(**{name: value for name, value in known.items() if name in names})
    return known | truth(case, folder / "work", known["outside"], known["exit_code"])


def _share(steps: Steps, name: str) -> float:
    """Return which share of the time, after the first steps, a part took at most on a rank."""
    shares = [0.0]
    for lines in steps:
        whole_ns = sum(whole(line, ON_CORE) for line in lines[2:])
        if whole_ns:
            shares.append(sum(part(line, name, ON_CORE) for line in lines[2:]) / whole_ns)
    return round(max(shares), 4)


def _blocked_share(steps: Steps) -> float:
    """Return for which share of the time of several ranks, but of the first steps, all waited."""
    if len(steps) == 1:
        return 0.0
    late = [lines[2:] for lines in steps]
    waited = sum(min(map(blocked, lines)) for lines in zip(*late, strict=False))
    return round(waited / max(1, *(sum(map(whole, lines)) for lines in late)), 4)
