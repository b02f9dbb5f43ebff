"""``haiprof export``: writes the views of a trace, or says in one line why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import traces
from commands import haiprof, only_line


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return traces.write(tmp_path / "t" / "w.pt.trace.json", traces.small()).parent


def test_each_file_is_named(tmp_path: Path, trace: Path) -> None:
    done = haiprof("export", trace, "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(map(Path, done.stdout.splitlines())) == sorted((tmp_path / "out").iterdir())
    assert str(tmp_path / "out" / "operators.csv") in done.stdout


def test_a_format_that_is_none_is_one_line(tmp_path: Path, trace: Path) -> None:
    done = haiprof("export", trace, "-o", tmp_path / "out", "--to", "xls")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--to xls" in only_line(done)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "out").write_text("x")
    done = haiprof("export", trace, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert f"{tmp_path / 'out'}: cannot be written" in only_line(done)
