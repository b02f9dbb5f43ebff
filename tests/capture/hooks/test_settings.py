"""Settings of torch in real loops: read before a few backward passes, recorded when they change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from recording import run_python
from torch import nn

from haiprof import _core
from haiprof.capture import hooks
from haiprof.capture.hooks.passes import Passes


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(passes: int) -> None:
    model = nn.Linear(4, 1)
    for _ in range(passes):
        model(torch.ones(2, 4)).sum().backward()


def test_threads_are_recorded_at_the_first_pass_and_when_they_change(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    train(7)
    torch.set_num_threads(2)
    train(20)
    first, second = recorded.events("threads")
    assert first == {
        "num_threads": 1,
        "num_interop_threads": torch.get_num_interop_threads(),
        "omp_num_threads": "3",
        "mkl_num_threads": os.environ.get("MKL_NUM_THREADS"),
        "cpus": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)),
        "local_world_size": "4",
    }
    assert second == first | {"num_threads": 2}


def test_types_and_checks_are_those_of_the_training_thread(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever another test of this process has left.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autograd.detect_anomaly(check_nan=False):
            model = nn.Linear(4, 4)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.ones(2, 4)).sum()
            loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    train(20)
    first, second = recorded.events("autograd")
    seen = [{"device": "cpu", "dtype": "bfloat16", "enabled": True}]
    assert first == {
        "anomaly_detection": True,
        "anomaly_check_nan": False,
        "default_dtype": "float32",
        "matmul_precision": "highest",
        "profiler": False,
        "deterministic": True,
        "cudnn_benchmark": False,
        "cudnn_deterministic": False,
        "autocast": seen,
    }
    assert second["anomaly_detection"] is second["deterministic"] is False
    assert second["autocast"] == seen


def test_what_torch_does_not_know_or_tell_is_null(
    recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contradicted() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", contradicted)
    monkeypatch.delattr(torch._C, "_get_cudnn_benchmark")
    train(1)
    (only,) = recorded.events("autograd")
    assert only["matmul_precision"] is only["cudnn_benchmark"] is None
    assert only["default_dtype"] == "float32"


def test_after_the_last_look_nothing_of_it_is_left(recorded: Any) -> None:
    engine = type(torch.autograd.Variable._execution_engine)
    autocast = torch.amp.autocast_mode.autocast
    train(19)
    assert not isinstance(vars(engine)["run_backward"], _core.WrappedCall)
    assert hasattr(autocast.__enter__, "__wrapped__")
    train(1)
    assert not hasattr(autocast.__enter__, "__wrapped__")
    train(979)
    assert not isinstance(vars(engine)["run_backward"], _core.WrappedCall)
    train(1)
    assert isinstance(vars(engine)["run_backward"], _core.WrappedCall)


def test_threads_that_change_later_are_recorded_too(recorded: Any) -> None:
    train(30)
    torch.set_num_threads(2)
    train(30)
    torch.set_num_threads(1)
    train(150)
    assert [each["num_threads"] for each in recorded.events("threads")] == [1, 2, 1]


def test_a_profiler_that_begins_and_ends_later_is_recorded(recorded: Any) -> None:
    train(30)
    with torch.profiler.profile():
        train(30)
    train(150)
    assert [each["profiler"] for each in recorded.events("autograd")] == [False, True, False]


def test_detaching_before_the_last_look_restores_everything() -> None:
    before = torch.amp.autocast_mode.autocast.__enter__
    hooks.install()
    engine = type(torch.autograd.Variable._execution_engine)
    train(2)
    hooks.uninstall()
    assert torch.amp.autocast_mode.autocast.__enter__ is before
    assert isinstance(vars(engine)["run_backward"], _core.WrappedCall)


def test_autocast_without_any_backward_pass_is_left_alone_after_a_while(recorded: Any) -> None:
    for _ in range(1000):
        assert hasattr(torch.amp.autocast_mode.autocast.__enter__, "__wrapped__")
        with torch.autocast("cpu"):
            pass
    assert not hasattr(torch.amp.autocast_mode.autocast.__enter__, "__wrapped__")
    train(1)
    (only,) = recorded.events("autograd")
    assert [each["device"] for each in only["autocast"]] == ["cpu"]


def test_what_a_pass_is_waited_for_may_fail_and_wait_for_another() -> None:
    class Engine:
        def run_backward(self, *given: int) -> int:
            return sum(given)

    passes, called = Passes(), []
    original = Engine.run_backward

    def first() -> None:
        called.append("first")
        passes.before(2, lambda: called.append("later"))
        raise RuntimeError("an unknown torch")

    passes.before(1, first)  # before there is an engine
    passes.watch(Engine)
    engine = Engine()
    assert engine.run_backward(1, 2) == 3
    assert called == ["first"]
    engine.run_backward()
    assert called == ["first"]
    engine.run_backward()
    assert called == ["first", "later"]
    assert Engine.run_backward is original


COMPILED = """
    import json, sys, torch
    from torch._dynamo.utils import counters
    from haiprof.capture import hooks

    if sys.argv[1] == "hooks":
        hooks.install(lambda kind, text: print(text, file=sys.stderr))
    model = torch.nn.Linear(4, 4)

    @torch.compile(backend="aot_eager")
    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).sum()

    @torch.compile(backend="aot_eager")
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def decorated(x):
        return model(x).sum()

    for n in range(24):
        function(torch.ones(2, 4)).backward()
        decorated(torch.ones(2, 4)).backward()
    print(json.dumps({k: dict(v) for k, v in counters.items() if k != "inductor" and v}))
"""


def test_torch_compile_makes_the_same_of_autocast() -> None:
    plain = json.loads(run_python(COMPILED, "plain", warm=True))
    assert plain["stats"]["unique_graphs"] == 2
    assert json.loads(run_python(COMPILED, "hooks", warm=True)) == plain


def test_passes_that_the_compiler_only_traces_do_not_count(recorded: Any) -> None:
    torch._dynamo.reset()
    model = nn.Linear(4, 1)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(torch.ones(2, 4)).sum().backward()  # traced with anomaly detection of its own
    torch._dynamo.reset()
    (only,) = recorded.events("autograd")
    assert only["anomaly_detection"] is False
