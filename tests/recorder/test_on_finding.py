"""The command that is run for findings: whatever it does, the recorder goes on at once."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from recording import wait_for

from haiprof.recorder import on_finding
from haiprof.recorder.on_finding import OnFinding

ABOUT = {"run": "r", "run_dir": "/logs/r", "node": "n0"}
GIL = {"kind": "gil", "ranks": [0], "over": False}
#: Writes what it gets into a new file of its folder.
KEEPS = """
import os, sys
folder = sys.argv[1]
path = f"{folder}/{len(os.listdir(folder))}"
with open(path + ".part", "w") as file:
    file.write(sys.stdin.read())
os.rename(path + ".part", path)
"""


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def command(program: str, *words: object) -> str:
    return " ".join([sys.executable, "-c", f"'{program}'", *map(str, words)])


def turned(runs: OnFinding, until: Callable[[], Any]) -> Any:
    """Take turns until something is so; none of them may wait."""

    def turn() -> Any:
        begun = time.monotonic()
        runs.turn()
        assert time.monotonic() - begun < 2, "the recorder waits"
        return until()

    return wait_for(turn, what="the command")


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def given(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]"))]


def test_the_command_gets_what_has_happened(tmp_path: Path) -> None:
    runs = OnFinding(command(KEEPS, tmp_path), ABOUT)
    runs.add("finding", "Another thread has the GIL", GIL)
    turned(runs, lambda: given(tmp_path))
    (said,) = given(tmp_path)
    (event,) = said.pop("events")
    assert said == {"format": "haiprof-on-finding", "version": "1.0", **ABOUT, "left_out": 0}
    assert abs(event.pop("time_ns") / 1e9 - time.time()) < 60
    assert event == {"event": "finding", "text": "Another thread has the GIL", **GIL}
    runs.close()


def test_there_is_one_a_minute_and_the_next_gets_what_came_meanwhile(tmp_path: Path) -> None:
    clock = Clock()
    runs = OnFinding(command(KEEPS, tmp_path), ABOUT, clock)
    runs.add("hang", "the job hangs", {})
    turned(runs, lambda: not runs._waiting and not runs._pid)
    for number in range(25):
        runs.add("finding", str(number), GIL)
        runs.turn()
    assert len(given(tmp_path)) == 1
    assert not runs._pid
    clock.ahead += 60
    turned(runs, lambda: len(given(tmp_path)) == 2)
    later = given(tmp_path)[1]
    assert [event["text"] for event in later["events"]] == [str(n) for n in range(5, 25)]
    assert later["left_out"] == 5
    runs.close()


def test_one_that_hangs_is_ended_with_its_children_and_never_a_second_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    hangs = 'import os, sys, time; os.fork(); open(f"{sys.argv[1]}/{os.getpid()}", "w"); '
    runs = OnFinding(command(hangs + "time.sleep(600)", tmp_path), ABOUT, clock)
    runs.add("finding", "first", GIL)
    pids = turned(runs, lambda: len(found := names(tmp_path)) == 2 and found)
    running = runs._pid
    runs.add("finding", "second", GIL)
    clock.ahead += 29
    runs.turn()
    assert runs._pid == running
    clock.ahead += 2
    turned(runs, lambda: not runs._pid)
    wait_for(lambda: not any(_lives(pid) for pid in pids), what="the end of both")
    assert "ended after 30 s" in caplog.text
    clock.ahead += 30
    runs.turn()
    assert runs._pid not in (0, running)
    runs._kill()


def test_one_that_cannot_be_ended_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that has become another user's: killpg() may not reach it."""
    clock, kill = Clock(), os.killpg
    waits = 'import os, sys, time; open(f"{sys.argv[1]}/{os.getpid()}", "w"); time.sleep(600)'
    runs = OnFinding(command(waits, tmp_path), ABOUT, clock)
    runs.add("finding", "first", GIL)
    turned(runs, lambda: names(tmp_path))
    monkeypatch.setattr(os, "killpg", Mock(side_effect=PermissionError))
    running = runs._pid
    clock.ahead += 31
    runs.add("finding", "second", GIL)
    runs.turn()
    runs.turn()
    assert runs._pid == running
    clock.ahead += 60
    runs.close()
    assert len(names(tmp_path)) == 1
    kill(running, signal.SIGKILL)
    os.waitpid(running, 0)


def _lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (command("import sys; sys.exit(3)"), "ended with status 0x300"),
        ("/no/such/command", "cannot be started: No such file"),
        ("/", "cannot be started: Permission denied"),
    ],
)
def test_one_that_fails_is_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture, words: str, why: str
) -> None:
    runs = OnFinding(words, ABOUT)
    runs.add("finding", "text", GIL)
    with caplog.at_level(logging.WARNING):
        turned(runs, lambda: why in caplog.text)
    assert len(caplog.records) == 1
    assert not runs._pid


def test_whoever_says_much_or_reads_nothing_is_not_waited_for() -> None:
    flood = 'import os; [os.write(fd, b"x" * 65536) for _ in range(1000) for fd in (1, 2)]'
    runs = OnFinding(command(flood), ABOUT)
    for _ in range(20):
        runs.add("finding", "x" * 100_000, GIL)
    turned(runs, lambda: not runs._waiting and not runs._pid)


def test_its_environment_and_descriptors_are_not_the_recorders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HAIPROF_ENABLED", "MALLOC_ARENA_MAX", "WEBHOOK"):
        monkeypatch.setenv(name, "1")
    program = """
import json, os, sys
fds = [int(fd) for fd in os.listdir("/proc/self/fd")]
here = [os.readlink(f"/proc/self/fd/{fd}") for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]
out = {"names": list(os.environ), "files": here}
with open(sys.argv[1] + "/part", "w") as file:
    json.dump(out, file)
os.rename(sys.argv[1] + "/part", sys.argv[1] + "/0")
"""
    with (tmp_path / "lock").open("w") as lock:
        runs = OnFinding(command(program, tmp_path), ABOUT)
        runs.add("finding", "text", GIL)
        (said,) = turned(runs, lambda: given(tmp_path))
        assert lock.name not in said["files"]
    assert "WEBHOOK" in said["names"]
    assert not {"HAIPROF_ENABLED", "MALLOC_ARENA_MAX"} & set(said["names"])
    runs.close()


def test_at_the_end_what_waits_is_given_and_nothing_outlives_the_recorder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = OnFinding(command(KEEPS, tmp_path), ABOUT)
    runs.add("finding", "first", GIL)
    turned(runs, lambda: not runs._waiting and not runs._pid)
    runs.add("finding", "last", GIL)
    monkeypatch.setattr(on_finding, "_LAST_S", 60.0)
    runs.close()
    assert [said["events"][0]["text"] for said in given(tmp_path)] == ["first", "last"]
    monkeypatch.setattr(on_finding, "_LAST_S", 0.5)
    runs = OnFinding(command("import time; time.sleep(600)"), ABOUT)
    runs.add("finding", "text", GIL)
    runs.turn()
    pid = runs._pid
    runs.close()
    assert not _lives(str(pid))


def test_without_a_command_nothing_is_kept() -> None:
    runs = OnFinding("", ABOUT)
    runs.add("finding", "text", GIL)
    runs.turn()
    runs.close()
    assert not runs._waiting
