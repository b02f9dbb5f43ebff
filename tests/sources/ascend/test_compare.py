"""Two recordings of one job on Ascend, compared: numbers in names of kernels are no change."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from haiprof.analyzer import Analyzer


def test_collectives_are_one_kernel_in_both_runs(levels: Path) -> None:
    before, after = Analyzer(levels / "level0"), Analyzer(levels / "level1")
    # Names in the files: hcom_allReduce__868_0_1 and so on in one, …__586_… in the other.
    own = [set(run.kernels()["name"].cast(pl.String)) for run in (before, after)]
    assert {name for name in own[0] ^ own[1] if "hcom" in name}
    for comparison in before.compare(after).values():
        verdicts = dict(comparison.kernels.select("name", "verdict").rows())
        assert [name for name in verdicts if "hcom" in name] == ["hcom_allReduce"]
        assert {name for name, verdict in verdicts.items() if verdict in ("new", "gone")} == set()
        row = comparison.kernels.row(by_predicate=pl.col("name") == "hcom_allReduce", named=True)
        assert (row["before_count"], row["after_count"]) == (4, 4)
