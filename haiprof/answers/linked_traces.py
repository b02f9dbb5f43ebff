"""The linked trace of a process: read and linked on first use, then kept."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections import OrderedDict
from collections.abc import Sequence

import polars as pl

from haiprof import schema
from haiprof.common.cores import Beside
from haiprof.runs import Process
from haiprof.sources import tables
from haiprof.sources.arrow_memory import give_back
from haiprof.views.intervals import Times
from haiprof.views.run import busy, recorded
from haiprof.views.run.device_steps import STEPS_SCHEMA
from haiprof.views.trace.linking.linked import Linked, link
from haiprof.views.trace.linking.unlinked import unlinked, without_calls

_SPAN_COLUMNS = tuple(c.name for c in schema.SPANS.columns if c.name != "attributes")
#: Linked traces are kept up to this many rows of spans and kernels together; the last one always.
_KEPT_ROWS = 4_000_000


class Links:
    """A cache of linked traces."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Linked] = OrderedDict()
        self._rows = 0

    def of(self, process: Process, columns: Sequence[str] | None = None) -> Linked:
        """Return the linked trace of a process, reading it if it is not cached.

        For a trace without calls only these ``columns`` of its activities are read; by default all.
        """
        key = str(process.folder)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and _has(kept, columns):
                self._kept.move_to_end(key)
                return kept
        linked = _read(process, columns, kept)
        give_back()
        with self._lock:
            before = self._kept.pop(key, None)
            self._rows += _rows(linked) - (0 if before is None else _rows(before))
            self._kept[key] = linked
            while len(self._kept) > 1 and self._rows > _KEPT_ROWS:
                _, oldest = self._kept.popitem(last=False)
                self._rows -= _rows(oldest)
        return linked


def _has(linked: Linked, columns: Sequence[str] | None) -> bool:
    wanted = ("row", "step") if columns is None else columns
    return set(wanted) <= set(linked.activities.columns)


def _rows(linked: Linked) -> int:
    return linked.ops.height + linked.activities.height


def link_of(process: Process, links: Links | None, columns: Sequence[str] | None = None) -> Linked:
    """Return the linked trace of a process; without ``links`` it is read, and not kept."""
    return _read(process, columns) if links is None else links.of(process, columns)


def _read(
    process: Process, columns: Sequence[str] | None = None, known: Linked | None = None
) -> Linked:
    """Read and link a trace; of one without calls, only ``columns`` of kernels, if given.

    ``known`` is an earlier result for it, with other columns.
    """
    if known is not None and columns is not None:
        lacking = [name for name in columns if name not in known.activities.columns]
        more = tables.read(process, schema.KERNELS, lacking).frame
        # A run that is still being recorded may have more rows by now.
        if more.height == known.activities.height:
            return known.widened(more)

    def table(which: schema.Table, columns: Sequence[str] | None = None) -> pl.DataFrame:
        return tables.read(process, which, columns).frame

    collectives, flows, device_spans = (
        functools.partial(table, which)
        for which in (schema.COLLECTIVES, schema.FLOWS, schema.DEVICE_SPANS)
    )
    if process.trace is not None:
        beside = Beside(table, schema.KERNELS)
        # Without a name here: the spans are reordered, and there may be millions of them.
        return link(
            table(schema.SPANS, _SPAN_COLUMNS),
            beside.result(),
            collectives,
            flows,
            device_spans,
        )
    spans = table(schema.SPANS, _SPAN_COLUMNS)
    narrow = columns is not None and without_calls(spans)
    kernels = table(schema.KERNELS, columns if narrow else None)
    times = None
    if kernels.height:
        spans, times = _recorded(process, spans, kernels)
    if narrow:
        host = link(spans, tables.empty(schema.KERNELS.columns), collectives, flows, device_spans)
        linked = unlinked(host, kernels)
    else:
        linked = link(spans, kernels, collectives, flows, device_spans)
    return dataclasses.replace(linked, recorded=times)


def _recorded(
    process: Process, spans: pl.DataFrame, kernels: pl.DataFrame
) -> tuple[pl.DataFrame, tuple[Times, Times] | None]:
    """Leave out the steps in which haiprof did not record kernels; also return when it did.

    None if that is not known: then it means all the time.
    """
    kind = {"kind": (recorded.EVENT_KIND,)}
    events = tables.read(process, schema.EVENTS, keep=kind).frame
    on_host = recorded.host_steps(spans)
    last = busy.last_end(kernels)
    on_device = pl.DataFrame(schema=STEPS_SCHEMA)
    since = process.complete_since(schema.KERNELS.name)
    intervals = recorded.recorded(events, on_host, on_device, process.ended_ns, last, since)
    steps = on_host.with_row_index("group").with_columns(device=pl.lit(0, pl.UInt16()))
    found = recorded.windows(intervals, steps, on_host)
    is_step = pl.col("category") == "step"
    chosen = spans.filter(is_step.not_() | pl.col("start").is_in(found["start"].implode()))
    return chosen, recorded.times(intervals, last)
