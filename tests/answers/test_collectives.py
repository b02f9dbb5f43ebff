"""Collectives of a run: of all ranks together, and of each as it saw them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.answers import collectives
from haiprof.errors import HaiprofError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return runs.make_gpu_run(tmp_path / "run", ranks=2)


def test_the_late_rank_and_what_it_did(run: Path) -> None:
    opened = Analyzer(run)
    found = opened.collectives()
    assert found.height == 10
    assert found["late_rank"].unique().to_list() == [1]
    assert found["late"].unique().to_list() == [3 * runs.MS]
    assert found["exposed"].unique().to_list() == [runs.MS]
    assert found["step"].to_list() == list(range(10))
    (row,) = opened.waits().rows(named=True)
    assert (row["late_rank"], row["operations"], row["waited"]) == (1, 10, 30 * runs.MS)
    assert row["phase"] == "backward"


def test_each_rank_as_it_saw_them(run: Path) -> None:
    found = Analyzer(run).collectives(rank=1)
    assert found["rank"].unique().to_list() == [1]
    assert found.select("sequence", "waits").row(0) == (1, runs.MS)


def test_what_a_group_is_for_is_known_without_its_first_rank(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    for rank in (1, 2):
        process = runs.write_process(run, rank, world_size=3)
        rows = [runs.collective(n, 0.1, n + 1, group=group) for n in range(4) for group in "012"]
        runs.write_closed(process, schema.COLLECTIVES, rows)
        said = {"0": {"purpose": "mesh_dp"}, "1": {"purpose": "default_pg"}}
        events = [
            runs.event(0, "group", name, attributes={"ranks": [0, 1, 2], **words})
            for name, words in said.items()
        ]
        runs.write_closed(process, schema.EVENTS, events)
    found = Analyzer(run).collectives().select("group", "purpose").unique().rows()
    assert dict(found) == {"0": "data", "1": None, "2": None}


def test_a_part_of_the_run(run: Path) -> None:
    part = Analyzer(run).between(0.03, 0.1)
    assert 0 < part.collectives().height < 10


def test_attempts_of_a_rank_are_matched_with_their_own(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    for attempt, late in ((0, 0.0), (1, 5.0)):
        for rank in range(2):
            process = runs.write_process(
                run, rank, f"n{attempt}", pid=10 * attempt + rank + 1, attempt=attempt, world_size=2
            )
            start = 1000 * attempt + late * rank
            runs.write_closed(process, schema.COLLECTIVES, [runs.collective(start, 9 - late, 1)])
    assert Analyzer(run).collectives()["late"].to_list() == [0, 5 * runs.MS]


def test_of_very_many_a_part_is_matched_and_said_to_be_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "MOST_ROWS", 7)
    opened = Analyzer(run)
    assert opened.collectives()["sequence"].to_list() == [3, 6, 9]
    assert opened.collectives()["seen"].unique().to_list() == [2]
    assert opened.problems() == [
        "collectives: there are so many that one in 3 of each group is matched"
    ]
    assert opened.collectives(rank=0).height == 10


def test_a_run_without_any_has_empty_frames(tmp_path: Path) -> None:
    opened = Analyzer(runs.make_run(tmp_path / "run", ranks=2))
    assert opened.collectives().height == 0
    assert opened.collectives(rank=0).height == 0
    assert opened.waits().height == 0
    with pytest.raises(HaiprofError, match="ranks 0 to 1"):
        opened.collectives(rank=7)


@pytest.mark.parametrize("attributes", ["", "{", "[]", '{"ranks": 3}', '{"ranks": [7]}', None])
def test_a_damaged_event_names_no_group_and_loses_no_row(
    tmp_path: Path, attributes: str | None
) -> None:
    run = runs.write_run(tmp_path / "run")
    for rank in range(2):
        process = runs.write_process(run, rank, world_size=2)
        runs.write_closed(process, schema.COLLECTIVES, [runs.collective(rank, 5, 1)])
        event = {**runs.event(0, "group", "0"), "attributes": attributes}
        runs.write_closed(process, schema.EVENTS, [event])
    found = Analyzer(run).collectives()
    assert found.select("late_rank", "late").rows() == [(1, runs.MS)]
    assert found["source"].null_count() == 1
    assert isinstance(found, pl.DataFrame)
