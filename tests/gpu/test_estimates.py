"""Means, their intervals, and what is judged by them."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from gpu.estimates import Estimate, added, at_most, estimate, quantile, student
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042)]
)
def test_quantiles_of_students_t(freedom: int, expected: float) -> None:
    assert student(freedom) == pytest.approx(expected, rel=0.01)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_an_interval_holds_the_mean_and_is_wider_than_the_normal_one(values: list[float]) -> None:
    found = estimate(values)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high
    normal = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    assert found.high - found.value >= normal * 0.999 - 1e-6


def test_one_value_has_no_interval_and_none_is_an_error() -> None:
    assert estimate([2.0]) == Estimate(2.0, None, None, 1)
    with pytest.raises(ValueError, match="nothing was measured"):
        estimate([])


def test_what_is_added_is_that_of_pairs() -> None:
    # The machine becomes slower meanwhile: the pairs do not mind.
    found = added([1.01, 2.02, 4.04], [1.0, 2.0, 4.0])
    assert found.value == pytest.approx(1.0)
    assert found.high == pytest.approx(1.0)
    with pytest.raises(ValueError, match="is shorter than"):
        added([1.0, 2.0], [1.0])


def test_a_target_is_met_missed_or_undecided() -> None:
    assert at_most(Estimate(0.5, 0.2, 0.9, 9), 1.0) is True
    assert at_most(Estimate(0.5, 0.2, 1.1, 9), 1.0) is None
    assert at_most(Estimate(2.0, 1.1, 3.0, 9), 1.0) is False


def test_quantiles_are_values() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([3, 1, 2], 1.0) == 3
    assert quantile([3, 1, 2], 0.0) == 1


def test_a_third_of_another_tools_cost() -> None:
    from gpu.parts.overhead import third

    assert third(Estimate(1, 0.5, 1.5, 9), Estimate(6, 5, 7, 9)) is True
    assert third(Estimate(1, 0.5, 1.5, 9), Estimate(3, 2, 4, 9)) is None
    assert third(Estimate(3, 2.5, 3.5, 9), Estimate(3, 2, 4, 9)) is False
    assert third(Estimate(3, None, None, 1), Estimate(3, 2, 4, 9)) is None


def _round(off: float = 1.0, windows: float = 1.001, every: float = 1.01) -> dict[str, float]:
    return {"off": off, "windows": windows, "all": every}


def test_windows_cost_what_all_does_in_their_share_of_the_time() -> None:
    from gpu.parts.overhead import costs

    found = costs([_round(), _round(2.0, 2.002, 2.02)])
    assert found["all"].value == pytest.approx(1.0)
    assert found["between windows"].value == pytest.approx(0.1)
    assert found["windows"].value == pytest.approx(0.1 * 29 / 30 + 1.0 / 30)
    assert "sampling" not in found


def _results(folder: Path, name: str, gpu: str, rounds: list[dict[str, float]]) -> Path:
    path = folder / name
    path.write_text(json.dumps({"machine": {"gpu": gpu}, "parts": [{"rounds": rounds}, {}]}))
    return path


def test_rounds_of_two_runs_are_pooled(tmp_path: Path) -> None:
    from gpu.pooled import lines, rounds_of

    beside = [{"without torch.profiler": 1.0, "torch.profiler": 1.1 + n / 1e4} for n in range(3)]
    files = [
        _results(tmp_path, "a", "H200", [_round(), _round(every=1.011)]),
        _results(tmp_path, "b", "H200", [_round(every=1.009), *beside]),
    ]
    said = lines(rounds_of(files))
    assert [line.partition(":")[0] for line in said] == [
        "windows", "all", "between windows", "torch.profiler",
    ]  # fmt: skip
    assert said[0].endswith("3 rounds, target <= 0.3: met")
    assert said[1].startswith("all: 1 % (95 %: 0.7516 to 1.248), 3 rounds")
    assert said[1].endswith("undecided")
    assert said[3].endswith("all at most a third of it: met")


def test_rounds_of_different_gpus_are_not_pooled(tmp_path: Path) -> None:
    from gpu.pooled import rounds_of

    files = [_results(tmp_path, name, f"GPU {name}", [_round()]) for name in ("a", "b")]
    with pytest.raises(ValueError, match=r"different GPUs: GPU [ab], GPU [ab]"):
        rounds_of(files)
    with pytest.raises(ValueError, match="no round"):
        rounds_of([_results(tmp_path, "c", "GPU", [])])
