"""The critical path and the causes of idle time tell the same story of the same instants."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from schedules import BEGIN, END, ITEMS, Item, Schedule
from traces import files, load, runs

from haiprof.views.intervals import sharing
from haiprof.views.trace.critical_path.path import critical_path
from haiprof.views.trace.idle_causes import host
from haiprof.views.trace.idle_causes.causes import CAUSES, of_devices
from haiprof.views.trace.linking.linked import Linked, link

#: Kinds of the path's elements that are an activity of the device,
RUNS = ("kernel", "communication", "memcpy", "memset")
#: and those that say that the next activity had been launched, and what it waited for.
WAITS = ("stream", "event", "occupied", "queue")


def at_once(trace: Linked) -> pl.DataFrame:
    """Return each pair of a path's element and an idle time of its device at the same instant."""
    path = critical_path(trace).path.with_columns(
        pl.col("kind").cast(pl.String),
        # The activity that an element of the path leads to.
        pl.when(pl.col("kind").is_in(RUNS)).then("activity").backward_fill().alias("next"),
    )
    start = path["start"].to_numpy()
    idle = of_devices(trace)
    mine, at = sharing(idle.start, idle.end, start, start + path["duration"].to_numpy())
    causes = np.array(CAUSES)[idle.cause[mine]]
    return path[at].with_columns(
        pl.Series("cause", causes, pl.String),
        pl.Series("following", idle.following[mine], pl.Int64),
        pl.Series("in_its_launch", idle.span[mine] == trace.runtime[idle.following[mine]]),
        pl.Series("idle_device", trace.device[idle.lanes[idle.lane[mine]]], pl.Int64),
    )


def check(trace: Linked) -> None:
    pairs = at_once(trace)
    # What runs on a device is not on the path while the device is idle.
    runs_there = pl.col("kind").is_in(RUNS) & (
        pl.col("device").cast(pl.Int64).fill_null(-1) == pl.col("idle_device")
    )
    assert pairs.filter(runs_there).is_empty()
    # Of the activity that ends the idle time both say whether it had been launched by then; the
    # trace does not say when within the launching call that was.
    same = pairs.filter(pl.col("next") == pl.col("following"), ~pl.col("in_its_launch"))
    waits = same.filter(pl.col("kind").is_in(WAITS))
    assert waits.filter(pl.col("cause").is_in(host.CAUSES)).is_empty()


@given(ITEMS)
@settings(max_examples=100, deadline=None)
def test_of_any_schedule(items: list[Item]) -> None:
    trace = Schedule(BEGIN + items + END).linked
    check(trace)
    # What begins the schedule has both: a device that waits for the host, and launched work.
    kinds = set(at_once(trace)["kind"])
    assert {"host", "event"} <= kinds


@pytest.mark.parametrize("run", runs())
def test_of_real_traces(run: str) -> None:
    trace = load(files(run)[0])
    check(link(trace.spans, trace.kernels, trace.collectives, trace.flows))
