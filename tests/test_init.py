"""What the package itself says, before any part of it is imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from fixtures import ROOT

import haiprof


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_source_tree_says_in_one_line_what_to_do(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "haiprof", tmp_path / "haiprof", ignore=ignored)
    (tmp_path / "CMakeLists.txt").touch()
    for code in ("import haiprof", "from haiprof import Analyzer; Analyzer('x').steps()"):
        done = run(code, tmp_path)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            f"ImportError: {tmp_path / 'haiprof'} is haiprof's source tree, without its compiled "
            "part: `pip install` it, and start Python in another folder"
        )


def test_what_is_installed_is_imported_beside_any_file(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").touch()
    done = run("import haiprof; print(haiprof.__file__)", tmp_path)
    assert (done.stdout.strip(), done.stderr) == (haiprof.__file__, "")
