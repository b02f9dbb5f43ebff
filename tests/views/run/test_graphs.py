"""Time of CUDA graph replays, against numbers known by hand; whose recording they end."""

from __future__ import annotations

import polars as pl
import pytest
import runs

from haiprof import schema
from haiprof.sources import tables
from haiprof.views.run import graphs as graph_views
from haiprof.views.run import recorded as recorded_views
from haiprof.views.run.device_steps import SPAN_COLUMNS

ON_HOST = pl.DataFrame(
    {
        "step": pl.Series([0, 1, 2], dtype=pl.UInt32),
        "start": [0, 10 * runs.MS, 20 * runs.MS],
        "end": [10 * runs.MS, 20 * runs.MS, 40 * runs.MS],
    }
)


def spans(rows: list[runs.Row]) -> pl.DataFrame:
    kinds = {
        c.name: tables.polars_type(c) for c in schema.DEVICE_SPANS.columns if c.name in SPAN_COLUMNS
    }
    return pl.DataFrame([{name: row.get(name) for name in kinds} for row in rows], schema=kinds)


def replay(start: float, duration: float, name: str, step: int | None, device: int = 0) -> runs.Row:
    return runs.device_span(start, duration, name, step, device, category="graph")


def test_each_graph_has_its_times_and_its_share_of_the_steps_with_it() -> None:
    rows = [replay(1, 2, "graph 0", 0), replay(4, 4, "graph 0", 0), replay(11, 3, "graph 0", 1)]
    rows += [replay(30, 5, "graph 1", 2)]
    replays = graph_views.replays(spans(rows), ON_HOST)
    assert replays.schema == pl.Schema(graph_views.REPLAYS_SCHEMA)
    first, second = replays.to_dicts()
    assert (first["name"], first["replays"], first["steps"]) == ("graph 0", 3, 2)
    assert first["total"] == 9 * runs.MS
    assert (first["mean"], first["p50"], first["max"]) == (3 * runs.MS, 3 * runs.MS, 4 * runs.MS)
    assert first["p95"] == pytest.approx(3.9 * runs.MS)
    assert first["share"] == pytest.approx(9 / 20)
    assert (second["name"], second["share"]) == ("graph 1", pytest.approx(5 / 20))


def test_devices_are_distinguished_and_without_steps_there_is_no_share() -> None:
    rows = [replay(1, 2, "graph 0", None), replay(1, 3, "graph 0", 7, device=1)]
    replays = graph_views.replays(spans(rows), ON_HOST)
    assert replays.select("device", "replays", "steps", "share").rows() == [
        (1, 1, 0, None),
        (0, 1, 0, None),
    ]
    assert graph_views.replays(spans([]), ON_HOST).height == 0


def test_a_recording_that_began_after_the_graphs_counts() -> None:
    def events(*rows: runs.Row) -> pl.DataFrame:
        return pl.DataFrame(
            [{name: row[name] for name in ("time", "kind", "attributes")} for row in rows]
        )

    begins, graphs = runs.recording_begins(0), runs.event(1, "graphs", "no more", None, {})
    ends = runs.recording_ends(1000, why="graphs")
    assert recorded_views.ended_by_graphs(events(begins, graphs, ends))
    assert not recorded_views.ended_by_graphs(events(begins, ends))
    assert not recorded_views.ended_by_graphs(
        events(begins, graphs, ends, runs.recording_begins(2000))
    )
