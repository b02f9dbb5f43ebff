"""Runs HolisticTraceAnalysis on a folder of traces: loads it and makes seven of its analyses.

Those are the ones that work on any trace. Left out are those that need something named by hand
(sequences, critical path), hardware counters, or many ranks (stragglers). They need a device: of
traces without one ``--operators`` shows what HTA read.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
from pathlib import Path
from typing import Any

import pandas
from hta.common.call_stack import CallGraph
from hta.trace_analysis import TraceAnalysis
from measured import Measured


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", action="store_true", help="show the temporal breakdown")
    parser.add_argument(
        "--operators", action="store_true", help="make no analyses: show steps and operators"
    )
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    spans = _spans(asked.folder)

    measured = Measured()
    if asked.operators:
        for number, files in enumerate(spans):
            _show_read(files, number, measured)
        measured.opened()
        measured.done()
        measured.report(asked.report)
        return
    tables = []
    for files in spans:
        analysis = TraceAnalysis(trace_files=files)
        tables.append(analysis.get_temporal_breakdown(visualize=False))
        if len(tables) == 1:
            measured.opened()
        measured.view("temporal", len(tables[-1]))
        _make_views(analysis, sorted(files), measured)
    measured.done()
    if asked.tables:
        for number, table in enumerate(tables):
            measured.show(f"temporal {number}", table.to_dict("records"))
    measured.report(asked.report)


def _spans(folder: Path) -> list[dict[int, str]]:
    """The files of each profiling span by rank: HTA knows one file of a rank."""
    spans: list[dict[int, str]] = []
    workers: dict[str, int] = {}
    for file in sorted(folder.glob("*.json*")):
        worker = re.sub(r"(\.\d+)?(\.pt\.trace)?\.json.*", "", file.name)
        number = workers[worker] = workers.get(worker, -1) + 1
        if number == len(spans):
            spans.append({})
        spans[number][len(spans[number])] = str(file)
    return spans


def _show_read(files: dict[int, str], number: int, measured: Measured) -> None:
    """Show which steps HTA takes, and its operators, of which it has no table, in one of ours.

    Times are µs. HTA rounds them to whole ones unless it is told not to, and leaves out the last
    step. An operator's own time is its time without that of operators right beneath it in HTA's
    call graph.
    """
    taken = TraceAnalysis(trace_files=files).t
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    whole = TraceAnalysis(trace_files=files, include_last_profiler_step=True).t
    CallGraph(whole)
    names = pandas.Series(whole.symbol_table.get_sym_table())
    for rank in sorted(whole.get_all_traces()):
        steps = taken.get_trace(rank)["iteration"]
        measured.show(f"steps {number} {rank}", sorted(map(int, steps[steps >= 0].unique())))
        events = whole.get_trace(rank)
        operators = events[events["cat"].map(names) == "cpu_op"]
        parents, known = events["parent"].to_dict(), set(operators.index)
        above = []
        for parent in operators["parent"]:
            while parent not in known and parent in parents:
                parent = parents[parent]
            above.append(parent)
        beneath = operators["dur"].groupby(above).sum().reindex(operators.index, fill_value=0.0)
        table = pandas.DataFrame(
            {
                "name": operators["name"].map(names),
                "calls": 1,
                "host_self_duration": operators["dur"] - beneath,
                "host_total_duration": operators["dur"],
            }
        )
        summed = table.groupby("name", as_index=False).sum()
        measured.show(f"operators {number} {rank}", summed.to_dict("records"))


def _make_views(analysis: Any, ranks: list[int], measured: Measured) -> None:
    idle, _ = analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    launches = analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
    for name, table in (
        ("idle", idle),
        ("kernel kinds", kinds),
        ("kernels", kernels),
        ("overlap", analysis.get_comm_comp_overlap(visualize=False)),
        *(("launches", table) for table in launches.values()),
        ("bandwidth", analysis.get_memory_bw_summary(ranks=ranks)),
        ("queue length", analysis.get_queue_length_summary(ranks=ranks)),
    ):
        measured.view(name, 0 if table is None else len(table))


if __name__ == "__main__":
    main()
