"""Wheels as they are published: what they need, and that each Python here installs its own."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from fixtures import ROOT
from interpreters import interpreters

spec = importlib.util.spec_from_file_location("make_wheels", ROOT / "wheels" / "make.py")
assert spec is not None
assert spec.loader is not None
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


def run(folder: Path, *command: str | Path) -> str:
    """Run it in a folder that is not that of the sources, which Python would import."""
    words = list(map(str, command))
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_wheel_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "haiprof-1-cp311-cp311-x.whl"
    path.write_bytes(bytes(make.MOST))
    assert make.too_large(path) == ""
    path.write_bytes(bytes(make.MOST + 1))
    assert make.too_large(path) == f"{path.name} has 5000001 bytes, more than 5000000"
    with pytest.raises(SystemExit, match="more than 5000000"):
        make.check(path, sys.executable)


def test_a_command_that_fails_is_the_end() -> None:
    with pytest.raises(SystemExit, match=r"-c exit\(3\) ended with 3$"):
        make.run([sys.executable, "-c", "exit(3)"])


def test_what_is_published_is_for_the_same_library_and_all_pythons() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    images = re.findall(r'^manylinux-\w+-image = "(\w+)"', text, re.MULTILINE)
    assert images == [f"manylinux_{make.GLIBC[0]}_{make.GLIBC[1]}"] * 2
    promised = re.findall(r"Python :: 3\.(\d+)", text)
    assert len(promised) > 4
    listed = re.search(r"^build = \[(.*)\]", text, re.MULTILINE)
    assert listed is not None
    assert set(re.findall(r'"cp3(\d+)-\*"', listed[1])) == set(promised)


@pytest.mark.pythons
def test_each_python_here_installs_its_wheel_and_works(tmp_path: Path) -> None:
    """Without a compiler or Node: the sdist has the page of the report."""
    pythons = interpreters()
    run(
        tmp_path,
        sys.executable,
        ROOT / "wheels" / "make.py",
        tmp_path / "wheels",
        *pythons.values(),
    )
    [sdist] = (tmp_path / "wheels").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert "haiprof/show/page/page.html" in names
    assert not any(name.startswith((".ci", "page/node_modules")) for name in names)
    for name, python in pythons.items():
        [wheel] = (tmp_path / "wheels").glob(f"*-cp{name[6:].replace('.', '')}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            assert "haiprof/show/page/page.html" in archive.namelist()
        programs = make.environment(tmp_path / name, python, f"{wheel}[report]")
        assert run(tmp_path, programs / "python", "-W", "error", "-c", "import haiprof") == ""
        assert run(tmp_path, programs / "haiprof", "--version").startswith("haiprof ")
        assert "recorder: a record reached its file" in run(
            tmp_path, programs / "haiprof", "doctor", "--require", "core"
        )
        logs, page = tmp_path / f"logs-{name}", tmp_path / f"{name}.html"
        code = "import haiprof\nfor _ in range(9): haiprof.step()"
        run(
            tmp_path,
            programs / "haiprof",
            "run",
            "--log-dir",
            logs,
            "--",
            programs / "python",
            "-c",
            code,
        )
        run(tmp_path, programs / "haiprof", "report", logs, "-o", page)
        assert page.stat().st_size > 100_000
