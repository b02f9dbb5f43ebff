"""All runs of a log directory: what a row says, which rows are made anew, and what may go wrong."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from runs import (
    MS,
    SECOND,
    T0,
    loop,
    make_gpu_run,
    make_run,
    span,
    steady,
    write_closed,
    write_json,
    write_node,
    write_process,
    write_run,
)

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.answers import all_runs as module
from haiprof.answers import run_index, run_row
from haiprof.answers.all_runs import COLUMNS, all_runs
from haiprof.answers.run_row import row_of
from haiprof.errors import HaiprofError
from haiprof.sources import own
from haiprof.sources.log_dirs import LogDir
from haiprof.sources.log_urls import LogUrl

HOUR = 3600 * SECOND
OLD = 1_600_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give this test a cache of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the runs that rows are made of; quickly, from documents alone."""
    names: list[str] = []
    monkeypatch.setattr(run_row, "_add_tables", lambda row, run: None)

    def noted(folder: Path) -> dict[str, Any]:
        names.append(folder.name)
        return row_of(folder)

    monkeypatch.setattr(module, "row_of", noted)
    return names


def aged(folder: Path) -> Path:
    """Set all times of a folder back: what was written just now may be written once more."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (OLD, OLD), follow_symlinks=False)
    return folder


def index_of(folder: Path) -> Path:
    return folder / f".haiprof-runs-{os.geteuid()}.parquet"


def small_run(folder: Path, rank_count: int = 1, **changes: object) -> Path:
    """Make a run without tables."""
    run = write_run(folder, **changes)
    for rank in range(rank_count):
        write_process(run, rank, world_size=rank_count)
    return run


def lasted(run: Path, hours: float, *, gpus: int) -> Path:
    """Make a run that ends its steps after a second, and then only exists, on so many GPUs."""
    ended = T0 + round(hours * HOUR)
    of = [{"device": n, "uuid": f"GPU-{n}", "name": "NVIDIA H100"} for n in range(gpus)]
    process = write_process(write_run(run), ended_ns=ended, gpus=of)
    write_closed(process, schema.SPANS, loop(50))
    return run


def only(folder: Path) -> dict[str, Any]:
    (row,) = all_runs(folder).to_dicts()
    return row


# -- a row ---------------------------------------------------------------------------------------


def test_a_row_says_who_what_when_and_how_fast(tmp_path: Path) -> None:
    run = make_gpu_run(tmp_path / "r", ranks=2)
    node = json.loads((run / "n0" / schema.PROCESS_FILE).read_text())
    power = {("gpu.power.watts", f"gpu{n}"): 300.0 + 100 * n for n in range(2)}
    write_closed(write_node(run, gpus=node["gpus"]), schema.SAMPLES, steady(10, power), number=1)
    row = only(tmp_path)
    assert (row["run"], row["folder"], row["host"]) == ("r", "r", "n0")
    assert row["command"] == "python train.py"
    assert row["user"] == row["owner"] == run.owner()
    assert (row["started"], row["ended"], row["duration"]) == (T0, T0 + 60 * SECOND, 60 * SECOND)
    assert (row["nodes"], row["ranks"], row["gpus"], row["gpu"]) == (1, 2, 2, "NVIDIA H100")
    assert (row["state"], row["running"], row["problem"]) == ("ended", False, None)
    assert (row["steps"], row["step_ns"], row["step_trend"]) == (118, 12e6, 0.0)
    assert row["data_share"] == pytest.approx(1 / 12)
    # Of 119.5 ms of recorded steps on each GPU, 10 had communication alone.
    assert row["exposed_communication_share"] == pytest.approx(10 / 119.5)
    assert row["gpu_power_watts"] == pytest.approx(350)
    assert row["gpu_busy_share"] == pytest.approx(0.625)
    assert row["gpu_hours"] == row["rank_hours"] == pytest.approx(2 / 60)
    assert row["goodput"] == pytest.approx(Analyzer(run).goodput().summary["ettr"][0])


def test_hours_are_lost_to_what_the_run_was_in_and_to_what_its_steps_were_in(
    tmp_path: Path,
) -> None:
    make_gpu_run(tmp_path / "r", ranks=2)
    row = only(tmp_path)
    steps, whole = 118 * 12 / 1000, 60
    expected = {
        "shutdown": whole - steps,
        "data": 118 / 1000,
        "exposed_communication": steps * 10 / 119.5,
        "idle": steps * (12.5 + 2.5 + 4.5) / 119.5,
    }
    for cause, seconds in expected.items():
        assert row["lost_shares"][cause] == pytest.approx(seconds / whole), cause
        assert row["lost_to"][cause] == pytest.approx(seconds * 2 / 3600), cause
    assert all(row["lost_to"][each] == 0 for each in ("down", "startup", "hang", "lost"))
    assert row["gpu_hours_lost"] == pytest.approx(sum(expected.values()) * 2 / 3600)
    assert row["rank_hours_lost"] == row["gpu_hours_lost"]


def test_a_restart_costs_what_was_down_and_what_was_lost(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    died = {"kind": "killed", "signal": "SIGKILL", "text": "killed", "time_ns": T0 + 10 * SECOND}
    first = write_process(run, ended_ns=T0 + 10 * SECOND, state="died", ended=died)
    write_closed(first, schema.SPANS, [span(1000 * n, 1000, "step", "step", n) for n in range(10)])
    document = {**json.loads((first / schema.PROCESS_FILE).read_text()), "attempt": 1, "pid": 2000}
    document |= {"started_ns": T0 + 30 * SECOND, "ended_ns": T0 + 40 * SECOND, "state": "closed"}
    del document["ended"]
    again = run / "n0#0.1"
    write_json(again / schema.PROCESS_FILE, document)
    steps = [span(30_000 + 1000 * n, 1000, "step", "step", n) for n in range(10)]
    write_closed(again, schema.SPANS, steps)
    row = only(tmp_path)
    assert row["steps"] == 20
    assert row["lost_shares"]["down"] == pytest.approx(20 / 40)
    assert row["lost_shares"]["lost"] == pytest.approx(10 / 40)
    assert row["goodput"] == pytest.approx(10 / 40)
    assert "restarted" in row["findings"]


def test_what_is_not_known_is_null_and_never_zero(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    steps = [span(10 * n, 10, "step", "step", n) for n in range(20)]
    write_closed(write_process(run), schema.SPANS, steps)
    small_run(tmp_path / "without tables")
    for row in all_runs(tmp_path).to_dicts():
        unknown = ("gpus", "gpu", "gpu_hours", "gpu_hours_lost", "lost_to", "mfu", "data_share")
        unknown += ("exposed_communication_share", "gpu_busy_share", "gpu_power_watts")
        assert [row[name] for name in (*unknown, "step_trend")] == [None] * (len(unknown) + 1)
        assert [row["lost_shares"][c] for c in ("data", "exposed_communication", "idle")] == [
            None
        ] * 3
        assert row["rank_hours"] == pytest.approx(1 / 60)


def test_without_a_launcher_who_had_steps_counts_as_a_rank(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    gpu = [{"device": 0, "uuid": "GPU-1", "name": "NVIDIA H100"}]
    write_closed(write_process(run, None, pid=7, gpus=gpu), schema.SPANS, loop(20))
    write_process(run, None, pid=8)
    row = only(tmp_path)
    assert (row["ranks"], row["gpus"], row["steps"]) == (1, 1, 20)
    assert row["gpu_hours"] == row["rank_hours"] == pytest.approx(1 / 60)


def test_the_trend_is_that_of_the_last_quarter(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    at, spans = 0.0, []
    for number in range(100):
        took = 15.0 if number >= 70 else 10.0
        spans.append(span(at, took, "step", "step", number))
        at += took
    write_closed(write_process(run), schema.SPANS, spans)
    assert only(tmp_path)["step_trend"] == pytest.approx(0.5)


def test_those_that_lost_most_gpu_hours_come_first_then_those_of_the_cpu(tmp_path: Path) -> None:
    for name, hours, gpus in (("a", 2, 1), ("b", 1, 3), ("c", 9, 0), ("d", 99, 0)):
        lasted(tmp_path / name, hours, gpus=gpus)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / schema.RUN_FILE).write_text("{")
    found = all_runs(tmp_path)
    assert found["run"].to_list() == ["b", "a", "d", "c", "f"]
    hours = found["gpu_hours_lost"].to_list()
    assert hours[:2] == [pytest.approx(n, rel=1e-2) for n in (3, 2)]
    assert hours[2:] == [None] * 3


@pytest.mark.usefixtures("made")
def test_a_user_that_the_run_names_is_who_ran_it(tmp_path: Path) -> None:
    small_run(tmp_path / "r", user="alice")
    row = only(tmp_path)
    assert (row["user"], row["owner"]) == ("alice", tmp_path.owner())


def test_runs_that_ended_before_are_left_out_and_not_looked_into(
    tmp_path: Path, made: list[str]
) -> None:
    old = aged(small_run(tmp_path / "old", created_ns=OLD * SECOND))
    for name, ended in (("early", T0 + HOUR), ("late", T0 + 3 * HOUR)):
        write_process(write_run(tmp_path / name), ended_ns=ended)
    write_process(write_run(tmp_path / "going on"), state="live", ended_ns=None)
    found = all_runs(tmp_path, since_ns=T0 + 2 * HOUR)
    assert sorted(found["run"]) == ["going on", "late"]
    assert old.name not in made


# -- which runs there are ------------------------------------------------------------------------


@pytest.mark.usefixtures("made")
def test_runs_are_found_at_any_depth_but_imports_and_hidden_folders_are_none(
    tmp_path: Path,
) -> None:
    for path in ("top", "alice/one", "team/bob/2026/two", ".hidden/x", "y.json.haiprof"):
        small_run(tmp_path / path)
    small_run(tmp_path / "top" / "within")
    small_run(tmp_path / "traces" / schema.IMPORT_FOLDER)
    (tmp_path / "alice" / "circle").symlink_to(tmp_path)
    (tmp_path / "alice" / "itself").symlink_to("itself")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / schema.RUN_FILE)
    found = all_runs(tmp_path)["folder"].to_list()
    mine = [one for one in found if "circle" not in one]
    assert sorted(mine) == ["alice/one", "team/bob/2026/two", "top"]
    assert len(found) <= 2 * len(mine)


def test_no_run_is_an_empty_frame_and_no_folder_is_an_error(tmp_path: Path) -> None:
    assert all_runs(tmp_path).schema == pl.Schema(COLUMNS)
    assert all_runs(tmp_path).height == 0
    (tmp_path / "file").write_text("")
    for name, says in (("file", "is a file"), ("missing", "no such folder")):
        with pytest.raises(HaiprofError, match=says):
            all_runs(tmp_path / name)


@pytest.mark.usefixtures("made")
def test_a_run_itself_is_one_row_and_nothing_is_written_into_it(tmp_path: Path) -> None:
    run = small_run(tmp_path / "r")
    before = sorted(run.iterdir())
    assert only(run)["run"] == "r"
    assert sorted(run.iterdir()) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_what_is_closed_to_us_is_a_row_and_the_index_is_in_our_cache(
    tmp_path: Path, cache: Path, made: list[str]
) -> None:
    logs = tmp_path / "logs"
    small_run(logs / "theirs")
    small_run(logs / "mine")
    aged(logs)
    for folder in (logs, *logs.parents, cache, *cache.parents):
        if folder.owner() == "root" and str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    (logs / "theirs").chmod(0o700)
    cache.chmod(0o777)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        found = {row["run"]: row["problem"] for row in all_runs(logs).to_dicts()}
        all_runs(logs)
        (kept,) = (cache / "haiprof").iterdir()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        notes: list[str] = []
        shutil.rmtree(cache / "haiprof")
        os.environ["XDG_CACHE_HOME"] = str(tmp_path / "nowhere")
        all_runs(logs, note=notes.append)
    finally:
        os.seteuid(0)
        os.setegid(0)
    assert found == {"mine": None, "theirs": "closed to others by root"}
    assert made == ["mine", "mine"]
    assert not index_of(logs).exists()
    assert len(notes) == 1
    assert "Permission denied" in notes[0]


# -- what may be wrong with a run ----------------------------------------------------------------


def test_what_is_wrong_with_a_run_is_one_line_and_hides_no_other(tmp_path: Path) -> None:
    make_run(tmp_path / "good", steps=30)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / schema.RUN_FILE).write_text('{"format"')
    damaged = make_run(tmp_path / "damaged", steps=30)
    (damaged / "n0#0" / "spans-0.arrow").write_bytes(b"ARROW1\0\0" + os.urandom(5000))
    large = write_run(tmp_path / "large")
    with (write_process(large) / schema.PROCESS_FILE).open("r+b") as file:
        file.truncate(1 << 30)
    forged = small_run(tmp_path / "forged")
    write_json(forged / schema.RUN_FILE, {"format": schema.RUN_FORMAT, "version": "9"})
    rows = {row["run"]: row for row in all_runs(tmp_path).to_dicts()}
    assert rows["good"]["steps"] == 30
    assert rows["good"]["problem"] is None
    assert "cut off or not JSON" in rows["torn"]["problem"]
    assert "spans-0.arrow" in rows["damaged"]["problem"]
    assert rows["damaged"]["ranks"] == 1
    assert "has 1024 MiB" in rows["large"]["problem"]
    assert "field 'version' is 9" in rows["forged"]["problem"]
    assert all("\n" not in (row["problem"] or "") for row in rows.values())


def test_what_no_answer_expects_costs_a_run_its_figures_and_nobody_else_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, steps=30)
    of_steps = run_row._of_steps
    monkeypatch.setattr(run_row, "_of_steps", lambda found: 1 / 0)
    broken = row_of(tmp_path / "a")
    monkeypatch.setattr(run_row, "_of_steps", of_steps)
    assert broken["problem"] == "cannot be summed up: ZeroDivisionError: division by zero"
    assert (broken["ranks"], broken["steps"]) == (1, None)
    assert row_of(tmp_path / "b")["steps"] == 30


@pytest.mark.usefixtures("made")
def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    evil = b"\x1b]0;x\x07\n\xff"
    run = small_run(tmp_path / "r", command=["\x1b[2J", "x" * 5000], user="\udcff\x1b")
    run.rename(os.fsdecode(os.fsencode(tmp_path) + b"/" + evil))
    row = only(tmp_path)
    assert row["folder"] == os.fsdecode(evil).encode("utf-8", "replace").decode()
    assert len(row["command"]) <= 400
    assert all_runs(tmp_path).height == 1


# -- the index -----------------------------------------------------------------------------------


def test_a_row_is_made_once_until_something_of_its_run_changes(
    tmp_path: Path, made: list[str]
) -> None:
    for name in "abcd":
        make_run(tmp_path / name, steps=30)
    aged(tmp_path)
    first = all_runs(tmp_path)
    assert sorted(made) == list("abcd")
    assert stat.S_IMODE(index_of(tmp_path).stat().st_mode) == 0o600
    made.clear()
    assert_frame_equal(all_runs(tmp_path), first)
    assert made == []
    # A rank more, a document written in place, a segment closed; each with an old time.
    write_process(tmp_path / "a", 1)
    document = tmp_path / "b" / "n0#0" / schema.PROCESS_FILE
    document.write_text(document.read_text().replace("closed", "died"))
    segment = tmp_path / "c" / "n0#0" / "spans-0.arrow"
    segment.rename(segment.with_name("spans-1.arrow"))
    for name in "abc":
        aged(tmp_path / name)
    all_runs(tmp_path)
    assert sorted(made) == list("abc")


def test_what_changed_just_now_is_not_relied_on(tmp_path: Path, made: list[str]) -> None:
    small_run(tmp_path / "r")
    all_runs(tmp_path)
    all_runs(tmp_path)
    assert made == ["r", "r"]


def test_a_run_with_a_problem_is_read_again_once_any_file_of_it_changes(tmp_path: Path) -> None:
    segment = make_run(tmp_path / "r", steps=30) / "n0#0" / "spans-0.arrow"
    whole = segment.read_bytes()
    segment.write_bytes(b"no table")
    aged(tmp_path)
    assert only(tmp_path)["problem"] is not None
    _lie(index_of(tmp_path))
    assert only(tmp_path)["ranks"] == 99
    segment.write_bytes(whole)
    aged(tmp_path)
    assert only(tmp_path)["problem"] is None


_RUNS = st.sampled_from("abc")
_CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "rank", "end", "remove", "rename", "torn"]), _RUNS, _RUNS),
    min_size=1,
    max_size=5,
)


@settings(max_examples=12, deadline=None)
@given(_CHANGES)
@pytest.mark.usefixtures("made")
def test_the_answer_is_the_same_without_an_index(changes: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        logs = Path(name)
        small_run(logs / "a")
        for change, one, other in changes:
            _change(logs, change, logs / one, logs / other)
            aged(logs)
            with_index = all_runs(logs)
            assert index_of(logs).exists() or not with_index.height
            kept = index_of(logs).read_bytes() if with_index.height else b""
            index_of(logs).unlink(missing_ok=True)
            assert_frame_equal(with_index, all_runs(logs))
            if kept:
                index_of(logs).write_bytes(kept)
                index_of(logs).chmod(0o600)


def _change(logs: Path, change: str, run: Path, other: Path) -> None:
    if change == "add" and not run.exists():
        small_run(run, created_ns=T0 + ord(run.name) * MS)
    elif change == "rank" and run.exists():
        write_process(run, len(list(run.glob("n0#*"))))
    elif change == "end" and run.exists():
        ended = {"kind": "failed", "exit_code": 1, "text": "failed", "time_ns": T0}
        write_process(run, 0, ended=ended, ended_ns=T0 + SECOND)
    elif change == "remove":
        shutil.rmtree(run, ignore_errors=True)
    elif change == "rename" and run.exists() and not other.exists():
        run.rename(other)
    elif change == "torn" and run.exists():
        (run / schema.RUN_FILE).write_text("{")


def _garbage(index: Path) -> None:
    index.write_bytes(b"PAR1" + os.urandom(3000) + b"PAR1")


def _cut(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-500])


def _of_another_version(index: Path) -> None:
    index.write_bytes(index.read_bytes().replace(b"haiprof-runs", b"haiprof-rune"))


def _lies_by_others(index: Path) -> None:
    _lie(index)
    index.chmod(0o666)


def _huge(index: Path) -> None:
    os.truncate(index, 1 << 40)


def _other_columns(index: Path) -> None:
    pl.DataFrame({"path": ["r"], "ranks": [99]}).write_parquet(index)


def _pipe(index: Path) -> None:
    index.unlink()
    os.mkfifo(index)


def _link(index: Path) -> None:
    _lie(index)
    index.rename(index.parent.parent / "elsewhere")
    index.symlink_to(index.parent.parent / "elsewhere")


def _lie(index: Path) -> None:
    rows = run_index.decode(index.read_bytes())
    assert rows.height == 1
    index.write_bytes(run_index.encode(rows.with_columns(pl.lit(99, pl.Int64).alias("ranks"))))


BROKEN = [
    *(_garbage, _cut, _of_another_version, _lies_by_others, _huge, _other_columns, _pipe, _link)
]


@pytest.mark.parametrize("breaks", BROKEN, ids=lambda breaks: breaks.__name__)
def test_an_index_that_cannot_be_trusted_is_made_anew(
    tmp_path: Path, made: list[str], breaks: Callable[[Path], None]
) -> None:
    logs = tmp_path / "logs"
    small_run(logs / "r")
    aged(logs)
    assert only(logs)["ranks"] == 1
    breaks(index_of(logs))
    before = (tmp_path / "elsewhere").read_bytes() if breaks is _link else b""
    assert only(logs)["ranks"] == 1
    assert only(logs)["ranks"] == 1
    assert made == ["r", "r"]
    assert index_of(logs).is_file()
    assert not index_of(logs).is_symlink()
    if breaks is _link:
        assert (tmp_path / "elsewhere").read_bytes() == before


@pytest.mark.usefixtures("made")
def test_a_lie_in_an_index_of_ours_would_be_believed(tmp_path: Path) -> None:
    """The control of the test above: what is not broken is used."""
    small_run(tmp_path / "r")
    aged(tmp_path)
    only(tmp_path)
    _lie(index_of(tmp_path))
    assert only(tmp_path)["ranks"] == 99


_WRITER = """
import sys
from pathlib import Path
from haiprof.answers import run_row
from haiprof.answers.all_runs import all_runs
run_row._add_tables = lambda row, run: None
logs = Path(sys.argv[1])
for number in range(12):
    document = logs / sys.argv[2] / "n0#0" / "process.json"
    document.write_text(document.read_text())
    found = all_runs(logs)
    assert found["run"].sort().to_list() == ["a", "b", "c"], found
    assert found["problem"].null_count() + found["problem"].str.contains("process.json").sum() == 3
"""


def test_many_may_write_the_index_at_once(tmp_path: Path) -> None:
    for name in "abc":
        small_run(tmp_path / name)
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), name]) for name in "ab"
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert run_index.decode(index_of(tmp_path).read_bytes()).height == 3
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c", index_of(tmp_path).name}


@pytest.mark.usefixtures("made")
def test_what_a_killed_writer_left_is_removed_later(tmp_path: Path) -> None:
    small_run(tmp_path / "r")
    left = tmp_path / f"{index_of(tmp_path).name}-n0-1-2"
    young = tmp_path / f"{index_of(tmp_path).name}-n0-1-3"
    left.touch()
    aged(tmp_path)
    young.touch()
    all_runs(tmp_path)
    assert not left.exists()
    assert young.exists()


# -- runs that go on -----------------------------------------------------------------------------


def test_a_run_that_goes_on_is_made_anew_once_a_minute_and_when_it_ends(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "r", created_ns=T0)
    process = write_process(run, state="live", ended_ns=None, gpus=[{"device": 0, "uuid": "GPU-1"}])
    write_closed(process, schema.SPANS, loop(30))
    aged(tmp_path)
    row = only(tmp_path)
    assert (row["running"], row["state"], row["ended"]) == (True, "silent", None)
    lives = all_runs(tmp_path, lives=lambda folder: folder.name == "r")
    assert lives["state"].to_list() == ["recording"]
    # Nothing was written: the row holds although it is old.
    monkeypatch.setattr(module, "FRESH_NS", 0)
    only(tmp_path)
    assert made == ["r"]
    (process / "spans-0.arrow").touch()
    monkeypatch.setattr(module, "FRESH_NS", HOUR)
    only(tmp_path)
    assert made == ["r"]
    monkeypatch.setattr(module, "FRESH_NS", 0)
    only(tmp_path)
    assert made == ["r", "r"]
    monkeypatch.setattr(module, "FRESH_NS", HOUR)
    document = json.loads((process / schema.PROCESS_FILE).read_text())
    document |= {"state": "closed", "ended_ns": T0 + SECOND}
    write_json(process / schema.PROCESS_FILE, document)
    row = only(tmp_path)
    assert (row["running"], row["state"], row["ended"]) == (False, "ended", T0 + SECOND)


# -- executors -----------------------------------------------------------------------------------


def test_an_executor_makes_the_rows_and_its_work_can_be_sent_elsewhere(tmp_path: Path) -> None:
    for name in "ab":
        make_run(tmp_path / name, steps=30)
    with ThreadPoolExecutor(1) as executor:
        assert all_runs(tmp_path, executor)["steps"].to_list() == [30, 30]
    work = partial(module._row, LogDir(tmp_path), LogDir(tmp_path).runs()[0])
    assert pickle.loads(pickle.dumps(work))()["steps"] == 30


class _Breaks(Executor):
    """Does one thing, then its processes are gone."""

    def __init__(self) -> None:
        self.done = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.done:
            future.set_exception(BrokenProcessPool("killed"))
        else:
            future.set_result(fn(*args, **kwargs))
        self.done += 1
        return future


def test_what_was_made_before_it_broke_is_kept(tmp_path: Path, made: list[str]) -> None:
    for name in "abc":
        small_run(tmp_path / name)
    aged(tmp_path)
    with pytest.raises(HaiprofError, match="executor is broken"):
        all_runs(tmp_path, _Breaks())
    made.clear()
    all_runs(tmp_path)
    assert sorted(made) == ["b", "c"]


@pytest.mark.usefixtures("made")
def test_who_waits_learns_how_far_it_is(tmp_path: Path) -> None:
    for name in "abc":
        small_run(tmp_path / name)
    aged(tmp_path)
    said: list[tuple[int, int]] = []
    all_runs(tmp_path, on_row=lambda *numbers: said.append(numbers))
    assert said == [(1, 3), (2, 3), (3, 3)]
    said.clear()
    all_runs(tmp_path, on_row=lambda *numbers: said.append(numbers))
    assert said == []


# -- behind a URL --------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[Any, str, Path]]:
    """Yield an object store, a URL in it, and a folder with the runs that are there, too."""
    logs = tmp_path / "logs"
    make_gpu_run(logs / "alice" / "a", ranks=2)
    make_run(logs / "b", steps=30)
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs.clear()
    files.put(f"{logs}/", "/logs/", recursive=True)
    yield files, "memory://logs", logs
    files.store.clear()
    files.pseudo_dirs.clear()


def test_an_object_store_gives_the_same_rows_and_keeps_the_index(
    store: tuple[Any, str, Path], made: list[str]
) -> None:
    files, url, logs = store
    there = all_runs(url)
    assert there["owner"].null_count() == 2
    unknown = ["user", "owner"]
    assert_frame_equal(there.drop(unknown), all_runs(logs).drop(unknown))
    assert files.exists("/logs/.haiprof-runs.parquet")
    made.clear()
    assert_frame_equal(all_runs(url), there)
    assert made == []
    document = json.loads(files.cat_file("/logs/b/n0#0/process.json"))
    files.pipe_file("/logs/b/n0#0/process.json", json.dumps({**document, "pid": 7}).encode())
    all_runs(url)
    assert made == ["b"]
    assert_frame_equal(Analyzer.runs(url), all_runs(f"{url}/"))


@pytest.mark.usefixtures("made")
def test_a_store_that_cannot_be_written_is_said_once(
    store: tuple[Any, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, url, _ = store

    def refused(*words: object, **named: object) -> None:
        raise PermissionError("read-only token")

    monkeypatch.setattr(type(files), "pipe_file", refused)
    notes: list[str] = []
    assert all_runs(url, note=notes.append).height == 2
    (line,) = notes
    assert "cannot be written: read-only token" in line


@pytest.mark.usefixtures("made")
def test_names_of_a_store_lead_nowhere(store: tuple[Any, str, Path], tmp_path: Path) -> None:
    files, url, _ = store
    files.pipe_file("/logs/b/../../../../../escaped-1.arrow", b"x")
    files.pipe_file("/logs/b/n0#0/../../escaped-2.arrow", b"x")
    files.pipe_file("/logs/b/n0#0/.hidden.arrow", b"x")
    files.pipe_file("/logs/../c/run.json", b"{}")
    seen = {one.path: one for one in LogUrl(url).runs()}
    assert set(seen) == {"alice/a", "b"}
    names = [name for name, _ in seen["b"].files]
    assert all(".." not in name and ".hidden" not in name for name in names)
    assert all_runs(url).height == 2


def test_what_is_too_large_to_fetch_says_so(
    store: tuple[Any, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from haiprof.sources import log_urls

    _, url, _ = store
    monkeypatch.setattr(log_urls, "_LARGEST_RUN", 5000)
    assert all("too much to be fetched" in line for line in all_runs(url)["problem"])


def test_a_url_that_leads_nowhere_is_an_error(store: tuple[Any, str, Path]) -> None:
    for url in ("memory://nothing", "nosuch://bucket"):
        with pytest.raises(HaiprofError, match=url):
            all_runs(url)


@pytest.mark.usefixtures("made")
def test_a_url_of_this_machine_is_a_folder_of_it(tmp_path: Path) -> None:
    small_run(tmp_path / "r")
    aged(tmp_path)
    assert all_runs(f"file://{tmp_path}")["owner"].to_list() == [tmp_path.owner()]
    assert index_of(tmp_path).exists()


def test_of_many_runs_each_is_only_looked_at_from_outside(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        small_run(tmp_path / f"run-{number}")
    aged(tmp_path)
    all_runs(tmp_path)
    made.clear()
    read: list[Path] = []
    monkeypatch.setattr(own, "open_regular", read.append)
    assert all_runs(tmp_path).height == 200
    assert (made, read) == ([], [])
