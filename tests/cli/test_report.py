"""``haiprof report`` and what all commands share: one line for whatever is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import HAIPROF, haiprof, only_line
from fixtures import ROOT
from recording import wait_for
from runs import loop, make_run, write_closed, write_json, write_process, write_run

from haiprof import schema
from haiprof.common import protocol

pytestmark = pytest.mark.usefixtures("shm")


def test_the_report_lies_in_the_run_and_three_lines_say_most(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    done = haiprof("report", run)
    assert (done.returncode, done.stderr) == (0, "")
    path, *lines = done.stdout.splitlines()
    assert Path(path) == run / "report.html"
    assert Path(path).stat().st_size > 1000
    assert len(lines) == 3


def test_the_report_goes_where_it_is_wanted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    done = haiprof("report", run, "-o", tmp_path / "mine.html")
    assert done.returncode == 0
    assert (tmp_path / "mine.html").exists()
    assert not (run / "report.html").exists()


def test_of_two_runs_the_report_of_the_later_one_says_what_changed(tmp_path: Path) -> None:
    make_run(tmp_path / "before")
    after = make_run(tmp_path / "after", slow_rank=0)
    done = haiprof("report", tmp_path / "before", after)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, str(after / "report.html"))
    assert "A step is 50 % slower: 12 ms before, 18 ms after" in (after / "report.html").read_text()


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    done = haiprof("report", run, "-o", tmp_path / "nowhere" / "mine.html")
    assert done.returncode == 1
    assert "nowhere/mine.html" in only_line(done)


def test_the_report_is_opened_in_a_browser_if_there_is_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    link = (run / "report.html").as_uri()
    done = haiprof("report", run, "--open", env={**os.environ, "BROWSER": str(browser)})
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "opened").read_text() == f"{link}\n"
    hidden = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    bare = {name: value for name, value in os.environ.items() if name not in hidden}
    done = haiprof("report", run, "--open", env=bare)
    assert done.returncode == 0
    assert only_line(done) == (
        f"haiprof: no web browser could be started here; open this where there is one: {link}"
    )


def nothing_there(folder: Path) -> None:
    """Leave the path free."""


def a_file(folder: Path) -> None:
    folder.write_text("x")


def an_empty_folder(folder: Path) -> None:
    folder.mkdir()


def a_truncated_run(folder: Path) -> None:
    write_run(folder)
    file = folder / "run.json"
    file.write_text(file.read_text()[:40])


def a_newer_run(folder: Path) -> None:
    write_run(folder, version="2.0")
    write_process(folder)


def somebody_elses_run(folder: Path) -> None:
    write_json(folder / "run.json", {"format": "other"})


def a_run_without_processes(folder: Path) -> None:
    write_run(folder)


def several_runs(folder: Path) -> None:
    make_run(folder / "a")
    make_run(folder / "b")


@pytest.mark.parametrize(
    "make",
    [
        nothing_there,
        a_file,
        an_empty_folder,
        a_truncated_run,
        a_newer_run,
        somebody_elses_run,
        a_run_without_processes,
        several_runs,
    ],
)
def test_what_is_no_run_is_one_line_that_names_it(tmp_path: Path, make: object) -> None:
    folder = tmp_path / "run"
    assert callable(make)
    make(folder)
    done = haiprof("report", folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert only_line(done).startswith(f"haiprof: {folder}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["frobnicate"], "frobnicate"),
        (["--frobnicate"], "--frobnicate"),
        (["--vresion"], "there is no option --vresion of haiprof: did you mean '--version'?"),
        (["reprot", "run"], "did you mean 'report'?"),
        (["report", "run", "--outptu", "x"], "did you mean '--output'?"),
        (["train.py", "--tiem", "3"], "of haiprof attach: did you mean '--time'?"),
        (["report"], "RUN"),
        (["report", "a", "b", "c"], "c"),
        (["report", "run", "--frobnicate"], "--frobnicate"),
        (["report", "run", "-o"], "-o"),
        (["doctor", "--json=x"], "--json"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(words: list[str], message: str) -> None:
    done = haiprof(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in only_line(done)
    assert "see haiprof" in only_line(done)


def test_without_a_command_the_commands_are_listed() -> None:
    done = haiprof()
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("run", "report", "recover", "doctor"):
        assert f"\n  {command} " in done.stdout


def test_the_version_is_that_of_the_package_and_of_what_it_writes() -> None:
    import haiprof as package

    layout = (ROOT / "src/ring/layout.h").read_text("utf-8")
    [major] = re.findall(r"kLayoutMajor = (\d+);", layout)
    [minor] = re.findall(r"kLayoutMinor = (\d+);", layout)
    done = haiprof("--version")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"haiprof {package.__version__}",
        f"formats: run {schema.MAJOR}.{schema.MINOR}, ring {major}.{minor}, "
        f"control protocol {protocol.VERSION}",
    ]


def test_no_help_is_cut_off_or_too_wide_for_80_columns() -> None:
    from haiprof.cli.app import commands

    listed = haiprof("--help", env={**os.environ, "COLUMNS": "80"}).stdout
    for line in listed.partition("Commands:\n")[2].splitlines():
        assert len(line) <= 80
        assert not line.endswith("..."), line
    for command in sorted(commands()):
        told = haiprof(command, "--help", env={**os.environ, "COLUMNS": "80"}).stdout
        assert max(map(len, told.splitlines())) <= 80, command


def test_python_runs_the_package_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "haiprof", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == haiprof("--version").stdout


@pytest.mark.parametrize("command", ["run", "report", "recover", "doctor"])
def test_every_command_explains_itself(command: str) -> None:
    done = haiprof(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: haiprof {command}")


def test_ctrl_c_is_one_line_and_code_130(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    program = f"""
import sys, time
from pathlib import Path
from haiprof.common import owned_files
from haiprof.cli.main import main
def open_slowly(*given):
    Path({str(tmp_path / "reading")!r}).touch()
    while True:
        time.sleep(0.01)
owned_files.open_regular = open_slowly
sys.argv = ["haiprof", "report", {str(run)!r}]
main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for((tmp_path / "reading").exists, 60, what="the reading of the run")

    def interrupted() -> bool:
        # One that comes just before the read begins is only seen at the next.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        return process.poll() is not None

    wait_for(interrupted, what="the end")
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "haiprof: interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    process = subprocess.Popen(
        [*HAIPROF, "report", str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (141, b"")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"]])
def test_a_reader_that_is_gone_is_no_error_of_short_commands(words: list[str]) -> None:
    process = subprocess.Popen([*HAIPROF, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (141, b"")


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
def test_a_terminal_of_another_encoding_gets_what_it_can_show(
    tmp_path: Path, encoding: str
) -> None:
    run = write_run(tmp_path / "run")
    steps = [{**row, "duration": row["duration"] // 100} for row in loop(20)]
    write_closed(write_process(run), schema.SPANS, steps)
    done = subprocess.run(
        [*HAIPROF, "report", str(run)],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"120 \\xb5s" in done.stdout


def test_a_command_that_is_not_utf8_gives_a_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_run(run, command=["train.py", "\udcff"])
    assert haiprof("report", run).returncode == 0
    assert "train.py ?" in (run / "report.html").read_text("utf-8")


def test_a_time_beyond_every_calendar_is_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_run(run, created_ns=10**30)
    done = haiprof("report", run)
    assert done.returncode == 1
    assert "field 'created_ns'" in only_line(done)


def test_a_name_from_a_run_cannot_drive_the_terminal(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    spans = loop(20, [("\x1b[2Jwipe", 9.0)])
    write_closed(write_process(run), schema.SPANS, spans)
    done = haiprof("report", run)
    assert "[2Jwipe 90 %" in done.stdout
    assert "\x1b" not in done.stdout


def test_without_a_stderr_nothing_of_ours_goes_to_stdout(tmp_path: Path) -> None:
    words = [*HAIPROF, "report", str(tmp_path / "nowhere")]
    program = 'exec "$@" 2>&-'
    done = subprocess.run(
        ["sh", "-c", program, "sh", *words], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_the_command_of_a_hostile_run_is_only_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    file = run / "run.json"
    hostile = {**json.loads(file.read_text()), "command": ["<script>alert(1)</script>"]}
    file.write_text(json.dumps(hostile))
    assert haiprof("report", run).returncode == 0
    assert "<script>alert(1)" not in (run / "report.html").read_text()
