"""``haiprof import``, and ``haiprof report`` of traces."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import traces
from commands import haiprof, haiprof_on_terminal, only_line, start_haiprof
from recording import wait_for

pytestmark = pytest.mark.usefixtures("shm")


def hidden(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.name.startswith(".")]


def test_an_import_lies_beside_its_trace_and_is_made_once(tmp_path: Path) -> None:
    file = traces.write(tmp_path / "w.pt.trace.json.gz", traces.small())
    place = tmp_path / "w.pt.trace.json.gz.haiprof"
    done = haiprof("import", file)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{place}\n", "")
    mtime = (place / "run.json").stat().st_mtime_ns
    assert haiprof("import", file).stdout == f"{place} (was up to date)\n"
    assert (place / "run.json").stat().st_mtime_ns == mtime
    file.write_bytes(file.read_bytes())
    assert haiprof("import", file).stdout == f"{place}\n"
    assert (place / "run.json").stat().st_mtime_ns > mtime
    assert hidden(tmp_path) == []


def test_an_import_goes_where_it_is_wanted_and_is_a_run(tmp_path: Path) -> None:
    for rank in range(2):
        traces.write(tmp_path / "job" / f"rank_{rank}.json", traces.small(rank))
    before = sorted((tmp_path / "job").iterdir())
    out = tmp_path / "else" / "where"
    assert haiprof("import", tmp_path / "job", "--out", out).stdout == f"{out}\n"
    assert sorted((tmp_path / "job").iterdir()) == before
    assert haiprof("report", out, "-o", tmp_path / "report.html").returncode == 0


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    traces.write(tmp_path / "job" / "rank_0.json", traces.small())
    (tmp_path / "job" / "rank_1.json").write_text("hello\x1b[2J")
    done = haiprof("import", tmp_path / "job")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/job/haiprof-import\n")
    assert "rank_1.json: is not a trace" in only_line(done)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    file = traces.write(tmp_path / "w.json", traces.small())
    for out in ("/sys/kernel/import", file / "import"):
        done = haiprof("import", file, "--out", out)
        assert done.returncode == 1
        assert f"{out}: cannot be written (" in only_line(done)
        assert only_line(done).endswith("give another folder with --out")


def test_what_has_no_traces_is_one_line(tmp_path: Path) -> None:
    done = haiprof("import", tmp_path)
    assert done.returncode == 1
    assert "no traces (*.json) in it" in only_line(done)
    done = haiprof("import", tmp_path / "none")
    assert done.returncode == 1
    assert "no such file or folder" in only_line(done)


def test_a_terminal_sees_a_bar_and_a_pipe_none(tmp_path: Path) -> None:
    file = traces.write(tmp_path / "w.json", traces.small())
    code, printed, seen = haiprof_on_terminal("import", file)
    assert (code, printed) == (0, f"{file}.haiprof\n")
    assert "reading traces" in seen
    assert " kB" in seen
    # The bar wipes itself away.
    assert seen.rstrip().endswith("\x1b[2K")
    code, printed, seen = haiprof_on_terminal("import", file)
    assert (code, printed, seen) == (0, f"{file}.haiprof (was up to date)\n", "")
    file.write_text(file.read_text() + " ")
    done = haiprof("import", file)
    assert (done.stdout, done.stderr) == (f"{file}.haiprof\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_import_that_is_stopped_leaves_none(number: signal.Signals, tmp_path: Path) -> None:
    slow = tmp_path / "slow.json"
    os.mkfifo(slow)
    started = start_haiprof("import", slow, "-o", tmp_path / "out")
    with slow.open("wb", buffering=0) as trace:
        # Nobody ends this trace.
        trace.write(b'{"traceEvents": [')
        wait_for(lambda: hidden(tmp_path) != [])
        # Now it waits for more of the trace; polars, which it has loaded, is not to hold Ctrl-C up.
        maps, stat = (Path(f"/proc/{started.pid}/{name}") for name in ("maps", "stat"))
        wait_for(lambda: "polars" in maps.read_text() and ") S " in stat.read_text())
        started.send_signal(number)
        _, said = started.communicate(timeout=60)
    assert not (tmp_path / "out").exists()
    if number == signal.SIGINT:
        assert (started.returncode, said) == (130, "haiprof: interrupted\n")
        assert hidden(tmp_path) == []
    traces.write(tmp_path / "w.json", traces.small())
    assert haiprof("import", tmp_path / "w.json").returncode == 0
    assert hidden(tmp_path) == []


# Names that finders of other tools know: none of them may take from the pipe.
@pytest.mark.parametrize(
    "name",
    ["pipe.json", "workerlog.0", "benchmark-data-0-pipeline-0-tensor-0.json", "msprof_1.db",
     "trace_view.json"],
)  # fmt: skip
def test_a_pipe_can_be_imported(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / "ASCEND_PROFILER_OUTPUT" / name
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    document = traces.write(tmp_path / "w.json.gz", traces.small()).read_bytes()
    writer = threading.Thread(target=lambda: pipe.write_bytes(document))
    writer.start()
    done = haiprof("import", pipe, "-o", tmp_path / "out")
    writer.join()
    assert (done.returncode, done.stderr) == (0, "")
    assert haiprof("report", tmp_path / "out", "-o", tmp_path / "r.html").returncode == 0


def test_what_comes_through_a_shell_pipe_is_kept_only_with_out(tmp_path: Path) -> None:
    traces.write(tmp_path / "w.json", traces.small())

    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def shell(words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", words], cwd=tmp_path, env={**os.environ, "PATH": places},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = shell("cat w.json | haiprof import /dev/stdin -o out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")
    for words in ("cat w.json | haiprof import /dev/stdin", "haiprof import /dev/stdin < w.json"):
        done = shell(words)
        assert done.returncode == 1
        assert only_line(done).endswith(
            "/dev/stdin: an import cannot be kept there: give a folder with --out"
        )
    done = shell("cat w.json | haiprof report /dev/stdin")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "stdin.report.html")
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "out",
        "stdin.report.html",
        "w.json",
    ]


def test_a_database_cannot_come_through_a_pipe(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "w.sqlite")) as database:
        database.execute("create table t (x)")
    pipe = tmp_path / "x.sqlite"
    os.mkfifo(pipe)
    done = haiprof("import", pipe, "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert only_line(done).endswith(
        "x.sqlite: is a pipe, and databases are read from files: save it as one"
    )
    piped = subprocess.run(
        [sys.executable, "-m", "haiprof.cli.main", "import", "/dev/stdin", "-o", tmp_path / "out"],
        input=(tmp_path / "w.sqlite").read_bytes(), capture_output=True, check=False,
    )  # fmt: skip
    assert piped.returncode == 1
    assert b"/dev/stdin: is an SQLite database, which haiprof reads of" in piped.stderr
    assert not (tmp_path / "out").exists()


def test_of_a_trace_that_cannot_be_read_nothing_is_kept(tmp_path: Path) -> None:
    traces.write(tmp_path / "job" / "rank_0.json", traces.small())
    (tmp_path / "job" / "rank_1.json").write_text("hello")
    assert haiprof("import", tmp_path / "job", "-o", tmp_path / "out").returncode == 0
    assert hidden(tmp_path / "out") == []


def test_the_report_of_traces_lies_beside_them(tmp_path: Path) -> None:
    file = traces.write(tmp_path / "job" / "w.pt.trace.json", traces.small())
    done = haiprof("report", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{file}.report.html"
    done = haiprof("report", tmp_path / "job")
    assert done.stdout.splitlines()[0] == str(tmp_path / "job" / "report.html")


def cut(file: Path) -> Path:
    """Take the last tenth of a trace away."""
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw) * 9 // 10])
    return file


def test_a_loss_is_one_line_of_each_command(tmp_path: Path) -> None:
    whole = traces.write(tmp_path / "whole.json", traces.small())
    file = cut(traces.write(tmp_path / "w.json", traces.small()))
    for words in (
        ("report", file, "-o", tmp_path / "r.html"),
        ("export", file, "-o", tmp_path / "csv"),
        ("import", file, "--out", tmp_path / "kept"),
        ("compare", whole, file),
    ):
        done = haiprof(*words)
        assert (done.returncode, done.stdout != "") == (0, True)
        assert "w.json" in only_line(done)
        assert "cut" in only_line(done) or "ends" in only_line(done)


def test_of_many_losses_the_first_and_their_number_are_shown(tmp_path: Path) -> None:
    for rank in range(4):
        file = traces.write(tmp_path / "job" / f"rank_{rank}.json", traces.small(rank))
        if rank:
            cut(file)
    done = haiprof("report", tmp_path / "job", "-o", tmp_path / "r.html")
    assert done.returncode == 0
    assert only_line(done).endswith("(and 2 more: see the report)")
    page = (tmp_path / "r.html").read_text("utf-8")
    assert all(f"rank_{rank}.json: " in page for rank in (1, 2, 3))


@pytest.mark.parametrize("command", ["report", "export", "compare"])
def test_each_command_shows_how_far_it_has_read(tmp_path: Path, command: str) -> None:
    file = traces.write(tmp_path / "w.json", traces.small())
    more = {"report": [], "export": ["-o", tmp_path / "csv"], "compare": [file]}[command]
    code, printed, seen = haiprof_on_terminal(command, file, *more)
    assert (code, printed != "") == (0, True)
    assert "reading traces" in seen


def test_what_lies_in_a_folder_beside_files_of_another_tool_is_named(tmp_path: Path) -> None:
    log = "Profiler Info: Job (0), type = forward, micro_batch_id = 0, job_start_time = 1.0, "
    (tmp_path / "workerlog.0").write_text(f"{log}job_end_time = 2.0\n")
    events = [{"name": "forward", "ph": ph, "ts": ts, "args": {"iteration": 0}}
              for ph, ts in (("B", 0.0), ("E", 5.0))]  # fmt: skip
    timeline = tmp_path / "benchmark-data-0-pipeline-0-tensor-0.json"
    timeline.write_text(json.dumps(events))
    done = haiprof("import", tmp_path, "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/out\n")
    assert "has files of megatron, too, which are left out beside those of paddle" in only_line(
        done
    )
