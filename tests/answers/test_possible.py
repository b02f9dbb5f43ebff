"""No view has a value that cannot be: a negative time or length, or a share above one."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import foreign_seeds
import polars as pl
import pytest
import traces
from ascend_files import ARCHIVE
from real_data import DATA, need

from haiprof.analyzer import Analyzer
from haiprof.export import csv

#: What may be negative: how far a clock is off, and what memory grew by.
SIGNED = re.compile(r"^(offset|drift|residual|increase|self_increase)$")
SHARE = re.compile(r"(^|_)(ratio|share)$|utilization|sm_efficiency|occupancy|tensor_core$|^bubble$")
#: Runs in which something was impossible once.
RUNS = ("hta_trace_diff_test", "hta_ns_resolution", "tl_b200_eager")


def impossible(run: Analyzer) -> Iterator[str]:
    for name, view in csv.VIEWS.items():
        result = view(run)
        parts = [result] if isinstance(result, pl.DataFrame) else list(result)
        for frame in (part for part in parts if isinstance(part, pl.DataFrame)):
            for column, kind in frame.schema.items():
                if not kind.is_numeric() or SIGNED.match(column):
                    continue
                values = frame[column].drop_nulls().cast(pl.Float64)
                if (values < 0).any() or values.is_nan().any():
                    yield f"{name}.{column}: {values.min()}"
                elif SHARE.search(column) and kind.is_float() and (values > 1 + 1e-9).any():
                    yield f"{name}.{column}: {values.max()}"


def test_views_of_every_tool_are_possible(tmp_path: Path) -> None:
    for seed in foreign_seeds.write(tmp_path / "seeds"):
        assert list(impossible(Analyzer(seed))) == [], seed


@pytest.mark.parametrize("name", RUNS)
def test_views_of_real_traces_are_possible(name: str) -> None:
    assert list(impossible(Analyzer(need(DATA / "traces" / name)))) == []


def test_views_of_real_npus_are_possible(tmp_path: Path) -> None:
    with tarfile.open(need(ARCHIVE)) as archive:
        archive.extractall(tmp_path, filter="data")
    (level,) = tmp_path.rglob("level1")
    assert list(impossible(Analyzer(level))) == []


def test_it_finds_what_is_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Analyzer(traces.write(tmp_path / "w.pt.trace.json", traces.small()))
    broken = pl.DataFrame({"interval": [-1], "ratio": [1.5], "offset": [-3]})
    monkeypatch.setattr(csv, "VIEWS", {"broken": lambda _: broken})
    assert list(impossible(run)) == ["broken.interval: -1.0", "broken.ratio: 1.5"]
