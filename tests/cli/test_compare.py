"""``haiprof compare``: what two traces differ in, on a terminal of 80 columns."""

from __future__ import annotations

import os
from pathlib import Path

import traces
from commands import haiprof, only_line


def test_two_recorded_traces_are_compared_in_80_columns() -> None:
    control, test = (traces.files(f"hta_trace_diff_{name}")[0] for name in ("control", "test"))
    done = haiprof("compare", control, test, env={**os.environ, "COLUMNS": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_runs_without_a_common_rank_are_one_line(tmp_path: Path) -> None:
    for name, ranks in (("a", (0, 1)), ("b", (2, 3))):
        for rank in ranks:
            file = tmp_path / name / f"r{rank}.pt.trace.json"
            traces.write(file, traces.small(rank))
    done = haiprof("compare", tmp_path / "a", tmp_path / "b")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no rank in common" in only_line(done)
