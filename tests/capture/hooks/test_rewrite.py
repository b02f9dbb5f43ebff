"""Code with a call before and a call after a function's body."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

import pytest
import torch

from haiprof.capture.hooks.rewrite import with_calls

seen: list[Any] = []


def falls_off_its_end(value: int) -> None:
    seen.append(value)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def rewritten(code: CodeType) -> FunctionType:
    return FunctionType(code, globals())


def enter(value: int) -> None:
    seen.append(f"enter {value}")


def leave() -> None:
    seen.append("leave")


def test_the_calls_lie_around_the_body() -> None:
    rewritten(with_calls(falls_off_its_end, "value", enter, leave))(7)
    assert seen == ["enter 7", 7, "leave"]


def test_a_body_without_a_return_runs_once_while_torch_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    rewritten(with_calls(falls_off_its_end, "value", enter, leave))(7)
    assert seen == [7]


def test_a_call_that_is_interrupted_right_after_it_was_entered_is_left() -> None:
    def interrupted(value: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewritten(with_calls(falls_off_its_end, "value", interrupted, leave))(7)
    assert seen == ["leave"]
