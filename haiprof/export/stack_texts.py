"""Stacks as other tools read them: folded text, and speedscope's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from haiprof.common.frame_texts import SEPARATOR
from haiprof.errors import HaiprofError

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_NS_PER_MS: Final = 1_000_000
#: Time in no phase.
_NO_PHASE: Final = "other"

#: Stack, as texts of frames with the outermost first -> weight.
Weights = Mapping[tuple[str, ...], int]


def folded(threads: Iterable[tuple[str, Weights]]) -> str:
    """Return a line for each stack of each thread: its frames, then its weight."""
    lines = [
        f"{SEPARATOR.join((name.replace(SEPARATOR, ','), *stack))} {weight}\n"
        for name, stacks in threads
        for stack, weight in stacks.items()
    ]
    return "".join(lines)


def speedscope(name: str, unit: str, threads: Iterable[tuple[str, Weights]]) -> str:
    """Return stacks as speedscope reads them: a profile for each thread.

    Args:
        name: of the whole.
        unit: of weights: ``none`` or ``milliseconds``.
        threads: the name and the stacks of each.
    """
    frames: dict[str, int] = {}
    profiles = [
        {
            "type": "sampled",
            "name": thread,
            "unit": unit,
            "startValue": 0,
            "endValue": sum(stacks.values()),
            "samples": [[frames.setdefault(f, len(frames)) for f in stack] for stack in stacks],
            "weights": list(stacks.values()),
        }
        for thread, stacks in threads
    ]
    document: dict[str, Any] = {
        "$schema": SCHEMA,
        "name": name,
        "exporter": "haiprof",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": profiles,
    }
    return json.dumps(document)


def write(
    analyzer: Analyzer,
    file: Path,
    form: str,
    rank: int | None = None,
    on_process: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write the sampled stacks of a run, in ms of wall time; the outermost frame is the phase.

    Args:
        analyzer: the run.
        file: must not be there; compressed if its name ends in ``.gz``.
        form: ``folded`` or ``speedscope``.
        rank: of this one only.
        on_process: called with each thread's name before it is written.

    Raises:
        HaiprofError: ``file`` is there or cannot be written, no stacks were sampled, or there is no
            such rank.
    """
    from haiprof.export import target

    threads = _threads(analyzer, rank, on_process)
    if not threads:
        raise HaiprofError(f"{analyzer.run.folder}: no stacks were sampled{_why(analyzer)}")
    text = folded(threads) if form == "folded" else ""
    text = text or speedscope(analyzer.run.name, "milliseconds", threads)
    with target.whole(file) as partial, target.opened(partial) as out:
        out.write(text.encode("utf-8", "replace"))
    return [file]


def _threads(
    analyzer: Analyzer, rank: int | None, on_process: Callable[[str], None] | None
) -> list[tuple[str, Weights]]:
    import polars as pl

    phase = pl.col("phase").cast(pl.String).fill_null(_NO_PHASE)
    weights = (
        analyzer.stacks(rank)
        .with_columns(phase)
        .group_by("rank", "pid", "process", "thread", "phase", "stack", maintain_order=True)
        .agg(pl.col("duration").sum() // _NS_PER_MS)
    )
    keys = ["rank", "pid", "process", "thread"]
    threads: list[tuple[str, Weights]] = []
    for key, part in weights.partition_by(keys, as_dict=True, maintain_order=True).items():
        name = _name(*map(_whole, key))
        if on_process is not None:
            on_process(name)
        stacks: dict[tuple[str, ...], int] = {}
        for in_phase, stack, ms in part.select("phase", "stack", "duration").iter_rows():
            frames = (in_phase, *stack.split(SEPARATOR))
            stacks[frames] = max(ms, 1)
        threads.append((name, stacks))
    return threads


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _name(rank: int | None, pid: int | None, process: int | None, thread: int | None) -> str:
    who = f"pid {pid}" if rank is None else f"rank {rank}"
    if process != pid:
        return f"{who}, worker {process}, thread {thread}"
    return f"{who}, main thread" if thread == pid else f"{who}, thread {thread}"


def _why(analyzer: Analyzer) -> str:
    """Return why a run has none, as far as it is known."""
    known = [p.stacks for p in analyzer.run.processes if p.stacks is not None]
    problems: Sequence[str] = sorted({stacks.problem for stacks in known if stacks.problem})
    if problems:
        return f": {problems[0]}"
    return ": stack_hz was 0" if known and not any(stacks.hz for stacks in known) else ""
