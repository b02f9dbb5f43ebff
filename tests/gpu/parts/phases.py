"""Forward, backward and optimizer on the GPU: haiprof's spans against events and waits by hand.

The same loop runs in turns: timed by haiprof, by events of its own, with a wait at each boundary.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from gpu.estimates import Estimate, added
from gpu.part import Part, main, scratch

from gpu import jobs, modes, recorded

PHASES = ("forward", "backward", "optimizer")
STEPS = 8
LIMIT = 2.0
Times = dict[str, list[float]]


def measure(part: Part) -> None:
    part.needs_gpu()
    for at, model in enumerate(part.options):
        part.piece(model, one, part, model, part.left() / (len(part.options) - at))


def one(part: Part, model: str, seconds: float) -> None:
    going = part.spend(0.7 * seconds)
    blocks: list[tuple[int, int]] = []
    events: list[Times] = []
    waits: list[Times] = []
    with scratch() as folder:
        with modes.Haiprof(Path(folder), part.device) as haiprof:
            machine = haiprof.machine
            training = jobs.training(model, machine)
            training.steps(10)
            machine.wait()
            haiprof.on("all")
            kernels = kernels_of_phases(training)
            haiprof.off()
            while going() or len(blocks) < 2:
                haiprof.on("all")
                training.steps(2)
                machine.wait()
                begin = time.time_ns()
                training.steps(STEPS)
                machine.wait()
                blocks.append((begin, time.time_ns()))
                training.steps(3)  # a span is reported some steps after its end
                machine.wait()
                haiprof.off()
                events.append(by_hand(training, waiting=False))
                waits.append(by_hand(training, waiting=True))
        if not recorded.closed(Path(folder), 20):
            raise RuntimeError("haiprof's recorder has not closed its files after 20 s")
        spans = [recorded.rows(Path(folder), "device_spans", *block) for block in blocks]
        rows = [recorded.rows(Path(folder), "kernels", *block) for block in blocks]
    if not any(spans):
        raise RuntimeError("there is no row in device_spans")
    tell(part, model, [durations(found) for found in spans], events, waits)
    tell_places(part, model, kernels, rows, spans)


def by_hand(training: jobs.Training, waiting: bool) -> Times:
    """Seconds of each phase of ``STEPS`` steps, by events or by the host's clock and waits."""
    machine = training.machine

    def mark() -> Any:
        if not waiting:
            return machine.marker()
        machine.wait()
        return time.perf_counter()

    training.steps(2)
    machine.wait()
    marks = []
    for _ in range(STEPS):
        first = mark()
        loss = training.forward()
        second = mark()
        loss.backward()
        third = mark()
        training.optimizer.step()
        marks.append((first, second, third, mark()))
        training.optimizer.zero_grad()
    machine.wait()
    between = (lambda a, b: float(b - a)) if waiting else machine.between
    return {
        phase: [between(step[at], step[at + 1]) for step in marks]
        for at, phase in enumerate(PHASES)
    }


def kernels_of_phases(training: jobs.Training) -> tuple[int, ...]:
    """How many kernels each phase of a step launches."""
    found = []
    loss: list[Any] = []
    for run in (
        lambda: loss.append(training.forward()),
        lambda: loss[0].backward(),
        training.optimizer.step,
    ):
        before = modes.counts()["kernels"]
        run()
        training.machine.wait()
        found.append(modes.counts()["kernels"] - before)
    training.optimizer.zero_grad()
    return tuple(found)


def durations(spans: list[dict[str, Any]]) -> Times:
    """Seconds of each phase, in order."""
    found: Times = defaultdict(list)
    for span in sorted(spans, key=lambda span: span["start"]):
        if span["name"] in PHASES:
            found[span["name"]].append(span["duration"] / 1e9)
    return found


def apart(ours: list[Times], theirs: list[Times], phase: str) -> Estimate:
    """By how many percent a phase's mean differs from block to block of the same round."""
    pairs = [
        (sum(a[phase]) / len(a[phase]), sum(b[phase]) / len(b[phase]))
        for a, b in zip(ours, theirs, strict=True)
        if a.get(phase) and b.get(phase)
    ]
    return added([a for a, _ in pairs], [b for _, b in pairs])


def within(found: Estimate, limit: float) -> bool | None:
    """Whether the whole interval lies within so much of zero; None when only a part does."""
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    if -limit <= low and high <= limit:
        return True
    return False if low > limit or high < -limit else None


def tell(
    part: Part, model: str, spans: list[Times], events: list[Times], waits: list[Times]
) -> None:
    for phase in PHASES:
        seen = sum(len(found.get(phase, ())) for found in spans)
        wanted = STEPS * len(spans)
        part.row(f"{model}: {phase}: steps that have a span of it", 100 * seen / wanted, "%",
                 note="short steps have some left out on purpose")  # fmt: skip
        for how, theirs in (("events by hand", events), ("waits by hand", waits)):
            what = f"{model}: {phase} against {how}"
            # With a wait before it, a phase begins with an idle GPU, and takes longer.
            part.piece(what, compare, part, what, phase, spans, theirs, theirs is events)


def compare(
    part: Part, what: str, phase: str, spans: list[Times], theirs: list[Times], judged: bool
) -> None:
    found = apart(spans, theirs, phase)
    mean = sum(theirs[-1][phase]) / len(theirs[-1][phase])
    part.row(what, found, "%", target=f"within {LIMIT:g}" if judged else "",
             met=within(found, LIMIT) if judged else None,
             note=f"{mean * 1e3:.3f} ms by hand")  # fmt: skip


def tell_places(
    part: Part, model: str, kernels: tuple[int, ...], rows: list[list[dict[str, Any]]],
    spans: list[list[dict[str, Any]]],
) -> None:  # fmt: skip
    inside: dict[str, int] = defaultdict(int)
    seen: dict[str, int] = defaultdict(int)
    for block_rows, block_spans in zip(rows, spans, strict=True):
        for phase, within_it, count in places(kernels, block_rows, block_spans):
            inside[phase] += within_it
            seen[phase] += count
    if not seen:
        raise RuntimeError(
            f"no block has the {sum(kernels)} kernels a step that the phases launch one by one"
        )
    for phase in PHASES:
        share = 100 * inside[phase] / max(seen[phase], 1)
        part.row(f"{model}: kernels of {phase} that start in its span", share, "%",
                 target=">= 99.9", met=share >= 99.9, note=f"of {seen[phase]}")  # fmt: skip


def places(
    kernels: tuple[int, ...], rows: list[dict[str, Any]], spans: list[dict[str, Any]]
) -> list[tuple[str, int, int]]:
    """Of each phase of each step: its name, how many of its kernels start in its span, how many.

    A span's own uncertainty is allowed for. Kernels are given to phases by their number and order;
    empty when the block has another number.
    """
    ordered = sorted((r for r in rows if r["kind"] == "kernel"), key=lambda row: row["start"])
    a_step = sum(kernels)
    named: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span["start"]):
        named[span["name"]].append(span)
    if not a_step or len(ordered) != a_step * STEPS:
        return []
    if any(len(named[phase]) != STEPS for phase in PHASES):
        return []
    found = []
    at = 0
    for step in range(STEPS):
        for phase, count in zip(PHASES, kernels, strict=True):
            span = named[phase][step]
            end = span["start"] + span["duration"]
            off = span.get("uncertainty") or 0
            its = [kernel["start"] for kernel in ordered[at : at + count]]
            inside = sum(span["start"] - off <= start <= end + off for start in its)
            found.append((phase, inside, count))
            at += count
    return found


if __name__ == "__main__":
    main(measure)
