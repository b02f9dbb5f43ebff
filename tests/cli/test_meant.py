"""What nobody can mean on a command line, or as a path, is one line that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import runs
import traces
from commands import HAIPROF, haiprof, only_line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reprot"], "did you mean 'report'?"),
        (["reprot", "somewhere"], "there is no command 'reprot': did you mean 'report'?"),
        (["epxort", "somewhere", "-o", "x"], "did you mean 'export'?"),
        (["report", "somewhere", "--outptu", "x"], "--output"),
        (["--vresion"], "--version"),
        (["ps", "--jsn"], "--json"),
        (["run", "--kernls", "all", "true"], "did you mean '--kernels'?"),
        (["run", "--no-hoks", "true"], "did you mean '--no-hooks'?"),
        (["run", "--kernels", "windos", "true"], "did you mean 'windows'?"),
        (["run", "--recorders", "gpuu,ib", "true"], "did you mean 'gpu'?"),
        (["run", "--graphs", "kernel", "true"], "did you mean 'kernels'?"),
        (["trace", "--trace-with", "stack", "true"], "did you mean 'stacks'?"),
        (["run", "--options", "profile.tiem=3", "true"], "did you mean 'profile.time'?"),
        (["attach", "--kernels", "windos", "1"], "did you mean 'windows'?"),
        (["export", "x", "-o", "y", "--to", "perfeto"], "did you mean 'perfetto'?"),
    ],
)
def test_a_slip_of_the_fingers(words: list[str], message: str) -> None:
    done = haiprof(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in only_line(done)


#: Imports what is needed, becomes nobody where it is root, and opens each path.
OPENS = """
import os, pwd, sys
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
_, good, *paths = sys.argv
Analyzer(good)
if os.geteuid() == 0:
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
for path in paths:
    try:
        print(Analyzer(path).problems()[0])
    except HaiprofError as error:
        print(error)
"""


def test_what_may_not_be_read_is_one_line() -> None:
    with tempfile.TemporaryDirectory(prefix="haiprof-test-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        document = traces.small()
        trace = traces.write(place / "file" / "w.pt.trace.json", document)
        closed = traces.write(place / "closed" / "w.pt.trace.json", document)
        good = traces.write(place / "some" / "a.pt.trace.json", document)
        some = traces.write(place / "some" / "b.pt.trace.json", document)
        run = runs.make_run(place / "logs" / "r")
        (place / "log_dir").mkdir()
        closing = [trace, closed.parent, some, run, place / "log_dir"]
        given = [trace, closed.parent, some.parent, run, place / "log_dir"]
        for path in closing:
            path.chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", OPENS, good, *given], capture_output=True, text=True, timeout=300
        )
        for path in closing:
            path.chmod(0o755)
    lines = done.stdout.splitlines()
    assert len(lines) == len(given), done.stderr
    for path, line in zip(closing, lines, strict=True):
        assert line.startswith(f"{path}"), line
        assert "Permission denied" in line
        assert ": ask its owner for access" in line


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda place: place.mkdir(), "no trace"),
        (lambda place: None, "no such file or folder"),
        (lambda place: place.write_text("hello"), "is not a trace"),
        (lambda place: place.write_text('{"a": 1}'), "is not a trace"),
        (lambda place: place.write_bytes(b""), "is empty"),
        (lambda place: place.write_bytes(b"\x1f\x8b"), "is damaged"),
        (lambda place: (place / "sub").mkdir(parents=True), "no trace"),
        (lambda place: place.symlink_to(place), "cannot be read"),
        (lambda place: (place.mkdir(), (place / "run.json").write_text("{")), "run.json"),
        (lambda place: (place.mkdir(), (place / "run.json").mkdir()), "no trace"),
    ],
)
def test_a_path_with_nothing_to_read(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    place = tmp_path / "given"
    make(place)
    done = haiprof("report", place)
    assert (done.returncode, done.stdout) == (1, "")
    line = only_line(done)
    assert str(place) in line
    assert message in line
    assert ": " in line.partition(str(place))[2]


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000, "\udcff\x1b[31m", "‮evil"])
def test_odd_paths_are_one_line_that_drives_no_terminal(name: str) -> None:
    done = subprocess.run(
        [*map(os.fsencode, HAIPROF), b"report", os.fsencode(name)],
        capture_output=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = done.stderr.decode()
    assert done.returncode == 1
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable()
