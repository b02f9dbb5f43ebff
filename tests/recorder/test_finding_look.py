"""What looks for what costs time may fail, hang, or say anything: it is not believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recording import wait_for

from haiprof.common.live_findings import Found
from haiprof.recorder import finding_look
from haiprof.recorder.finding_look import Look

FOUND = Found("gil", "Another thread has the GIL", "move it", (0, 2), 0.25, "spin (t.py:4)")
GIVEN: dict[str, Any] = FOUND.as_json()


def answer(monkeypatch: pytest.MonkeyPatch, program: str) -> list[Found]:
    monkeypatch.setattr(finding_look, "_PROGRAM", program.replace("{", "{{").replace("}", "}}"))
    look = Look(Path("runs/r"), "n0", [(1, 2), (3, 4)])
    wait_for(look.over, what="its end")
    assert look.cost > 0
    return look.answer()


def says(**said: Any) -> str:
    return f"print({json.dumps(said)!r})"


def test_it_is_told_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    given = json.dumps({"findings": [GIVEN], "problem": None})
    program = f"import sys; print({given!r}.replace('move it', ' '.join(sys.argv[1:])))"
    (found,) = answer(monkeypatch, program)
    assert found == FOUND._replace(advice="180 runs/r n0 1 2 3 4")


def test_texts_cannot_control_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {**GIVEN, "problem": "a\x1b[2Jb\n" + "x" * 10_000, "line": None}
    (found,) = answer(monkeypatch, says(findings=[odd], problem=None))
    assert found.problem.startswith("a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}xx")
    assert len(found.problem) == 4000


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("print('rubbish')", "Expecting value"),
        ("print('[]')", "said something else"),
        (says(findings=5, problem=None), "said something else"),
        (says(findings=[5], problem=None), "said something else"),
        (says(findings=[{**GIVEN, "ranks": [-1]}], problem=None), "no ranks"),
        (says(findings=[{**GIVEN, "share": 7}], problem=None), "7"),
        (says(findings=[{**GIVEN, "kind": 5}], problem=None), "said something else"),
        (says(findings=[GIVEN], problem="no run"), "no run"),
        ("import sys; sys.exit(3)", "ended with status 0x300"),
    ],
)
def test_what_is_no_answer_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        answer(monkeypatch, program)
