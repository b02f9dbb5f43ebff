"""Sentences on GPUs: how many steps have kernels, what that cost, what would show more.

For a job without GPUs there are none.

Tests: tests/show/test_gpu.py.
"""

from __future__ import annotations

from haiprof.views.run import overhead
from haiprof.views.run.gpu_use import Use, added
from haiprof.views.run.overview import Summary

NO_KERNELS = (
    "Kernels were not recorded: --kernels windows records those of some steps each minute, "
    "which shows how busy the GPU is and why not"
)
NO_WHOLE_STEP = (
    "Kernels were recorded, but in no whole step, so how busy the GPU was is not known: "
    "--kernels windows records whole steps"
)
#: The same if the job was asked to record them: then something prevented it.
REFUSED = (
    "Kernels were not recorded, although --kernels {kernels} asks for them: events of kind hook or "
    "handover say what was in the way, and 'haiprof doctor' what can be recorded here"
)
REFUSED_WHOLE_STEP = (
    "Kernels were recorded, but in no whole step, so how busy the GPU was is not known, although "
    "--kernels {kernels} asks for whole steps: events of kind hook or handover say what was in the "
    "way, and 'haiprof doctor' what can be recorded here"
)
GRAPHS = (
    "Kernels were not recorded{where} once CUDA graphs were replayed, because recording each "
    "kernel of a graph can slow it down, so how busy the GPU was is not known: --graphs kernels "
    "records them"
)
NO_PHASES = (
    "Kernels are not divided into phases, because no device phases were recorded: "
    "'haiprof doctor' says what can be collected here"
)


def lines(ranks: list[Summary], kernels: str) -> list[str]:
    """Return a few lines on the GPUs of these ranks; none if they used none.

    Args:
        ranks: summaries of the rank processes.
        kernels: which kernels the run was asked to record; empty if unknown.
    """
    on_gpu = [s for s in ranks if _uses_gpu(s)]
    if not on_gpu:
        return []
    uses = [s.gpu for s in on_gpu if s.gpu is not None]
    use = added(uses)
    measured = measured_overhead(on_gpu)
    graphs = _graphs(use, len(uses))
    if graphs and not use.recorded:
        return [graphs]
    if not use.recorded:
        asked = kernels not in ("", "off")
        if use.intervals:
            line = REFUSED_WHOLE_STEP if asked else NO_WHOLE_STEP
        else:
            line = REFUSED if asked else NO_KERNELS
        return [line.format(kernels=kernels), *([_sentence(measured)] if measured else [])]
    most, fewest = (f(u.recorded for u in uses) for f in (max, min))
    counted = f"{most} steps" if fewest == most else f"{fewest} to {most} steps"
    line = f"Kernels recorded in {'1 step' if fewest == most == 1 else counted}"
    if len(uses) > 1:
        line += f" of each of {len(uses)} processes"
    sentences = [line + (f"; {measured}" if measured else ""), *([graphs] if graphs else [])]
    return sentences if use.phase_ns else [*sentences, NO_PHASES]


def _graphs(use: Use, processes: int) -> str:
    """Say in how many processes kernels of graphs were not recorded; empty if in none."""
    if not use.ended_by_graphs:
        return ""
    some = use.ended_by_graphs < processes
    return GRAPHS.format(
        where=f" in {use.ended_by_graphs} of {processes} processes" if some else ""
    )


def measured_overhead(ranks: list[Summary]) -> str:
    """Describe the measured overhead: of several processes, the greatest."""
    rows = [(s, s.overhead) for s in ranks if s.overhead is not None]
    if not rows:
        return ""
    known = [(s, row) for s, row in rows if row["overhead"] is not None]
    if not known:
        return overhead.in_words(rows[0][1])
    summary, row = max(known, key=lambda pair: float(pair[1]["overhead"]))
    most = f", the most of {len(rows)} processes: {summary.process.label}" if len(rows) > 1 else ""
    return overhead.in_words(row) + most


def _uses_gpu(summary: Summary) -> bool:
    return (
        summary.gpu is not None
        or bool(summary.process.gpus)
        or any(metric.startswith("torch.") for metric in summary.stats)
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
