"""How much communication is hidden under computation, on each device.

The formula is HTA's (``get_comm_comp_overlap``): ``ratio`` is the time in which communication and
computation both ran, of the time in which communication ran. HTA recognises communication only by
the names of NCCL and HCCL, and by names that begin with ``hip``; here it is what
:mod:`haiprof.views.trace.linking.roles` says.
"""

from __future__ import annotations

import polars as pl

from haiprof.views.intervals import intersect
from haiprof.views.trace.linking.linked import Linked
from haiprof.views.trace.linking.work import devices, union

SCHEMA = {
    "device": pl.UInt16(),
    "communication": pl.Int64(),
    "computation": pl.Int64(),
    "overlap": pl.Int64(),
    "ratio": pl.Float64(),
}


def overlap(linked: Linked, *, drop_last_step: bool = False) -> pl.DataFrame:
    """Return how much of each device's communication computation hides.

    Returns:
        One row per device: ``device``, ``communication``, ``computation`` and ``overlap`` (of the
        two) in ns, each a union; ``ratio``, null on a device that did not communicate.
    """
    rows = []
    for device, mine in devices(linked, drop_last_step=drop_last_step):
        communication = union(linked, mine, "communication")
        computation = union(linked, mine, "kernel")
        both = intersect(*communication, *computation)
        lengths = [int((end - start).sum()) for start, end in (communication, computation, both)]
        rows.append((device, *lengths, lengths[2] / lengths[0] if lengths[0] else None))
    return pl.DataFrame(rows, SCHEMA, orient="row")
