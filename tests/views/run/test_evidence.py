"""What explains a late rank: samples that its peers did not have."""

from __future__ import annotations

import math

import polars as pl
import pytest

from haiprof.views.run.evidence import CPU, MEANS, SWITCHES, WAIT, Means, Place, evidence, means

SCHEMA = {
    "node": pl.String(), "rank": pl.Int64(), "pid": pl.Int64(), "time": pl.Int64(),
    "metric": pl.String(), "instance": pl.String(), "value": pl.Float64(), "flags": pl.UInt32(),
}  # fmt: skip
MINE = Place("n0", 0, 10, ["gpu0"])
OTHERS = [Place("n1", 1, 11, ["gpu0"]), Place("n1", 2, 12, ["gpu1"])]
Row = tuple[object, ...]


def of_rank(place: Place, metric: str, value: float, instance: str | None = None) -> Row:
    return place.node, place.rank, place.pid, 5, metric, instance, value, 0


def of_node(node: str, metric: str, value: float, instance: str | None = None) -> Row:
    return node, None, 99, 5, metric, instance, value, 0


def evidence_of(*rows: Row, low: int = 0, high: int = 10, late: int = 4) -> tuple[list[str], bool]:
    return evidence(sampled(*rows, low=low, high=high), MINE, OTHERS, high - low, late)


def sampled(*rows: Row, low: int = 0, high: int = 10) -> Means:
    who = ["node", "rank", "pid"]
    frames = [
        means(frame, [(0, 0), (low, high)])
        .filter(pl.col("window") == 1)
        .join(frame.select(who).head(1), how="cross")
        for frame in pl.DataFrame(rows, SCHEMA, orient="row").partition_by(who)
    ]
    return Means(pl.concat(frames))


def waits(mine: float, others: float) -> list[Row]:
    return [of_rank(MINE, WAIT, mine), *(of_rank(o, WAIT, others) for o in OTHERS)]


def switches(mine: float, others: float, cpu: float) -> list[Row]:
    return [
        of_rank(MINE, SWITCHES, mine, "involuntary"),
        of_rank(MINE, CPU, cpu),
        *(of_rank(o, SWITCHES, others, "involuntary") for o in OTHERS),
        *(of_rank(o, CPU, 50.0) for o in OTHERS),
    ]


def test_a_rank_that_is_pushed_off_its_core_has_a_neighbour() -> None:
    lines, contended = evidence_of(*switches(90, 3, cpu=50))
    assert lines == ["its main thread was preempted 90 times a second (the others 3)"]
    assert contended


def test_a_rank_that_works_more_is_pushed_off_more_often() -> None:
    assert evidence_of(*switches(90, 3, cpu=100)) == ([], False)


def test_waiting_for_a_core_that_makes_up_for_being_late_is_a_neighbour() -> None:
    line = "its main thread waited for a core 60 % of the time (the others 30)"
    assert evidence_of(*waits(60, 30), late=4) == ([line], True)


def test_waiting_for_a_core_for_less_than_half_of_being_late_is_none() -> None:
    assert evidence_of(*waits(60, 30), late=7) == ([], False)


def test_who_hardly_waits_for_a_core_is_not_pushed_off_it_either() -> None:
    assert evidence_of(*switches(90, 3, cpu=50), *waits(1, 0)) == ([], False)


def test_what_all_have_is_no_evidence() -> None:
    assert evidence_of(*switches(90, 80, cpu=50)) == ([], False)


def test_what_was_before_is_no_evidence() -> None:
    assert evidence_of(*switches(90, 3, cpu=50), low=6) == ([], False)


@pytest.mark.parametrize(
    ("metric", "mine", "usual", "line"),
    [
        ("gpu.sm_clock.hertz", 1.1e9, 1.98e9, "its GPU ran at 1.10 GHz (the others 1.98)"),
        ("gpu.throttle_thermal.percent", 40, 0,
         "its GPU was slowed for heat 40 % of the time (the others 0)"),
        ("gpu.ecc_uncorrected.count", 3, 0,
         "its GPU had 3 uncorrected ECC errors (the others 0)"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_slower_than_its_peers(
    metric: str, mine: float, usual: float, line: str
) -> None:
    lines, contended = evidence_of(
        of_node("n0", metric, mine, "gpu0"),
        of_node("n1", metric, usual, "gpu0"),
        of_node("n1", metric, usual, "gpu1"),
    )
    assert lines == [line]
    assert not contended


@pytest.mark.parametrize(
    ("metric", "mine", "line"),
    [
        ("cpu.steal.percent", 30, "30 % of its node's CPU time was stolen (the others 0)"),
        ("ib.symbol_error.per_s", 7,
         "its fabric counted 7 a second of symbol_error (the others 0)"),
        ("psi.io_some.percent", 60,
         "tasks of its node waited for storage 60 % of the time (the others 0)"),
    ],
)  # fmt: skip
def test_a_node_that_has_what_others_have_not(metric: str, mine: float, line: str) -> None:
    lines, contended = evidence_of(of_node("n0", metric, mine), of_node("n1", metric, 0))
    assert lines == [line]
    assert contended is (metric == "cpu.steal.percent")
    # Of a counter no sample is nothing, of all else it is not known.
    assert len(evidence_of(of_node("n0", metric, mine))[0]) == (metric == "ib.symbol_error.per_s")
    # The same on the other node is none.
    assert evidence_of(of_node("n0", metric, mine), of_node("n1", metric, mine))[0] == []


def test_ranks_of_one_node_share_what_the_node_has() -> None:
    rows = sampled(of_node("n0", "cpu.steal.percent", 30))
    assert evidence(rows, MINE, [Place("n0", 1, 11)], 10, 4) == ([], False)


def test_means_are_of_what_was_measured_in_each_window() -> None:
    samples = pl.DataFrame(
        {
            "time": [1, 2, 3, 9],
            "metric": ["a", "a", "a", "b"],
            "instance": [None, None, "x", "x"],
            "value": [1.0, 4.0, 7.0, math.nan],
            "flags": [0, 0, 0, 0],
        },
        schema_overrides={"flags": pl.UInt32},
    )
    found = means(samples, [(1, 3), (2, 2), (4, 9)])
    assert dict(found.schema) == MEANS
    assert found.rows() == [(0, "a", None, 2.5), (0, "a", "x", 7.0), (1, "a", None, 4.0)]
    for empty in (means(samples.clear(), [(0, 9)]), means(samples, [])):
        assert (dict(empty.schema), empty.height) == (MEANS, 0)
