"""A trace without calls of the host, as haiprof's own records of kernels: nothing to link.

There may be tens of millions of activities. So they have only the columns that a view needs, and
none that only calls would fill.

Tests: tests/answers/test_own.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from haiprof.views.trace.linking.kernel_roles import kernel_roles
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.steps import one_step


def without_calls(spans: pl.DataFrame) -> bool:
    """Say whether no span launches activities, or can be named by their External ids."""
    calls = spans["category"].is_in(["op", "runtime"]).any()
    return not calls and spans["external"].null_count() == spans.height


def unlinked(host: Linked, kernels: pl.DataFrame) -> Linked:
    """Combine the activities of a trace without calls with its host's spans.

    Args:
        host: the spans alone, linked.
        kernels: some columns of the table of that name: ``start``, ``duration``, ``kind``,
            ``name`` and ``device`` at least.

    Returns:
        Like the result of :func:`haiprof.views.trace.linking.linked.link` for the spans and the
        kernels. Its ``activities`` have the given columns, and in addition only ``end``,
        ``runtime``, ``op``, ``role`` and ``tensor_core``.
    """
    begun, lasted = kernels["start"].to_numpy(), kernels["duration"].to_numpy()
    if kernels.height and lasted.min() < 0:
        lasted = np.maximum(lasted, 0)
    ended = begun + lasted
    steps = host.steps
    if not host.stepped and kernels.height:
        low, high = int(begun.min()), int(ended.max())
        if len(host.start):
            low, high = min(low, int(host.start.min())), max(high, int(host.end.max()))
        steps = one_step(low, high)
    return dataclasses.replace(
        host,
        steps=steps,
        activities=kernels.with_columns(
            pl.Series("end", ended),
            pl.lit(None, pl.UInt32).alias("runtime"),
            pl.lit(None, pl.UInt32).alias("op"),
            *kernel_roles(kernels, host.rules.kernels),
        ),
    )
