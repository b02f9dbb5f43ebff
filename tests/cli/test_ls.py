"""``haiprof ls``, ``--last`` and names of runs: which runs there are, and which one is meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, only_line
from runs import SECOND, T0, make_run, write_json, write_node, write_process, write_run

from haiprof import schema
from haiprof.answers.listed import look_at
from haiprof.cli import logged
from haiprof.cli.arguments import UsageError
from haiprof.cli.ls import list_runs
from haiprof.common.owned_files import open_regular
from haiprof.errors import HaiprofError
from haiprof.sources import own

pytestmark = pytest.mark.usefixtures("shm")


def listed(folder: Path, *words: str) -> list[dict[str, Any]]:
    done = haiprof("ls", folder, "--json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def ended(kind: str, exit_code: int = 0) -> dict[str, object]:
    return {"kind": kind, "exit_code": exit_code, "text": "its end", "time_ns": T0 + 60 * SECOND}


def test_each_run_is_a_line_the_newest_first(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new")):
        run = write_run(tmp_path / name, created_ns=T0 + number * SECOND)
        write_node(run)
        for rank in range(2):
            write_process(run, rank, world_size=2, steps=100 + rank, ended=ended("finished"))
    heading, first, second = haiprof("ls", tmp_path).stdout.splitlines()
    assert heading.split() == ["RUN", "WHEN", "LASTED", "RANKS", "STEPS", "STATE"]
    assert first.split()[0] == "new"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(T0 // SECOND)).split()
    assert second.split() == ["old", *when, "0:01:00", "2", "101", "ended"]


def test_the_state_says_how_a_run_ended(tmp_path: Path) -> None:
    failed = write_run(tmp_path / "failed")
    write_process(failed, 0, ended=ended("finished"))
    write_process(failed, 1, ended=ended("failed", 1))
    asleep = write_run(tmp_path / "asleep")
    write_process(asleep, 0, state="live", ended_ns=None)
    for file in (asleep / "n0#0").iterdir():
        os.utime(file, (1, 1))
    living = write_run(tmp_path / "living", created_ns=time.time_ns())
    write_process(living, 0, state="live", ended_ns=None)
    command = write_run(tmp_path / "command")
    write_node(command, ended=ended("failed", 3))
    write_run(tmp_path / "empty")
    assert {row["run"]: row["state"] for row in listed(tmp_path)} == {
        "failed": "ended, 1 failed",
        "asleep": "silent",
        "living": "recording",
        "command": "ended without training, 1 failed",
        "empty": "nothing recorded",
    }


def test_what_is_wrong_with_a_run_is_its_state_and_hides_no_other(tmp_path: Path) -> None:
    make_run(tmp_path / "good", steps=5)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / schema.RUN_FILE).write_text('{"format"')
    write_json(tmp_path / "future" / schema.RUN_FILE, {"format": schema.RUN_FORMAT, "version": "9"})
    forged = write_run(tmp_path / "forged")
    document = json.loads((forged / schema.RUN_FILE).read_text())
    write_json(forged / schema.RUN_FILE, {**document, "created_ns": 10**30})
    damaged = write_run(tmp_path / "damaged")
    (write_process(damaged) / schema.PROCESS_FILE).write_text("[]")
    states = {row["run"]: row["state"] for row in listed(tmp_path)}
    assert states["good"] == "ended"
    assert states["torn"] == "run.json: cut off or not JSON"
    assert states["future"].startswith("run.json: field 'version' is 9")
    assert states["damaged"].startswith("n0#0/process.json: field 'format'")
    assert states["forged"].startswith("run.json: field 'created_ns'")
    lines = haiprof("ls", tmp_path).stdout.splitlines()
    assert len(lines) == 6


def test_a_run_without_a_step_count_has_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_process(run)
    assert look_at(run).steps is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_its_owner_has_closed_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "mine", steps=5)
    make_run(tmp_path / "theirs", steps=5)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    for path in (tmp_path / "mine").rglob("*"):
        path.chmod(0o755)
    (tmp_path / "mine").chmod(0o755)
    (tmp_path / "theirs").chmod(0o700)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        list_runs(tmp_path, all_runs=False, as_json=True)
        assert logged.runs_at(tmp_path) == [tmp_path / "mine"]
    finally:
        os.seteuid(0)
        os.setegid(0)
    states = {row["run"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert states == {"mine": "ended", "theirs": "closed to others by root"}


def test_of_many_runs_only_those_that_are_shown_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(300):
        write_process(write_run(tmp_path / f"run-{number:03}", created_ns=T0 + number))
    read: list[str] = []

    def counted(path: Path) -> Any:
        read.append(path.name)
        return open_regular(path)

    monkeypatch.setattr(own, "open_regular", counted)
    list_runs(tmp_path, all_runs=False, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 52
    assert lines[1].split()[0] == "run-299"
    assert lines[-1] == "and 250 older ones: --all lists them, too"
    assert read.count(schema.PROCESS_FILE) == 50


def test_all_runs_are_listed_where_that_is_wanted(tmp_path: Path) -> None:
    for number in range(60):
        write_run(tmp_path / f"run-{number}")
    assert len(listed(tmp_path)) == 50
    assert len(listed(tmp_path, "--all")) == 60


def test_nothing_heavy_is_imported_to_list_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=5)
    program = (
        "import sys; from pathlib import Path; from haiprof.cli.ls import list_runs\n"
        f"list_runs(Path({str(tmp_path)!r}), all_runs=False, as_json=False)\n"
        "print({'pyarrow', 'polars', 'torch', 'plotly'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    *lines, heavy = said.stdout.decode().splitlines()
    assert len(lines) == 2
    assert heavy == "set()"


def test_where_there_is_no_run_one_line_says_so(tmp_path: Path) -> None:
    done = haiprof("ls", tmp_path)
    assert done.returncode == 1
    assert "no run lies in it" in only_line(done)
    (tmp_path / "haiprof-logs").mkdir()
    done = haiprof("ls", tmp_path / "haiprof-log")
    assert f"did you mean '{tmp_path}/haiprof-logs'?" in only_line(done)


# -- which run is meant --------------------------------------------------------------------------


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log directory with two runs of one script and one of another."""
    names = ("train-20260314-153012-1", "train-20260314-163012-2", "eval-20260314-173012-3")
    for number, name in enumerate(names):
        make_run(tmp_path / "logs" / name, steps=5)
        write_run(tmp_path / "logs" / name, created_ns=T0 + number * SECOND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAIPROF_LOG_DIR", "logs")
    return tmp_path / "logs"


def test_the_last_run_is_the_newest_of_a_folder_or_of_the_log_directory(logs: Path) -> None:
    assert logged.one_run(None, last=True) == "logs/eval-20260314-173012-3"
    assert logged.one_run(str(logs), last=True) == f"{logs}/eval-20260314-173012-3"
    first = str(logs / "train-20260314-153012-1")
    assert logged.one_run(first, last=True) == first
    done = haiprof("report", "--last")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("logs/eval-20260314-173012-3/report.html\n")


def test_export_and_sql_take_the_last_run_too(logs: Path, tmp_path: Path) -> None:
    done = haiprof("export", "--last", "summary", "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path}/out/")
    question = "select distinct node from spans"
    for words in ([question], [str(logs), question]):
        done = haiprof("sql", "--last", "--csv", *words)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", "node\nn0\n")


def test_export_and_sql_without_a_run_name_the_newest_ones(logs: Path, tmp_path: Path) -> None:
    for words in (["export", "-o", tmp_path / "out"], ["sql", "select 1"]):
        done = haiprof(*words)
        assert done.returncode == 2
        assert "which run? give RUN, or --last for the newest" in only_line(done)
    assert not (tmp_path / "out").exists()
    done = haiprof("sql", logs, "select", "1")
    assert (done.returncode, "put the question in quotes" in only_line(done)) == (2, True)


def test_the_last_two_runs_are_of_one_name(logs: Path) -> None:
    with pytest.raises(HaiprofError, match="eval-20260314-173012-3 is the only run of its name"):
        logged.two_runs(None, None, last=True)
    write_run(logs / "train-20260314-163012-2", created_ns=T0 + 9 * SECOND)
    pair = ("logs/train-20260314-153012-1", "logs/train-20260314-163012-2")
    assert logged.two_runs(None, None, last=True) == pair
    assert logged.two_runs("logs", "logs", last=True) == (pair[1], pair[1])
    assert logged.two_runs("a", "b", last=False) == ("a", "b")


def test_without_a_run_the_newest_ones_are_named(logs: Path) -> None:
    done = haiprof("diagnose")
    assert done.returncode == 2
    assert only_line(done) == (
        "haiprof: which run? give RUN, or --last for the newest; logs has eval-20260314-173012-3, "
        "train-20260314-163012-2, train-20260314-153012-1; see haiprof ls"
    )
    with pytest.raises(UsageError, match="give BEFORE and AFTER"):
        logged.two_runs("logs", None, last=False)


def test_without_any_run_one_line_says_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is none in haiprof-logs"):
        logged.one_run(None, last=False)


def test_a_run_is_found_by_its_name_and_a_typo_is_named(logs: Path) -> None:
    name = "train-20260314-153012-1"
    assert logged.meant(name) == Path("logs") / name
    assert logged.meant("s3://bucket/run") == "s3://bucket/run"
    assert haiprof("diagnose", name).returncode == 0
    done = haiprof("diagnose", "trian-20260314-153012-1")
    assert done.returncode == 1
    assert only_line(done) == (
        "haiprof: trian-20260314-153012-1: no such file or folder, and no run in logs: did you "
        f"mean 'logs/{name}'?"
    )
    done = haiprof("diagnose", f"logs/{name}1")
    assert f"no such file or folder: did you mean 'logs/{name}'?" in only_line(done)
    done = haiprof("top", "evil-20260314-173012-3")
    assert "did you mean 'eval-20260314-173012-3'?" in only_line(done)
