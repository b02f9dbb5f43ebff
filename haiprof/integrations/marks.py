"""What callbacks record in the same way, and that none of their errors reaches the job.

For the callbacks here alone: a job calls :func:`haiprof.mark`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import haiprof

_Given = ParamSpec("_Given")


def harmless(hook: Callable[_Given, None]) -> Callable[_Given, None]:
    """Return a hook that raises nothing into the framework that calls it."""

    @functools.wraps(hook)
    def called(*args: _Given.args, **keywords: _Given.kwargs) -> None:
        with contextlib.suppress(Exception):
            hook(*args, **keywords)

    return called


def train(framework: str, **known: Any) -> None:
    """Record that training begins, and what the framework knows of it."""
    haiprof.mark("train", framework=framework, **known)


def epoch(number: int, step: int) -> None:
    """Record that an epoch begins after so many steps."""
    haiprof.mark("epoch", number=number, step=step)


def step_done(number: int) -> None:
    """Record how many steps are done, as the framework counts them."""
    haiprof.mark("trainer.step.count", number)


def evaluated(step: int) -> None:
    """Record that an evaluation has ended, after so many steps."""
    haiprof.mark("evaluated", step=step)


def train_end(step: int) -> None:
    """Record that training has ended, after so many steps."""
    haiprof.mark("train_end", step=step)
