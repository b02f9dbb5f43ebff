"""Thinning keeps what the eye looks for, and sums respect units and instances."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import runs
from hypothesis import given
from hypothesis import strategies as st

from haiprof import schema
from haiprof.sources.arrays import Arrays, of_frame
from haiprof.sources.tables import polars_type
from haiprof.views.run.series import decimate, left_out, stats, stats_by_instance


@given(
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400),
    st.integers(4, 60),
    st.randoms(use_true_random=False),
)
def test_thinning_keeps_ends_and_extremes_within_its_limit(values, points, random) -> None:  # type: ignore[no-untyped-def]
    y = np.array(values)
    x = np.cumsum([random.randrange(1, 10**9) for _ in values]).astype(np.int64) + runs.T0
    kept = decimate(x, y, points)
    assert len(kept) <= max(points, 0)
    assert (np.diff(kept) > 0).all()
    assert {0, len(y) - 1} <= set(kept.tolist())
    assert y[kept].min() == y.min()
    assert y[kept].max() == y.max()


def samples(rows: list[runs.Row]) -> Arrays:
    columns = {c.name: polars_type(c) for c in schema.SAMPLES.columns}
    values = [{name: row.get(name) for name in columns} for row in rows]
    return of_frame(pl.DataFrame(values, schema=columns))


def test_bytes_of_instances_add_up() -> None:
    rows = [runs.sample(1, "disk.read.bytes_per_s", v, i) for v, i in ((1, "sda"), (2, "sdb"))]
    assert stats(samples(rows))["disk.read.bytes_per_s"].mean == 3


def test_a_bond_is_not_added_to_its_members_and_loopback_is_not_traffic() -> None:
    shares = (("bond0", 30), ("eth0", 20), ("eth1", 10), ("lo", 500))
    rows = [runs.sample(s, "net.rx.bytes_per_s", v, i) for s in (1, 2) for i, v in shares]
    rows.append(runs.sample(2.5, "net.rx.bytes_per_s", 45, "eth0"))
    found = stats(samples(rows))["net.rx.bytes_per_s"]
    assert (found.mean, found.maximum, found.parts) == (30, 30, 1)


def test_a_source_that_is_read_less_often_weighs_as_long_as_it_stood_for() -> None:
    often = [runs.sample(s, "proc.rss.bytes", 100) for s in range(1, 5)]
    found = stats(samples([*often, runs.sample(8, "proc.rss.bytes", 200)]))["proc.rss.bytes"]
    assert found.mean == (4 * 100 + 4 * 200) / 8
    assert (found.begin, found.end) == (runs.T0, runs.T0 + 8 * runs.SECOND)


def test_one_value_alone_is_the_mean() -> None:
    found = stats(samples([runs.sample(5, "proc.rss.bytes", 100)]))["proc.rss.bytes"]
    assert (found.mean, found.maximum) == (100, 100)
    assert found.begin < found.end


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=50))
def test_values_at_equal_distances_weigh_the_same(values: list[float]) -> None:
    rows = [runs.sample(s, "cpu.util.percent", v) for s, v in enumerate(values)]
    assert stats(samples(rows))["cpu.util.percent"].mean == pytest.approx(np.mean(values))


def test_percentages_of_instances_are_averaged() -> None:
    rows = [runs.sample(1, "gpu.util.percent", v, i) for v, i in ((20, "gpu0"), (60, "gpu1"))]
    assert stats(samples(rows))["gpu.util.percent"].maximum == 40


def test_a_value_for_the_whole_is_not_added_to_its_parts() -> None:
    rows = [runs.sample(1, "cpu.util.percent", v, i) for v, i in ((50, None), (20, "cpu0"))]
    found = stats(samples(rows))["cpu.util.percent"]
    assert (found.mean, found.parts) == (50, 1)


def test_missing_and_infinite_values_are_left_out() -> None:
    rows = [
        runs.sample(s, "proc.cpu.percent", v) for s, v in ((1, None), (2, 8.0), (3, float("inf")))
    ]
    assert stats(samples(rows))["proc.cpu.percent"].maximum == 8.0
    assert stats(samples(rows[:1])) == {}


def test_each_instance_has_its_own_statistics() -> None:
    rows = [
        runs.sample(second, f"gpu.{name}", value + second, instance)
        for second in range(3)
        for name, value in (("util.percent", 10), ("power.watts", 200))
        for instance in ("gpu0", "gpu1")
    ]
    found = stats_by_instance(samples([*rows, runs.sample(0, "mem.used.bytes", 1, "gpu0")]), "gpu.")
    assert {name: sorted(each) for name, each in found.items()} == {
        "gpu0": ["gpu.power.watts", "gpu.util.percent"],
        "gpu1": ["gpu.power.watts", "gpu.util.percent"],
    }
    power = found["gpu1"]["gpu.power.watts"]
    assert (power.mean, power.maximum, power.parts, power.samples) == (201, 202, 1, 3)
    assert stats_by_instance(samples(rows), "cpu.") == {}


def test_a_part_of_a_part_is_counted_once() -> None:
    rows = [
        runs.sample(0, "gpu.power.watts", value, instance)
        for instance, value in (("gpu0", 100), ("gpu0/mig1", 40), ("gpu1/mig0", 7))
    ]
    assert stats(samples(rows))["gpu.power.watts"].mean == 107


def test_values_that_no_hardware_has_are_counted_and_left_out() -> None:
    rows = [runs.sample(n, "net.rx.bytes_per_s", 10, "eth0") for n in range(3)]
    rows[1] = {**rows[1], "value": 1e30, "flags": schema.FLAG_IMPLAUSIBLE}
    assert stats(samples(rows))["net.rx.bytes_per_s"].maximum == 10
    assert left_out(samples(rows)) == {"net.rx.bytes_per_s": 1}
    assert left_out(samples(rows[:1])) == {}
