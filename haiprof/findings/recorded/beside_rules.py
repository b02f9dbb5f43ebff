"""What the training thread does besides training, in a phase or between two of them.

The loss is in forward, which lasts until backward begins. So what is between the phases is no part
of a step that has to be: copies of weights, averages, metrics, inputs that are changed in the loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import polars as pl

from haiprof.findings.finding import LEAST, Evidence, Finding
from haiprof.findings.recorded.case import Case, Rank
from haiprof.findings.recorded.doing import PIPED, PROGRAM, PYTHON_CODE, READING, SLEEPING, THREAD
from haiprof.findings.recorded.hot import (
    Hot,
    between_phases,
    branches,
    frameworks,
    function_of,
    tensor_work,
)
from haiprof.views.run.ledger import WORK

#: Most of what a function's samples do decides what it is called.
_MOSTLY: Final = 0.5
#: Some tensor operations between the phases are in every loop, and some of each framework's work:
#: this share of the steps is worth a finding.
_MUCH_OF_STEPS: Final = 0.10
SAVE_LATER: Final = (
    "save in the background (torch.distributed.checkpoint.async_save), or less often"
)
#: A function that writes: a part of its samples without the GIL, and bytes a second.
_WRITTEN: Final = "io.syscall_write.bytes_per_s"
_NATIVE: Final = 0.2
_MUCH: Final = 100_000
#: … or samples in which it waits until what it wrote is on the disk: so many, and this share of
#: those in which it waits for the disk.
_FEWEST_SYNCED: Final = 3
_SYNCED: Final = 0.05
#: The line in the text of a frame.
_NUMBER: Final = r":\d+\)"
_LINE_NUMBER: Final = re.compile(_NUMBER)
#: A function saves checkpoints if it has this share of its samples where torch saves.
_SAVES: Final = 0.25
_WHAT: Final = {
    SLEEPING: "sleeps",
    PYTHON_CODE: "runs Python code",
    "library": "runs a library's code",
    "reading": "reads or writes files",
    PIPED: "waits for a pipe or a socket",
    PROGRAM: "waits for a program that it started",
    THREAD: "waits for another thread",
}
_LESS: Final = "do it in the DataLoader's workers, less often, or with tensor operations"
_INSTEAD: Final = {
    PIPED: "send and receive in another thread, less often, or more at once",
    PROGRAM: "start that program less often, or do not wait for it",
    THREAD: "give that thread less to do, or share it among processes "
    "(of data: DataLoader(num_workers=…))",
}


def beside_training(case: Case, rank: Rank) -> Iterator[Finding]:
    """Name the functions in which the training thread does something else than training."""
    mine = rank.lines.filter(~pl.col("worker"))
    between, every = between_phases(mine), rank.samples_in_steps
    if not (_has_phases(rank) and _on_the_host(case, rank)):
        between = between.clear()
    said = [pl.lit(value=False)]
    for hot in tensor_work(between, every):
        if finding := _between(rank, hot, "tensor_work"):
            said.append(pl.col("branch") == hot.function)
            yield finding
    for hot in frameworks(between, every):
        if finding := _between(rank, hot, "framework"):
            said.append(pl.col("framework") == hot.function)
            yield finding
    steps = mine.filter(pl.col("cause").is_in([*WORK, "cpu_queue"]))
    rows = between.filter(pl.any_horizontal(said))
    yield from _away(rank, steps.join(rows, on=steps.columns, how="anti", nulls_equal=True))


def _has_phases(rank: Rank) -> bool:
    """Whether all of training is in phases: a loop may update its weights by hand."""
    return bool(rank.ledger.of("backward").any() and rank.ledger.of("optimizer").any())


def _on_the_host(case: Case, rank: Rank) -> bool:
    """Whether the thread itself computes: in a job with a GPU it may wait in any operation."""
    pinned = any(each.get("pin_memory") for each in rank.facts.get("loader", ()))
    beside = any(device.node == rank.process.node for device in case.devices)
    return not (pinned or beside or rank.device_memory.height)


def _between(rank: Rank, hot: Hot, kind: str) -> Finding | None:
    """Return the finding on work between the phases, if it takes long enough."""
    lost = rank.spent(hot.by_cause)
    if not hot.counts or hot.share < _MUCH_OF_STEPS or lost < LEAST * rank.ledger.stepped:
        return None
    of_job = kind == "tensor_work"
    called = "" if hot.within else f", called from {hot.function}"
    return Finding(
        kind=kind,
        problem=f"The training thread computes with tensors between the phases, in {hot.line}"
        + called
        if of_job
        else f"{hot.function} itself works between the phases, most of it in {hot.line}",
        advice="do it every so many steps only, without copies of all weights, or for all tensors "
        "at once (torch._foreach_lerp_, torch.stack)"
        if of_job
        else "use fewer callbacks, log fewer values and less often, or give each step more to do "
        "(larger batches)",
        ranks=rank.numbers,
        lost_ns=lost,
        low_ns=int(lost * hot.low / hot.share),
        high_ns=int(lost * hot.high / hot.share),
        share=lost / rank.ledger.stepped,
        confidence=0.85,
        phase=hot.cause,
        line=hot.line if of_job else None,
        evidence=(
            rank.of("other"),
            Evidence("stacks", f"samples: {hot.doing}", hot.samples, "samples", hot.of),
        ),
        command="haiprof stacks --flame",
    )


def _away(rank: Rank, steps: pl.DataFrame) -> Iterator[Finding]:
    """Name the functions in which it does something else than to compute with tensors."""
    for hot in branches(steps, rank.samples_in_steps):
        if not hot.counts:
            continue
        of_line = steps.filter(pl.col("line") == hot.line, pl.col("doing") == hot.doing)
        seldom = int(of_line.filter(pl.col("slow"))["samples"].sum())
        writes = hot.native >= _NATIVE and hot.cause == "other" and _writes(rank)
        synced = hot.doing == READING and _synced(steps, hot)
        logs = hot.logs >= _MOSTLY or synced or (writes and hot.doing != SLEEPING)
        where = "between the phases" if hot.cause == "other" else f"in {hot.cause}"
        # What it does before and after torch writes is a part of the checkpoint.
        saving = _saving(rank, hot)
        lost = rank.spent(hot.by_cause) + saving
        if lost < LEAST * rank.ledger.stepped:
            continue
        yield Finding(
            kind="blocking_checkpoint" if saving else "logging" if logs else "host_code",
            problem=f"Training waits while checkpoints are saved, in {hot.line}"
            if saving
            else f"The training thread {_what(hot, synced)} {where}, in {hot.line}"
            + ("" if hot.within else f", called from {hot.function}")
            + _meanwhile(of_line),
            advice=SAVE_LATER
            if saving
            else "write logs less often, or from another thread"
            if logs
            else _INSTEAD.get(hot.doing, _LESS),
            ranks=rank.numbers,
            lost_ns=lost,
            low_ns=int(lost * hot.low / hot.share),
            high_ns=int(lost * hot.high / hot.share),
            share=lost / rank.ledger.stepped,
            confidence=0.9,
            phase=hot.cause,
            line=hot.line,
            evidence=(
                Evidence("stacks", f"samples: {hot.doing}", hot.samples, "samples", hot.of),
                Evidence("stacks", "of them in slow steps", seldom, "samples", hot.samples),
            ),
            command="haiprof stacks --flame",
        )


def _what(hot: Hot, synced: bool) -> str:
    return "writes files" if synced else _WHAT.get(hot.doing, "works")


def _synced(lines: pl.DataFrame, hot: Hot) -> bool:
    """Whether a function waits for the disk because it writes: few samples show in which call."""
    same = function_of("line") == _LINE_NUMBER.sub(")", hot.line)
    waits = lines.filter(same, pl.col("doing") == READING)
    synced = int(waits.filter("logs")["samples"].sum())
    return synced >= _FEWEST_SYNCED and synced >= _SYNCED * int(waits["samples"].sum())


def _meanwhile(lines: pl.DataFrame) -> str:
    """Return where the thread is that a function waits for, as far as it is always the same."""
    waits = lines.filter(pl.col("doing") == THREAD)
    lines_beside = waits.group_by("beside").agg(pl.col("samples").sum()).sort("samples")
    if not waits.height or lines_beside["samples"][-1] < _MOSTLY * int(waits["samples"].sum()):
        return ""
    line = lines_beside["beside"][-1]
    return "" if line is None else f", which is in {line}"


def _saving(rank: Rank, hot: Hot) -> int:
    """Return how long torch saves checkpoints in a function, ns; 0: it does not save any."""
    saves = rank.lines.filter(
        ~pl.col("worker"), pl.col("cause") == "save", _passes(hot.function)
    )  # fmt: skip
    count = int(saves["samples"].sum())
    return rank.spent({"save": count}) if count >= _SAVES * hot.samples else 0


def _passes(function: str) -> pl.Expr:
    """Whether a path passes through a function, or through one of its lines."""
    without_lines = pl.col("path").fill_null("").str.replace_all(_NUMBER, ")")
    return without_lines.str.contains(re.sub(_NUMBER, ")", function), literal=True)


def _writes(rank: Rank) -> bool:
    """Whether the process writes as much as a log that costs time."""
    written = rank.stat(_WRITTEN)
    return written is not None and written.mean >= _MUCH
