"""``haiprof runs``: the table, its totals, what is left out, JSON and the page."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from commands import haiprof, haiprof_on_terminal, only_line
from runs import SECOND, T0, loop, write_closed, write_process, write_run

from haiprof import schema
from haiprof.answers import run_row
from haiprof.answers.all_runs import COLUMNS
from haiprof.answers.run_row import CAUSES
from haiprof.cli import runs as module
from haiprof.cli.arguments import UsageError
from haiprof.cli.runs import Wanted, show_runs
from haiprof.common.numbers import hours
from haiprof.errors import HaiprofError
from haiprof.show.page import all_runs as page
from haiprof.show.run_hours import total

HOUR = 3600 * SECOND


@pytest.fixture(autouse=True)
def _no_tables(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make rows of this process quickly: what tables add is given, by the name of the run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))

    def added(row: dict[str, Any], run: Any) -> None:
        kind, _, lost = row["run"].partition("-")
        share = int(lost) / 100
        row["rank_hours"] = row["ranks"] * row["duration"] / HOUR
        row["rank_hours_lost"] = row["rank_hours"] * share
        row["lost_shares"] = {**dict.fromkeys(CAUSES), kind: share}
        if row["gpus"]:
            row["gpu_hours"] = row["gpus"] * row["duration"] / HOUR
            row["gpu_hours_lost"] = row["gpu_hours"] * share
        row["findings"], row["finding"] = ["input"], "The loader is <b>slow</b>"

    monkeypatch.setattr(run_row, "_add_tables", added)


def run(logs: Path, name: str, hours: float, gpus: int = 0, **changes: object) -> Path:
    """Make a run called after what its hours were lost to, and how many percent of them."""
    folder = write_run(logs / name, run=name.rpartition("/")[2], **changes)
    of = [{"device": n, "uuid": f"GPU-{n}", "name": "NVIDIA H100"} for n in range(gpus)]
    write_process(folder, gpus=of, ended_ns=T0 + round(hours * HOUR))
    return folder


def shown(capsys: pytest.CaptureFixture[str], *words: Any, **named: Any) -> list[str]:
    show_runs(*words, Wanted(**named))
    return capsys.readouterr().out.splitlines()


def test_what_wastes_most_is_the_first_line_and_it_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(tmp_path, "hang-50", 1, gpus=8, user="alice")
    run(tmp_path, "startup-10", 1000, user="bob")
    run(tmp_path, f"{'deep-' * 10}/data-75", 2, gpus=4, user="bob")
    summary, heading, *lines = shown(capsys, str(tmp_path))
    assert summary == (
        "3 runs of 2 users: 16 GPU h, 10 of them lost; 1 000 rank h, 100 of them lost "
        "(GPU h: data 6, hang 4)"
    )
    assert heading.split()[:5] == ["LOST", "SHARE", "MOSTLY", "TO", "RUN"]
    found = [re.split(r"\s{2,}", line) for line in lines]
    assert [row[:3] for row in found] == [
        ["6 GPU h", "75 %", "data"],
        ["4 GPU h", "50 %", "hang"],
        ["100 rank h", "10 %", "startup"],
    ]
    assert found[0][3].endswith("data-75")
    assert [row[4] for row in found] == ["bob", "alice", "bob"]
    assert all(len(line) <= 80 for line in lines)


def test_a_wide_terminal_shows_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    run(tmp_path, "hang-50", 1, gpus=8)
    _, heading, line = shown(capsys, str(tmp_path))
    assert heading.split()[-2:] == ["STEPS", "FINDING"]
    assert line.endswith("The loader is <b>slow</b>")


def test_only_the_first_are_listed_and_all_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    for number in range(5):
        run(tmp_path / str(number), "hang-50", number + 1, gpus=1)
    lines = shown(capsys, str(tmp_path))
    assert lines[0].startswith("5 runs: 15 GPU h, 7.5 of them lost")
    assert lines[-1] == "and 3 that lost less: --all lists them, too"
    assert len(lines) == 5
    assert len(shown(capsys, str(tmp_path), all_runs=True)) == 7


def test_runs_of_one_user_and_since_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "hang-50", 1, user="alice")
    run(tmp_path, "data-50", 100, user="bob")
    logs = str(tmp_path)
    assert len(shown(capsys, logs, user="alice")) == 3
    assert len(shown(capsys, logs, user=tmp_path.owner())) == 4
    with pytest.raises(HaiprofError, match=r"--user 'alise': .* did you mean 'alice'"):
        shown(capsys, logs, user="alise")
    when = datetime.fromtimestamp(T0 / 1e9 + 7200).isoformat(timespec="seconds")
    (line,) = shown(capsys, logs, since=when)[2:]
    assert "data" in line
    assert shown(capsys, logs, since="1d") == [f"no run in {logs} went on since then"]
    for word in ("yesterday", "7", "d", "-1d", "99999999d", "2026-13-01"):
        with pytest.raises(UsageError, match="--since"):
            shown(capsys, logs, since=word)


def test_spans_are_of_time_until_now(tmp_path: Path) -> None:
    for text, seconds in (("90m", 5400), ("12h", 43_200), ("7d", 604_800), ("1.5w", 907_200)):
        assert time.time() - module._since(text) / 1e9 == pytest.approx(seconds, abs=60)


def test_json_has_all_that_is_known_of_all_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST", 1)
    run(tmp_path, "hang-50", 1, gpus=8)
    run(tmp_path, "data-50", 1)
    document = json.loads("\n".join(shown(capsys, str(tmp_path), as_json=True)))
    assert (document["format"], document["version"]) == ("haiprof-runs", "1.0")
    assert [list(row) for row in document["runs"]] == [list(COLUMNS)] * 2
    first, second = document["runs"]
    assert first["lost_to"]["hang"] == first["gpu_hours_lost"] == 4
    assert first["lost_to"]["data"] is None
    assert second["lost_to"] is None


def test_the_keys_of_the_json_are_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "runs.md").read_text("utf-8")
    named = {word for line in text.splitlines() if line.startswith("| `") for word in
             re.findall(r"`(\w+)`", line.split("|")[1])}  # fmt: skip
    assert set(COLUMNS) - named == set()
    assert set(CAUSES) - named == set()


def test_no_run_is_an_error_and_in_json_an_empty_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HaiprofError, match="no run lies in it"):
        shown(capsys, str(tmp_path))
    assert json.loads("".join(shown(capsys, str(tmp_path), as_json=True)))["runs"] == []


def test_hostile_names_drive_no_terminal_and_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;x\x07\n</script><script>alert(1)"
    run(tmp_path, "hang-50", 1, user=evil, command=[evil]).rename(tmp_path / evil.replace("/", "_"))
    lines = shown(capsys, str(tmp_path))
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    file = tmp_path / "page.html"
    shown(capsys, str(tmp_path), html=file)
    assert "<script>alert" not in file.read_text("utf-8")


def test_the_page_has_bars_and_a_table_of_every_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_BARS", 1)
    logs = tmp_path / "logs"
    run(logs, "hang-50", 1, gpus=8)
    run(logs, "idle-25", 1, gpus=4)
    run(logs, "exposed_communication-25", 10)
    (logs / "torn").mkdir()
    (logs / "torn" / schema.RUN_FILE).write_text("{")
    assert shown(capsys, str(logs), html=tmp_path / "p.html") == [str(tmp_path / "p.html")]
    text = (tmp_path / "p.html").read_text("utf-8")
    data = re.search(r'<script type="application/json" id="document">(.*?)</script>', text)
    assert data is not None
    document = json.loads(data[1])
    assert document["headline"][0].startswith("4 runs: 12 GPU h, 5 of them lost; 10 rank h")
    gpus, ranks, table, texts = document["tabs"][0]["sections"]
    assert gpus["categories"] == ["hang-50"]
    assert gpus["parts"] == [{"name": "hang", "values": [4.0]}]
    assert gpus["note"] == "The 1 of 2 runs that lost most."
    assert ranks["parts"] == [{"name": "communication", "values": [2.5]}]
    assert table["rows"] == 4
    columns = {column["name"]: column for column in table["columns"]}
    assert columns["run"]["values"] == ["hang-50", "idle-25", "exposed_communication-25", "torn"]
    assert columns["GPU h lost"]["order"] == [4, 1, None, None]
    assert columns["state"]["values"][3].startswith("run.json: cut off")
    assert "MFU" not in columns  # it is known of none
    assert texts["columns"][1]["values"][0] == "The loader is <b>slow</b>"


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    run(tmp_path, "hang-50", 1)
    with pytest.raises(HaiprofError, match="cannot be written"):
        show_runs(str(tmp_path), Wanted(html=tmp_path / "no" / "page.html"))


def test_a_link_in_the_log_directory_is_replaced_by_the_page(tmp_path: Path) -> None:
    run(tmp_path / "logs", "hang-50", 1)
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "logs" / "page.html").symlink_to(tmp_path / "victim")
    show_runs(str(tmp_path / "logs"), Wanted(html=tmp_path / "logs" / "page.html"))
    assert (tmp_path / "victim").read_text() == "mine"


def test_what_is_wrong_stands_beside_the_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    (run(tmp_path, "hang-50", 1) / "n0#0" / schema.PROCESS_FILE).write_text("{")
    write_process(tmp_path / "hang-50", 1, ended_ns=T0 + HOUR)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / schema.RUN_FILE).write_text("{")
    lines = shown(capsys, str(tmp_path))
    assert "ended; n0#0/process.json: cut off or not JSON" in lines[2]
    assert re.split(r"\s{2,}", lines[3])[5] == "run.json: cut off or not JSON"


def test_what_is_not_known_of_any_run_is_in_no_total() -> None:
    assert total(pl.DataFrame(schema=COLUMNS)) == "0 runs"
    assert [*map(hours, (1234.5, 12.34, 0.0328, 1e-5, 0))] == [
        *("1 234", "12.3", "0.033", "under 0.01", "0")
    ]


def test_the_command_sums_up_what_was_recorded(tmp_path: Path) -> None:
    """From the command line, with tables."""
    process = write_process(write_run(tmp_path / "r"), ended_ns=T0 + HOUR)
    write_closed(process, schema.SPANS, loop(50))
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = haiprof("runs", tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    summary, _, line = done.stdout.splitlines()
    assert summary == "1 run: 1 rank h, 1 of them lost"
    assert re.split(r"\s{2,}", line)[:4] == ["1 rank h", "100 %", "shutdown", "r"]
    wrong = haiprof("runs", tmp_path, "--since", "then", env=env)
    assert wrong.returncode == 2
    assert "--since 'then': give a date" in only_line(wrong)
    assert haiprof("runs", tmp_path / "nothing", env=env).returncode == 1


def test_who_waits_sees_how_far_it_is(tmp_path: Path) -> None:
    for number in range(3):
        write_process(write_run(tmp_path / f"r{number}"))
    env = {**os.environ, "TERM": "xterm"}
    code, printed, seen = haiprof_on_terminal("runs", tmp_path, "--json", env=env)
    assert (code, len(json.loads(printed)["runs"])) == (0, 3)
    assert "summing up runs" in seen
