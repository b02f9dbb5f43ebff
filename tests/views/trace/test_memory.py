"""The allocator's records, against the plugin's numbers and against counting by hand."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_frames import frame, kernels_of, spans_of
from traces import expected, files, load, runs

from haiprof import schema
from haiprof.views.trace import memory
from haiprof.views.trace.linking.linked import Linked, link

#: The plugin's columns of operators, in its order.
COLUMNS = (
    "increase", "self_increase", "allocations", "self_allocations", "allocated", "self_allocated",
)  # fmt: skip


def plugin(run: str, file: Path) -> dict[str, Any] | None:
    """The plugin's memory view of one file; None if it has none."""
    views = expected(run, "tb_tip")
    worker = file.name.removesuffix(".pt.trace.json.gz")
    many = sum(other.name.split(".")[0] == worker.split(".")[0] for other in files(run)) > 1
    span = files(run).index(file) + 1 if many else 1
    for folder in (worker, f"{worker.split('.')[0]}.span{span}"):
        if f"{folder}/memory" in views:
            found: dict[str, Any] = views[f"{folder}/memory"]
            return found
    return None


def linked(file: Path) -> Linked:
    trace = load(file)
    return link(trace.spans, trace.kernels, trace.collectives, trace.flows)


def device(row: dict[str, Any]) -> str:
    return "CPU" if row["kind"] == "cpu" else f"GPU{row['device']}"


@pytest.mark.parametrize("run", runs())
def test_operators_curve_peak_and_blocks_are_the_plugins(run: str) -> None:
    for file in files(run):
        theirs, records = plugin(run, file), load(file).allocations
        if theirs is None:
            # Not applicable: without records there is no view, the plugin's or ours.
            assert not records.height
            all_records = memory.Records(linked(file), records)
            assert not memory.curve(all_records).height
            assert not memory.operators(all_records).height
            continue
        all_records = memory.Records(linked(file), records)
        check_operators(theirs, memory.operators(all_records))
        check_curve(theirs, memory.curve(all_records), memory.peak(all_records))
        check_blocks(theirs, memory.blocks(all_records), records)


def check_operators(plugin_result: dict[str, Any], operators: pl.DataFrame) -> None:
    ours: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in operators.iter_rows(named=True):
        ours[device(row)][row["operator"]] = [row["calls"], *(row[name] for name in COLUMNS)]
    theirs = {
        where: {row[0]: row[1:] for row in rows}
        for where, rows in plugin_result["stats"]["rows"].items()
    }
    assert theirs
    assert ours == theirs


def check_curve(plugin_result: dict[str, Any], curve: pl.DataFrame, peak: memory.Peak) -> None:
    # The plugin draws no curve if records do not say how much was in use.
    known = curve.filter(pl.col("allocated").is_not_null())
    points: dict[str, int] = defaultdict(int)
    for row in known.iter_rows(named=True):
        points[device(row)] += 1
    drawn = plugin_result["curve_points"]
    assert {where: min(count, 10_240) for where, count in points.items()} == drawn
    for where, (first, last) in plugin_result["curve_first_last"].items():
        rows = [row for row in known.iter_rows(named=True) if device(row) == where]
        for one, theirs in ((rows[0], first), (rows[-1], last)):
            assert [one["allocated"], one["reserved"]] == theirs[1:]
    peaks = {device(row): row["allocated"] for row in peak.peaks.iter_rows(named=True)}
    theirs = {
        "CPU" if key.startswith("0:") else f"GPU{key.split(':')[1]}": value
        for key, value in plugin_result["peak"].items()
    }
    assert {where: value for where, value in peaks.items() if value is not None} == theirs


def check_blocks(theirs: dict[str, Any], blocks: pl.DataFrame, records: pl.DataFrame) -> None:
    shown = blocks.filter(pl.col("state").cast(pl.String) != "before")
    counts: dict[str, int] = defaultdict(int)
    lived: dict[tuple[str, int, float], int] = defaultdict(int)
    for row in shown.iter_rows(named=True):
        counts[device(row)] += 1
        if row["lifetime"] is not None:
            name = row["operator"] or "<unknown>"
            if name.startswith("aten::empty") and row["caller"]:
                name = f"{row['caller']} ({name})"
            lived[name, row["bytes"], round(row["lifetime"] / 1000, 1)] += 1
    assert counts == theirs["event_counts"]
    for rows in theirs["events_head"].values():
        for name, size, _, _, lifetime in rows:
            # The plugin rounds each of its times.
            near = (round(lifetime + off, 1) for off in (0, -0.1, 0.1))
            assert any(lived[name, size, time] for time in near), (name, size, lifetime)


def allocation(time: int, size: int, address: int = 1, **more: Any) -> dict[str, Any]:
    return {"time": time, "bytes": size, "address": address, "kind": "cuda", "device": 0,
            "thread": 1, **more}  # fmt: skip


def traced(spans: list[dict[str, Any]] | None = None) -> Linked:
    return link(spans_of(spans or []), kernels_of([]))


def records_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return frame(schema.ALLOCATIONS, rows)


def test_an_empty_trace_has_empty_views() -> None:
    none = memory.Records(traced(), records_of([]))
    peak = memory.peak(none)
    for view in (
        memory.curve(none),
        memory.curve(none, 100),
        memory.blocks(none),
        memory.operators(none),
        peak.peaks,
        peak.holders,
    ):
        assert view.height == 0


def test_hip_memory_is_memory() -> None:
    spans = [{"name": "aten::mm", "start": 0, "duration": 100}]
    records = records_of(
        [
            allocation(10, 512, kind="hip", total_allocated=512, total_reserved=2048),
            allocation(90, -512, kind="hip", total_allocated=0, total_reserved=2048),
        ]
    )
    operators = memory.operators(memory.Records(traced(spans), records)).row(0, named=True)
    assert (operators["kind"], operators["operator"]) == ("hip", "aten::mm")
    assert [operators[name] for name in COLUMNS] == [0, 0, 1, 1, 512, 512]
    assert memory.peak(memory.Records(traced(spans), records)).peaks["allocated"].to_list() == [512]


def test_an_operator_owns_what_is_recorded_from_its_start_until_before_its_end() -> None:
    spans = [
        {"name": "outer", "start": 0, "duration": 100},
        {"name": "inner", "start": 10, "duration": 20},
        {"name": "cudaMalloc", "start": 12, "duration": 10, "category": "runtime"},
    ]
    times = {5: 1, 10: 2, 15: 4, 29: 8, 30: 16, 99: 32, 100: 64}
    records = records_of([allocation(t, size, size) for t, size in times.items()])
    operators = memory.operators(memory.Records(traced(spans), records))
    found = {row["operator"]: row for row in operators.iter_rows(named=True)}
    assert found["inner"]["self_allocated"] == found["inner"]["allocated"] == 2 + 4 + 8
    assert found["outer"]["self_allocated"] == 1 + 16 + 32
    assert found["outer"]["allocated"] == 63
    assert found["outer"]["calls"] == 1


def test_a_call_that_only_calls_its_namesake_is_one_with_it() -> None:
    spans = [
        {"name": "aten::add", "start": 0, "duration": 100},
        {"name": "aten::add", "start": 10, "duration": 80},
    ]
    operators = memory.operators(memory.Records(traced(spans), records_of([allocation(50, 8)])))
    assert operators.select("calls", "allocated", "self_allocated").rows() == [(1, 8, 8)]


def test_an_optimizers_range_is_no_operator_and_what_it_calls_is() -> None:
    spans = [
        {"name": "Optimizer.step#SGD.step", "start": 0, "duration": 100},
        {"name": "aten::mul", "start": 10, "duration": 20},
    ]
    records = records_of([allocation(5, 1, 1), allocation(15, 2, 2)])
    operators = memory.operators(memory.Records(traced(spans), records))
    assert operators.select("operator", "allocated").rows() == [("aten::mul", 2)]


def test_blocks_tell_what_became_of_them() -> None:
    records = records_of(
        [
            allocation(1, 10, 1), allocation(5, -10, 1),  # freed
            allocation(2, 20, 2),  # held
            allocation(3, -30, 3),  # there before
            allocation(4, 40, 4), allocation(8, 44, 4),  # lost, then held
            allocation(6, 50, 0),  # no address
        ]
    )  # fmt: skip
    blocks = memory.blocks(memory.Records(traced(), records))
    assert blocks.select("address", "bytes", "allocated", "freed", "state").rows() == [
        (1, 10, 1, 5, "freed"),
        (2, 20, 2, None, "held"),
        (3, 30, None, 3, "before"),
        (4, 40, 4, None, "lost"),
        (4, 44, 8, None, "held"),
    ]


def test_one_address_in_two_memories_is_two_blocks() -> None:
    records = records_of(
        [
            allocation(1, 10),
            allocation(2, 20, device=1),
            allocation(3, -10),
            allocation(4, -20, device=1),
        ]
    )
    blocks = memory.blocks(memory.Records(traced(), records))
    assert blocks.select("device", "bytes", "lifetime").rows() == [(0, 10, 2), (1, 20, 2)]


def test_the_peak_tells_who_held_what_in_which_phase() -> None:
    spans = [
        {"name": "ProfilerStep#3", "start": 0, "duration": 1000, "category": "step", "step": 3},
        {"name": "aten::mm", "start": 10, "duration": 50, "sequence": 7},
        {"name": "MmBackward", "start": 100, "duration": 50, "sequence": 7, "forward_thread": 1},
        {"name": "Optimizer.step#SGD.step", "start": 200, "duration": 90, "category": "user"},
        {"name": "aten::add_", "start": 210, "duration": 50},
    ]
    records = records_of(
        [
            allocation(20, 100, 1, total_allocated=1100),
            allocation(110, 50, 2, total_allocated=1150),
            allocation(120, -50, 2, total_allocated=1100),
            allocation(220, 200, 3, total_allocated=1300),
            allocation(400, -300, 9, total_allocated=1000),
        ]
    )
    peak = memory.peak(memory.Records(traced(spans), records))
    assert peak.peaks.select("time", "allocated", "step", "told", "before").rows() == [
        (220, 1300, 3, 600, 700)
    ]
    assert peak.holders.select("operator", "phase", "step", "blocks", "bytes").rows() == [
        (None, None, None, 1, 300),
        ("aten::add_", "optimizer", 3, 1, 200),
        ("aten::mm", "forward", 3, 1, 100),
    ]


def test_a_block_that_was_lost_is_not_held_at_the_peak() -> None:
    records = records_of([allocation(1, 40, 4), allocation(2, 44, 4), allocation(3, 8, 5)])
    peak = memory.peak(memory.Records(traced(), records))
    assert peak.peaks.select("time", "told").rows() == [(3, 52)]
    assert peak.holders.select("blocks", "bytes").rows() == [(2, 52)]


def test_without_totals_the_peak_is_of_the_increase_and_tells_no_level() -> None:
    records = records_of([allocation(1, 10, 0), allocation(2, 20, 0), allocation(3, -30, 0)])
    peak = memory.peak(memory.Records(traced(), records))
    assert peak.peaks.select("time", "allocated", "told", "before").rows() == [
        (2, None, None, None)
    ]


EVENTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 4), st.integers(-1, 1), st.integers(1, 9)),
    max_size=40,
)


@given(EVENTS)
def test_pairing_is_that_of_a_walk_through_the_records(
    events: list[tuple[int, int, int, int]],
) -> None:
    rows = [allocation(t, sign * size, where) for t, where, sign, size in events]
    open_: dict[int, tuple[int, int]] = {}
    walked = []
    for t, where, sign, size in sorted(events, key=lambda event: event[0]):
        if sign > 0:
            if where in open_:
                walked.append((where, open_[where][1], open_[where][0], None, "lost"))
            open_[where] = (t, size)
        elif sign < 0:
            if where in open_:
                begun, held = open_.pop(where)
                walked.append((where, held, begun, t, "freed"))
            else:
                walked.append((where, size, None, t, "before"))
    walked += [(where, size, t, None, "held") for where, (t, size) in open_.items()]
    blocks = memory.blocks(memory.Records(traced(), records_of(rows)))
    found = blocks.select("address", "bytes", "allocated", "freed", "state").rows()
    assert sorted(found, key=str) == sorted(walked, key=str)


@given(st.integers(0, 2**32 - 1), st.integers(1, 600), st.integers(5, 60))
@settings(max_examples=60)
def test_a_thinned_curve_is_short_and_keeps_every_extreme(
    seed: int, count: int, points: int
) -> None:
    random = np.random.default_rng(seed)
    times, levels, reserved_bytes = (random.integers(0, 10**6, count).tolist() for _ in range(3))
    rows = [
        allocation(t, 1, total_allocated=level, total_reserved=reserved)
        for t, level, reserved in zip(times, levels, reserved_bytes, strict=True)
    ]
    exact = memory.curve(memory.Records(traced(), records_of(rows)))
    thin = memory.curve(memory.Records(traced(), records_of(rows)), points)
    assert thin.height <= points
    assert set(thin.rows()) <= set(exact.rows())
    assert thin["time"].is_sorted()
    for column in ("allocated", "reserved"):
        assert thin[column].max() == exact[column].max()
    assert thin["allocated"].min() == exact["allocated"].min()
    assert thin.row(0) == exact.row(0)
    assert thin.row(-1) == exact.row(-1)
