"""The figures of benchmarks and their table."""

from __future__ import annotations

import json
import math

import figures
import pytest
from figures import (
    Figure,
    Interval,
    Measured,
    Reference,
    Target,
    Unit,
    added_at_most,
    added_within,
    at_least,
    at_most,
    ratio_at_most,
    within,
)

STORE = Reference("a store", Measured(9.5e-9))


def figure(
    value: float,
    target: Target | None = None,
    reference: Reference | None = None,
    unit: Unit = Unit.SECONDS,
) -> Figure:
    return Figure("a record", unit, Measured(value), reference, target)


@pytest.mark.parametrize(
    ("found", "target", "result"),
    [
        (figure(0.050, at_most(0.050)), "at most 50 ms", "met"),
        (figure(0.056, at_most(0.050)), "at most 50 ms", "missed by 12 %"),
        (figure(0.150, at_most(0.050)), "at most 50 ms", "missed by 200 %"),
        (figure(0.05002, at_most(0.050)), "at most 50 ms", "missed by 0.04 %"),
        (figure(30e6, at_least(30e6), unit=Unit.PER_SECOND), "at least 30 M/s", "met"),
        (figure(27e6, at_least(30e6), unit=Unit.PER_SECOND), "at least 30 M/s", "missed by 10 %"),
        (figure(-2.0 * 2**20, within(2 * 2**20), unit=Unit.BYTES), "within ±2 MiB", "met"),
        (figure(-0.015, within(0.01), unit=Unit.SHARE), "within ±1 %", "missed by 50 %"),
        (figure(12.825e-9, ratio_at_most(1.35), STORE), "ratio at most 1.35", "met"),
        (figure(14.25e-9, ratio_at_most(1.2), STORE), "ratio at most 1.2", "missed by 25 %"),
        (figure(19.5e-9, added_at_most(5e-9), STORE), "at most 5 ns more", "missed by 100 %"),
        (figure(6.5e-9, added_within(4e-9), STORE), "within ±4 ns of it", "met"),
        (figure(5.5e-9, added_within(2e-9), STORE), "within ±2 ns of it", "missed by 100 %"),
        (figure(1.0), "-", "-"),
    ],
)
def test_a_target_is_met_or_missed_by_so_much(found: Figure, target: str, result: str) -> None:
    *_, told_target, told_result = found.cells()
    assert (told_target, told_result) == (target, result)
    assert found.met is {"met": True, "-": None}.get(result, False)


@pytest.mark.parametrize(
    "found",
    [
        figure(math.nan, at_most(1)),
        figure(math.inf, at_most(1)),
        figure(1e-9, ratio_at_most(2), Reference("nothing", Measured(0))),
        figure(1e-9, at_most(0)),
    ],
)
def test_what_cannot_be_judged_is_missed(found: Figure) -> None:
    assert found.met is False
    assert found.cells()[-1] == "missed"


@pytest.mark.parametrize("target", [ratio_at_most(2), added_at_most(2), added_within(2)])
def test_a_target_beside_a_reference_needs_one(target: Target) -> None:
    with pytest.raises(ValueError, match=r"a record: a target of the .* needs a reference"):
        figure(1, target)


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.SECONDS, 10.726e-9, "10.7 ns"),
        (Unit.SECONDS, 3e-9, "3.00 ns"),
        (Unit.SECONDS, 99.96e-9, "100 ns"),
        (Unit.SECONDS, 1.324e-6, "1.32 µs"),
        (Unit.SECONDS, 17.37e-3, "17.4 ms"),
        (Unit.SECONDS, 169.4, "169 s"),
        (Unit.SECONDS, 1234.5, "1234 s"),
        (Unit.SECONDS, -2e-3, "-2.00 ms"),
        (Unit.SECONDS, 0, "0 ns"),
        (Unit.SECONDS, 2e-10, "0.200 ns"),
        (Unit.BYTES, 5.959, "5.96 bytes"),
        (Unit.BYTES, 2048, "2.00 KiB"),
        (Unit.BYTES, 20.6 * 2**20, "20.6 MiB"),
        (Unit.BYTES, 5 * 2**30, "5.00 GiB"),
        (Unit.SHARE, 0.00084, "0.0840 %"),
        (Unit.SHARE, 0.005, "0.500 %"),
        (Unit.PER_SECOND, 45.84e6, "45.8 M/s"),
        (Unit.PER_SECOND, 12, "12.0 /s"),
    ],
)
def test_values_are_scaled_for_reading(unit: Unit, value: float, text: str) -> None:
    assert unit.text(value) == text


def test_a_row_has_the_interval_the_reference_and_the_ratio() -> None:
    store = Reference("a store", Measured(9.5e-9, Interval(9.4e-9, 9.75e-9, "quartiles")))
    push = Measured(10.7e-9, Interval(10.5e-9, 1100e-9, "quartiles"))
    assert Figure("a record", Unit.SECONDS, push, store, ratio_at_most(1.35)).cells() == (
        "a record",
        "10.7 ns (quartiles: 10.5 to 1100)",
        "a store: 9.50 ns (quartiles: 9.40 to 9.75)",
        "1.13",
        "ratio at most 1.35",
        "met",
    )


def test_what_there_is_not_is_a_dash() -> None:
    assert figure(1.0).cells() == ("a record", "1.00 s", "-", "-", "-", "-")


def test_a_small_ratio_is_one_over_how_many_times_less() -> None:
    found = figure(1.0, ratio_at_most(1 / 8), Reference("a peer", Measured(14.2)))
    assert found.cells()[3:5] == ("1/14.2", "ratio at most 1/8")


def test_a_ratio_of_two_ranges_has_a_range() -> None:
    ours, theirs = figures.least([1.2, 1.0, 2.0]), figures.least([8.0, 6.0])
    found = Figure("views", Unit.SECONDS, ours, Reference("a peer", theirs))
    assert found.ratio == 1 / 6
    assert found.ratio_range == (1 / 8, 1 / 3)
    assert found.cells()[3] == "1/6.00 (1/8.00 to 1/3.00)"


def test_there_is_no_range_of_other_intervals_and_no_ratio_of_negative_values() -> None:
    quartiles = figures.median([1.0, 2.0, 3.0])
    found = Figure("views", Unit.SECONDS, quartiles, Reference("a peer", figures.least([1, 2])))
    assert found.ratio_range is None
    assert figure(-1.0, reference=STORE).cells()[3] == "-"


def test_values_of_rounds_have_the_intervals_of_the_rounds() -> None:
    rounds = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert figures.median(rounds) == Measured(3, Interval(2, 4, "quartiles"))
    assert figures.median_in_range(rounds) == Measured(3, Interval(1, 5, "range"))
    assert figures.least(rounds) == Measured(1, Interval(1, 5, "range"))
    assert figures.nanoseconds([1e9, 2e9, 4e9]) == Measured(2, Interval(1, 4, "quartiles"))


def test_intervals_follow_their_values() -> None:
    two = Measured(2, Interval(1, 4, "range"))
    assert two.times(10) == Measured(20, Interval(10, 40, "range"))
    assert two.minus(1) == Measured(1, Interval(0, 3, "range"))
    assert two.per_second() == Measured(0.5, Interval(0.25, 1, "range"))
    assert Measured(2).per_second() == Measured(0.5)


def test_the_results_keep_base_units() -> None:
    found = figure(14.25e-9, ratio_at_most(1.2), STORE)
    assert json.loads(json.dumps(found.to_json())) == {
        "what": "a record",
        "unit": "s",
        "measured": {"value": 14.25e-9, "interval": None},
        "reference": {"name": "a store", "measured": {"value": 9.5e-9, "interval": None}},
        "target": {"kind": "at most", "bound": 1.2, "of": "ratio"},
        "ratio": pytest.approx(1.5),
        "ratio_range": None,
        "met": False,
        "missed_by": pytest.approx(0.25),
    }


ROWS = [
    figure(10.7e-9, ratio_at_most(1.35), STORE),
    Figure("import | start", Unit.SECONDS, Measured(0.056), target=at_most(0.050)),
    figure(1.0),
]


def test_the_table_is_aligned_and_wraps_nothing_in_a_file() -> None:
    head, rule, *rows = figures.printed(ROWS).splitlines()
    assert [row.split()[-1] for row in rows] == ["met", "%", "-"]
    assert not any(line.endswith(" ") for line in (head, rule, *rows))
    for heading, cell in zip(figures.HEADINGS, ROWS[0].cells(), strict=True):
        assert rows[0].index(cell) == head.index(heading)


def test_the_table_fits_into_a_terminal() -> None:
    lines = figures.printed(ROWS, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(ROWS) + 2
    assert "\x1b[" not in figures.printed(ROWS, 80)
    assert "\x1b[" in figures.printed(ROWS, 80, colour=True)


def test_markdown() -> None:
    assert figures.markdown(ROWS, ["failed: a test:\n  why"]).splitlines() == [
        "# Benchmarks",
        "",
        "| what | measured | floor or peer | ratio | target | result |",
        "| --- | --- | --- | --- | --- | --- |",
        "| a record | 10.7 ns | a store: 9.50 ns | 1.13 | ratio at most 1.35 | met |",
        "| import \\| start | 56.0 ms | - | - | at most 50 ms | missed by 12 % |",
        "| a record | 1.00 s | - | - | - | - |",
        "",
        "met: 1, missed: 1, without a target: 1",
        "",
        "- failed: a test: why",
    ]
