"""One clock for real traces of several ranks, whose clocks are moved here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import traces

from haiprof.analyzer import Analyzer
from haiprof.answers import chosen_ranks, host_clocks


def moved(run: str, folder: Path, seed: int) -> tuple[list[tuple[float, float]], float]:
    """Write the traces of a run with clocks that are off; return offset (us) and drift of each."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    planted = []
    begin = None
    for number, file in enumerate(traces.files(run)):
        document = json.loads(traces.text(file))
        events = [event for event in document["traceEvents"] if "ts" in event]
        if begin is None:
            begin = min(float(event["ts"]) for event in events if event.get("ph") == "X")
        offset, drift = random.uniform(-50e3, 50e3), random.uniform(-50e-6, 50e-6)
        planted.append((offset, drift))
        for event in events:
            start = float(event["ts"])
            # The ends move as well.
            event["ts"] = round(start + offset + drift * (start - begin), 3)
            if "dur" in event:
                event["dur"] = round(float(event["dur"]) * (1 + drift), 3)
        name = f"node{number}_1.{file.name.split('.', 1)[1]}"
        (folder / name).write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    assert begin is not None
    return planted, begin


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("run", "residual"),
    # The ends of 2 GB all-gathers differ by hundreds of us in the file itself.
    [("dlrm_8rank", 20_000), ("handmade_modern", 20_000), ("hta_sampled_2rank", None)],
)
def test_planted_clocks_are_found(
    run: str, residual: int | None, seed: int, tmp_path: Path
) -> None:
    planted, begin = moved(run, tmp_path / "t", seed)
    analyzer = Analyzer(tmp_path / "t")
    clock = analyzer.clock()
    assert clock["node"].to_list() == [f"node{n}" for n in range(len(planted))]
    reference, *others = clock.rows(named=True)
    assert reference["how"].startswith("the reference")
    for row, (offset, drift) in zip(others, planted[1:], strict=True):
        # The reference's clock at ``since``, in true time.
        true = row["since"] / 1000 - planted[0][0]
        ahead = offset + drift * (true - begin) - planted[0][0] - planted[0][1] * (true - begin)
        error = abs(row["offset"] - ahead * 1000)
        assert error <= row["bound"]
        assert row["corrected"]
        if residual is not None:
            assert row["residual"] <= residual
            assert error <= residual


def test_of_very_many_ranks_it_is_the_same_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved("handmade_modern", tmp_path / "t", 3)
    whole = Analyzer(tmp_path / "t").clock()
    monkeypatch.setattr(chosen_ranks, "MOST", 1)
    monkeypatch.setattr(host_clocks, "matched", pytest.fail)
    assert Analyzer(tmp_path / "t").clock().equals(whole)
    assert whole["corrected"].sum() > 0


def test_a_run_on_one_host_is_left_as_it_is() -> None:
    traces.files("handmade_modern")  # skips where there is no data
    analyzer = Analyzer(traces.TRACES / "handmade_modern")
    assert analyzer.clock().rows(named=True)[0]["offset"] == 0
    steps = analyzer.steps()
    assert analyzer.on_one_clock(steps) is steps


def test_times_of_hosts_are_put_on_one_clock(tmp_path: Path) -> None:
    moved("dlrm_8rank", tmp_path / "t", 5)
    analyzer = Analyzer(tmp_path / "t")
    kernels = analyzer.kernels()
    last = pl.col("name").cast(pl.String).str.contains("AllReduce")
    ends = analyzer.on_one_clock(
        kernels.filter(last).select("node", (pl.col("start") + pl.col("duration")).alias("end"))
    )
    # Each rank's last all-reduce ended at the same time.
    found = ends.group_by("node").agg(pl.col("end").max())["end"].to_numpy()
    assert len(found) == 8
    assert found.max() - found.min() <= 20_000
    apart = kernels.group_by("node").agg(pl.col("start").max())["start"].to_numpy()
    assert apart.max() - apart.min() > 10_000_000


def test_the_steps_of_ranks_are_compared_on_one_clock(tmp_path: Path) -> None:
    moved("dlrm_8rank", tmp_path / "t", 5)
    summaries, _ = Analyzer(tmp_path / "t").summaries()
    begun = [int(summary.trend_start[0]) for summary in summaries]
    plain, _ = Analyzer(traces.TRACES / "dlrm_8rank").summaries()
    expected = [int(summary.trend_start[0]) for summary in plain]
    away = np.array(begun) - np.array(expected)
    assert len(away) == 8
    assert away.max() - away.min() <= 20_000
