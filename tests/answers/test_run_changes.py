"""What changed between two recorded runs: each part, and no change where nothing changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import runs

from haiprof.analyzer import Analyzer
from haiprof.answers import run_changes as answers
from haiprof.errors import HaiprofError
from haiprof.findings.finding import Finding
from haiprof.views.run import run_changes as views

SLOWER = tuple((name, 2 * ms if name == "forward" else ms) for name, ms in runs.PHASES)


@pytest.fixture
def before(tmp_path: Path) -> Analyzer:
    return Analyzer(runs.make_run(tmp_path / "before", ranks=2))


def by_name(frame: pl.DataFrame, key: str, *columns: str) -> dict[str, tuple[object, ...]]:
    return {row[0]: row[1:] for row in frame.select(key, *columns).iter_rows()}


def test_a_phase_that_takes_longer_is_named_with_the_step(before: Analyzer, tmp_path: Path) -> None:
    after = Analyzer(runs.make_run(tmp_path / "after", ranks=2, phases=SLOWER))
    changes = before.changes(after)
    found = by_name(changes.phases, "name", "verdict", "before", "after", "before_samples")
    forward = dict(runs.PHASES)["forward"] * 1e6
    assert found["forward"] == ("slower", forward, 2 * forward, 20)
    assert found["step"][0] == "slower"
    assert {name for name, row in found.items() if row[0] != "no difference shown"} == {
        "forward",
        "step",
    }
    one = before.changes(after, rank=1)
    assert by_name(one.phases, "name", "verdict")["forward"] == ("slower",)


def test_equal_runs_show_no_difference(before: Analyzer) -> None:
    changes = before.changes(before)
    assert set(changes.phases["verdict"]) == {"no difference shown"}
    assert set(changes.series["verdict"]) <= {"no difference shown", "too few samples"}
    assert changes.waits["difference"].abs().sum() == 0
    assert set(changes.findings["verdict"]) <= {"in both"}


def test_runs_that_cannot_be_compared_are_one_line(before: Analyzer, tmp_path: Path) -> None:
    with pytest.raises(HaiprofError, match="no rank 7"):
        before.changes(before, rank=7)
    empty = runs.write_run(tmp_path / "empty")
    runs.write_process(empty)
    with pytest.raises(HaiprofError, match="has no steps to compare"):
        before.changes(Analyzer(empty))


def steps_of(durations: list[float], name: str = "forward") -> pl.DataFrame:
    return pl.DataFrame(
        {
            "rank": [0] * len(durations),
            "step": range(len(durations)),
            "name": [name] * len(durations),
            "duration": [int(each) for each in durations],
        }
    )


def test_steps_that_are_like_those_before_them_count_as_one_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)

    def drawn() -> pl.DataFrame:
        """Steps of one job, each nine tenths of what the one before it was longer by."""
        longer, steps = 0.0, []
        for noise in rng.normal(0, 1e5, 400):
            longer = 0.9 * longer + noise
            steps.append(1e7 + longer)
        return steps_of(steps)

    pairs = [(drawn(), drawn()) for _ in range(40)]

    def wrong() -> int:
        found = [views.phases(*pair)["verdict"][0] for pair in pairs]
        return len(found) - found.count("no difference shown")

    assert wrong() <= 10
    monkeypatch.setattr(views, "BLOCKS", 400)
    assert wrong() > 15


def test_a_phase_of_one_run_is_new_or_gone_and_few_steps_are_not_judged() -> None:
    both = steps_of([10.0] * 40), steps_of([10.0] * 40, "recompute")
    assert by_name(views.phases(*both), "name", "verdict") == {
        "forward": ("gone",),
        "recompute": ("new",),
    }
    (row,) = views.phases(steps_of([10.0, 12.0]), steps_of([90.0, 80.0])).to_dicts()
    assert (row["verdict"], row["chance"]) == ("too few samples", None)


def samples_of(values: list[float], metric: str = "proc.cpu.percent") -> pl.DataFrame:
    return pl.DataFrame(
        {
            "metric": [metric] * len(values),
            "instance": pl.Series([None] * len(values), dtype=pl.String()),
            "time": [1_000_000_000 * at for at in range(len(values))],
            "value": values,
            "of": [1] * len(values),
        }
    )


def test_a_metric_that_is_higher_is_told_from_one_that_varies() -> None:
    rng = np.random.default_rng(3)
    calm, higher = rng.normal(50, 5, 100), rng.normal(80, 5, 100)
    assert by_name(
        views.series(samples_of(calm.tolist()), samples_of(higher.tolist())), "metric", "verdict"
    ) == {"proc.cpu.percent": ("higher",)}
    again = samples_of(rng.normal(50, 5, 100).tolist())
    assert views.series(samples_of(calm.tolist()), again)["verdict"].to_list() == [
        "no difference shown"
    ]
    # A constant has no variance, and is no proof of a difference that rounding makes.
    constant = views.series(samples_of([4.0] * 50), samples_of([4.0 + 1e-9] * 50))
    assert constant["verdict"].to_list() == ["no difference shown"]


def test_waits_are_those_of_a_step() -> None:
    schema = {"late_rank": pl.Int64(), "op": pl.String(), "waited": pl.Int64()}
    before = pl.DataFrame([(1, "all_reduce", 500), (1, "all_reduce", 500)], schema, orient="row")
    after = pl.DataFrame([(1, "all_reduce", 100), (0, "barrier", 900)], schema, orient="row")
    assert views.waits(before, after, 10, 100).rows() == [
        (1, "all_reduce", 100.0, 1.0, -99.0),
        (0, "barrier", 0.0, 9.0, 9.0),
    ]


def test_findings_are_told_apart_by_kind_and_ranks() -> None:
    def of(kind: str, rank: int, share: float) -> Finding:
        return Finding(kind, f"{kind} of {rank}", "", ranks=(rank,), share=share)

    earlier = [of("gil", 0, 0.2), of("disk", 1, 0.3)]
    found = answers._findings(earlier, [of("gil", 0, 0.4), of("gil", 1, 0.1)])
    assert found.select("kind", "ranks", "verdict", "before", "after").rows() == [
        ("gil", [0], "in both", 0.2, 0.4),
        ("gil", [1], "new", None, 0.1),
        ("disk", [1], "gone", 0.3, None),
    ]
