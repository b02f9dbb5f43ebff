"""How long launches took, and how long the launched work waited to begin.

The formula is HTA's (``get_cuda_kernel_launch_stats``): for each activity and the call of the
runtime that launched it, joined by correlation, ``delay`` is the begin of the activity less the end
of the call, and 0 if it began before the call had ended. HTA recognises five names of calls; here
every call counts that launched something (cuLaunchKernel, cuLaunchKernelEx, hip*, MTIA's too). The
launch of a graph is separate: one call launches many activities, whose delay is that of the work
before them in the graph.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.names import matching, one_of
from haiprof.views.trace.linking.work import MEMORY, work

_KINDS = pl.Series(["graph", "memory", "kernel"])


def launches(linked: Linked, *, memory: bool = True, drop_last_step: bool = False) -> pl.DataFrame:
    """Return every activity whose launch is known.

    Args:
        linked: the trace.
        memory: whether copies and sets count.
        drop_last_step: as in :func:`haiprof.views.trace.linking.work.work`, and as in HTA.

    Returns:
        One row per activity: ``row`` (of it), ``runtime`` (row of the call), ``call`` (its name),
        ``kind`` (``kernel``, ``memory``, ``graph``), ``name``, ``device``, ``stream``, ``step``,
        ``correlation``, ``cpu_duration`` (of the call), ``gpu_duration`` and ``delay`` in ns.
    """
    mine = work(linked, drop_last_step=drop_last_step)
    known = mine["runtime"].is_not_null().to_numpy()
    moves = one_of(mine["role"], MEMORY)
    if not memory:
        known &= ~moves
    if not known.all():
        mine, moves = mine.filter(pl.Series(known)), moves[known]
    runtime = mine["runtime"].to_numpy()
    call = linked.ops["name"][mine["runtime"]]
    graph = mine["graph"].is_not_null().to_numpy() | matching(call, "GraphLaunch", literal=True)
    begun, ended = linked.start[runtime], linked.end[runtime]
    return pl.DataFrame(
        {
            "row": mine["row"],
            "runtime": mine["runtime"],
            "call": call,
            "kind": _KINDS[np.where(graph, 0, np.where(moves, 1, 2))],
            **{name: mine[name] for name in ("name", "device", "stream", "step", "correlation")},
            "cpu_duration": ended - begun,
            "gpu_duration": mine["duration"],
            "delay": np.maximum(mine["start"].to_numpy() - ended, 0),
        }
    )


def summary(
    launched: pl.DataFrame, *, slow_call: int = 50_000, long_delay: int = 100_000
) -> pl.DataFrame:
    """Summarise :func:`launches`, with HTA's three signs of a job limited by its launches.

    Args:
        launched: the launches.
        slow_call: ns; a longer call counts as slow.
        long_delay: ns; a longer delay counts as long.

    Returns:
        One row per kind: ``kind``, ``count``, ``calls``; for each of ``cpu_duration``,
        ``gpu_duration``, ``delay`` its ``_sum``, ``_mean``, ``_p50``, ``_max`` in ns; ``short``
        (activities shorter than their call), ``slow_calls`` and ``long_delays``.
    """
    measured = ("cpu_duration", "gpu_duration", "delay")
    return (
        launched.group_by("kind")
        .agg(
            pl.len().alias("count"),
            pl.col("runtime").n_unique().alias("calls"),
            *(
                column
                for name in measured
                for column in (
                    pl.col(name).sum().alias(f"{name}_sum"),
                    pl.col(name).mean().alias(f"{name}_mean"),
                    pl.col(name).median().alias(f"{name}_p50"),
                    pl.col(name).max().alias(f"{name}_max"),
                )
            ),
            (pl.col("gpu_duration") < pl.col("cpu_duration")).sum().alias("short"),
            (pl.col("cpu_duration") > slow_call).sum().alias("slow_calls"),
            (pl.col("delay") > long_delay).sum().alias("long_delays"),
        )
        .sort("kind")
    )
