"""Which processes an export is of: ranks and nodes, and deep traces in a run's folders."""

from __future__ import annotations

from pathlib import Path

import perfetto_trace
import pytest
import runs
import traces

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.export import chosen, chrome, perfetto


@pytest.fixture
def run(tmp_path: Path) -> Analyzer:
    """A run of two ranks, of which one has a deep trace."""
    folder = runs.make_run(tmp_path / "run", ranks=2)
    (process,) = (p.folder for p in Analyzer(folder).run.processes if p.rank == 1)
    traces.write(process / "w.1.pt.trace.json.gz", traces.small(rank=1, begin=1e15))
    return Analyzer(folder)


def test_deep_traces_come_after_what_made_them(run: Analyzer) -> None:
    labels = [each.label for each in chosen.chosen(run, None)]
    assert labels == ["rank 0", "rank 1", "node n0", "rank 1, deep trace"]
    labels = [each.label for each in chosen.chosen(run, 1)]
    assert labels == ["rank 1", "node n0", "rank 1, deep trace"]
    assert [each.label for each in chosen.chosen(run, 0)] == ["rank 0", "node n0"]
    assert [each.label for each in chosen.chosen(run, 0, nodes=False)] == ["rank 0"]


def test_what_knows_most_is_traced(run: Analyzer) -> None:
    assert [each.label for each in chosen.traced(run, None)] == ["rank 0", "rank 1, deep trace"]
    assert [each.label for each in chosen.traced(run, 1)] == ["rank 1, deep trace"]
    assert [each.label for each in chosen.traced(run, 0)] == ["rank 0"]


def test_a_rank_that_is_none_is_named(run: Analyzer) -> None:
    with pytest.raises(HaiprofError, match="--rank 2: the run has no such rank: it has 0, 1"):
        chosen.chosen(run, 2)


def test_a_time_line_holds_both(run: Analyzer, tmp_path: Path) -> None:
    perfetto.write(run, tmp_path / "run.pftrace")
    trace = perfetto_trace.read(tmp_path / "run.pftrace")
    kernels = [each for each in trace.slices if each.category == "kernel"]
    assert {each.track[0] for each in kernels} == {"rank 1, deep trace on n0"}
    assert len(kernels) == 2
    steps = [each.track[0] for each in trace.slices if each.category == "step"]
    assert {*steps} == {"rank 0 on n0", "rank 1 on n0", "rank 1, deep trace on n0"}


def test_files_of_deep_traces_are_named_after_their_ranks(run: Analyzer, tmp_path: Path) -> None:
    names = [file.name for file in chrome.write(run, tmp_path / "out")]
    assert names == ["rank_0.json.gz", "rank_1_deep_trace.json.gz"]


def test_a_part_of_a_run_has_the_deep_traces_of_its_time(run: Analyzer) -> None:
    folder = next(p.folder for p in run.run.processes if p.rank == 0)
    traces.write(folder / "w.2.pt.trace.json.gz", traces.small(rank=0, begin=runs.T0 / 1000))
    whole = Analyzer(run.run.folder)
    assert [each.label for each in chosen.traced(whole.between(0, 30), 0)] == ["rank 0, deep trace"]
    assert [each.label for each in chosen.traced(whole.between(30, 50), 0)] == ["rank 0"]
