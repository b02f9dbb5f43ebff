"""What a loop spends on trackers is said where no stacks were sampled, and once."""

from __future__ import annotations

from typing import Any

from charged_lives import MS, span
from recorded_cases import STEPS, found, life, line, rank, torch_lines

#: Each step ends with 20 ms in no phase.
STEP = 119


def logging(ms: float, *names: str) -> Any:
    """Return a life that logs for so long in each step, to one tracker after the other."""
    spans = [
        span(100 + STEP * step + 100 + number * ms, ms, "user", f"logging.{name}", step)
        for step in range(STEPS)
        for number, name in enumerate(names)
    ]
    return life({"other": 20.0}, spans=spans)


def test_it_is_said_without_stacks() -> None:
    (finding,) = found(rank(logging(9, "mlflow", "tensorboard")))
    assert finding.kind == "logging"
    assert finding.problem == (
        "The training thread logs to MLflow and TensorBoard between the phases"
    )
    assert finding.lost_ns == STEPS * 18 * MS
    assert finding.phase == "other"


def test_a_little_is_not_worth_a_sentence() -> None:
    assert found(rank(logging(3, "wandb"))) == []


def test_stacks_know_the_line_and_are_enough() -> None:
    report = line("other", 18, "report (/job/train.py:30)", outer="wandb", package="wandb")
    (finding,) = found(rank(logging(18, "wandb"), [report, *torch_lines(101)]))
    assert (finding.kind, finding.line) == ("logging", "report (/job/train.py:30)")
