"""Runs HolisticTraceAnalysis on a folder of traces: loads it and makes seven of its analyses.

Those are the ones that work on any trace. Left out are those that need something named by hand
(sequences, critical path), hardware counters, or many ranks (stragglers).
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from hta.trace_analysis import TraceAnalysis
from measured import Measured


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", action="store_true", help="show the temporal breakdown")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    spans = _spans(asked.folder)

    measured = Measured()
    made = []
    for files in spans:
        analysis = TraceAnalysis(trace_files=files)
        made.append(analysis.get_temporal_breakdown(visualize=False))
        if len(made) == 1:
            measured.opened()
        measured.view("temporal", len(made[-1]))
        _make_views(analysis, sorted(files), measured)
    measured.done()
    if asked.tables:
        for number, table in enumerate(made):
            measured.show(f"temporal {number}", table.to_dict("records"))
    measured.report(asked.report)


def _spans(folder: Path) -> list[dict[int, str]]:
    """The files of each profiling span by rank: HTA knows one file of a rank."""
    spans: list[dict[int, str]] = []
    workers: dict[str, int] = {}
    for file in sorted(folder.glob("*.json*")):
        worker = file.name.partition(".")[0]
        number = workers[worker] = workers.get(worker, -1) + 1
        if number == len(spans):
            spans.append({})
        spans[number][len(spans[number])] = str(file)
    return spans


def _make_views(analysis: Any, ranks: list[int], measured: Measured) -> None:
    idle, _ = analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    launches = analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
    for name, made in (
        ("idle", idle),
        ("kernel kinds", kinds),
        ("kernels", kernels),
        ("overlap", analysis.get_comm_comp_overlap(visualize=False)),
        *(("launches", made) for made in launches.values()),
        ("bandwidth", analysis.get_memory_bw_summary(ranks=ranks)),
        ("queue length", analysis.get_queue_length_summary(ranks=ranks)),
    ):
        measured.view(name, 0 if made is None else len(made))


if __name__ == "__main__":
    main()
