"""What steps were spent on, made known beside the rings while somebody wants it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from exported import rows

from haiprof import schema
from haiprof.common.owned_files import Folder
from haiprof.common.places import FIGURES_MARK, FIGURES_NAME, open_rings
from haiprof.recorder import figures
from haiprof.recorder.figures import Figures, StepSums

#: Kinds, names and durations of the parts of two steps of training, and one of inference.
ROWS = (
    ("step", "", 100),
    ("phase", "forward", 40),
    ("phase", "backward", 30),
    ("wait", "all_reduce", 20),
    ("user", "mine", 7),
    ("other", "", 10),
    ("inference_step", "", 1000),
    ("phase", "forward", 900),
    ("step", "", 200),
    ("phase", "forward", 150),
    ("device_phase", "forward", 777),
)
SUMS: dict[str, Any] = {
    "steps": 2,
    "duration": 300,
    "phases": {"forward": 190, "backward": 30},
    "parts": {"wait": 20, "other": 10},
}


def read(sums: StepSums, *given: tuple[str, str, int]) -> None:
    """Give rows as they are written."""
    named = [dict(zip(("kind", "name", "duration"), one, strict=True)) for one in given]
    sums.read(rows(schema.STEP_PARTS, *named))


def test_steps_of_training_are_summed_up() -> None:
    sums = StepSums()
    read(sums, *ROWS)
    assert sums.as_json() == SUMS
    read(sums, ("phase", "forward", 7), ("step", "", 50), ("phase", "optimizer", 50))
    assert sums.steps == 3
    assert sums.phases == {**SUMS["phases"], "optimizer": 50}, "the first is of no step"


def test_of_countless_names_the_most_are_one() -> None:
    sums = StepSums()
    read(sums, ("step", "", 1000), *(("phase", f"p{n}", 1) for n in range(1000)))
    assert len(sums.phases) <= 33
    assert sum(sums.phases.values()) == 1000


class Process(NamedTuple):
    pid: int
    rank: int | None
    role: str = "rank"

    def sums(self) -> StepSums:
        sums = StepSums()
        read(sums, *ROWS)
        return sums


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def rings(shm: Path) -> Folder:
    return open_rings(shm / "haiprof-test" / "r", make=True)


def said(rings: Folder) -> Any:
    return json.loads(rings.read(FIGURES_NAME))


def test_it_is_made_known_only_when_it_is_wanted(rings: Folder) -> None:
    clock = Clock()
    known = Figures(rings, clock)
    ranks = [Process(5, 0), Process(6, None, "process")]
    known.turn([], ranks)
    assert not rings.has(FIGURES_NAME)
    known.turn([FIGURES_MARK], ranks)
    assert said(rings) == {"ranks": [{"pid": 5, "rank": 0, **SUMS}]}
    known.turn([FIGURES_MARK], [])
    assert said(rings)["ranks"], "it is not time to"
    clock.now += 10
    known.turn([FIGURES_MARK], [])
    assert said(rings) == {"ranks": []}


def test_no_room_is_tried_again_and_anything_else_ends_it(
    rings: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    known = Figures(rings, clock)
    wrong: list[BaseException] = [OSError(28, "no space"), ValueError("odd")]

    def write(*_: Any) -> None:
        calls.append(1)
        if wrong:
            raise wrong.pop(0)

    calls: list[int] = []
    monkeypatch.setattr(figures, "write_json", write)
    for _ in range(4):
        known.turn([FIGURES_MARK], [Process(5, 0)])
        clock.now += 10
    assert len(calls) == 2
