"""The recorder's process itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recording import read_table, run_python, wait_recorded


def test_pandas_is_not_imported_where_it_is_installed(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pandas.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'a').write('by somebody')\n__version__ = '2.2.0'\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    program = """
        import sys, haiprof
        haiprof.start(sys.argv[1], run="run")
        with haiprof.range("work"): pass
        haiprof.stop()
    """
    run_python(program, str(tmp_path))
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    assert read_table(folder, "spans")["name"].to_pylist() == ["work"]
    assert not (tmp_path / "imported").exists()
