"""What torch.compile compiles in real programs: how long it takes, and why it does so again."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from recording import run_python
from torch import nn

from haiprof import _core
from haiprof.capture import hooks


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def spans(recorded: Any) -> list[Any]:
    return [row for row in recorded.spans() if row.name.startswith("compile")]


def test_each_compilation_is_a_span_and_an_event(recorded: Any) -> None:
    def doubled(x: Any) -> Any:
        return x * 2

    function = torch.compile(doubled, backend="eager", dynamic=False)
    for length in (3, 3, 4, 4):
        function(torch.ones(length))
    first, again = recorded.events("compile")
    assert first["function"] == again["function"] == "doubled"
    assert (first["file"], first["line"]) == (__file__, doubled.__code__.co_firstlineno)
    assert (first["recompiles"], again["recompiles"]) == (0, 1)
    assert first["frame"] == again["frame"]
    assert first["reason"] is None
    assert "size mismatch at index 0. expected 3, actual 4" in again["reason"]
    assert first["operators"] >= 1
    assert first["failed"] is None
    rows = spans(recorded)
    assert [row.name for row in rows] == ["compile", "compile"]
    for row, event in zip(rows, (first, again), strict=True):
        assert event["duration_ns"] == pytest.approx(row.duration, rel=0.5)


def test_a_backward_pass_that_is_compiled_later_counts_too(recorded: Any) -> None:
    model = nn.Linear(4, 1)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(3):
        compiled(torch.ones(2, 4)).sum().backward()
    frame, backward = recorded.events("compile")
    assert (frame["what"], backward["what"]) == ("compile", "compile.backward")
    assert backward["compile_id"] == frame["compile_id"]
    assert backward["function"] is None
    first, second = spans(recorded)
    assert first.end <= second.start
    # It is a part of the step's backward pass.
    around = next(
        row for row in recorded.spans() if row.name == "backward" and row.end > second.start
    )
    assert around.start <= second.start <= second.end <= around.end


def test_what_cannot_be_compiled_says_why_and_fails_as_ever(recorded: Any) -> None:
    def broken(x: Any) -> Any:
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, backend="eager", fullgraph=True)(torch.ones(2))
    (only,) = recorded.events("compile")
    assert only["function"] == "broken"
    assert only["failed"] == "Unsupported"
    assert "graph_break" in only["failure"]


def test_compilations_are_seen_after_the_compiler_was_reset(recorded: Any) -> None:
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert len(recorded.events("compile")) == 1


def test_a_compiler_that_keeps_no_records_leaves_the_reason_unknown(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._dynamo.utils, "_compilation_metrics", deque(maxlen=0))
    function = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    for length in (3, 4):
        function(torch.ones(length))
    first, again = recorded.events("compile")
    assert (again["function"], again["recompiles"]) == ("<lambda>", 1)
    assert again["reason"] is again["operators"] is first["failed"] is None


def test_the_compiler_is_afterwards_as_it_was() -> None:
    from torch._dynamo import callback, convert_frame

    handler = callback.CompilationCallbackHandler
    before = convert_frame._compile, vars(handler)["install_callbacks"]
    for _ in range(2):
        hooks.install()
        assert hooks.status()["compilations"] == "on: torch._dynamo"
        assert convert_frame._compile is not before[0]
        hooks.uninstall()
        assert (convert_frame._compile, vars(handler)["install_callbacks"]) == before


def test_an_error_of_ours_reaches_nobody(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any) -> None:
        raise RuntimeError("no more memory")

    monkeypatch.setattr(_core, "Span", refused)
    monkeypatch.setattr(_core, "event", refused)
    model = nn.Linear(4, 1)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(torch.ones(2, 4)).sum().backward()
    assert model.weight.grad is not None
    monkeypatch.undo()
    assert recorded.events("compile") == []


@pytest.mark.parametrize("wait", [False, True])
def test_the_compiler_is_awaited_not_imported(wait: bool) -> None:
    program = """
        import sys, torch
        from haiprof.capture import hooks
        there = "torch._dynamo.convert_frame" in sys.modules
        hooks.install(lambda kind, text: print(text))
        assert ("torch._dynamo.convert_frame" in sys.modules) == there
        state = hooks.status()["compilations"]
        assert state == (
            "on: torch._dynamo" if there else "waiting: torch.compile has not been used"), state
        if sys.argv[1] == "True":
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
            assert hooks.status()["compilations"] == "on: torch._dynamo"
        hooks.uninstall()
        convert = sys.modules.get("torch._dynamo.convert_frame")
        assert not hasattr(getattr(convert, "_compile", None), "__wrapped__")
        print("done")
    """
    assert run_python(program, str(wait)) == "done\n"


def test_an_unknown_compiler_is_reported_and_left_alone(recorded: Any) -> None:
    from torch._dynamo import convert_frame

    hooks.uninstall()
    original = convert_frame._compile
    del convert_frame._compile
    try:
        hooks.install(lambda kind, text: recorded.reports.append((kind, text)))
        assert hooks.status()["compilations"].startswith("off: ")
    finally:
        convert_frame._compile = original
    assert [text.partition(":")[0] for _, text in recorded.reports] == [
        "compilations cannot be attached"
    ]
    recorded.reports.clear()
    assert sys.modules[convert_frame.__name__]._compile is original
