"""``haiprof sql``: a table, or CSV; an error is one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import traces
from commands import haiprof, only_line


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return traces.write(tmp_path / "t" / "w.pt.trace.json", traces.small())


def test_an_answer_is_a_table_or_csv(trace: Path) -> None:
    question = "select category, count(*) as n from spans group by category order by category"
    wide = {**os.environ, "COLUMNS": "80"}
    done = haiprof("sql", trace, question, env=wide)
    assert (done.returncode, done.stderr) == (0, "")
    assert "category" in done.stdout
    done = haiprof("sql", trace, question, "--csv")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head == "category,n"
    assert rows == sorted(rows)
    assert any(row.startswith("op,") for row in rows)


def test_an_error_is_one_line(trace: Path) -> None:
    done = haiprof("sql", trace, "select * from kernel")
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean 'kernels'?" in only_line(done)
