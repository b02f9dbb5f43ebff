"""A phase has a mean if its samples resolve it, and none if they do not."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import runs
from hypothesis import given
from hypothesis import strategies as st

from haiprof import schema
from haiprof.sources.tables import polars_type
from haiprof.views.intervals import Times, covered
from haiprof.views.run import steps as step_views
from haiprof.views.run.phase_means import RESOLVED, phase_means, pieces

METRIC = "dram.read.bytes_per_s"
#: A step of 12 s, so that samples of one second lie within its phases.
SLOW = (("dataloader", 1000.0), ("forward", 4000.0), ("backward", 4500.0), ("optimizer", 1500.0))


def spans(rows: list[runs.Row]) -> pl.DataFrame:
    columns = {c.name: polars_type(c) for c in schema.SPANS.columns}
    columns = {name: columns[name] for name in step_views.COLUMNS}
    return pl.DataFrame([{k: row[k] for k in columns} for row in rows], schema=columns)


def samples(rows: list[runs.Row]) -> pl.DataFrame:
    columns = {c.name: polars_type(c) for c in schema.SAMPLES.columns}
    return pl.DataFrame([{k: row[k] for k in columns} for row in rows], schema=columns)


def means(found: pl.DataFrame) -> dict[str, float | None]:
    return dict(found.select("phase", "mean").iter_rows())


def measured(
    ends: Times, level: dict[str, float], elsewhere: float, phases: dict[str, tuple[Times, Times]]
) -> list[runs.Row]:
    """Sample a signal that has a level of its own in some phases, by its mean since the last."""
    begin, end = ends[:-1], ends[1:]
    total = np.full(len(end), elsewhere) * (end - begin)
    for name, value in level.items():
        total += (value - elsewhere) * covered(*phases[name], begin, end)
    value = total / (end - begin)
    rows = [(ends[0], elsewhere), *zip(end, value, strict=True)]
    return [runs.sample((t - runs.T0) / runs.SECOND, METRIC, float(v)) for t, v in rows]


def test_samples_that_lie_within_phases_tell_each_of_them() -> None:
    phases = pieces(spans(runs.loop(20, SLOW, rest=1000.0)))
    ends = runs.T0 + np.arange(0, 240 * 10 + 1, 1) * (runs.SECOND // 10)
    level = {"forward": 100e9, "backward": 60e9, "optimizer": 200e9, "dataloader": 5e9}
    found = means(phase_means(samples(measured(ends, level, 1e9, phases)), phases))
    assert found.pop("step") == pytest.approx((400 + 270 + 300 + 5 + 1) / 12 * 1e9)
    assert found == pytest.approx({**level, "other": 1e9}, rel=1e-6)


def test_samples_far_longer_than_the_steps_resolve_no_phase() -> None:
    phases = pieces(spans(runs.loop(2000)))  # 12 ms each
    rows = runs.steady(24, {(METRIC, None): 50e9})
    found = phase_means(samples(rows), phases)
    assert means(found) == {
        "step": pytest.approx(50e9),
        **dict.fromkeys(("dataloader", "forward", "backward", "optimizer", "other")),
    }
    assert found.filter(pl.col("phase") != "step")["resolution"].max() < 0.01  # type: ignore[operator]


def test_coarse_samples_resolve_what_comes_seldom_and_stays_long() -> None:
    rows = []
    for number in range(6):
        first = number * 20_000.0
        rows.append(runs.span(first, 10_000.0, "phase", "eval", number))
        rows += [
            runs.span(first + 10_000 + 100.0 * i, 50.0, "phase", "forward", number)
            for i in range(100)
        ]
        rows.append(runs.span(first, 20_000.0, "step", "step", number))
    phases = pieces(spans(rows))
    ends = runs.T0 + np.arange(0, 121) * runs.SECOND
    found = means(phase_means(samples(measured(ends, {"eval": 90e9}, 10e9, phases)), phases))
    assert found["eval"] == pytest.approx(90e9, rel=1e-3)
    assert found["forward"] is None


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=30),
    st.integers(1, 60),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
)
def test_the_resolution_is_the_part_of_a_difference_that_shows(
    steps: list[tuple[int, int]], width: int, inside: float, outside: float
) -> None:
    rows, now = [], 0.0
    for number, (forward, rest) in enumerate(steps):
        rows.append(runs.span(now, forward, "phase", "forward", number))
        rows.append(runs.span(now, forward + rest, "step", "step", number))
        now += forward + rest
    phases = pieces(spans(rows))
    ends = runs.T0 + np.arange(0, int(now) + 2 * width, width) * runs.MS
    # All that is sampled overlaps steps, so the mean over it is known without their help.
    ends = ends[: np.searchsorted(ends, runs.T0 + round(now * runs.MS)) + 1]
    taken = samples(measured(ends, {"forward": inside}, outside, phases)).slice(1)
    found = phase_means(taken, phases).filter(pl.col("phase") == "forward")
    if not found.height:
        return
    resolution, mean = found.select("resolution", "mean").row(0)
    assert 0 <= resolution <= 1
    if mean is None:
        assert resolution < RESOLVED or found["samples"].item() < 5
        return
    overall = float(taken["value"].mean())  # type: ignore[arg-type]
    assert mean - overall == pytest.approx(resolution * (inside - overall), abs=1e-3)


def test_samples_that_lie_mostly_outside_of_steps_tell_nothing_of_them() -> None:
    phases = pieces(spans(runs.loop(20)))  # 240 ms, in the first sample of a second
    found = phase_means(samples(runs.steady(9, {(METRIC, None): 50e9})), phases)
    assert found.height
    assert set(means(found).values()) == {None}


def test_nested_phases_count_for_the_inner_one() -> None:
    rows = [
        runs.span(0, 10, "phase", "backward", 0),
        runs.span(2, 3, "phase", "recompute", 0),
        runs.span(0, 12, "step", "step", 0),
        runs.span(12, 5, "phase", "forward", 1),  # its step never ended
    ]
    found = {name: list(zip(*map(list, p), strict=True)) for name, p in pieces(spans(rows)).items()}
    at = [runs.T0 + ms * runs.MS for ms in range(20)]
    assert found == {
        "step": [(at[0], at[12])],
        "backward": [(at[0], at[2]), (at[5], at[10])],
        "recompute": [(at[2], at[5])],
        "other": [(at[10], at[12])],
    }


@pytest.mark.parametrize("rows", [[], runs.loop(5, phases=()), [runs.span(0, 5, "phase", "x", 0)]])
def test_without_steps_or_phases_there_is_nothing_to_tell(rows: list[runs.Row]) -> None:
    phases = pieces(spans(rows))
    assert phases == {}
    assert phase_means(samples(runs.steady(9, {(METRIC, None): 1.0})), phases).height == 0


def test_an_implausible_value_counts_nowhere_and_makes_no_other_sample_longer() -> None:
    phases = pieces(spans(runs.loop(20, SLOW, rest=1000.0)))
    rows = runs.steady(240, {(METRIC, None): 50e9})
    for row in rows[3::4]:
        row.update(value=9e12, flags=schema.FLAG_IMPLAUSIBLE)
    found = phase_means(samples(rows), phases)
    assert means(found)["step"] == pytest.approx(50e9)
    assert found.filter(pl.col("phase") == "step")["samples"].item() == 180


def test_sockets_count_once_beside_the_node_and_are_added_without_it() -> None:
    phases = pieces(spans(runs.loop(20, SLOW, rest=1000.0)))
    both = runs.with_sockets(METRIC, 10e9, 20e9)
    assert means(phase_means(samples(runs.steady(240, both)), phases))["step"] == 30e9
    del both[METRIC, None]
    assert means(phase_means(samples(runs.steady(240, both)), phases))["step"] == 30e9
