"""What looks at stacks may fail, hang, or say anything: the recorder neither waits nor believes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from recording import wait_for

from haiprof.recorder import hang_look
from haiprof.recorder.hang_look import Look

HANG: dict[str, Any] = {
    "kind": "rank_never_arrived", "problem": "Rank 1 never came", "advice": "look", "ranks": [1],
    "waiting": [0], "lasts_s": 64.0, "culprits": [],
}  # fmt: skip


def started(monkeypatch: pytest.MonkeyPatch, program: str) -> Look:
    monkeypatch.setattr(hang_look, "_PROGRAM", program.replace("{", "{{").replace("}", "}}"))
    return Look("r", [1, 2], 60.0, 10.0)


def over(look: Look) -> bool:
    begun = time.monotonic()
    ended = look.over()
    assert time.monotonic() - begun < 1, "the recorder waits"
    return ended


def answer(look: Look) -> dict[str, Any] | None:
    wait_for(lambda: over(look), what="its end")
    return look.answer()


def says(**said: Any) -> str:
    return f"print({json.dumps(said)!r})"


def test_it_is_told_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    look = started(
        monkeypatch,
        "import json, sys; hang = {**json.loads('" + json.dumps(HANG) + "'), 'kind': "
        "' '.join(sys.argv[1:])}; print(json.dumps({'hang': hang, 'problem': None}))",
    )
    found = answer(look)
    assert found is not None
    assert found["kind"] == "r 60.0 10.0 1 2"


def test_that_nothing_hangs_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(started(monkeypatch, says(hang=None, problem=None))) is None


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("", "Expecting value"),
        ("print('rubbish')", "Expecting value"),
        ("print('[]')", "said something else"),
        ("print('[' * 100000)", "said something else"),
        ("import os; os.write(1, bytes(range(128, 256)))", "codec"),
        (says(hang=None), "said something else"),
        (says(hang=5, problem=None), "said something else"),
        (says(hang={**HANG, "ranks": "all"}, problem=None), "said something else"),
        (says(hang={**HANG, "lasts_s": -1}, problem=None), "-1"),
        (says(hang=HANG, problem="no stacks"), "no stacks"),
        ("import sys; sys.exit(3)", "ended with status 0x300"),
        ("import os; os.abort()", "ended with status"),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "said too much"),
    ],
)
def test_what_is_no_answer_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    look = started(monkeypatch, program)
    with pytest.raises(ValueError, match=why):
        answer(look)


@pytest.mark.parametrize("program", ["", "import os; os.close(1)", "print('{}', flush=True)"])
def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(hang_look, "SECONDS", -9.0)
    look = started(monkeypatch, f"{program}\nwhile True: pass")
    with pytest.raises(ValueError, match="took too long"):
        answer(look)


def test_it_has_no_descriptor_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = f"""
import os
links = []
for fd in range(100):
    try:
        links.append(os.readlink(f"/proc/self/fd/{{fd}}"))
    except FileNotFoundError:
        pass
open({str(said)!r}, "w").write("\\n".join(links))
"""
    with (tmp_path / "lock").open("w") as lock:
        with pytest.raises(ValueError, match="Expecting value"):
            answer(started(monkeypatch, program))
        links = said.read_text().splitlines()
        assert lock.name not in links
    assert (links[0], links[2]) == ("/dev/null", "/dev/null")
    assert links[1].startswith("pipe:")


def test_the_end_of_the_recorder_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    look = started(monkeypatch, "import time; time.sleep(600)")
    pid = look._pid
    assert not over(look)
    look.end()
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_one_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(hang_look.sys, "executable", "/no/python")
    with pytest.raises(FileNotFoundError):
        Look("r", [1], 60.0, 10.0)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
