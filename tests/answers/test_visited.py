"""What processes that were summed up have for other answers: the same as to read them again."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs

from haiprof import Analyzer, schema
from haiprof.answers.summaries import NOTED
from haiprof.sources import segment_file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks, a worker of one, a process without a rank, and their node."""
    run = runs.write_run(tmp_path / "run")
    stated = runs.event(0.5, "model", "", attributes={"flops_per_step": 1e12})
    for rank, noted in enumerate(([stated, runs.event(2, "group", "0")], [])):
        process = runs.write_process(run, rank, gpus=[{"name": "NVIDIA H100", "uuid": str(rank)}])
        runs.write_closed(process, schema.SPANS, runs.loop(9))
        runs.write_closed(process, schema.EVENTS, noted)
    worker = runs.write_process(run, 0, role="process", pid=5)
    runs.write_closed(worker, schema.EVENTS, [runs.event(1, "link", "of a worker")])
    alone = runs.write_process(run, None, pid=6)
    runs.write_closed(alone, schema.SPANS, runs.loop(4))
    runs.write_closed(alone, schema.EVENTS, [runs.event(3, "attach", ""), runs.event(4, "gc", "")])
    node = runs.write_node(run)
    events = [runs.event(second, "link", f"link {second}") for second in range(3)]
    runs.write_closed(node, schema.EVENTS, events)
    runs.write_closed(node, schema.SAMPLES, runs.node_samples(5))
    return run


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened, by the folder of the process."""
    found: list[str] = []
    original = segment_file.arrow_file

    def counted(file: Path, copied: int = 0) -> object:
        found.append(f"{file.parent.name}/{file.name}")
        return original(file, copied)

    monkeypatch.setattr(segment_file, "arrow_file", counted)
    return found


@pytest.mark.parametrize("kinds", [("link",), ("attach",), ("model", "link", "flops"), NOTED])
def test_events_of_these_kinds_are_read_once(
    run: Path, opened: list[str], kinds: tuple[str, ...]
) -> None:
    expected = Analyzer(run).events(kind=kinds)
    analyzer = Analyzer(run)
    analyzer.summaries()
    opened.clear()
    found = analyzer.events(kind=kinds)
    assert found.equals(expected)
    assert found.schema == expected.schema
    # But of the worker, which is not summed up.
    assert opened == ["n0#0.5/events-0.arrow"]


def test_events_of_other_kinds_of_one_rank_or_of_any_kind_are_read_again(run: Path) -> None:
    analyzer = Analyzer(run)
    analyzer.summaries()
    for asked in ({"kind": "group"}, {"rank": 0, "kind": "model"}, {}):
        assert analyzer.events(**asked).equals(Analyzer(run).events(**asked))
    assert analyzer.events(kind=("gc", "link")).height == 5


def test_who_lives_is_read_again(run: Path) -> None:
    process = runs.write_process(run, 1, state="live", ended_ns=None)
    analyzer = Analyzer(run)
    analyzer.summaries()
    assert analyzer.events(rank=1, kind="attach").is_empty()
    runs.write_closed(process, schema.EVENTS, [runs.event(7, "attach", "later")], 1)
    assert analyzer.events(kind="attach").filter(pl.col("rank") == 1)["text"].to_list() == ["later"]


def test_steps_are_counted_once(run: Path, opened: list[str]) -> None:
    expected = Analyzer(run).efficiency()
    analyzer = Analyzer(run)
    analyzer.summaries()
    opened.clear()
    found = analyzer.efficiency()
    assert found.ranks.equals(expected.ranks)
    assert found.run.equals(expected.run)
    # Who said what it computes, who is not summed up, and what the node measured.
    assert {file.split("/")[0] for file in opened} == {"n0#0", "n0#0.5", "n0"}


def test_lives_are_looked_at_once(run: Path, opened: list[str]) -> None:
    expected = Analyzer(run).goodput()
    analyzer = Analyzer(run)
    analyzer.summaries()
    opened.clear()
    for one, other in zip(analyzer.goodput(), expected, strict=True):
        assert one.equals(other)
    assert {file.split("/")[0] for file in opened} == {"n0#0.5"}
