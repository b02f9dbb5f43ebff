"""Hardware counters of kernels, joined with the operators that launched the kernels.

As in HTA (``get_cupti_counter_data_with_operators``): while counters are read, kernels run one at a
time, the trace has one range of the profiler for each, and the n-th range belongs to the n-th
launch. If there are not as many ranges as launches, they cannot be matched, and operators are null.
"""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl

from haiprof.views.trace.linking.linked import CALLS, Linked
from haiprof.views.trace.linking.work import texts_in

#: Calls that launch a kernel.
_LAUNCH = re.compile(r"^(cudaLaunch|cuLaunch)(Cooperative)?Kernel|^hip(Ext)?(Module)?LaunchKernel")
#: Floating-point operations per instruction that these counters count.
_PER_INSTRUCTION = re.compile(r"smsp__sass_thread_inst_executed_op_([fhd])(fma|mul|add)_pred_on")


def cupti_counters(linked: Linked, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the counters of each kernel.

    Args:
        linked: the trace.
        spans: its table of that name; rows of the category ``counters`` are used.

    Returns:
        One row per range, by time: ``start``, ``duration`` (ns), ``name`` of the kernel, ``op``
        (the innermost operator), ``outer_op`` (the outermost), ``op_stack`` (all, from the
        outermost), ``row`` (of the launch in ``linked.ops``), ``flops`` (floating-point operations
        by the counters of instructions, null without), and a Float64 column for each counter.
    """
    ranges = spans.filter(pl.col("category") == "counters").sort("start")
    counters_of = [_numbers(text) for text in ranges["attributes"].cast(pl.String).to_list()]
    names = sorted({name for counters in counters_of for name in counters})
    frame = ranges.select("start", "duration", "name").with_columns(
        *_operators(linked, ranges.height),
        pl.Series("flops", [_flops(counters) for counters in counters_of], pl.Float64()),
    )
    return frame.with_columns(
        pl.Series(name, [counters.get(name) for counters in counters_of], pl.Float64())
        for name in names
        if name not in frame.columns
    )


def _operators(linked: Linked, count: int) -> list[pl.Series]:
    called = linked.ops["name"]
    names, index, some = texts_in(called)
    launching = np.array([_LAUNCH.search(name) is not None for name in names] or [False])
    rows = np.flatnonzero(launching[index] & some & linked.of("runtime"))
    rows = rows[np.argsort(linked.start[rows], kind="stable")]
    stacks: list[list[str] | None] = [None] * count
    launches: list[int | None] = [None] * count
    if len(rows) == count:
        launches = rows.tolist()
        stacks = [_stack(linked, called, row) for row in rows.tolist()]
    return [
        pl.Series("op", [stack[-1] if stack else None for stack in stacks], pl.String()),
        pl.Series("outer_op", [stack[0] if stack else None for stack in stacks], pl.String()),
        pl.Series("op_stack", stacks, pl.List(pl.String())),
        pl.Series("row", launches, pl.UInt32()),
    ]


def _stack(linked: Linked, names: pl.Series, row: int) -> list[str]:
    stack = []
    is_op = CALLS.index("op")
    row = int(linked.parent[row])
    while row >= 0:
        if linked.category[row] == is_op:
            stack.append(str(names[row]))
        row = int(linked.parent[row])
    return stack[::-1]


def _numbers(text: str | None) -> dict[str, float]:
    """Return the numbers in a JSON object; none if it is not an object."""
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    numbers = {}
    for name, value in document.items():
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
    return numbers


def _flops(counters: dict[str, float]) -> float | None:
    known = {n: found for n in counters if (found := _PER_INSTRUCTION.search(n))}
    if not known:
        return None
    return sum(counters[n] * (2 if found[2] == "fma" else 1) for n, found in known.items())
