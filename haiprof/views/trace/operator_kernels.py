"""The kernels that each operator launches itself, in order, and how long it takes until they run.

The question is HTA's (``get_aten_op_kernels_and_delay``). An operator's ``call_delay`` is from its
begin to the begin of the first call that launches something, ``launch_delay`` from there to the
begin of what it launched. HTA takes the operator that began last of all threads, where another
thread's may have begun later; it takes ``aten::`` only, and a few names of launching calls; and it
fails on a launch of several kernels, or of none. Here the operator is the innermost one around the
call on its own thread, of any namespace, and every call counts that launched something.

Times are int64 ns.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from haiprof.views.trace.linking.ancestors import climb
from haiprof.views.trace.linking.linked import Linked

#: Between the names of kernels.
ARROW = " -> "
SCHEMA = {
    "operator": pl.Categorical(),
    "kernels": pl.String(),
    "launches": pl.UInt32(),
    "count": pl.UInt32(),
    "call_delay": pl.Float64(),
    "call_delay_max": pl.Int64(),
    "launch_delay": pl.Float64(),
    "launch_delay_max": pl.Int64(),
    "device": pl.Int64(),
}


def operator_kernels(linked: Linked) -> pl.DataFrame:
    """Return each operator with each sequence of kernels that it launched.

    Returns:
        One row per operator and sequence, the most frequent first: ``operator``, ``kernels`` (names
        of kernels, copies and sets in the order of their launches, with :data:`ARROW` between),
        ``launches`` (how many those are), ``count`` (calls of the operator with this sequence);
        ``call_delay`` and ``launch_delay`` (ns, means) of the first launch, each with its largest,
        ``…_max``; ``device`` (ns, of all its kernels). An activity that began before its launch, as
        far as two clocks are apart, has no delay.
    """
    around = climb(linked.parent, linked.runtime, linked.of("op"))
    mine = np.flatnonzero(linked.busy & (linked.runtime >= 0) & (around >= 0))
    if not len(mine):
        return pl.DataFrame(schema=SCHEMA)
    started = linked.activities["start"].to_numpy()
    mine = mine[np.lexsort((started[mine], linked.start[linked.runtime[mine]], around[mine]))]
    call, operator, begun = linked.runtime[mine], around[mine], started[mine]
    first = np.diff(operator, prepend=-1) != 0
    number, texts = linked.named_activities
    launched = pl.DataFrame(
        {
            "row": operator,
            "code": number[mine],
            "duration": linked.activities["duration"].to_numpy()[mine],
            "call_delay": np.where(first, linked.start[call] - linked.start[operator], 0),
            "launch_delay": np.where(first, np.maximum(begun - linked.start[call], 0), 0),
        }
    )
    # Sequences are compared by the numbers of their names.
    of_calls = launched.group_by("row", maintain_order=True).agg(
        pl.col("code").cast(pl.String).str.join(",").alias("sequence"),
        pl.len().alias("launches"),
        pl.col("duration").sum().alias("device"),
        pl.col("call_delay").first(),
        pl.col("launch_delay").first(),
    )
    name, names = linked.named
    summed = (
        of_calls.with_columns(pl.Series("operator", name[of_calls["row"].to_numpy()]))
        .group_by("operator", "sequence", maintain_order=True)
        .agg(
            pl.col("launches").first(),
            pl.len().alias("count"),
            pl.col("device").sum(),
            *(
                column
                for delay in ("call_delay", "launch_delay")
                for column in (
                    pl.col(delay).mean(),
                    pl.col(delay).max().alias(f"{delay}_max"),
                )
            ),
        )
    )
    spelt = {code: text or "" for code, text in enumerate(texts.cast(pl.String).to_list())}
    sequences = [
        ARROW.join(spelt[int(code)] for code in sequence.split(","))
        for sequence in summed["sequence"].to_list()
    ]
    return (
        summed.with_columns(
            names.gather(summed["operator"]).alias("operator"), pl.Series("kernels", sequences)
        )
        .select(pl.col(column).cast(kind) for column, kind in SCHEMA.items())
        .sort("count", "device", "kernels", descending=[True, True, False])
    )
