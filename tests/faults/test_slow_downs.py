"""Jobs that become slow: what counts as found, and that one can be made so."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from types import ModuleType

import pytest
from faults import slow_downs
from faults.cases import KINDS
from faults.drawn import MLP, job, task
from faults.record import PROGRAMS
from faults.slow_downs import Cores, Dice, Row


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Modules of the programs, which are run as scripts elsewhere."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    return {name: importlib.import_module(f"parts.{name}") for name in ("settings", "tasks")}


def row(name: str = "host_code", kind: str | None = "host_code", late: float = 30.0) -> Row:
    said = None if kind is None else {"kind": kind, "text": "why", "ranks": [0]}
    return Row(name, 0, 0.5, said, None if kind is None else late, ())


def test_only_the_true_kind_in_time_is_right() -> None:
    assert row().right
    assert not row(late=61.0).right
    assert not row(kind="logging").right
    assert not row(kind=None).right


def test_the_table_has_what_was_said_and_when() -> None:
    alarm = {"kind": "gil", "text": "another thread", "ranks": [0]}
    rows = [
        row(), row(kind="logging", late=20.0), row("logging", None),
        Row("tensor_work", 0, 0.05, None, None, ()),  # too little to be one
        Row("healthy", 3, 0.0, None, None, (alarm,)),
    ]  # fmt: skip
    text = slow_downs.table(rows)
    assert "| `host_code` | 2 | 1 | 50%, 50% | 30 s, 20 s | logging |" in text
    assert "| `logging` | 1 | 0 | 50% | - | nothing |" in text
    assert "tensor_work" not in text
    assert "| **all** | 3 | 1 |" in text
    assert "False alarms in 5 jobs: 1." in text
    assert "- healthy, seed 3: gil: another thread" in text


def test_faults_are_between_the_shares_of_a_step_that_are_asked_for() -> None:
    dice = Dice("any", 0.1, 0.5)
    drawn = [dice.ms() for _ in range(500)]
    assert 4.5 <= min(drawn) < 5
    assert 20 < max(drawn) <= 22.5


def test_each_seed_draws_something_that_programs_can_do(parts: dict[str, ModuleType]) -> None:
    for name, draw in slow_downs.KINDS.items():
        assert name in KINDS
        begins, ranks = draw(Dice(f"{name} 1", 0.125, 2))
        assert begins == draw(Dice(f"{name} 1", 0.125, 2))[0]
        assert not begins or begins["do"] in parts["tasks"].KINDS
        assert ranks in (1, 2)


def test_a_task_waits_for_its_file(parts: dict[str, ModuleType], tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    made = job(MLP, task("between", "pause", 1, after=str(switch)))
    given = [parts["settings"].Task(**each) for each in made["tasks"]]
    helper = parts["tasks"].Helper(parts["settings"].Job("", "", tasks=tuple(given)))
    assert helper.due("between", 5) == []
    switch.touch()
    assert helper.due("between", 5) == given


def test_ranks_wait_for_their_cores() -> None:
    cores, order = Cores(2), []
    both = cores.taken(2)
    both.__enter__()
    other = threading.Thread(target=lambda: _note(cores, order))
    other.start()
    order.append("first")
    both.__exit__(None, None, None)
    other.join(30)
    assert order == ["first", "second"]


def _note(cores: Cores, order: list[str]) -> None:
    with cores.taken(1):
        order.append("second")
